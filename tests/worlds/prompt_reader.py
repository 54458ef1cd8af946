"""Reads the prompts of the LLM stages, for scripted models that may use only what a prompt shows.

`read_prompt` is the only code of the tests that knows how these prompts are laid out: a scripted model gets steps,
surfaces, reports and examples as plain data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from promptiter.llm.messages import ModelRequest
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSurface:
    """An editable surface and its current value. The alias is what an answer calls it."""

    alias: str
    id: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """A step with what it was given and what it gave. `blamable` are the aliases of the surfaces that it may blame."""

    alias: str
    node: str
    input: str
    output: str
    calls: tuple[str, ...] = ()
    blamable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """One failed run: its steps, and for a step that is asked about alone, the outputs of its predecessors by alias.

    `reports` are the findings, by the aliases that answers cite.
    """

    user: str
    expected: str
    reports: Mapping[str, str]
    steps: tuple[ShownStep, ...]
    predecessors: Mapping[str, str] = field(default_factory=dict)
    predecessor_nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamePrompt:
    """Asks what is to blame in failed runs: one step of a run, or whole runs."""

    runs: tuple[ShownRun, ...]
    surfaces: Mapping[str, ShownSurface]
    is_one_step: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePrompt:
    """Asks to merge points on one surface."""

    surface: ShownSurface
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExample:
    """A step that ran with the surface's current value, by the names of its quotes: `step input`, `step output`, …"""

    quotes: Mapping[str, str]
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizePrompt:
    """Asks for a new value of a surface. `signal` says what should change, `rejected` what did not help.

    An answer has the new value, also says which change answers which point of the signal, or has only edits.
    """

    surface: ShownSurface
    signal: str
    form: Literal["value", "changes", "edits"] = "value"
    examples: tuple[ShownExample, ...]
    rejected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectPrompt:
    """Asks for the output that a step should have given."""

    run: ShownRun
    step: ShownStep
    surfaces: tuple[ShownSurface, ...]
    diagnosis: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectPrompt:
    """Asks for a new text of a component after a look at whole cases. `runs` have the steps of its node only."""

    surface: ShownSurface
    runs: tuple[ShownRun, ...]
    signal: str = ""


StagePrompt: TypeAlias = BlamePrompt | MergePrompt | OptimizePrompt | CorrectPrompt | ReflectPrompt


def read_prompt(request: ModelRequest) -> StagePrompt:
    """The prompt of a stage as data. Which stage asks shows in the schema of the answer."""
    wanted: Mapping[str, Json] = (request.schema or {}).get("properties", {})
    prompt = next(each.content for each in request.messages if each.role == "user")  # a repair comes after it
    sections = _Sections(_read_sections(prompt))
    if "is_correctable" in wanted:
        return _read_correct(sections)
    if sections.list_starting("# Case "):
        return _read_reflect(sections)
    if "value" in wanted or "edits" in wanted:
        return _read_optimize(sections, "edits" if "edits" in wanted else "changes" if "changes" in wanted else "value")
    if "points" in wanted:
        return MergePrompt(surface=_read_edited_surface(sections), points=tuple(sections.find("points").split("\n")))
    return _read_traces(sections) if sections.list_starting("# Run ") else _read_step(sections)


@dataclass(slots=True)
class _Section:
    title: str
    quotes: list[tuple[str, str]]

    def find(self, name: str) -> str:
        return next((text for each, text in self.quotes if each == name), "")

    def list_numbered(self, name: str) -> tuple[str, ...]:
        return tuple(text for each, text in self.quotes if re.fullmatch(rf"{name} \d+", each))


@dataclass(frozen=True, slots=True)
class _Sections:
    all: Sequence[_Section]

    def get(self, title: str) -> _Section:
        return next((each for each in self.all if each.title.startswith(title)), _Section(title, []))

    def list_starting(self, title: str) -> list[_Section]:
        return [each for each in self.all if each.title.startswith(title)]

    def find(self, name: str) -> str:
        """The first quote of this name."""
        return next((text for section in self.all if (text := section.find(name))), "")


def _read_sections(prompt: str) -> list[_Section]:
    """The headings of a prompt and the quotes below each. A heading inside a quote is data."""
    sections: list[_Section] = []
    end = 0
    for quote in _QUOTE.finditer(prompt):
        sections += _read_titles(prompt[end : quote.start()])
        text = quote["text"].replace("&lt;", "<")
        sections[-1].quotes.append((quote["name"], text))
        end = quote.end()
    return [*sections, *_read_titles(prompt[end:])]


def _read_titles(text: str) -> Iterator[_Section]:
    for title in re.split(r"^(?=##? )", text, flags=re.MULTILINE):
        if title.startswith("#"):
            yield _Section(title.strip(), [])


def _read_traces(sections: _Sections) -> BlamePrompt:
    runs: list[ShownRun] = []
    begins = [number for number, section in enumerate(sections.all) if section.title.startswith("# Run ")]
    for begin, end in pairwise([*begins, len(sections.all)]):
        parts = _Sections(sections.all[begin:end])
        steps: list[ShownStep] = []
        for section in parts.list_starting("## T"):
            steps += _read_steps(section, steps, user=parts.find("user"))
        run = ShownRun(
            user=parts.find("user"),
            expected=parts.find("expected"),
            reports=_read_reports(parts.get("## What is wrong")),
            steps=tuple(steps),
        )
        runs.append(run)
    surfaces = _read_surfaces(sections.get("# The surfaces"))
    return BlamePrompt(runs=tuple(runs), surfaces=surfaces, is_one_step=False)


def _read_steps(section: _Section, before: Sequence[ShownStep], *, user: str) -> Iterator[ShownStep]:
    """The steps of one heading: one, or several that returned the output of another step unchanged."""
    names, _, read = section.title.removeprefix("## ").partition(": ")
    outputs = {each.alias: each.output for each in before}
    unchanged = re.search(r"returned the output of (T\d+) unchanged", read)
    first = re.search(r"read (T\d+|what the user said)", read)
    given = outputs.get(first[1], user) if first else ""
    if section.find("input"):
        given = _resolve_references(section.find("input"), outputs, user=user)
    for step in re.finditer(r"(T\d+)(?: (?:agent|function|tool)(?= |$))?(?: ([\w~/-]+))?(?: \(([^)]*)\))?", names):
        yield ShownStep(
            alias=step[1],
            node=step[2] or section.find("node"),
            input=outputs[unchanged[1]] if unchanged else given,
            output=outputs[unchanged[1]] if unchanged else section.find("output"),
            calls=section.list_numbered("call"),
            blamable=tuple(re.findall(r"S\d+", step[3] or "")),
        )


def _resolve_references(text: str, outputs: Mapping[str, str], *, user: str) -> str:
    """A text with what it refers to: `[output of T1]` is shown elsewhere in the prompt."""
    text = re.sub(r"\[output of ([TP]\d+)\]", lambda match: outputs.get(match[1], match[0]), text)
    return text.replace("[what the user said]", user)


def _read_reports(section: _Section) -> dict[str, str]:
    return {name.partition(" at ")[0]: text for name, text in section.quotes if re.match(r"F\d+", name)}


def _read_step(sections: _Sections) -> BlamePrompt:
    surfaces = _read_surfaces(sections.get("# Its surfaces"))
    predecessors = {
        name: text.partition("\n\n")[2] for name, text in sections.get("# Its predecessors").quotes
    }  # below the name of the node
    step = _read_only_step(sections, blamable=tuple(surfaces), predecessors=predecessors)
    run = ShownRun(
        user=sections.find("user") or step.input,
        expected=sections.find("expected"),
        reports=_read_reports(sections.get("# The run")),
        steps=(step,),
        predecessors=predecessors,
        predecessor_nodes={
            name: text.partition("\n")[0].removeprefix("node ").partition(",")[0]
            for name, text in sections.get("# Its predecessors").quotes
        },
    )
    return BlamePrompt(runs=(run,), surfaces=surfaces, is_one_step=True)


def _read_correct(sections: _Sections) -> CorrectPrompt:
    step = _read_only_step(sections)
    reports = dict(sections.get("# What is wrong with the result").quotes)
    return CorrectPrompt(
        run=ShownRun(user=sections.find("user"), expected=sections.find("expected"), reports=reports, steps=(step,)),
        step=step,
        surfaces=tuple(_read_surface("", text) for _, text in sections.get("# Its surfaces").quotes),
        diagnosis=sections.get("# The diagnosis").list_numbered("diagnosis"),
    )


def _read_optimize(sections: _Sections, form: Literal["value", "changes", "edits"]) -> OptimizePrompt:
    return OptimizePrompt(
        surface=_read_edited_surface(sections),
        signal=sections.find("signal"),
        form=form,
        examples=tuple(
            ShownExample(quotes=_read_example(section), passed=section.title.startswith("# Passing"))
            for section in sections.all
            if re.match(r"# (Passing|Failing) example", section.title)
        ),
        rejected=sections.get("# What was rejected").list_numbered("rejected"),
    )


def _read_reflect(sections: _Sections) -> ReflectPrompt:
    surface = replace(_read_edited_surface(sections), alias="S1")
    runs = []
    for section in sections.list_starting("# Case "):
        inputs, outputs = (section.list_numbered(name) for name in ("step input", "step output"))
        calls = tuple(line.removeprefix("- ") for line in section.find("tool trace").split("\n") if line)
        steps = [
            ShownStep(alias="", node="", input=given, output=made, calls=calls, blamable=(surface.alias,))
            for given, made in zip(inputs, outputs, strict=True)
        ]
        verdict = section.find("verdict")
        reports = re.findall(r"^reason: (.+)$", verdict, re.MULTILINE) if "[FAIL]" in verdict else []
        run = ShownRun(
            user=section.find("user"),
            expected=section.find("expected"),
            reports={f"F{number}": text for number, text in enumerate(reports, 1)},
            steps=tuple(steps),
        )
        runs.append(run)
    return ReflectPrompt(surface=surface, runs=tuple(runs), signal=sections.find("signal"))


def _read_example(section: _Section) -> dict[str, str]:
    user = section.find("user")
    return {name: _resolve_references(text, {}, user=user) for name, text in section.quotes}


def _read_edited_surface(sections: _Sections) -> ShownSurface:
    surface_id = sections.find("surface").split("\n")[0].removeprefix("surface: ")
    return ShownSurface(alias="", id=surface_id, value=sections.find("current value"))


def _read_only_step(
    sections: _Sections, *, blamable: tuple[str, ...] = (), predecessors: Mapping[str, str] | None = None
) -> ShownStep:
    section = sections.get("# The step")
    outputs, user = predecessors or {}, sections.find("user")
    same = re.search(r"its input is (?:the output of (P\d+)|what the user said)", section.title)
    node = re.search(r": node (\S+)", section.title)
    given = _resolve_references(section.find("input"), outputs, user=user)
    return ShownStep(
        alias="",
        node=node[1] if node else section.find("node"),
        input=outputs.get(same[1], user) if same else given,
        output=section.find("output"),
        calls=sections.get("# Its tool calls").list_numbered("call"),
        blamable=blamable,
    )


def _read_surfaces(section: _Section) -> dict[str, ShownSurface]:
    """The surfaces that may be blamed, without those that stay as they are."""
    return {name: _read_surface(name, text) for name, text in section.quotes if name != "fixed"}


def _read_surface(alias: str, text: str) -> ShownSurface:
    """The id is in the first line; what is known about the surface comes before the empty line."""
    known, _, value = text.partition("\n\n")
    return ShownSurface(alias=alias, id=known.partition("\n")[0], value=value)


_QUOTE = re.compile(r'<data name="(?P<name>[^"]+)">\n(?P<text>.*?)\n?</data>', re.DOTALL)
