"""The health of an eval set: problems in the cases or in their runs that make scores misleading.

`check_cases` looks at the cases alone, `check_runs` at cases that were run several times. How much of the noise is the
agent's and how much the judge's is measured in `stats.metric_noise`. Nothing here changes a case.
"""

from __future__ import annotations

import hashlib
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import orjson

from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.data.near_duplicates import group_near_duplicates
from promptiter.evaluation.data.splits import digest_input
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.grouping import group_by
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

HealthKind: TypeAlias = Literal[
    "contradiction",
    "overlap",
    "duplicate",
    "near_duplicate",
    "missing_reference",
    "missing_tool_calls",
    "empty_reference",
    "wrong_reference",
    "leaked_reference",
    "long_input",
    "always_errors",
    "never_passes",
    "flips",
    "always_passes",
]

SERIOUS: frozenset[HealthKind] = frozenset(("contradiction", "overlap", "missing_tool_calls"))
"""With one of these, scores on the eval set are not meaningful, or a run refuses it."""

SHINGLE = 3
LONG_CHARACTERS = 2_000
LONG_TIMES_MEDIAN = 10
SHORTEST_LEAK = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One thing to look at. `value` is a similarity, a pass rate or a length, depending on the kind.

    `sources` names the eval set of each case id if the cases are from several.
    """

    kind: HealthKind
    case_ids: tuple[str, ...]
    detail: str = ""
    value: float | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The findings in one eval set. `scorable` counts the cases that its metrics can judge."""

    eval_set_id: str
    cases: int
    scorable: int
    findings: tuple[HealthFinding, ...] = ()

    @property
    def counts(self) -> dict[HealthKind, int]:
        return dict(Counter(finding.kind for finding in self.findings))

    @property
    def is_serious(self) -> bool:
        return self.scorable == 0 or any(finding.kind in SERIOUS for finding in self.findings)


def check_cases(
    eval_set: EvalSet,
    *,
    needs_reference: bool = True,
    needs_tool_calls: bool = False,
    parse_reference: Callable[[str], object] | None = None,
) -> Health:
    """Check the cases without running them.

    `needs_reference`: whether a metric compares with references; `needs_tool_calls`: whether one compares tool calls.
    `parse_reference` raises ValueError for a reference that a metric cannot read.
    """
    groups = list(group_by(eval_set.cases, _digest_question).values())
    referenced = sum(_has_reference(case) or case.scenario is not None for case in eval_set.cases)
    findings = (
        *_find_contradictions(groups),
        *_find_duplicates(groups),
        *_find_near_duplicates([group[0] for group in groups]),
        *(_check_references(eval_set.cases) if needs_reference else ()),
        *(_parse_references(eval_set.cases, parse_reference) if parse_reference is not None else ()),
        *(_check_tool_calls(eval_set.cases) if needs_tool_calls else ()),
        *_find_leaks(eval_set.cases),
        *_find_long_inputs(eval_set.cases),
    )
    return Health(
        eval_set_id=eval_set.id,
        cases=len(eval_set.cases),
        scorable=referenced if needs_reference else len(eval_set.cases),
        findings=findings,
    )


def find_overlaps(sets: Sequence[tuple[str, EvalSet]]) -> tuple[HealthFinding, ...]:
    """Cases with the same input (see `splits.digest_input`) that are in several of the named sets."""
    found: dict[str, list[tuple[int, str]]] = {}
    for number, (_, eval_set) in enumerate(sets):
        for case in eval_set.cases:
            found.setdefault(digest_input(case), []).append((number, case.id))
    return tuple(
        HealthFinding(
            kind="overlap",
            case_ids=tuple(case_id for _, case_id in places),
            sources=tuple(sets[number][0] for number, _ in places),
        )
        for places in found.values()
        if len({number for number, _ in places}) > 1
    )


def check_runs(evaluations: Iterable[Evaluation]) -> tuple[HealthFinding, ...]:
    """Cases that always pass, never pass, flip, or can never be scored, over all runs of each.

    A run passes when all its metrics do. Raises SetupError if an evaluation ran every case once only.
    """
    rows: list[CaseRow] = []
    for evaluation in evaluations:
        if evaluation.rows and max(Counter(row.case_id for row in evaluation.rows).values()) < 2:
            raise SetupError(f"eval set {evaluation.eval_set_id!r} was run once a case; run it with at least 2 repeats")
        rows += evaluation.rows
    by_case = group_by(rows, lambda row: row.case_id)
    found = [_classify_runs(case_id, rows) for case_id, rows in sorted(by_case.items()) if len(rows) > 1]
    return tuple(finding for finding in found if finding is not None)


def normalize_text(text: str) -> str:
    """A text without letter case, extra whitespace and the punctuation around words; `3.5` and `C++` stay."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_MARKS.sub(" ", plain).split()) or " ".join(plain.split())


def make_shingles(texts: Iterable[str]) -> frozenset[int]:
    """The hashes of all sequences of SHINGLE words in the texts, for `group_near_duplicates`."""
    tokens = [token for text in texts for token in (*_TOKEN.findall(normalize_text(text)), "\n")]
    parts = ["\x1f".join(tokens[at : at + SHINGLE]) for at in range(max(1, len(tokens) - SHINGLE + 1))]
    return frozenset(int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest()) for part in parts)


_MARKS = re.compile(r"""(?<!\w)(?:[;:!?"'“”‘’«»„。、]|[.,](?!\d))+|[.,;:!?"'“”‘’«»„。、]+(?!\w)""")
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")


def _list_inputs(case: EvalCase) -> list[str]:
    if case.scenario is not None:
        return [case.scenario.starting_prompt, case.scenario.plan]
    return [turn.user for turn in case.turns or case.actual]


def _digest_question(case: EvalCase) -> str:
    return digest(
        [[normalize_text(text) for text in _list_inputs(case)], case.scenario is None, case.context, case.state]
    )


def _normalize_answer(expected: str) -> Json:
    """An expected answer for comparison: JSON regardless of its layout, other text normalized."""
    if expected.lstrip().startswith(("{", "[")):
        try:
            return digest(orjson.loads(expected))
        except orjson.JSONDecodeError:
            pass
    return normalize_text(expected)


def _list_calls(turn: Turn) -> Json:
    return turn.expected_tool_calls and [[call.name, call.arguments, call.result] for call in turn.expected_tool_calls]


def _has_reference(case: EvalCase) -> bool:
    return any((turn.expected or "").strip() or turn.expected_tool_calls is not None for turn in case.turns)


def _find_contradictions(groups: Iterable[Sequence[EvalCase]]) -> Iterator[HealthFinding]:
    for group in groups:
        if len(group) > 1 and (detail := _describe_contradiction(group)):
            yield HealthFinding(kind="contradiction", case_ids=tuple(case.id for case in group), detail=detail)


def _describe_contradiction(group: Sequence[EvalCase]) -> str:
    """Two expectations of the same question that cannot both be right. A case without expectations agrees with all."""
    for turns in zip(*(case.turns for case in group if case.turns), strict=False):
        answers = {
            str(_normalize_answer(turn.expected)): turn.expected for turn in turns if (turn.expected or "").strip()
        }
        if len(answers) > 1:
            return "expected " + " or ".join(shorten(answer) for answer in list(answers.values())[:3])
        calls = {digest(_list_calls(turn)): turn for turn in turns if turn.expected_tool_calls is not None}
        if len(calls) > 1:
            return "expected tool calls " + " or ".join(shorten(_list_calls(turn)) for turn in list(calls.values())[:3])
    return ""


def _find_duplicates(groups: Iterable[Sequence[EvalCase]]) -> Iterator[HealthFinding]:
    for group in groups:
        for alike in group_by(group, _digest_expectations).values():
            if len(alike) > 1:
                yield HealthFinding(kind="duplicate", case_ids=tuple(case.id for case in alike))


def _digest_expectations(case: EvalCase) -> str:
    answers = [[turn.expected and _normalize_answer(turn.expected), _list_calls(turn)] for turn in case.turns]
    return digest([answers, case.mode, case.actual])


def _find_near_duplicates(cases: Iterable[EvalCase]) -> Iterator[HealthFinding]:
    """Groups of cases with similar questions in the same context. Of equal questions, `cases` holds one."""
    by_context = group_by(cases, lambda case: digest([case.scenario is None, case.context, case.state]))
    for alike in by_context.values():
        for numbers, similarity in group_near_duplicates([make_shingles(_list_inputs(case)) for case in alike]):
            yield HealthFinding(
                kind="near_duplicate",
                case_ids=tuple(alike[number].id for number in numbers),
                detail=f"similarity {similarity:.2f}",
                value=similarity,
            )


def _check_references(cases: Iterable[EvalCase]) -> Iterator[HealthFinding]:
    for case in cases:
        blank = [at for at, turn in enumerate(case.turns) if turn.expected is not None and not turn.expected.strip()]
        if blank:
            turns = f"turn {', '.join(map(str, blank))}" if len(case.turns) > 1 else ""
            yield HealthFinding(kind="empty_reference", case_ids=(case.id,), detail=turns)
        elif not _has_reference(case) and case.scenario is None:
            yield HealthFinding(kind="missing_reference", case_ids=(case.id,))


def _parse_references(cases: Iterable[EvalCase], parse: Callable[[str], object]) -> Iterator[HealthFinding]:
    for case in cases:
        for expected in (turn.expected for turn in case.turns if turn.expected and turn.expected.strip()):
            try:
                parse(expected)
            except ValueError as error:
                yield HealthFinding(kind="wrong_reference", case_ids=(case.id,), detail=f"{shorten(expected)}: {error}")
                break


def _check_tool_calls(cases: Iterable[EvalCase]) -> Iterator[HealthFinding]:
    for case in cases:
        if case.scenario is None and all(turn.expected_tool_calls is None for turn in case.turns):
            yield HealthFinding(kind="missing_tool_calls", case_ids=(case.id,))


def _find_leaks(cases: Iterable[EvalCase]) -> Iterator[HealthFinding]:
    for case in cases:
        asked = ""
        for turn in case.turns:
            asked += turn.user + "\n"
            expected = (turn.expected or "").strip()
            if len(expected) >= SHORTEST_LEAK and expected in asked:
                yield HealthFinding(kind="leaked_reference", case_ids=(case.id,), detail=shorten(expected))
                break


def _find_long_inputs(cases: Sequence[EvalCase]) -> Iterator[HealthFinding]:
    lengths = [sum(map(len, _list_inputs(case))) for case in cases]
    limit = max(LONG_CHARACTERS, LONG_TIMES_MEDIAN * statistics.median(lengths)) if lengths else 0
    for case, length in zip(cases, lengths, strict=True):
        if length > limit:
            yield HealthFinding(
                kind="long_input", case_ids=(case.id,), detail=f"{length:,} characters", value=float(length)
            )


def _classify_runs(case_id: str, rows: Sequence[CaseRow]) -> HealthFinding | None:
    scored = [row for row in rows if row.is_scored]
    passed = sum(row.passed for row in scored)
    unscored = len(rows) - len(scored)
    detail = f"{passed} of {len(rows)} runs pass" + (f", {unscored} could not be scored" if unscored else "")
    if not scored:
        error = rows[0].error or next((score.error for score in rows[0].scores if score.error), "")
        return HealthFinding(kind="always_errors", case_ids=(case_id,), detail=str(error))
    rate = passed / len(scored)
    kind: HealthKind = "never_passes" if not passed else "always_passes" if passed == len(rows) else "flips"
    return HealthFinding(kind=kind, case_ids=(case_id,), detail=detail, value=rate)
