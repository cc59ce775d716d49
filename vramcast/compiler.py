"""C code compiled on the user's machine: which compiler, and where the result is kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramcast.errors import CompilerError

FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def cache_folder() -> Path:
    """Return the folder for compiled libraries and cuDNN's answers ($VRAMCAST_CACHE, else ~/.cache/vramcast).

    Raises:
        CompilerError: it cannot be made.
    """
    chosen = os.environ.get("VRAMCAST_CACHE")
    try:
        base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramcast"
    except RuntimeError:  # neither HOME nor an entry in the system's list of users
        raise CompilerError(
            "This user has no home folder for the cache (~/.cache/vramcast): set VRAMCAST_CACHE to a writable folder, or HOME."
        ) from None
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompilerError(
            f"The cache folder {base} cannot be made ({error}): set VRAMCAST_CACHE to a writable one."
        ) from None
    return base.absolute()  # a worker's working folder is another


def find_compiler() -> str:
    """Return the C compiler: $CC, cc or gcc.

    Raises:
        CompilerError: there is none.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which(compiler) is None:
        named = f" ({compiler})" if compiler else ""
        raise CompilerError(f"No C compiler found{named}: install one (Debian: apt-get install gcc).")
    return compiler


def run_compiler(compiler: str, arguments: Sequence[str]) -> None:
    """Run the compiler.

    Raises:
        CompilerError: it refuses; with its words.
    """
    run = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    if run.returncode:
        raise CompilerError(f"vramcast's C code does not compile here ({compiler}):\n{run.stderr.strip()[-2000:]}")


def shared_library(source: Path, *, sanitize: bool = False) -> Path:
    """Return the library made of one C file, from the cache if it is there.

    Args:
        source: Needs no other header than the C library's.
        sanitize: Compile with address and undefined-behaviour sanitizers (for CI).
    Raises:
        CompilerError: no compiler, or the cache folder cannot be written.
    """
    flags = [*FLAGS, *(SANITIZERS if sanitize else ())]
    digest = hashlib.sha256(source.read_bytes() + " ".join(flags).encode()).hexdigest()[:12]
    target = cache_folder() / f"{source.stem}-{digest}.so"
    if target.exists():
        return target
    compiler = find_compiler()
    try:
        # Two processes may compile at once: each into a file of its own, the last rename stands.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as work:
            made = Path(work) / target.name
            run_compiler(compiler, [*flags, "-shared", "-o", str(made), str(source)])
            made.replace(target)
    except OSError as error:
        raise CompilerError(f"{target} cannot be written ({error}): set VRAMCAST_CACHE to a writable folder.") from None
    return target
