#!/usr/bin/env bash
# Demo of `vramcast check` on a repository with two jobs and a branch on which one of them grows. Needs git.
# usage: demo.sh VRAMCAST    the command, .venv/bin/vramcast
set -euo pipefail
vramcast=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@example.org GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@example.org
git init --quiet --initial-branch=main
cat > model.py <<'END'
import torch

def mixer(width=512, depth=12):
    layer = lambda: torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    return torch.nn.Sequential(*(layer() for _ in range(depth)))
END
cat > pyproject.toml <<'END'
[tool.vramcast]
device = "rtx4060"                        # for all jobs that name no other card
level = 0.95

[tool.vramcast.jobs.resnet50]
target = "torchvision:resnet50"
batch = "32x3x224x224"
labels = "32:int64<1000"
optimizer = "sgdm"
precision = "amp-bf16"

[tool.vramcast.jobs.mixer]
target = "model.py:mixer"
batch = "16x256x512"
optimizer = "adamw"
END
git add --all && git commit --quiet --message="Two jobs"
git checkout --quiet -b deeper
sed -i 's/depth=12/depth=24/' model.py
git commit --quiet --all --message="Twice as deep"
echo '$ cat pyproject.toml' && cat pyproject.toml
echo && echo '$ git diff --unified=0 main -- model.py | tail -n 2' && git diff --unified=0 main -- model.py | tail -n 2
echo && echo '$ vramcast check --against main'
code=0; "$vramcast" check --against main --markdown comment.md --results deeper.json || code=$?
echo "(exit code $code)"
echo && echo '$ cat comment.md' && cat comment.md
sed -i 's/16x256x512/32x256x512/' pyproject.toml
echo && echo '$ vramcast check --base deeper.json   # with the mixer'"'"'s batch doubled'
code=0; "$vramcast" check --base deeper.json || code=$?
echo "(exit code $code)"
