"""`promptiter rejudge`: a run decided again under other policies, without a call."""

from __future__ import annotations

from typing import Annotated

import typer

from promptiter.cli.options import AsJson, Run, Runs, find_run_folder
from promptiter.cli.output import console, json_text, write_text


def rejudge(
    run: Run = "latest",
    accept: Annotated[
        str | None,
        typer.Option(
            "--accept", metavar="POLICY", help="The acceptance policy as code: `MinGain(0.05) & NoRegression()`."
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option("--stop", metavar="POLICY", help="The stop policy as code: `Patience(2) | TargetScore(0.9)`."),
    ] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Decide a run again under other policies.

    Nothing is run and no model is called: the record of the run has what its policies saw. From the first decision that
    comes out differently on, the record cannot tell how the run would have gone on. Without options, the run's own
    policies decide again.
    """
    from promptiter.cli.views.rejudge import print_rejudgement
    from promptiter.policies.policy_code import parse_acceptance, parse_stop
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.rejudgement import rejudge_run

    found = rejudge_run(
        find_run_folder(run, runs),
        acceptance=None if accept is None else parse_acceptance(accept),
        stop=None if stop is None else parse_stop(stop),
    )
    if as_json:
        write_text(json_text(to_plain(found)), None)
    else:
        print_rejudgement(console(), found)
