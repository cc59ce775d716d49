"""The null GPU with several torch versions: one small job each, in separate virtual environments.

    python -m benchmarks.surveys.versions [VERSION ...]        default: 2.6.0 2.9.1 2.11.0 2.14.1 2.15.0

Installs missing versions under build/versions/VERSION (5 GB and some minutes each). Prints reserved and allocated bytes of a
perceptron, whose peaks hardly depend on the version, and of a small convolution net.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks import tables

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "versions"
VERSIONS = ("2.6.0", "2.9.1", "2.11.0", "2.14.1", "2.15.0")  # oldest accepted, CUDA 12, older, pinned, newest in 2026-11
MODELS = """
import torch
def mlp():
    return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1000))
def conv():
    layers = torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
JOBS = (("mlp", "256x1024", "256:int64<1000"), ("conv", "64x3x64x64", "64:int64<10"))


def python_of(version: str) -> Path:
    """Return the interpreter with that torch; install it if necessary."""
    python = FOLDER / version / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / version, with_pip=True)
        packages = [f"torch=={version}", "numpy", "cloudpickle"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def main(versions: list[str]) -> None:
    """Run the jobs and print their peaks."""
    print(tables.heading(("torch", "job", "allocated", "reserved", "unknown calls"), "llrrl"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models.py").write_text(MODELS)
        for version in versions:
            python = python_of(version)
            for name, batch, labels in JOBS:
                job = ("estimate", f"models.py:{name}", "--batch", batch, "--labels", labels, "--device", "a100-40gb")
                run = subprocess.run(
                    [str(python), "-m", "vramcast", *job, "--json"],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    capture_output=True,
                    text=True,
                )
                if run.returncode:
                    print(tables.row(version, name, "failed", "", run.stderr.strip().splitlines()[-1]), flush=True)
                    continue
                found = json.loads(run.stdout)
                peaks = [f"{found['peaks'][peak]:,}" for peak in ("allocated", "reserved")]
                print(tables.row(found["torch"], name, *peaks, "; ".join(found["unknown_calls"]) or "none"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(VERSIONS))
