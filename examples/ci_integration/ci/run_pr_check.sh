#!/bin/sh
# Runs on each pull request: exits with 1 if the prompts are not good enough. The report is for the CI platform.
set -eu
cd "$(dirname "$0")/.."
python -m pytest -q --junitxml=runs/pytest_report.xml
