"""What `promptiter task check` found: the files, the sandbox, the figures, and the constraints."""

from __future__ import annotations

from promptiter.cli.output import echo
from promptiter.tasks.files.file_scorer import FileScorer, Reading
from promptiter.tasks.files.guards import list_constraints
from promptiter.wording import join_names, plural
from traces.text import one_line

MAX_NAMES = 8


def print_check(scorer: FileScorer, reading: Reading, *, sandbox: str) -> None:
    """Print the measurement of the files as they are."""
    task, paths = scorer.task, scorer.workspace.paths
    new = [path for path in paths if not (task.root / path).exists()]
    echo(f"{one_line(task.id)}: {plural(len(paths), 'artifact')}: {join_names(paths, limit=MAX_NAMES)}")
    if new:
        echo(f"  not there yet: {join_names(new, limit=MAX_NAMES)}")
    echo(f"sandbox: {sandbox}")
    echo(f"protected: {join_names(task.protected, limit=MAX_NAMES) or 'nothing'}")
    if task.holdout is not None:
        echo(f"hold-out: {plural(len(task.holdout.cases), 'case')}; it is run only in the final test")
    echo("\nfigures of the files as they are:")
    bounds = {each.metric: each for each in list_constraints(task)}
    for name, value in reading.figures.items():
        mark = " (primary)" if name == task.primary.metric else ""
        bound = bounds.get(name)
        state = "" if bound is None else f"  {'holds' if bound.holds(value) else 'FAILS'}: {bound}"
        echo(f"  {name} {value:.6g}{mark}{state}")
    failed = [case for case in reading.cases if case.has_failed]
    if reading.cases:
        names = f": {join_names([case.name for case in failed], limit=MAX_NAMES)}" if failed else ""
        echo(f"\n{len(failed)} of {plural(len(reading.cases), 'case')} failed{names}")
    for remark in reading.remarks:
        echo(f"  {one_line(remark)}")
    broken = [bound for bound in bounds.values() if not bound.holds(reading.figures[bound.metric])]
    if broken:
        listed = join_names([str(each) for each in broken])
        echo(f"\nno candidate is kept before {listed} holds", color="yellow")
