"""Files that only this user can read, in a folder of their own that is removed afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote


@contextmanager
def write_private_files(texts: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Write each text to a file, and return the paths by name. No name can lead out of the folder."""
    if not texts:
        yield {}
        return
    with TemporaryDirectory(prefix="promptiter-", ignore_cleanup_errors=True) as folder:  # 0700
        files = {}
        for number, (name, text) in enumerate(sorted(texts.items()), 1):
            files[name] = Path(folder) / f"{number}_{quote(name, safe='')[:100]}.txt"
            handle = os.open(files[name], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode(errors="replace"))
        yield files
