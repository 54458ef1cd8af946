"""`python -m promptiter` is the command `promptiter`."""

from promptiter.cli import main

main()
