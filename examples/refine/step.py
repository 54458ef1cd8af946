"""One iteration: it fixes the first defect that it finds. A coding agent would be called here."""

from __future__ import annotations

import json
import os
from pathlib import Path

PLACES = {name: Path(os.environ[f"PROMPTITER_REFINE_{name}"]) for name in ("INPUT", "OUTPUT", "GRADIENT")}

essay = (PLACES["INPUT"] / "report.md").read_text(encoding="utf-8")
first = json.loads(PLACES["GRADIENT"].read_text(encoding="utf-8"))["defects"][0]["description"]
essay += "Sources: an atlas.\n" if "sources" in first else "Its capital is Paris.\n"
(PLACES["OUTPUT"] / "report.md").write_text(essay, encoding="utf-8")
