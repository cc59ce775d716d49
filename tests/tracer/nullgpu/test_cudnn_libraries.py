"""Choice of the cuDNN for a stack: empty folders stand for the libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.core.errors import NullGpuError
from vramcast.hardware.stack import Stack
from vramcast.tracer.nullgpu.cudnn import libraries as cudnn_libraries
from vramcast.tracer.nullgpu.cudnn.libraries import FOLDER, choose, found, installed_stack, second_opinion, warning_of
from vramcast.tracer.nullgpu.library.build import TorchBuild

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that gives this machine a torch with this cuDNN (None: none) and fetched ones (for CUDA 13)."""
    monkeypatch.setattr(cudnn_libraries.platform, "system", lambda: "Linux")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(cudnn_libraries, "_torch_site", lambda: None)
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VRAMCAST_CUDNN_DIR", raising=False)

    def make(own: str | None, *fetched: str, cuda: bool = True) -> Path:
        site = tmp_path / "site"
        if own is not None:
            (site / FOLDER).mkdir(parents=True)
            (site / f"nvidia_cudnn_cu13-{own}.dist-info").mkdir()
        for version in fetched:
            name = version if "-cu" in version else f"{version}-cu13"
            (tmp_path / "cache" / "cudnn" / name / FOLDER).mkdir(parents=True)

        def find_torch() -> TorchBuild:
            if not cuda:
                raise NullGpuError("a CPU-only build")
            return TorchBuild("2.11.0+cu130", "13.0", site / "torch" / "lib", site)

        monkeypatch.setattr(cudnn_libraries, "find_torch", find_torch)
        return site

    return make


# Requested version, torch's own, fetched ones; the one that answers, whether it counts as another one, the warning.
CASES: dict[str, tuple[str | None, str | None, list[str], str, bool, str]] = {
    "no stack": (None, "9.19.0.56", ["9.8.0.87"], "9.19.0.56", False, ""),
    "torch's own": ("9.19.0", "9.19.0.56", ["9.8.0.87"], "9.19.0.56", False, ""),
    "complete": (
        "9.10.2.21",
        "9.19.0.56",
        ["9.10.2.21", "9.12.0.46"],
        "9.12.0.46",
        False,
        "leaves out .*9.12.0.46 in the cache answers",
    ),
    "complete beside torch": (
        "9.10.2.21",
        "9.12.0.1",
        ["9.8.0.87"],
        "9.12.0.1",
        False,
        "9.12.0.1 beside torch answers for it$",
    ),
    "itself, incomplete": (
        "9.10.2.21",
        "9.19.0.56",
        ["9.8.0.87", "9.10.2.21"],
        "9.10.2.21",
        False,
        "some out too: .*get-cudnn 9.12.0$",
    ),
    "alike": ("9.8.0", "9.19.0.56", ["9.11.0.3", "9.13.0.1"], "9.11.0.3", False, "some out too: .*get-cudnn 9.12.0$"),
    "not there": ("9.10.2.21", "9.19.0.56", [], "9.19.0.56", True, "has cuDNN 9.10.2.21, .*--get-cudnn 9.12.0$"),
    "nearest": ("9.13.0", "9.19.0.56", ["9.10.2.21"], "9.10.2.21", True, "has cuDNN 9.13.0, .*--get-cudnn 9.13.0$"),
    "too old to answer": (
        "9.1.0.70",
        "9.19.0.56",
        ["9.12.0.46"],
        "9.12.0.46",
        False,
        "9.1.0.70, which cannot answer without a GPU",
    ),
    "version 8": ("8.9.2.26", "9.19.0.56", ["9.10.2.21"], "9.10.2.21", False, "cannot answer .*: cuDNN 9.10.2.21 in the cache"),
    "too old, nothing alike": ("9.5.1.17", "9.19.0.56", [], "9.19.0.56", True, "--get-cudnn 9.12.0$"),
    "torch's own is too old": (None, "9.1.0.70", ["9.8.0.87"], "9.8.0.87", False, "cannot answer without a GPU"),
    "of another CUDA": ("9.10.2.21", "9.19.0.56", ["9.12.0.46-cu12"], "9.12.0.46", True, "CUDA 12 .* leaves attention out: "),
    "of two CUDAs": ("9.10.2.21", "9.19.0.56", ["9.12.0.46-cu12", "9.12.0.46"], "9.12.0.46", False, "answers for it$"),
    "newest of all": ("9.20.0.48", "9.19.0.56", ["9.8.0.87"], "9.19.0.56", True, "--get-cudnn 9.20.0$"),
}


@pytest.mark.parametrize("case", CASES)
def test_chooses_own_or_nearest_cudnn(case: str, machine: Machine) -> None:
    wanted, own, fetched, answers, is_another, said = CASES[case]
    machine(own, *fetched)
    stack = Stack(cudnn=wanted) if wanted is not None else None
    choice = choose(stack)
    assert (choice.library.version, choice.is_another) == (answers, is_another)
    if said:
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(choice.warning)
    else:
        assert choice.warning == ""
    assert warning_of(stack) == choice.warning


def test_missing_cudnn_error_gives_next_step(machine: Machine) -> None:
    machine(None)
    with pytest.raises(NullGpuError, match=r"no cuDNN is installed here: run vramcast doctor --get-cudnn 9\.12\.0"):
        choose(Stack(cudnn="9.10.2.21"))
    assert warning_of(Stack(cudnn="9.10.2.21")) == ""


def test_too_old_cudnn_error_names_replacement(machine: Machine) -> None:
    machine("9.1.0.70")
    with pytest.raises(NullGpuError, match=r"cuDNN 9\.1\.0\.70 beside torch cannot answer .*--get-cudnn 9\.12\.0"):
        choose(None)


def test_cpu_only_torch_needs_stack_for_cudnn(machine: Machine) -> None:
    machine(None, "9.10.2.21", cuda=False)
    assert choose(None).is_another
    assert "set it with --stack" in choose(None).warning
    assert not choose(Stack(cudnn="9.10.2")).is_another
    assert installed_stack() == Stack()


def test_finds_cudnn_on_import_path(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(None, cuda=False)
    (tmp_path / "lib" / FOLDER).mkdir(parents=True)
    (tmp_path / "lib" / "nvidia_cudnn_cu12-9.13.0.50.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "empty"), str(tmp_path / "lib")])
    assert [str(library) for library in found()] == ["cuDNN 9.13.0.50 installed here"]


def test_environment_folder_answers_for_every_stack(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("9.19.0.56", "9.10.2.21")
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path))
    for stack in (None, Stack(cudnn="9.10.2")):
        choice = choose(stack)
        assert (choice.library.folder, choice.is_another) == (tmp_path, True)
        assert choice.warning.endswith("to get the job's own, unset VRAMCAST_CUDNN_DIR")
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path / "cache" / "cudnn" / "9.10.2.21-cu13" / FOLDER))
    assert not choose(Stack(cudnn="9.10.2")).is_another
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path / "none"))
    with pytest.raises(NullGpuError, match="none is not a folder"):
        choose(None)


def test_two_versions_in_folder_are_unknown(machine: Machine) -> None:
    site = machine("9.19.0.56")
    (site / "nvidia_cudnn_cu12-9.10.2.21.dist-info").mkdir()
    assert installed_stack() == Stack("2.11.0+cu130", "13.0", None)
    assert choose(None).warning == ""  # it is torch's own, whatever its version
    assert choose(Stack(cudnn="9.10.2")).is_another


def test_rejects_systems_other_than_linux(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("9.19.0.56")
    monkeypatch.setattr(cudnn_libraries.platform, "system", lambda: "Darwin")
    with pytest.raises(NullGpuError, match="this is Darwin"):
        choose(None)


@pytest.mark.parametrize(
    ("wanted", "own", "fetched", "second"),
    [
        ("9.1.0.70", "9.19.0.56", ["9.12.0.46"], "9.19.0.56"),
        ("9.1.0.70", "9.19.0.56", ["9.8.0.87", "9.12.0.46", "9.20.0.48"], "9.20.0.48"),  # the newest
        ("9.1.0.70", "9.12.0.46", ["9.8.0.87"], None),  # both prefer the same engines
        ("9.1.0.70", "9.19.0.56", [], None),  # it answers already
        ("9.10.2.21", "9.19.0.56", ["9.12.0.46"], None),  # 9.12 answers as it does
        (None, "9.19.0.56", ["9.12.0.46"], None),
    ],
)
def test_second_opinion_is_for_cudnns_too_old_to_be_queried(
    machine: Machine, wanted: str | None, own: str, fetched: list[str], second: str | None
) -> None:
    machine(own, *fetched)
    other = second_opinion(Stack(cudnn=wanted))
    assert (other.version if other is not None else None) == second


def test_chosen_cudnn_gets_no_second_opinion(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("9.19.0.56", "9.12.0.46")
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path))
    assert second_opinion(Stack(cudnn="9.1.0.70")) is None
