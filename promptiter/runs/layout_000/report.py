"""report.md of a run: what a user reads to decide whether to adopt the result. Written from the files of its folder."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from promptiter.runs.layout_000.header import LayoutHeader, PhaseExit, describe_cases, read_layout_header
from promptiter.runs.layout_000.rows import TrialRow, read_rows
from promptiter.wording import dollars, plural

FILE_NAME = "report.md"
LEVELS = " .:-=+*#%@"
"""The levels of a sparkline, from the lowest loss to the highest."""


def write_report(folder: Path) -> str:
    """The report of the run in a folder, from its run.json, trials.jsonl and candidates."""
    header, rows = read_layout_header(folder), read_rows(folder)
    sections = (
        ("Result", _summarize(header, rows)),
        ("Trajectory", _draw(rows)),
        ("Attribution", _attribute(header, rows)),
        ("Metrics", _compare_metrics(rows)),
        ("Diff", _diff(folder, rows)),
        ("Rationales", _quote_rationales(rows)),
        ("How to adopt", _explain_adoption(header, folder, rows)),
        ("Notes on the method", _note_method(header, rows)),
    )
    parts = [f"# Optimizer run {header.run_id}"]
    parts += [f"## {title}\n\n" + "\n".join(lines) for title, lines in sections]
    return "\n\n".join(parts) + "\n"


def _summarize(header: LayoutHeader, rows: Sequence[TrialRow]) -> Iterator[str]:
    first, best = (rows[0] if rows else None), _find_best(rows)
    if first is None or best is None:
        yield "No trial ended."
    else:
        yield f"- **Train loss:** {_change(first.train.loss, best.train.loss)}"
        before, after = (None if row.holdout is None else row.holdout.loss for row in (first, best))
        yield f"- **Hold-out loss:** {_change(before, after)}"
        yield f"- **Accepted:** {sum(row.decision.accepted for row in rows[1:])} of {plural(len(rows) - 1, 'trial')}"
    yield f"- **Exit reason:** {header.exit_reason or 'the run has not ended'}"
    if header.verdict is not None:
        yield f"- **Final test:** {header.verdict}"
    yield f"- **Duration:** {_or_unknown(header.duration_sec, '{:.1f} s')}"
    yield f"- **Cost:** {'unknown' if header.total_usd is None else dollars(header.total_usd)}"
    yield f"- **Repeats:** {header.optimizer_config.get('repeats', '?')}"


def _draw(rows: Sequence[TrialRow]) -> Iterator[str]:
    """Sparklines of the losses by trial, with a bar where a phase begins."""
    train = [row.train.loss for row in rows]
    holdout = [None if row.holdout is None else row.holdout.loss for row in rows]
    known = [loss for loss in (*train, *holdout) if loss is not None]
    if not known:
        yield "No trial has a loss."
        return
    low, high = min(known), max(known)
    begins = [at for at, row in enumerate(rows) if at and _phase_of(row) != _phase_of(rows[at - 1])]
    yield "```text"
    yield f"train    {_sparkline(train, low, high, begins)}"
    yield f"hold-out {_sparkline(holdout, low, high, begins)}"
    names = [f"c{cycle} {phase}" if cycle else phase for (cycle, phase), _ in groupby(rows, key=_phase_of)]
    yield f"phases   {' | '.join(names)}"
    yield "```"
    yield ""
    yield f"One character per trial, from `{LEVELS[0]}` ({low:.3f}) to `{LEVELS[-1]}` ({high:.3f}); `_` was not run."


def _attribute(header: LayoutHeader, rows: Sequence[TrialRow]) -> Iterator[str]:
    yield "| cycle | phase | trials | accepted | change of the train loss | ended by |"
    yield "|---|---|---|---|---|---|"
    for each in header.phase_exit_reasons or _list_phases(rows):
        figures = f"{each.trials} | {each.accepted} | {0.0 - each.gain:+.3f}"
        yield f"| {each.cycle} | {each.phase} | {figures} | {each.exit_reason} |"
    yield ""
    yield "| axis | trials | accepted | change of the train loss |"
    yield "|---|---|---|---|"
    for axis in dict.fromkeys(axis for row in rows[1:] for axis in row.axis_target.split(", ")):
        found = [row for row in rows[1:] if axis in row.axis_target.split(", ")]
        accepted = [row for row in found if row.decision.accepted]
        gain = sum((row.decision.train_improvement or 0.0) / len(row.axis_target.split(", ")) for row in accepted)
        yield f"| `{axis}` | {len(found)} | {len(accepted)} | {-gain:+.3f} |"
    yield ""
    yield "A trial that changed several axes counts for each, and its change is divided among them."


def _list_phases(rows: Sequence[TrialRow]) -> Iterator[PhaseExit]:
    """The phases of a run that has not ended, as far as they have trials."""
    for (cycle, phase), group in groupby(rows[1:], key=_phase_of):
        found = list(group)
        gains = [row.decision.train_improvement or 0.0 for row in found if row.decision.accepted]
        yield PhaseExit(
            cycle=cycle, phase=phase, trials=len(found), accepted=len(gains), gain=sum(gains), exit_reason="unknown"
        )


def _compare_metrics(rows: Sequence[TrialRow]) -> Iterator[str]:
    best = _find_best(rows)
    if best is None:
        yield "No trial ended."
        return
    yield "| metric | set | baseline | best |"
    yield "|---|---|---|---|"
    for name in rows[0].train.loss_components:
        for title, is_held in (("train", False), ("hold-out", True)):
            cells = [_component(row, name, held=is_held) for row in (rows[0], best)]
            yield f"| {name} | {title} | {cells[0]} | {cells[1]} |"


def _diff(folder: Path, rows: Sequence[TrialRow]) -> Iterator[str]:
    best = _find_best(rows)
    if best is None or not best.trial_id:
        yield "Nothing was accepted."
        return
    baseline = _find_baseline(folder)
    if baseline is None:
        yield "The baseline's agent.yaml was not kept (--keep-best-only), and the file has changed since the run:"
        yield "compare `best.yaml` with the version that the run began with."
    else:
        yield from _diff_files(baseline, folder / "best.yaml", name="agent.yaml")
    new = folder / "best-instructions.md"
    if new.exists():
        yield ""
        yield from _diff_files(_find_prompt(folder), new, name="instructions")


def _quote_rationales(rows: Sequence[TrialRow]) -> Iterator[str]:
    found = [row for row in rows if row.decision.accepted and row.rationales]
    for row in found:
        yield f"- **Trial {row.trial_id}, `{row.axis_target}`** ({row.decision.reason})"
        for name, text in row.rationales:
            yield f"    - {name.capitalize()}: {text}"
    if not found:
        yield "No edit of a text was accepted."


def _explain_adoption(header: LayoutHeader, folder: Path, rows: Sequence[TrialRow]) -> Iterator[str]:
    best = _find_best(rows)
    if best is None or not best.trial_id:
        yield "There is nothing to adopt: the baseline is the best agent."
        return
    agent = header.baseline_agent_path
    yield f"From this folder (`{folder.name}`):"
    yield ""
    yield "```bash"
    yield f"cp {best.candidate_path} {agent}"
    if (folder / "best-instructions.md").exists():
        place = Path(agent).parent
        named = _read_prompt_name(folder)
        yield f"cp best-instructions.md {(place / named).as_posix()}"
        yield f"sed -i 's#^\\( *file: \\)\"*\\.\\./instructions/.*#\\1{named}#' {agent}"
    yield "```"
    yield ""
    yield f"`promptiter test run {best.candidate_path}` runs the candidate as it is."


def _note_method(header: LayoutHeader, rows: Sequence[TrialRow]) -> Iterator[str]:
    config = header.optimizer_config
    policy = config.get("holdout_eval_policy", "on_train_improve")
    yield f"- {describe_cases(header)}."
    yield (
        f"- Each trial is the mean of {plural(int(config.get('repeats', 1)), 'sweep')}; a gain must reach "
        f"{config.get('accept_sigma', 1.0):g} standard deviations of the sweeps of both profiles. This bar is "
        "lenient, and not a significance test; the final test is one."
    )
    yield f"- The hold-out policy is `{policy}`."
    if policy == "skip":
        yield "- **The hold-out was not used. The result may be overfitted to the train cases.**"
    excluded = sum(row.train.errored_runs_excluded for row in rows)
    yield f"- {plural(excluded, 'run')} of train cases failed; failed runs are left out of the losses, not scored as 0."
    yield (
        "- Train and hold-out cases may both differ from production traffic. A gain on them does not show one there: "
        "choose hold-out cases that resemble what the agent will meet."
    )
    yield (
        "- Runs are reproducible in their configuration: the same inputs and seed give the same run id hash and the "
        "same proposals for the same losses. Losses of sampled answers differ from run to run."
    )


def _find_best(rows: Sequence[TrialRow]) -> TrialRow | None:
    return next((row for row in reversed(rows) if row.decision.accepted), None)


def _phase_of(row: TrialRow) -> tuple[int, str]:
    return row.cycle, row.phase


def _sparkline(losses: Sequence[float | None], low: float, high: float, begins: Sequence[int]) -> str:
    drawn = []
    for at, loss in enumerate(losses):
        if at in begins:
            drawn.append("|")
        if loss is None:
            drawn.append("_")
        else:
            share = (loss - low) / (high - low) if high > low else 0.0
            drawn.append(LEVELS[round(share * (len(LEVELS) - 1))])
    return "".join(drawn)


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "not measured" if after is None else f"{after:.3f}"
    percent = f" ({100 * (before - after) / before:+.1f}% improvement)" if before else ""
    return f"{before:.3f} → {after:.3f}{percent}"


def _component(row: TrialRow, name: str, *, held: bool = False) -> str:
    sweeps = row.holdout if held else row.train
    value = None if sweeps is None else sweeps.loss_components.get(name)
    return "not run" if value is None else f"{value:.3f}"


def _or_unknown(value: float | None, form: str) -> str:
    return "unknown" if value is None else form.format(value)


def _diff_files(before: Path | None, after: Path, *, name: str) -> Iterator[str]:
    old, new = (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path is not None and path.exists() else []
        for path in (before, after)
    )
    lines = list(difflib.unified_diff(old, new, f"{name} (baseline)", f"{name} (best)", lineterm="", n=2))
    yield "```diff" if lines else f"{name} did not change."
    if lines:
        yield from lines
        yield "```"


def _read_prompt_name(folder: Path) -> str:
    """The path of the prompt in the baseline's file."""
    import yaml

    baseline = _find_baseline(folder) or _find_project_file(folder)
    document = yaml.safe_load(baseline.read_text(encoding="utf-8")) if baseline.exists() else {}
    return str((document.get("instructions") or {}).get("file") or "instructions/system-prompt.md")


def _find_baseline(folder: Path) -> Path | None:
    """The baseline's file: its copy, or if only the best was kept, that of the project as long as it is the same."""
    copied, project = folder / "candidates" / "iter-00.yaml", _find_project_file(folder)
    if copied.exists():
        return copied
    is_same = project.exists() and _hash(project) == read_layout_header(folder).baseline_sha256
    return project if is_same else None


def _find_project_file(folder: Path) -> Path:
    return folder / read_layout_header(folder).baseline_agent_path


def _find_prompt(folder: Path) -> Path | None:
    """The prompt of the baseline: as the run recorded it, or in the project."""
    recorded = [*Path(read_layout_header(folder).run_folder, "surfaces").glob("*#instruction.baseline.md")]
    if len(recorded) == 1:
        return recorded[0]
    path = _find_project_file(folder).parent / _read_prompt_name(folder)
    return path if path.exists() else None


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
