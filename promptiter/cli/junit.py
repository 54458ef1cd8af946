"""JUnit XML, which every CI system shows: a suite of tests with the messages of those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from traces.text import cut

MAX_MESSAGE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class JUnitTest:
    """One test. One with a message failed, or could not be decided if its `kind` is error."""

    name: str
    seconds: float = 0.0
    message: str | None = None
    kind: Literal["failure", "error"] = "failure"


def suite_as_junit(name: str, tests: Sequence[JUnitTest]) -> str:
    """A test suite as a document of JUnit XML."""
    failed = [test.kind for test in tests if test.message is not None]
    suite = ElementTree.Element(
        "testsuite",
        name=_xml_text(name),
        tests=str(len(tests)),
        failures=str(failed.count("failure")),
        errors=str(failed.count("error")),
    )
    for test in tests:
        found = ElementTree.SubElement(
            suite, "testcase", classname=_xml_text(name), name=_xml_text(test.name), time=f"{test.seconds:.3f}"
        )
        if test.message is not None:
            message = _xml_text(test.message)
            ElementTree.SubElement(found, test.kind, message=cut(message, MAX_MESSAGE)).text = message
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text: str) -> str:
    """Text without characters that XML does not allow."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
