"""`vramcast check` without TARGET: all jobs of a repository, the worst exit code, the changes since another revision."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.cli.checked_job import CheckedJob
from vramcast.core.errors import CannotEstimate

Call = Callable[..., tuple[int, str, str]]
MODEL = """
import torch

def mlp(width={width}):
    return torch.nn.Sequential(torch.nn.Linear(1024, width), torch.nn.ReLU(), torch.nn.Linear(width, 1024))
"""
FITS = """
[tool.vramcast]
device = "t4"
[tool.vramcast.jobs.mlp]
target = "model.py:mlp"
batch = "64x1024"
labels = "64x1024"
"""
SMALL = FITS + '[tool.vramcast.jobs.small]\ntarget = "model.py:mlp"\nbatch = "64x1024"\nmemory = "512MiB"\n'
BROKEN = FITS + '[tool.vramcast.jobs.broken]\ntarget = "model.py:mpl"\nbatch = "64x1024"\n'
WRONG_SHAPE = FITS + '[tool.vramcast.jobs.shape]\ntarget = "model.py:mlp"\nbatch = "64x16"\n'
UNCERTAIN = (
    FITS
    + """
[tool.vramcast.jobs.tight]
target = "model.py:mlp"
batch = "64x1024"
labels = "64x1024"
strict = true
memory = {memory}
"""
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a model and a job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.format(width=16384))
    (tmp_path / "pyproject.toml").write_text(FITS)
    return tmp_path


def jobs(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text)


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize(
    ("text", "code", "verdicts"),
    [
        (FITS, 0, {"mlp": (0, "fits")}),
        (SMALL, 1, {"mlp": (0, "fits"), "small": (1, "does not fit")}),
        (WRONG_SHAPE, 3, {"mlp": (0, "fits"), "shape": (3, "")}),
        (SMALL + BROKEN[len(FITS) :], 2, {"mlp": (0, "fits"), "small": (1, "does not fit"), "broken": (2, "")}),
    ],
)
def test_exit_code_is_the_worst(call: Call, project: Path, text: str, code: int, verdicts: dict[str, tuple[int, str]]) -> None:
    jobs(project, text)
    found, out, _ = call("check", "--json")
    said = json.loads(out)
    assert (found, said["exit_code"]) == (code, code)
    assert {name: job["exit_code"] for name, job in said["jobs"].items()} == {name: one for name, (one, _) in verdicts.items()}
    for name, (_, verdict) in verdicts.items():
        assert said["jobs"][name]["verdict"].startswith(verdict)
    assert said["jobs"]["mlp"]["estimate"]["schema"] == 1


@pytest.mark.usefixtures("auto_tracer")
def test_job_between_point_and_bound_is_uncertain(call: Call, project: Path) -> None:
    peaks = json.loads(call("check", "--json")[1])["jobs"]["mlp"]["estimate"]
    between = (peaks["peaks"]["process"] + peaks["upper_bound"]["bytes"]) // 2
    jobs(project, UNCERTAIN.format(memory=between))
    code, out, _ = call("check")
    assert code == 4
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["fits", "uncertain"]


@pytest.mark.usefixtures("auto_tracer")
def test_written_results_serve_as_base(call: Call, project: Path) -> None:
    assert call("check", "--results", "main.json", "--markdown", "comment.md")[0] == 0
    first = Path("comment.md").read_text()
    assert first.startswith("<!-- vramcast -->\n### GPU memory: 1 of 1 jobs fit\n")
    (project / "model.py").write_text(MODEL.format(width=65536))
    code, out, _ = call("check", "--base", "main.json", "--markdown", "-")
    assert code == 0
    assert "| since main |" in out
    assert "| `mlp` | `t4` | 2." in out
    assert " | +1." in out
    # torch holds weight, gradient and two states: at least 4 copies of 2 x 1024 x 49152 floats
    values = json.loads(call("check", "--base", "main.json", "--json")[1])
    assert values["since"]["change_bytes"]["mlp"] > 4 * 2 * 1024 * 49152 * 4


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_compares_with_another_revision(call: Call, project: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *words], check=True, capture_output=True)

    git("init", "--quiet", "-b", "main")
    git("add", "-A")
    git("commit", "--quiet", "-m", "narrow")
    git("checkout", "--quiet", "-b", "wider")
    (project / "model.py").write_text(MODEL.format(width=65536))
    jobs(project, FITS + '[tool.vramcast.jobs.new]\ntarget = "model.py:mlp"\nbatch = "64x1024"\n')
    code, out, _ = call("check", "--against", "main")
    assert code == 0
    header, mlp, new = out.splitlines()
    assert "since main" in header
    assert "  +1." in mlp
    assert "  new  " in new
    assert Path.cwd() == project
    # The job of the base is missing or invalid: this revision is checked all the same.
    for text, said in (
        ("[project]\nname = 'x'\n", "has no [tool.vramcast]"),
        ("[tool.vramcast.jobs]\nx = 5\n", "must be a table"),
    ):
        git("checkout", "--quiet", "main")
        jobs(project, text)
        git("commit", "--quiet", "-am", "other")
        git("checkout", "--quiet", "wider")
        jobs(project, FITS)
        code, out, _ = call("check", "--against", "main")
        assert code == 0
        assert "There is no comparison with main" in out
        assert said in out
        git("checkout", "--quiet", "pyproject.toml")


@pytest.mark.usefixtures("auto_tracer")
def test_checks_a_command(call: Call, project: Path, needs_null_gpu: None) -> None:
    (project / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(1024, 1024).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(5):\n    model(torch.zeros(8, 1024).cuda()).sum().backward()\n    optimizer.step()\n"
    )
    jobs(project, '[tool.vramcast.jobs.train]\ncommand = "python train.py"\ndevice = "t4"\nuntil = "end"\n')
    code, out, err = call("check")
    assert code == 0, out + err
    assert out.splitlines()[1].split()[0] == "train"


# ------------------------------------------------------------------------------------------------ without a trace
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "t4"), ("--on", "cannot be combined")),
        (("--batch", "8x16", "--strict"), ("--batch", "--strict")),
        (("--what-if", "common"), ("--what-if",)),
        (("--snapshot", "x.pickle"), ("--snapshot",)),
        (("--base", "x.json", "--against", "main"), ("--base and --against",)),
        (("--json", "--markdown", "-"), ("--json", "stdout")),
        (("--base", "absent.json"), ("absent.json", "--results")),
        (("--base", ""), ("--base", "empty")),
        (("torchvision:resnet18", "--batch", "8x3x32x32", "--markdown", "-"), ("--markdown", "leave out TARGET")),
        (("--results", "x.json", "--", "train.py"), ("--results", "leave out TARGET")),
    ],
)
def test_rejects_wrong_options_before_tracing(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: tuple[str, ...]
) -> None:
    monkeypatch.setattr(CheckedJob, "estimate", lambda job: pytest.fail("a job was traced"))
    code, out, err = call("check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("vramcast: ")
    assert all(words in err for words in said), err


def test_rejects_wrong_table_before_tracing(call: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedJob, "estimate", lambda job: pytest.fail("a job was traced"))
    jobs(project, FITS + "[tool.vramcast.jobs.other]\ntarget = 'a:b'\noptimiser = 'sgd'\n")
    code, _, err = call("check")
    assert code == 2
    assert "Job 'other'" in err
    assert "did you mean optimizer" in err


def test_folder_without_jobs_error_shows_how(call: Call, project: Path) -> None:
    jobs(project, "[project]\nname = 'x'\n")
    code, _, err = call("check")
    assert code == 2
    assert "[tool.vramcast]" in err
    assert "vramcast check TARGET" in err


def test_unwritable_files_give_no_answer(call: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: object) -> None:
        raise CannotEstimate("no")

    monkeypatch.setattr(CheckedJob, "estimate", refuse)
    code, _, err = call("check", "--results", "absent/folder/x.json")
    assert code == 3
    assert "absent/folder/x.json" in err
