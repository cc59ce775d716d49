"""Commands as users type them, and the program in them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command
from vramcast.jobs.text import JobText

_PATH = {"PATH": os.environ.get("PATH", "")}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a script in it."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def _read(text: str, **environment: str) -> Command:
    return read(shlex.split(text), {**_PATH, **environment})


@pytest.mark.parametrize(
    ("text", "words", "kind"),
    [
        ("train.py --lr 3", ("train.py", "--lr", "3"), ""),
        ("./train.py", ("train.py",), ""),
        ("python train.py -m x", ("train.py", "-m", "x"), ""),
        ("python3 -u -OO -W ignore -Xdev train.py a", ("train.py", "a"), ""),
        ("python -m pkg.main --x 1", ("pkg.main", "--x", "1"), "module"),
        ("python -Wignore -um pkg.main", ("pkg.main",), "module"),
        ("python -mpkg.main x", ("pkg.main", "x"), "module"),
        ("python -c 'print(1)' x", ("print(1)", "x"), "code"),
        ("python --check-hash-based-pycs always train.py", ("train.py",), ""),
        ("nohup python train.py", ("train.py",), ""),
        ("uv run --with torch --no-sync train.py --with x", ("train.py", "--with", "x"), ""),
        ("uv run -m pkg.main", ("pkg.main",), "module"),
        ("uv run python -m pkg.main", ("pkg.main",), "module"),
        ("poetry run python train.py", ("train.py",), ""),
    ],
)
def test_reads_through_interpreters_and_wrappers(text: str, words: tuple[str, ...], kind: str) -> None:
    found = _read(text)
    assert (found.words, found.is_module, found.is_code) == (words, kind == "module", kind == "code")
    assert found.environment == ()
    assert found.notes == ()


@pytest.mark.parametrize(
    "text", ["A=1 B='x y' python train.py", "env A=1 B='x y' train.py", "A=0 env -- A=1 B='x y' python train.py"]
)
def test_leading_variables_are_the_environment(text: str) -> None:
    assert dict(_read(text).environment) == {"A": "1", "B": "x y"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python", "No script"),
        ("env A=1", "No script"),
        ("absent.py", "no script or command 'absent.py'"),
        ("nothing-of-this-name --x", "no script or command 'nothing-of-this-name'"),
        ("python -m", "-m needs a value"),
        ("python -c", "needs a value"),
        ("python -", "stdin"),
        ("bash run.sh", "shell script"),
        ("srun -n 8 python train.py", "starts processes elsewhere"),
        ("env -i python train.py", "only have NAME=value"),
        ("uv run --directory x train.py", "'--directory' is not supported"),
        ("torchrun --no-such-option train.py", "torchrun"),
        ("torchrun", "required"),
    ],
)
def test_rejects_non_python_program(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _read(text)


def test_absent_engine_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UsageError, match=r"no script or command 'vllm': install the engine .*\(pip install vllm\)"):
        _read("vllm serve org/name")


def test_finds_console_script_on_path(folder: Path) -> None:
    tools = folder / "tools"
    tools.mkdir()
    for name, head in (
        ("mytune", f"#!{sys.executable}\n"),
        ("long", "#!/bin/sh\n'''exec' \"/python\" \"$0\" \"$@\"\n' '''\n"),
        ("sh-tool", "#!/bin/bash\n"),
    ):
        (tools / name).write_text(head + "pass\n")
        (tools / name).chmod(0o755)
    (tools / "binary").write_bytes(b"\x7fELF\0\0")
    (tools / "binary").chmod(0o755)
    assert _read("mytune run --x", PATH=str(tools)).words == (str(tools / "mytune"), "run", "--x")
    assert _read("long", PATH=str(tools)).words == (str(tools / "long"),)
    with pytest.raises(UsageError, match="is a script of /bin/bash"):
        _read("sh-tool", PATH=str(tools))
    with pytest.raises(UsageError, match="binary program"):
        _read("binary", PATH=str(tools))


def test_accepts_folders_and_archives_with_main(folder: Path) -> None:
    (folder / "app").mkdir()
    with pytest.raises(UsageError, match="no __main__"):
        _read("python app")
    (folder / "app" / "__main__.py").write_text("")
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    assert _read("python app x").words == ("app", "x")
    assert _read("app.pyz").words == ("app.pyz",)


def test_notes_other_interpreter(folder: Path) -> None:
    other = folder / "python3"
    other.write_text("")
    assert "vramcast's own Python" in _read(f"{other} train.py").notes[0]
    assert "names python2.7" in _read("python2.7 train.py").notes[0]
    assert _read(f"{sys.executable} train.py").notes == ()


def test_order_of_sources_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def world(*command: str, **options: Any) -> tuple[int, int, str]:
        found = JobText(command=command, **options).job(device("rtx4090")).command
        assert found is not None
        return found.world.size, found.world.local_size, dict(found.environment).get("WORLD_SIZE", "")

    assert world("WORLD_SIZE=2", "python", "train.py") == (2, 2, "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert world("train.py") == (4, 4, "4")
    assert world("train.py", nproc_per_node=2) == (4, 2, "4")
    assert world("torchrun", "--nproc_per_node=1", "train.py") == (1, 1, "1")
    assert world("torchrun", "--nproc_per_node=8", "train.py", world_size=16, nproc_per_node=8) == (16, 8, "16")
    monkeypatch.delenv("WORLD_SIZE")
    assert world("train.py", nproc_per_node=2) == (2, 2, "2")
    with pytest.raises(UsageError, match="machines of 3: give a multiple"):
        world("train.py", world_size=4, nproc_per_node=3)
    with pytest.raises(UsageError, match=r"Rank 4 .* does not exist: the ranks are 0 to 3"):
        world("train.py", world_size=4, ranks=(0, 4))


def test_pythonpath_of_command_comes_first(folder: Path) -> None:
    job = JobText(command=("PYTHONPATH=src:/x", "python", "-m", "pkg")).job(device("rtx4090"))
    assert job.search_path[:2] == (str(folder / "src"), "/x")


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        ("uv run --env-file .env train.py", {}, {"BATCH": "900", "LR": "1 2"}),
        ("uv run --env-file=.env -m pkg", {"LR": "3"}, {"BATCH": "900"}),
        ("uv run --env-file .env --env-file other.env python train.py", {}, {"BATCH": "7", "LR": "1 2"}),
        ("uv run train.py", {"UV_ENV_FILE": ".env"}, {"BATCH": "900", "LR": "1 2"}),
        ("uv run --no-env-file train.py", {"UV_ENV_FILE": ".env"}, {}),
        ("apptainer exec i.sif python train.py", {"APPTAINERENV_BATCH": "9", "SINGULARITYENV_BATCH": "8"}, {"BATCH": "9"}),
        ("apptainer exec --env BATCH=9 i.sif python train.py", {"APPTAINERENV_BATCH": "8"}, {"BATCH": "9"}),
    ],
)
def test_adds_variables_of_files_and_containers(folder: Path, text: str, given: dict[str, str], found: dict[str, str]) -> None:
    (folder / ".env").write_text("# settings\n\nexport BATCH=900 # many\nLR='1 2'\n")
    (folder / "other.env").write_text("BATCH=7\n")
    (folder / "train.py").touch()
    assert dict(_read(text, **given).environment) == found


@pytest.mark.parametrize("text", ["BATCH=$OTHER", "BATCH", "A=1 B", "A='1", "A=1#2", "A=\\n", None])
def test_rejects_unclear_environment_file(folder: Path, text: str | None) -> None:
    (folder / "train.py").touch()
    if text is not None:
        (folder / "e.env").write_text(f"{text}\n")
    with pytest.raises(UsageError, match=r"environment file 'e\.env'"):
        _read("uv run --env-file e.env train.py")
