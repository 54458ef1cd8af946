"""Names of apps, which are parts of addresses, names of folders and keys of databases."""

from __future__ import annotations

import re

from promptiter.errors import SetupError
from promptiter.wording import shorten

APP_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


def check_app_name(name: str) -> str:
    """The name of an app. Raises SetupError if it cannot be one."""
    if not re.fullmatch(APP_NAME, name):
        raise SetupError(
            f"{shorten(name)} cannot be the name of an app: use up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', and begin "
            "with a letter or digit; a folder with another name needs `server: {app: NAME}` in its promptiter.yaml"
        )
    return name
