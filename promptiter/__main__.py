"""The command `promptiter`, which is also `python -m promptiter`."""

import sys

CANCELLED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is being imported."""
    try:
        from promptiter.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(CANCELLED)


if __name__ == "__main__":
    main()
