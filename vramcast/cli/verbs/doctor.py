"""Report what is installed and which tracers work; fetch another cuDNN; measure this card's context.

vramcast doctor
vramcast doctor --get-cudnn 9.10.2
vramcast doctor --measure-context --site site.toml
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
from typing import Any

from vramcast.cli.streams import answer
from vramcast.cli.terminal import progress
from vramcast.core import prebuilt
from vramcast.core.cache import cache_folder
from vramcast.core.compiler import shared_library
from vramcast.core.errors import NullGpuError, UsageError, VramcastError
from vramcast.core.extras import installed
from vramcast.core.releases import INSTALL
from vramcast.estimates.bounds.learned import NONE, SHIPPED, VARIABLE, chosen, load, shipped
from vramcast.hardware.cards import SITE_VARIABLE, site_file
from vramcast.simulator import compiled
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn import libraries as cudnn_libraries
from vramcast.tracer.nullgpu.cudnn.download import fetch
from vramcast.tracer.nullgpu.library.build import TorchBuild, build, find_torch, known_build

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
    "numpy",
    "cloudpickle",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument(
        "--get-cudnn",
        metavar="VERSION",
        help=(
            "fetch this version of cuDNN (9.10.2) with pip into the cache, about 700 MB, for jobs whose --stack names it; "
            "then exit"
        ),
    )
    parser.add_argument(
        "--measure-context",
        action="store_true",
        help=(
            "measure the memory that a process takes on this machine's GPU outside PyTorch's allocator, write it to the "
            "site file, and exit"
        ),
    )
    parser.add_argument("--site", metavar="FILE", help=f"with --measure-context: the site file (default: ${SITE_VARIABLE})")


def report() -> dict[str, Any]:
    """Return the facts; each tracer has `works` and `why`."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "compiler": shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc"),
        "packages": {name: installed(name) for name in _PACKAGES},
        "alloc_conf_in_environment": os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        "cache": _try(lambda: str(cache_folder())),
        "cudnn": _try(_cudnns),
        "tracers": {
            "nullgpu": _nullgpu(),
            "fake": _portable("fake", "fake tensors, any build of torch"),
            "cpu": _portable("cpu", "runs the step for real: the job must fit into this machine's memory"),
        },
        "simulator": _simulator(),
        "artifact": _try(_artifact),
        "site": _try(_site),
        "sandbox": _sandbox(),
    }


def _sandbox() -> dict[str, Any]:
    """Return whether the service can run its clients' code here, and how well the sandbox limits it."""
    try:
        from vramcast.cluster.service import control_group, sandbox
    except ImportError as error:
        return {"works": False, "why": f"{error.name} is not installed: run pip install '.[serve]' in vramcast's checkout"}
    if lacking := sandbox.missing():
        return {"works": False, "why": f"{lacking} is missing"}
    refusal = control_group.refusal()
    memory = f"checked four times a second ({refusal})" if refusal else "limited by control groups"
    users = "each job has a user of its own" if os.geteuid() == 0 else "jobs run as this user"
    return {"works": True, "why": f"bubblewrap; the memory of jobs is {memory}; {users}"}


def _site() -> str | None:
    found = site_file()
    if found is None:
        return None
    cards = f"; cards: {', '.join(found.cards)}" if found.cards else ""
    return f"{found.path}, contexts: {len(found.contexts)}{cards}"


def _try(function: Any) -> Any:
    try:
        return function()
    except VramcastError as error:
        return f"problem: {error}"


def _nullgpu() -> dict[str, Any]:
    if platform.system() != "Linux":
        return {"works": False, "why": f"the null GPU needs Linux, but this is {platform.system()}"}
    try:
        torch = find_torch()
        worker = NullGpuTracer.shared()
        if failure := failure_of(worker.name):
            return {"works": False, "why": failure}
        return {
            "works": True,
            "why": f"torch {worker.torch_version} (CUDA {torch.cuda}) runs on the stand-ins",
            "stand_ins": prebuilt.origin(f"nullgpu/{build(torch).name}"),
            "torch_build": _tested(torch),
            "recording": worker.why_profiled or "by vramcast's library",
            "cudnn_workspaces": worker.cudnn_answer(),
        }
    except VramcastError as error:
        return {"works": False, "why": str(error)}


def _tested(torch: TorchBuild) -> str:
    """Return whether this build of torch has been tested."""
    found = known_build(torch)
    if found is None:
        return "is untested: python -m benchmarks.new_torch prints the differences"
    return f"was tested on {found.tested}: {'; '.join(found.deviations) or 'no differences'}"


def _portable(tracer: str, why: str) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"works": False, "why": f"torch is not installed here: run {INSTALL}"}
    if failure := failure_of(tracer):
        return {"works": False, "why": failure}
    return {"works": True, "why": why, "cudnn_workspaces": _cudnn()}


def failure_of(tracer: str) -> str:
    """Return the first line of a tracer's error with one layer and its optimizer; "" if it answers."""
    import torch

    import vramcast

    try:
        vramcast.estimate(torch.nn.Linear(64, 64), torch.zeros(8, 64), device="a100-40gb", tracer=tracer)
    except VramcastError as error:
        return str(error).splitlines()[0]
    return ""


def _cudnn() -> str:
    """Return the cuDNN whose workspaces the portable tracers use for convolutions."""
    try:
        choice = cudnn_libraries.choose(None)
    except NullGpuError as error:
        return f"count as 0: {error}"
    return f"from {choice.library.folder}" + (f"; {choice.warning}" if choice.warning else "")


def _cudnns() -> list[dict[str, Any]]:
    """Return the installed versions of cuDNN, each with whether it can answer queries or is too old."""
    return [
        {
            "version": library.version,
            "folder": str(library.folder),
            "place": library.place,
            "can_answer": library.can_answer,
        }
        for library in cudnn_libraries.found()
    ]


def _simulator() -> dict[str, str]:
    try:
        compiled.library()
        return {"engine": "compiled", "why": prebuilt.origin(shared_library(compiled.SOURCE).name)}
    except VramcastError as error:
        return {"engine": "python", "why": f"a hundred times slower: {error}"}


def _artifact() -> str:
    folder = chosen(None)
    learned = load(folder) if folder is not None else shipped(None)
    if learned is None:
        return f"none ({VARIABLE}={NONE}): the built-in rule gives the bounds"
    of = f"calibrated on {learned.card.get('runs')} runs of {learned.card.get('groups')} models"
    if folder is None:
        return (
            f"'{SHIPPED}', {of}, for jobs of a class it covers, else the built-in rule (--artifact or {VARIABLE} select "
            "another)"
        )
    return f"{folder}, {of}"


def main(options: argparse.Namespace) -> int:
    """Run the verb; return 0 if at least one tracer works, else 3."""
    if options.get_cudnn is not None:
        return _get_cudnn(options)
    if options.measure_context:
        from vramcast.cli.context_measurement import measure_context

        return measure_context(options)
    if options.site is not None:
        raise UsageError("--site is an option of --measure-context: to use a site file, set VRAMCAST_SITE to its path.")
    facts = report()
    if options.json:
        answer(json.dumps(facts))
    else:
        answer(f"python {facts['python']} on {facts['system']}; compiler {facts['compiler'] or 'none'}; cache {facts['cache']}")
        answer("packages  " + ", ".join(f"{name} {version or '-'}" for name, version in facts["packages"].items()))
        for name, tracer in facts["tracers"].items():
            answer(f"{name:<9} {'works' if tracer['works'] else 'does not work'}: {tracer['why']}")
            if tracer.get("stand_ins"):
                answer(f"{'':<9} stand-ins: {tracer['stand_ins']}")
            if tracer.get("torch_build"):
                answer(f"{'':<9} this torch build {tracer['torch_build']}")
            if tracer.get("recording"):
                answer(f"{'':<9} recording: {tracer['recording']}")
            if tracer.get("cudnn_workspaces"):
                answer(f"{'':<9} cuDNN workspaces: {tracer['cudnn_workspaces']}")
        answer(f"cuDNN: {_words(facts['cudnn'])}")
        answer(f"allocator simulator: {facts['simulator']['engine']} ({facts['simulator']['why']})")
        answer(f"artifact for bounds: {facts['artifact']}")
        answer(f"serve --allow-code: {'works' if facts['sandbox']['works'] else 'does not work'}: {facts['sandbox']['why']}")
        answer(f"site file: {facts['site'] or f'none; {SITE_VARIABLE} names one (docs/contexts.md)'}")
    return 0 if any(tracer["works"] for tracer in facts["tracers"].values()) else 3


def _words(cudnns: list[dict[str, Any]] | str) -> str:
    if isinstance(cudnns, str):
        return cudnns
    named = (
        f"{one['version'] or 'of unknown version'} {one['place']}{'' if one['can_answer'] else ' (too old to be asked)'}"
        for one in cudnns
    )
    return ", ".join(named) or "none: vramcast doctor --get-cudnn 9.10.2 fetches one"


def _get_cudnn(options: argparse.Namespace) -> int:
    with progress(f"fetching cuDNN {options.get_cudnn}"):
        folder = fetch(options.get_cudnn)
    answer(json.dumps({"schema": 1, "folder": str(folder)}) if options.json else f"cuDNN is in {folder}")
    return 0
