"""The hook for pre-commit, run by pre-commit itself from a local repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
LIMIT_S = 300
MODEL = "import torch\ndef linear():\n    return torch.nn.Linear(4096, 4096)\n"
JOBS = '[tool.vramcast.jobs.linear]\ntarget = "model.py:linear"\nbatch = "8x4096"\ntracer = "fake"\nmemory = "{memory}"\n'

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.filterwarnings("ignore"),  # pre-commit's own
]


def run(folder: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with git's author."""
    who = {f"GIT_{role}_{what}": "n" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **who, **(environment or {})}
    )


@pytest.mark.release
def test_commit_passes_only_if_jobs_fit(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    hooks, project, tools = tmp_path / "hooks", tmp_path / "project", tmp_path / "tools"
    for folder in (hooks, project, tools):
        folder.mkdir()
    (tools / "vramcast").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m vramcast "$@"\n')
    (tools / "vramcast").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PRE_COMMIT_HOME": str(tmp_path / "kept"),
    }
    shutil.copy(HOOKS, hooks)  # the only file of our repository that pre-commit reads
    run(hooks, "git", "init", "--quiet", "-b", "main")
    run(hooks, "git", "add", "-A")
    assert run(hooks, "git", "commit", "--quiet", "-m", "hooks").returncode == 0
    commit = run(hooks, "git", "rev-parse", "HEAD").stdout.strip()

    run(project, "git", "init", "--quiet", "-b", "main")
    (project / "model.py").write_text(MODEL)
    (project / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {hooks}\n    rev: {commit}\n    hooks:\n      - id: vramcast\n"
    )
    pre_commit = (sys.executable, "-m", "pre_commit")
    installed = run(project, *pre_commit, "install", environment=environment)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    for memory, passes in (("300MiB", False), ("24GiB", True)):
        (project / "pyproject.toml").write_text(JOBS.format(memory=memory))
        run(project, "git", "add", "-A")
        found = run(project, "git", "commit", "-m", memory, environment=environment)
        assert (found.returncode == 0) == passes, found.stdout + found.stderr
        assert ("does not fit" in found.stderr + found.stdout) != passes
    assert run(project, "git", "log", "--format=%s").stdout.split() == ["24GiB"]


@pytest.mark.release
def test_manifest_is_valid() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (hook,) = clientlib.load_manifest(str(HOOKS))
    assert (hook["id"], hook["entry"], hook["pass_filenames"]) == ("vramcast", "vramcast check", False)
