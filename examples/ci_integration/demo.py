"""Both halves in a copy of this folder that is a git repository: the gate is red, the night fixes the prompt."""

import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}" if done.returncode not in (0, 1) else f"{done.returncode} {done.stdout}"


with tempfile.TemporaryDirectory() as place:
    project = Path(place) / "project"
    shutil.copytree(HERE, project, ignore=shutil.ignore_patterns("runs", "__pycache__", ".promptiter"))
    (project / ".gitignore").write_text("runs/\n.promptiter/\n__pycache__/\n.pytest_cache/\n")
    for command in (
        ("init", "-q"),
        ("config", "user.name", "ci"),
        ("config", "user.email", "ci@localhost"),
        ("add", "."),
    ):
        run("git", *command, folder=project)
    run("git", "commit", "-q", "-m", "start", folder=project)
    print("pull request:", "passed" if run("ci/run_pr_check.sh", folder=project).startswith("0") else "failed")
    print(run("ci/run_nightly_optimize.sh", folder=project).removeprefix("0 ").strip())
    print("pull request:", "passed" if run("ci/run_pr_check.sh", folder=project).startswith("0") else "failed")
