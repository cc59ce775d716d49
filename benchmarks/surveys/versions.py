"""Features by release of torch: small jobs on the null GPU, in a virtual environment of each release.

    python -m benchmarks.surveys.versions [VERSION ...] [--only TEXT]     default: 2.6.0 2.9.1 2.11.0 2.14.1 2.15.0

Installs missing versions under build/versions/VERSION (5 GB and some minutes each). A cell has the reserved MiB, or the last
line of the message; *n unknown* counts calls that the answer names as unknown. Jobs of 8 ranks show the first rank.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import tables
from benchmarks.surveys.distributed_jobs import HEAD, JOBS
from vramcast.core.units import MIB

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "versions"
VERSIONS: Final = ("2.6.0", "2.9.1", "2.11.0", "2.14.1", "2.15.0")  # oldest accepted, CUDA 12, older, pinned, newest in 2026-11
_PACKAGES: Final = ("numpy", "cloudpickle", "setuptools", "scikit-learn", "xgboost", "joblib")
_NET: Final = """
import torch
from torch import nn
layers = nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
def train(model, batch=64, kind=torch.float32):
    for _ in range(3):
        x, y = torch.randn(batch, 3, 64, 64, device="cuda"), torch.randint(10, (batch,), device="cuda")
        with torch.autocast("cuda", kind, enabled=kind != torch.float32):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_PERCEPTRON: Final = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
def train(model):
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_MODEL: Final = """
from torch import nn
def net():
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
"""
_CAPTURED: Final = """
x, graph = torch.randn(256, 1024, device="cuda"), torch.cuda.CUDAGraph()
train(net)
net.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    net(x).square().mean().backward()
for _ in range(3):
    graph.replay()
"""
_ATTENTION: Final = """
import torch
from torch.nn.attention.flex_attention import flex_attention
q = torch.randn(4, 8, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for _ in range(3):
    torch.compile(flex_attention)(q, q, q).sum().backward()
"""
_TORCHRUN: Final = "torchrun --nproc_per_node=8 train.py"
_FAKE: Final = "-m vramcast estimate train.py:net --batch 256x1024 --device h100 --json --tracer "


def _run(command: str = "python train.py", options: str = "") -> str:
    return f"-m vramcast run --json --device h100 --until end {options} -- {command}"


# A script, and the words after `python`.
FEATURES: Final[dict[str, tuple[str, str]]] = {
    "perceptron": (_PERCEPTRON + "train(net)", _run()),
    "convolutions": (_NET + "train(net)", _run()),
    "convolutions, autocast": (_NET + "train(net, kind=torch.bfloat16)", _run()),
    "`cudnn.benchmark`": (_NET + "torch.backends.cudnn.benchmark = True\ntrain(net)", _run()),
    "expandable segments": (_NET + "train(net)", _run(options="--alloc-conf expandable_segments:True")),
    "fake tracer": (_MODEL, _FAKE + "fake"),
    "CPU tracer": (_MODEL, _FAKE + "cpu"),
    "`torch.compile`": (_NET + "train(torch.compile(net))", _run()),
    "`max-autotune`": (_PERCEPTRON + "train(torch.compile(net, mode='max-autotune'))", _run()),
    "flex attention, compiled": (_ATTENTION, _run()),
    "CUDA graph": (_PERCEPTRON + _CAPTURED, _run()),
    "FSDP2, 8 ranks": (HEAD + JOBS["FSDP2"], _run(_TORCHRUN)),
    "pipeline 1F1B, 8 ranks": (HEAD + JOBS["pipeline of 4, two copies, 1F1B"], _run(_TORCHRUN)),
    "`plan`, `follow`": ("", "-m benchmarks.follow fits"),
    "2,000 random sequences": ("", "-m benchmarks.new_torch --sequences 500"),
}


def python_of(version: str) -> Path:
    """Return the interpreter with that torch; install it if necessary."""
    python = FOLDER / version / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / version, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", *_PACKAGES], check=True)
    return python


def cell(version: str, feature: str) -> str:
    """Return what a release says of a feature: its reserved MiB, what it counts as unknown, or why there is no answer."""
    script, words = FEATURES[feature]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{python_of(version).parent}:{os.environ['PATH']}"}
        run = subprocess.run(
            [str(python_of(version)), *words.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    last = ((run.stderr if run.returncode else run.stdout) or run.stdout).strip().splitlines()[-1:]
    if found := re.search(r"serves differently: (.*)", run.stdout):
        return "equal" if found[1] == "none" else f"differ: {found[1]}"
    if "--json" not in words and not run.returncode:
        return "works"
    if not run.stdout.startswith("{") or "peaks" not in (said := json.loads(run.stdout)):
        return f"refused: {''.join(last)[:300]}"
    one = said["ranks"][0] if said.get("ranks") else said
    unknown = f", {len(said['unknown_calls'])} unknown" if said["unknown_calls"] else ""
    ended = f", ended: {said['ended'][:200]}" if said.get("ended") else ""
    return f"{one['peaks']['reserved'] / MIB:,.0f}{unknown}{ended}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per feature, as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--only", default="", metavar="TEXT", help="only features whose name contains TEXT")
    options = parser.parse_args(arguments)
    print(tables.heading(("feature", *options.versions)))
    for feature in FEATURES:
        if options.only in feature:
            print(tables.row(feature, *(cell(version, feature) for version in options.versions)), flush=True)


if __name__ == "__main__":
    main()
