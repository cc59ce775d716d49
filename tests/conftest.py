"""Shared fixtures: one warm worker, one cache folder, and the reasons to skip a test where it cannot run."""

from __future__ import annotations

import os

# One thread for each of pytest's processes: more would wait for each other. The libraries read this when they are loaded.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import importlib.util
import json
import platform
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from benchmarks.site.browser import chromium, installed
from tests import compiled
from vramcast.cli import terminal
from vramcast.core.brief import every_field
from vramcast.core.errors import CompilerError, NullGpuError
from vramcast.core.releases import FREES_WORKSPACES
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.stack import release_of
from vramcast.jobs.job import Command, Job, TensorSpec, Training
from vramcast.plans import packing
from vramcast.simulator import compiled as compiled_simulator
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.library.build import build, find_torch
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

pytest_plugins = ["tests.lanes"]
# The linters are not installed for the lane with an older torch.
collect_ignore = [] if importlib.util.find_spec("proselint") else ["test_prose.py"]
T = TypeVar("T")
ROOT = Path(__file__).parents[1]
# Prefix of every probe: `note(name=value)` sends JSON back, `mark()` puts a request of a known odd size into the history.
PRELUDE = """
import json, os, sys
os.environ.pop("NULLGPU_CUDNN_SOCKET", None)  # no cuDNN workspaces: these tests must not depend on an installed cuDNN
import torch
_notes = {}
def note(**values): _notes.update(values)
def mark(): torch.empty(100_003, dtype=torch.uint8, device="cuda")
"""
EPILOGUE = """
with open(sys.argv[1], "w") as file: json.dump(_notes, file)
"""


hypothesis.settings.register_profile("vramcast", deadline=None)  # other processes share the cores
hypothesis.settings.register_profile("fast", deadline=None, max_examples=25)  # `make test-fast`
hypothesis.settings.load_profile("vramcast")


def _prepare_unit_tests() -> None:
    """Do once the preparations for which unit tests would start a process."""
    from tests.lanes import processes_allowed  # a plugin: pytest imports it first

    with processes_allowed():
        with suppress(CompilerError):  # without a compiler, Python plays
            compiled_simulator.library()
            packing.library()
        with suppress(ImportError):  # on a new machine, the first import of matplotlib starts a program to list the fonts
            importlib.import_module("matplotlib.font_manager")


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate the tests from the settings of the developer's shell, and from the developer's cache."""
    terminal._LOG_TICK_S = 3600.0  # the machine may be slow: no test expects these lines, but for their own
    saved = dict(os.environ)
    umask = os.umask(0o022)  # the cache rejects files that a group can write to
    for name in (
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
    ):
        os.environ.pop(name, None)
    cache = tmp_path_factory.mktemp("cache")
    os.environ["VRAMCAST_CACHE"] = str(cache)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # see pytest_collection_finish
    compiled.compile_once(_prepare_unit_tests, cache)
    yield
    if NullGpuTracer._shared is not None:
        NullGpuTracer._shared.close()
    compiled.keep(cache)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(saved)


def _null_gpu_problem() -> str:
    """Return the reason why the null GPU cannot run here (not Linux, a CPU-only torch, no C compiler); "" if it can."""
    if platform.system() != "Linux":
        return f"it runs on Linux, this is {platform.system()}"
    try:
        find_torch()
    except NullGpuError as error:
        return str(error)
    return "" if shutil.which("gcc") and shutil.which("nm") else "gcc or nm (binutils) is not installed"


@pytest.fixture(scope="session")
def keeps_workspaces() -> None:
    """Skip where each product requests and frees a workspace of its own: torch since 2.15."""
    if (release_of(version("torch")) or FREES_WORKSPACES) >= FREES_WORKSPACES:
        pytest.skip("this torch keeps no workspace of cuBLAS")


@pytest.fixture(scope="session")
def needs_null_gpu(clean_environment: None) -> None:
    """Skip if the null GPU cannot run; else its stand-ins are compiled."""
    if problem := _null_gpu_problem():
        pytest.skip(f"needs the null GPU: {problem}")
    compiled.compile_once(build, Path(os.environ["VRAMCAST_CACHE"]))


@pytest.fixture(scope="session")
def tracer(needs_null_gpu: None, clean_environment: None) -> Callable[[], NullGpuTracer]:
    """Return the shared worker; after a test that kills it, the next one gets a fresh worker."""
    NullGpuTracer.shared()
    return NullGpuTracer.shared


@pytest.fixture(scope="session")
def auto_tracer(clean_environment: None) -> str:
    """Return the tracer of `auto` here, for tests of answers that any tracer gives; the null GPU's worker is warm."""
    if _null_gpu_problem():
        return "fake"
    compiled.compile_once(build, Path(os.environ["VRAMCAST_CACHE"]))
    NullGpuTracer.shared()
    return "nullgpu"


@pytest.fixture(scope="session")
def need() -> Callable[[str], Any]:
    """Return a function that imports a package in the test's own process; skip if it does not import with this torch."""
    from vramcast.tracer.program.imports import define_torchvision_operators

    define_torchvision_operators()  # timm and transformers import them too

    def imported(name: str) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # their own warnings during the import
                return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            pytest.skip(f"needs {name}, which does not import here: {error}")

    return imported


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    """Return a function that makes a job from keywords, including its training's; device and batch are texts."""

    def make(**options: Any) -> Job:
        options["device"] = find_device(options.get("device", "a100-40gb"))
        for name in ("batch", "labels"):
            if isinstance(options.get(name), str):
                options[name] = TensorSpec.parse(options[name])
        options.setdefault("search_path", (str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
        return Job(training=_taken(Training, options), **options)

    return make


def _taken(kind: type[T], options: dict[str, Any]) -> T:
    """Return a dataclass from the options that are its fields, and remove them."""
    names = [field.name for field in fields(kind) if field.name in options]  # type: ignore[arg-type]
    return kind(**{name: options.pop(name) for name in names})


@pytest.fixture(scope="session")
def trace(tracer: Callable[[], NullGpuTracer], make_job: Callable[..., Job]) -> Callable[..., Result]:
    """Return a function that traces a job from keywords, including `RunOptions`' fields.

    The same keywords a second time cost nothing; `fresh=True` runs the job again.
    """
    results: dict[str, Result] = {}

    def run(*, fresh: bool = False, timeout_s: float = 300.0, **options: Any) -> Result:
        options.setdefault("search_path", tuple(sys.path))
        how, job = _taken(RunOptions, options), make_job(**options)
        key = every_field((job, how))
        if fresh or key not in results:
            results[key] = tracer().trace(job, how, timeout_s=timeout_s)
        return results[key]

    return run


@pytest.fixture(scope="session")
def probe(
    trace: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[dict[str, Any], Result]]:
    """Return a function that runs lines of Python on the null GPU; it returns their `note`s, and the result with its trace."""
    folder = tmp_path_factory.mktemp("probe")

    def run(source: str, **options: Any) -> tuple[dict[str, Any], Result]:
        number = len(list(folder.iterdir()))
        script, answer = folder / f"probe{number}.py", folder / f"probe{number}.json"
        script.write_text(PRELUDE + textwrap.dedent(source) + EPILOGUE)
        options.setdefault("steps", 1000)  # never stopped from outside
        result = trace(command=Command((str(script), str(answer))), fresh=True, **options)
        return (json.loads(answer.read_text()) if answer.exists() else {}), result

    return run


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of small models for TARGET file.py:factory; its forward takes 8x16 floats, its classes are 4."""
    path = tmp_path_factory.mktemp("models") / "tiny.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch

            def mlp():
                return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

            def wide():
                return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024))

            class Raises(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.linear = torch.nn.Linear(16, 4)
                def forward(self, x):
                    raise RuntimeError("the model is broken\\non two lines")

            not_a_model = 5
            def returns_text():
                return "text"
            def cannot_build():
                raise KeyError("no such layer")
            """
        )
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a Chromium."""
    if installed() is None:
        pytest.skip("no Chromium is installed")
    with chromium() as found:
        yield found
