"""FileReviewer: `promptiter run --review file`. Each patch is a file in the run's folder, and waits for a decision.

All patches of a round are written at once, so that several people can review them. The name of a file contains a digest
of what is asked: a run that was killed and resumed finds the same files, and what was answered is not asked again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml

from promptiter.engine.review import Review, ReviewAction, ReviewRequest
from promptiter.errors import StopRequestedError, SurfaceValueError, nearest
from promptiter.llm.redaction import MASK, Redactor
from promptiter.profile import SurfaceChange
from promptiter.text_diff import find_hunks
from promptiter.wording import join_names, path_from_here, plural, shorten
from traces import digest
from traces.model import Json

FOLDER = "review"
POLL_S = 1.0
"""Seconds between two looks at the files."""

HEAD = """\
# promptiter waits for this review. Fill in `decision` last, save the file, and the run continues.
#   approve: try the patch
#   edit:    try the text under `value` instead, which you change
#   veto:    do not try it; the optimizer reads your `reason`
"""
REST = """
# Below is what the decision is about. Changes there have no effect.
"""


class FileReviewer:
    """A Reviewer that waits for decisions in files of a folder.

    It calls `notify` with the files that it waits for, and with what is wrong in them. Once `find_stop_request` returns
    how a stop was requested, it raises a StopRequestedError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        notify: Callable[[str], None] = lambda _: None,
        find_stop_request: Callable[[], str | None] = lambda: None,
        redactor: Redactor | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self.folder = Path(folder)
        self._notify = notify
        self._find_stop_request = find_stop_request
        self._redactor = redactor or Redactor()
        self._poll_s = poll_s

    async def review(self, request: ReviewRequest) -> Review:
        [answer] = await self.review_batch([request])
        return answer

    async def review_batch(self, requests: Sequence[ReviewRequest]) -> list[Review]:
        """Wait until all patches are decided on."""
        files = [_ReviewFile(self.folder, each, self._redactor) for each in requests]
        reported: dict[Path, str] = {}
        answers = self._read(files, reported)
        if waiting := [file for file in files if not file.has_decision]:
            self._announce(waiting)
        while True:
            if (found := [answer for answer in answers if answer is not None]) and len(found) == len(files):
                return found
            if (reason := self._find_stop_request()) is not None:
                raise StopRequestedError(reason)
            await asyncio.sleep(self._poll_s)
            answers = self._read(files, reported)

    def _read(self, files: Sequence[_ReviewFile], reported: dict[Path, str]) -> list[Review | None]:
        """The decisions so far. A problem of a file is reported once, until it is another one."""
        answers = []
        for file in files:
            answer = file.read()
            problem = answer if isinstance(answer, str) else ""
            if problem and reported.get(file.path) != problem:
                self._notify(f"{path_from_here(file.path)}: {problem}; still waiting")
            reported[file.path] = problem
            answers.append(answer if isinstance(answer, Review) else None)
        return answers

    def _announce(self, waiting: Sequence[_ReviewFile]) -> None:
        names = join_names([str(path_from_here(file.path)) for file in waiting], limit=4)
        self._notify(f"waiting for {plural(len(waiting), 'review')}: {names}")


class _ReviewFile:
    """The file of one request. It is written if it does not exist."""

    def __init__(self, folder: Path, request: ReviewRequest, redactor: Redactor) -> None:
        self._request = request
        self._shown = redactor.redact_json(request.patch.value)
        self._document = _describe_request(request, redactor)
        self.path = _find_path(folder, request)
        self.has_decision = False
        self._text = ""
        self._is_missing = False
        if not self.path.exists():
            self._write()

    def read(self) -> Review | str | None:
        """The decision; None if there is none yet, or what is wrong with it.

        It counts if the file is still the same at the next look: some editors write a file in pieces.
        """
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            if self._is_missing:  # not only while an editor replaces it
                self._write()
            self._is_missing = not self._is_missing
            return None
        except (OSError, UnicodeDecodeError) as error:
            return f"it cannot be read ({shorten(str(error))})"
        self._is_missing = False
        answer, is_settled = self._parse_text(text), text == self._text
        self._text, self.has_decision = text, isinstance(answer, Review)
        return answer if is_settled else None

    def _parse_text(self, text: str) -> Review | str | None:
        try:
            document, words = yaml.safe_load(text), yaml.load(text, Loader=yaml.BaseLoader)
        except yaml.YAMLError as error:
            place = getattr(error, "problem_mark", None)
            where = "" if place is None else f" in line {place.line + 1}"
            return f"this is not valid YAML{where}: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        if document is None:
            return None
        if not isinstance(document, dict):
            return "it must have the keys decision, reason and value"
        if "decision" not in document:
            return "it has no decision; write decision: approve, edit or veto"
        return self._parse(document, words)

    def _parse(self, document: dict[str, Any], words: dict[str, Any]) -> Review | str | None:
        """`words` is the document without what YAML makes of words such as `no`."""
        decision, value = words["decision"], document.get("value", self._shown)
        if document["decision"] is None or decision == "":
            return None
        word = str(decision).strip().lower()
        if word not in get_args(ReviewAction):
            known = get_args(ReviewAction)
            return f"decision is {shorten(decision)}{nearest(word, known)}; write approve, edit or veto"
        reason = "" if document.get("reason") is None else " ".join(str(words["reason"]).split())
        is_changed = _normalize(value) != _normalize(self._shown)
        if word == "veto":
            return Review(action="veto", reason=reason)
        if word == "approve":
            return "decision is approve, but value was changed; write edit to use it" if is_changed else Review()
        return self._parse_edit(value, reason) if is_changed else "decision is edit, but value was not changed"

    def _parse_edit(self, value: Json, reason: str) -> Review | str:
        if isinstance(value, str) and isinstance(self._request.patch.value, str):
            value = _keep_last_line(value, like=self._request.patch.value)
        if MASK in str(value) and self._shown != self._request.patch.value:
            return f"value contains {MASK}, which stands for a secret; write the text without it"
        try:
            self._request.surface.check(value)
        except SurfaceValueError as error:
            return f"value cannot be used: {error.problem}"
        if problem := self._request.find_problem(value):
            return f"value cannot be used: {problem}"
        return Review(action="edit", value=value, reason=reason)

    def _write(self) -> None:
        """Write the file atomically, so that a reviewer never sees a part of it."""
        answer = {"decision": None, "reason": None, "value": self._shown}
        text = HEAD + _dump(answer) + REST + _dump(self._document)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.path)


def _find_path(folder: Path, request: ReviewRequest) -> Path:
    """The file of a request: the one that asks for the same, or a new one with the next number."""
    surface, patch = request.surface, request.patch
    asked = digest([surface.id, digest(surface.value), digest(patch.value)])[:8]
    known = sorted(path.name for path in folder.glob("[0-9]*.yaml"))
    same = [name for name in known if name.endswith(f"_{asked}.yaml")]
    last = max((int(name.partition("_")[0]) for name in known if name.partition("_")[0].isdecimal()), default=0)
    name = re.sub(r"[^\w.]+", "-", surface.id)[:60]
    return folder / (same[0] if same else f"{last + 1:04}_{name}_{asked}.yaml")


def _describe_request(request: ReviewRequest, redactor: Redactor) -> dict[str, Json]:
    """What a person needs to decide: the diff, the reasons, and the evidence."""
    surface, patch, signal = request.surface, request.patch, request.signal
    document: dict[str, Json] = {
        "surface": surface.id,
        "diff": _write_diff(SurfaceChange(surface.id, surface.value, patch.value)),
        "blame": signal.text,
        "patch": patch.reason,
        "cases": list(signal.case_ids),
        "steps": list(patch.evidence.steps),
        "gradients": list(patch.evidence.gradients),
    }
    if len(patch.edits) > 1:
        document["edits"] = [
            {"before": each.before, "after": each.after, "reason": each.reason, "cases": list(each.evidence.cases)}
            for each in patch.edits
        ]
    document["current_value"] = surface.value
    shown: dict[str, Json] = redactor.redact_json(document)
    return shown


def _write_diff(change: SurfaceChange) -> str:
    """The sentences that are removed and added; of other values, both."""
    if not (isinstance(change.before, str) and isinstance(change.after, str)):
        return change.as_text()
    pairs = [("-", each.before, "+", each.after) for each in find_hunks(change.before, change.after)]
    lines = [
        (sign, line) for a, old, b, new in pairs for sign, text in ((a, old), (b, new)) for line in text.splitlines()
    ]
    return "\n".join(f"{sign} {line}" for sign, line in lines)


def _normalize(value: Json) -> Json:
    """A value without what an editor changes by itself: white space at the end of lines and of the text."""
    return "\n".join(line.rstrip() for line in value.strip().splitlines()) if isinstance(value, str) else value


def _keep_last_line(value: str, *, like: str) -> str:
    """A text that ends as another does: editors and YAML add a line break at the end, or drop it."""
    return value.rstrip("\n") + like[len(like.rstrip("\n")) :]


class _Dumper(yaml.SafeDumper):
    """Writes a text of several words as it is, for an editor, and a list of names in few lines."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if len(text.split()) > 1 else None)


def _represent_list(dumper: yaml.SafeDumper, items: list[Json]) -> yaml.SequenceNode:
    is_flat = all(isinstance(each, str | int | float) for each in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_flat)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)


def _dump(document: dict[str, Json]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    text = re.sub(r"\n\.\.\.\n\Z", "\n", text)  # the end of a document, after a text that ends with an empty line
    return re.sub(r"(?m)^(decision|reason): null$", r"\1:", text, count=2)
