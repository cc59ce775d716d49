"""A wheel where there is no compiler: `pip install` and the first estimates in a root with nothing but Python, torch and glibc.

    python -m benchmarks.front_door.clean_root WHEEL

bubblewrap makes the root, as a container would: of this machine it has the interpreter, the packages of this environment and
the system's libraries, but no program, no network and an empty home.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.tables import table

ESTIMATE: Final = ("estimate", "torchvision:resnet50", "--batch-size", "32", "--on", "a100-40gb")  # as in `make demo`
_PROGRAMS: Final = """
import json, os
names = {"cc", "gcc", "c++", "g++", "clang", "tcc", "as", "ld", "nm", "readelf", "make", "sh"}
found = [os.path.join(folder, name) for top in os.listdir("/") if top != "proc" for folder, _, files in os.walk("/" + top)
         for name in names.intersection(files) if os.access(os.path.join(folder, name), os.X_OK)]
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The first minutes of an installation.

    Attributes:
        programs: Compilers, parts of them, and shells in the root.
        install_s: Seconds of `pip install`, without the packages that the wheel needs.
        first_s: Seconds of the first estimate.
        second_s: Seconds of the same estimate again.
        estimate: JSON of the first estimate.
        doctor: JSON of `vramcast doctor`.
    """

    programs: list[str]
    install_s: float
    first_s: float
    second_s: float
    estimate: dict[str, Any]
    doctor: dict[str, Any]


def first_use(wheel: Path) -> FirstUse:
    """Install a wheel in a clean root, and use it for the first time there."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=False)
        (site,) = (home / "venv" / "lib").glob("python*/site-packages")
        (site / "others.pth").write_text("".join(f"{path}\n" for path in _packages()))  # torch, and pip
        root = _root(home, wheel)
        programs, _ = _run(root, "python", "-c", _PROGRAMS)
        _, install_s = _run(root, "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
        estimate, first_s = _run(root, "vramcast", *ESTIMATE, "--json")
        _, second_s = _run(root, "vramcast", *ESTIMATE, "--json")
        doctor, _ = _run(root, "vramcast", "doctor", "--json")
        return FirstUse(json.loads(programs), install_s, first_s, second_s, json.loads(estimate), json.loads(doctor))


def _packages() -> list[str]:
    return [path for path in sys.path if Path(path).name == "site-packages"]


def _root(home: Path, wheel: Path) -> list[str]:
    """Return the words that run a command in the root; only `home` can be written to."""
    libraries = [f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64"]  # of Debian, and of others
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for path in (sys.base_prefix, *_packages(), *libraries, str(wheel)):
        words += ["--ro-bind-try", path, path]
    words += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--bind", str(home), str(home)]
    return [*words, "--setenv", "PATH", str(home / "venv" / "bin"), "--setenv", "HOME", str(home), "--chdir", str(home)]


def _run(root: list[str], *command: str) -> tuple[str, float]:
    began = time.monotonic()
    done = subprocess.run([*root, *command], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout, time.monotonic() - began


def main() -> None:
    """Print the sizes and times of a wheel."""
    wheel = Path(sys.argv[1]).resolve()
    found = first_use(wheel)
    rows = [
        ["size of the wheel", f"{wheel.stat().st_size / 1e6:.2f} MB"],
        ["compilers and shells in the root", ", ".join(found.programs) or "none"],
        ["`pip install`, without what it needs", f"{found.install_s:.1f} s"],
        ["first estimate", f"{found.first_s:.1f} s"],
        ["the same again", f"{found.second_s:.1f} s"],
        ["tracer", f"{found.estimate['tracer']}, {found.doctor['tracers']['nullgpu'].get('stand_ins')}"],
        ["allocator simulator", found.doctor["simulator"]["why"]],
    ]
    print(wheel.name, table(["`vramcast " + " ".join(ESTIMATE) + "`", ""], rows), sep="\n\n")


if __name__ == "__main__":
    main()
