"""What commands load: agents as `module:attr` from the folder they run in, evaluators, and the metrics beside a set."""

from __future__ import annotations

from pathlib import Path

from promptiter.config.loading import build_evaluator, load_agent, load_object
from promptiter.errors import SetupError

__all__ = ["build_evaluator", "load_agent", "load_object", "metrics_file"]


def metrics_file(eval_set: str, metrics: Path | None) -> Path:
    """The metrics that were given, or those beside the eval set."""
    if metrics is not None:
        return metrics
    folder = Path(eval_set).parent
    for name in ("test_config.json", "optimizer.json"):
        if (folder / name).exists():
            return folder / name
    raise SetupError(f"no metrics: pass --metrics FILE, or put a test_config.json into {str(folder)!r}")
