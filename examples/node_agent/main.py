"""Start the desk, which is in JavaScript, and optimize its two instructions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptiter import load_run

HERE = Path(__file__).parent


@contextmanager
def serve_desk() -> Iterator[str]:
    """The address of the desk while the block runs."""
    command = ["node", str(HERE / "desk.mjs"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def main() -> None:
    with serve_desk() as address:
        run = load_run(HERE, settings={"agent": {"remote": address}, "quiet": True})
        result = run.begin().run_sync()
    print(result.verdict)
    for change in result.changes:
        print(f"{change.surface_id}\n{change.as_text()}")


if __name__ == "__main__":
    main()
