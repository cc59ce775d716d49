"""Tests of the repository's public files: one version, the citation, issue forms, and types for users."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

import vramcast
from tests.test_packaging import build, copied

ROOT = Path(__file__).parents[1]
FORMS = sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
USER = """
import torch
import vramcast
from vramcast import Estimate, Estimator, TensorSpec, UsageError

model = torch.nn.Linear(8, 2)
est: Estimate = vramcast.estimate(model, TensorSpec((4, 8)), optimizer="adamw", device="t4", level=0.9)
sizes: tuple[int, int, int] = (est.allocated, est.reserved, est.process)
bound: int = est.quantile(0.99) + est.upper_bound
smallest: int | None = est.min_feasible
fits: bool = est.fits("a100-40gb")
told: list[str] = list(est.warnings)
try:
    again: Estimate = Estimator(device="h200").estimate(model, torch.zeros(4, 8))
except UsageError as error:
    print(error)
est.save_report("job.html")
"""
SCRIPT = """
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    model(torch.rand(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
# Each line is a mistake that a type checker must find.
WRONG = [
    "est.reserved + 'x'",
    "vramcast.estimate(model, TensorSpec((4, 8)), level='high')",
    "est.fit()",
    "TensorSpec(shape='4')",
]


def checked(schema: str, path: Path) -> None:
    """Validate a file against a schema of check-jsonschema."""
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.release
@pytest.mark.integration
def test_citation_is_valid() -> None:
    checked("vendor.citation-file-format", ROOT / "CITATION.cff")


@pytest.mark.release
@pytest.mark.integration
@pytest.mark.parametrize("name", FORMS)
def test_issue_forms_are_valid(name: str) -> None:
    checked("vendor.github-issue-forms", ROOT / ".github" / "ISSUE_TEMPLATE" / name)
    assert len(FORMS) == 3


@pytest.mark.release
@pytest.mark.integration
def test_nightly_workflow_is_valid() -> None:
    checked("vendor.github-workflows", ROOT / ".github" / "workflows" / "nightly.yml")


def test_one_version_is_everywhere() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == vramcast.__version__
    releases = re.findall(r"^## (\d\S+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == (vramcast.__version__, str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]))
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


def test_changelog_has_declared_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.index("## Unreleased") < text.index(f"## {vramcast.__version__}")
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
    }


# -- in a fresh environment -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a fresh environment with the wheel; other packages come from this one."""
    folder = tmp_path_factory.mktemp("outside")
    wheel = build(copied(folder / "source", with_links=True), "wheel")
    venv.create(folder / "venv", with_pip=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.release
@pytest.mark.integration
def test_readme_commands_work_in_a_fresh_environment(needs_null_gpu: None, outside: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    place = run(str(outside), "-c", "import vramcast; print(vramcast.__file__)").stdout
    assert place.startswith(str(outside.parents[1]))
    command = str(outside.parent / "vramcast")
    assert run(command, "--version").stdout == f"vramcast {vramcast.__version__}\n"
    readme = re.search(r"^\$ (vramcast check .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert readme is not None
    done = run("bash", "-c", readme[1].replace("vramcast", command, 1))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits: at most ")
    (tmp_path / "train.py").write_text(SCRIPT)
    script = run(command, "run", "--device", "t4", "--snapshot", "job.pickle", "--", "python", "train.py")
    assert script.returncode == 0, script.stderr
    assert "\npeak " in script.stdout
    replayed = run(command, "replay", "job.pickle", "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["allocations"] > 0


@pytest.mark.release
@pytest.mark.integration
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_users_program_is_typed(checker: str, outside: Path, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    (tmp_path / "right.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(USER + "\n".join(WRONG) + "\n")
    options = {"mypy": ["--strict", "--python-executable", str(outside)], "pyright": ["--pythonpath", str(outside)]}[checker]

    def errors(name: str) -> list[str]:
        command = [sys.executable, "-m", checker, *options, name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return re.findall(rf"^.*{name}:\d+.*error.*$", done.stdout, re.MULTILINE)

    assert errors("right.py") == []
    assert len(errors("wrong.py")) >= len(WRONG)
