"""The command `promptiter` ends without a traceback, whenever Ctrl-C is pressed."""

from __future__ import annotations

import sys

import pytest

from promptiter.__main__ import main


class Interrupts:
    """A finder during whose search for a module Ctrl-C is pressed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "promptiter.cli":
            raise KeyboardInterrupt


def test_ctrl_c_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "promptiter.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("promptiter.cli.build_command", press)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
