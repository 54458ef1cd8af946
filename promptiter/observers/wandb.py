"""WandbObserver: a run in Weights & Biases; offline unless you choose otherwise, so nothing leaves the machine.

The id of the run is that of the run here. Online, a resumed run skips the steps that W&B has. Offline, the files of the
killed process may end anywhere, so they are replaced: everything is written again.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from promptiter.observers.points import Point, to_text
from promptiter.observers.tracker import TrackedRun, Tracker, find_report, list_files

Mode = Literal["online", "offline"]

LONGEST_TEXT = 50_000
"""Maximum number of characters of a prompt in the summary; the files have it whole. W&B warns above 100,000 bytes."""


class WandbObserver(Tracker):
    """Logs runs to Weights & Biases. The mode is `offline` unless given here or in WANDB_MODE.

    Its files are in the folder of the run, or in `folder`. `wandb sync` uploads an offline run later.
    """

    name = package = "wandb"
    noisy_loggers = ("urllib3.connectionpool", "wandb")

    def __init__(
        self,
        *,
        project: str = "promptiter",
        entity: str | None = None,
        mode: Mode | None = None,
        folder: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.project = project
        self.entity = entity
        self.mode = mode
        self.folder = folder
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would report its own errors to its makers
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # it would advertise that to everyone who uses litellm
        import wandb

        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        run_id = re.sub(r"[^\w.~-]", "-", start.run_id)[-128:]
        where = Path(self.folder or folder or os.environ.get("WANDB_DIR") or ".")
        where.mkdir(parents=True, exist_ok=True)
        if mode == "offline":
            for earlier in (where / "wandb").glob(f"offline-run-*-{run_id}"):
                shutil.rmtree(earlier)
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run_id,
            name=f"{start.facts['agent']} {start.run_id}",
            dir=where,
            mode=mode,
            resume="allow",
            reinit="create_new",
            config=dict(start.facts),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_meta=True,
                init_timeout=max(1.0, self.timeout_s),
            ),
        )
        return _WandbRun(run, folder)


class _WandbRun:
    def __init__(self, run: Any, folder: Path | None) -> None:
        self._run = run
        self._folder = folder
        self._next_step = run.step
        run.define_metric("round", hidden=True)
        run.define_metric("*", step_metric="round")
        if folder is not None:
            run.summary.update({"folder": str(folder.absolute()), "report": find_report(folder)})

    def write(self, point: Point) -> None:
        if point.figures and point.seq >= self._next_step:
            self._run.log({"round": point.round, **point.figures}, step=point.seq)
        if point.type in ("round_completed", "conclusion"):
            place = f"rounds/{point.round}" if point.type == "round_completed" else "conclusion"
            self._run.summary.update({f"{place}/{name}": value for name, value in point.facts.items()})

    def close(self, end: Point | None) -> None:
        if end is not None:
            self._run.summary.update({**end.facts, **end.figures})
            if end.profile is not None:
                texts = {name: to_text(value)[:LONGEST_TEXT] for name, value in end.profile.items()}
                self._run.summary["profile"] = texts
        for path in list_files(self._folder):
            self._save(path)
        is_fine = end is not None and end.facts["status"] == "succeeded"
        self._run.finish(exit_code=0 if is_fine else 1)

    def _save(self, path: Path) -> None:
        """Copy a file to those of the W&B run, so that it is uploaded, also by a later `wandb sync`."""
        assert self._folder is not None
        copy = Path(self._run.dir) / path.relative_to(self._folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        self._run.save(str(copy), base_path=self._run.dir, policy="now")
