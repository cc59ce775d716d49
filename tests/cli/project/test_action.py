"""The GitHub Action: its form by the published schema, and its steps run as by a runner, on a real repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "action.yml"
LIMIT_S = 300
MODEL = "import torch\ndef linear():\n    return torch.nn.Linear({width}, {width})\n"
JOBS = '[tool.vramcast.jobs.linear]\ntarget = "model.py:linear"\nbatch = "8x{width}"\ntracer = "fake"\nmemory = "{memory}"\n'
# A replacement of GitHub's command line: it records its arguments, and has one comment if OLD is set.
GH = """#!/bin/sh
echo "$@" >> "$GH_LOG"
for word in "$@"; do case "$word" in body=@*) cp "${word#body=@}" "$GH_LOG.body";; esac; done
if [ "$GH_FAILS" ]; then echo "HTTP 403" >&2; exit 1; fi
case "$*" in *--paginate*) echo "$OLD";; esac
"""
# A replacement of vramcast for its exit code only, called as the action does without a base.
VRAMCAST = """#!/bin/sh
test "$2" = --markdown && echo "<!-- vramcast -->" > "$3"
test "$4" = --results && echo "{}" > "$5"
exit "$VRAMCAST_CODE"
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not all(map(shutil.which, ("git", "bash"))), reason="needs git and bash"),
]


@pytest.mark.release
def test_follows_published_schema() -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert found.returncode == 0, found.stdout + found.stderr


def test_scripts_contain_no_expressions() -> None:
    # Text from a pull request (a branch's name) would run as code.
    scripts = [step["run"] for step in steps()]
    assert len(scripts) == 4
    assert [script for script in scripts if "${{" in script] == []


def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    found: list[dict[str, Any]] = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    return found


@dataclass
class Runner:
    """The part of GitHub's runner that the action needs: variables, expressions that are names, outputs, a summary."""

    folder: Path
    contexts: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.contexts[match[1]], text)

    def wants(self, step: dict[str, Any]) -> bool:
        parts = [part.split() for part in step.get("if", "'' == ''").split(" && ")]
        value = {True: lambda word: word.strip("'"), False: lambda word: self.contexts[word]}
        read = [(value["'" in left](left), sign, value["'" in right](right)) for left, sign, right in parts]
        return all((left == right) == (sign == "==") for left, sign, right in read)

    def run(self) -> list[subprocess.CompletedProcess[str]]:
        """Run the selected steps until one fails."""
        done = []
        for step in filter(self.wants, steps()):
            output = self.folder / "output"
            output.write_text("")
            variables = {name: self.filled(value) for name, value in step.get("env", {}).items()}
            where = self.filled(step.get("working-directory", "."))
            done.append(
                subprocess.run(
                    ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                    cwd=self.folder / "repository" / where, capture_output=True, text=True, timeout=LIMIT_S,
                    env={**os.environ, **self.environment, **variables, "GITHUB_OUTPUT": str(output)},
                )
            )  # fmt: skip
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                self.contexts[f"steps.{step['id']}.outputs.{name}"] = value
            if done[-1].returncode:
                break
        return done


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a runner with a pull request's branch, in a checkout of one commit; its base exists only at the origin."""
    origin, tools = tmp_path / "origin", tmp_path / "tools"
    origin.mkdir()
    tools.mkdir()
    git(origin, "init", "--quiet", "-b", "main")
    for branch, width in (("main", 4096), ("wide", 8192)):
        if branch != "main":
            git(origin, "checkout", "--quiet", "-b", branch)
        (origin / "model.py").write_text(MODEL.format(width=width))
        (origin / "pyproject.toml").write_text(JOBS.format(width=width, memory="24GiB"))
        git(origin, "add", "-A")
        git(origin, "commit", "--quiet", "-m", branch)
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=wide", origin.as_uri(), "repository")
    for name, text in {"gh": GH, "vramcast": f'#!/bin/sh\nexec {sys.executable} -P -m vramcast "$@"\n'}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    contexts = {
        "inputs.install": "none", "inputs.working-directory": ".", "inputs.base": "main", "inputs.base-results": "",
        "inputs.comment": "true", "github.token": "token", "github.event_name": "pull_request",
        "github.repository": "owner/name", "github.event.pull_request.number": "7",
    }  # fmt: skip
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(tmp_path), "OLD": "",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GH_LOG": str(tmp_path / "gh"), "GH_FAILS": "",
    }  # fmt: skip
    return Runner(tmp_path, contexts, environment)


def test_comments_changes_on_pull_request(runner: Runner) -> None:
    check, comment, verdict = runner.run()
    assert check.returncode == comment.returncode == verdict.returncode == 0, check.stderr + comment.stderr
    written = (runner.folder / "gh.body").read_text()
    # Parameters, gradients and Adam's two states: 4 copies of 8192^2 floats are 1 GiB; 4 copies of 4096^2 floats are a
    # quarter.
    assert re.search(r"\| `linear` \| `h200` \| 1\.\d+ GiB \| \+\d+\.\d+ MiB \|", written), written
    assert written == (runner.folder / "summary").read_text()
    asked = (runner.folder / "gh").read_text().splitlines()
    assert asked[-1].startswith("api --silent repos/owner/name/issues/7/comments -F body=@")
    assert (runner.folder / "vramcast.json").exists()


def with_stand_in(runner: Runner, code: int) -> None:
    (runner.folder / "tools" / "vramcast").write_text(VRAMCAST)
    runner.environment["VRAMCAST_CODE"] = str(code)
    runner.contexts["inputs.base"] = ""


def test_updates_own_comment(runner: Runner) -> None:
    with_stand_in(runner, 0)
    runner.environment["OLD"] = "55"
    assert [step.returncode for step in runner.run()] == [0, 0, 0]
    asked = (runner.folder / "gh").read_text().splitlines()
    assert "PATCH repos/owner/name/issues/comments/55" in asked[-1]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_returns_exit_code_after_comment(runner: Runner, code: int) -> None:
    with_stand_in(runner, code)
    assert [step.returncode for step in runner.run()] == [0, 0, code]
    assert (runner.folder / "gh.body").read_text() == "<!-- vramcast -->\n"
    assert runner.contexts["steps.check.outputs.exit-code"] == str(code)


def test_checks_fork_without_comment_permission(runner: Runner) -> None:
    with_stand_in(runner, 0)
    runner.environment["GH_FAILS"] = "1"
    _, comment, verdict = runner.run()
    assert (comment.returncode, verdict.returncode) == (0, 0)
    assert "::warning::" in comment.stdout


def test_fails_on_wrong_table(runner: Runner) -> None:
    (runner.folder / "repository" / "pyproject.toml").write_text("[tool.vramcast]\n")
    runner.contexts |= {"inputs.base": "", "github.event_name": "push"}
    check, verdict = runner.run()
    assert (check.returncode, verdict.returncode) == (0, 2)
    assert "names no job" in check.stderr
    assert "not checked" in (runner.folder / "summary").read_text()


@pytest.mark.release
def test_reads_base_from_file(runner: Runner) -> None:
    runner.contexts |= {"inputs.base": "", "inputs.comment": "false"}
    assert [step.returncode for step in runner.run()] == [0, 0]
    shutil.copy(runner.folder / "vramcast.json", runner.folder / "main.json")
    runner.contexts["inputs.base-results"] = str(runner.folder / "main.json")
    assert [step.returncode for step in runner.run()] == [0, 0]
    assert "| no change |" in (runner.folder / "summary").read_text()
