#!/bin/sh
# Runs every night: better prompts become a branch, for a pull request with the usual review.
set -eu
cd "$(dirname "$0")/.."
python run_optimization.py
if git diff --quiet -- agent/prompts; then
    echo "no change"
    exit 0
fi
git checkout -q -b prompts/nightly
git commit -q -m "Better prompts of the nightly run" -- agent/prompts
echo "branch $(git branch --show-current)"
