"""The compiled libraries that a wheel carries, and the reason why one is compiled on this machine instead.

setup.py puts them into the wheel. Their names encode everything that they depend on, so another torch, another cuDNN or changed
sources never find them. They are as trustworthy as the Python files next to them.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "prebuilt"
NEEDS: Final = "needs.json"  # {"machine": "x86_64", "glibc": "2.17"}


def find(name: str) -> Path | None:
    """Return the library or folder of this name; None if it is to be compiled here."""
    return FOLDER / name if (FOLDER / name).exists() and not _misfit() else None


def lack(name: str) -> str:
    """Return why the library or folder of this name is compiled here, in words that follow "because"."""
    if not FOLDER.is_dir():
        return "this installation carries no compiled libraries (it is a checkout, or was built without a compiler)"
    if misfit := _misfit():
        return misfit
    kind = name.partition("/")[0].partition("-")[0]
    carried = sorted(path.relative_to(FOLDER).as_posix() for glob in (f"{kind}-*", f"{kind}/*") for path in FOLDER.glob(glob))
    return (
        f"this installation carries {', '.join(carried) or f'no {kind}'}, not {name} (it was built for other releases of torch "
        "and cuDNN, or from other sources)"
    )


def origin(name: str) -> str:
    """Return where the library or folder of this name comes from, in words."""
    return "prebuilt" if find(name) else f"compiled here, because {lack(name)}"


def _misfit() -> str:
    """Return why nothing that this installation carries runs on this machine; "" if it runs."""
    needs = json.loads((FOLDER / NEEDS).read_text())
    machine, (library, release) = platform.machine(), platform.libc_ver()
    if machine == needs["machine"] and library == "glibc" and _parts(release) >= _parts(needs["glibc"]):
        return ""
    return (
        f"the compiled libraries of this installation are for {needs['machine']} and glibc {needs['glibc']} or newer, and this "
        f"machine has {machine} and {f'glibc {release}' if library == 'glibc' else 'no glibc'}"
    )


def _parts(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]
