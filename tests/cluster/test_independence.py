"""The plug-ins that speak HTTP with the service need only Python and vramcast's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLURM = sorted(path.stem for path in (ROOT / "vramcast" / "cluster" / "slurm").glob("*.py") if path.stem != "__init__")


@pytest.mark.integration
def test_slurm_hooks_need_only_the_core() -> None:
    code = f"""
import importlib, sys, vramcast
public = set(sys.modules)
for name in {SLURM}:
    importlib.import_module("vramcast.cluster.slurm." + name)
print(*sorted(name for name in sys.modules if name.startswith("vramcast.") and name not in public))
"""
    command = [sys.executable, "-S", "-c", code]  # without site-packages
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    own = ("vramcast.core", "vramcast.cluster")
    others = {name for name in done.stdout.split() if not name.startswith(own)}
    # Modules loaded by `import vramcast` itself; its public modules load nothing before their first use.
    own_root = ("_version", "callbacks", "devices", "errors", "estimates", "estimates.view")
    assert others - {f"vramcast.{name}" for name in own_root} <= {
        "vramcast.datasets",
        "vramcast.datasets.histories",
        "vramcast.datasets.histories.noted_peak",
    }
