"""C code compiled on the user's machine, and by which compiler; `cache.py` keeps the result."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramcast.core.cache import kept
from vramcast.core.errors import CompilerError

FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def find_compiler() -> list[str]:
    """Return the words that begin a command of the C compiler: those of $CC (`gcc -pthread`, `ccache gcc`), cc or gcc.

    Raises:
        CompilerError: there is none.
    """
    named = os.environ.get("CC", "")
    try:
        words = shlex.split(named) or ["cc" if shutil.which("cc") else "gcc"]
    except ValueError as error:
        raise CompilerError(f"CC is {named!r}: {error}: write it as a shell would read it, for example gcc -pthread.") from None
    if shutil.which(words[0]) is None:
        raise CompilerError(f"No C compiler found ({words[0]}): install one (Debian: apt-get install gcc).")
    return words


def run_compiler(compiler: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the compiler.

    Raises:
        CompilerError: it refuses; with its words.
    """
    run = subprocess.run([*compiler, *arguments], capture_output=True, text=True)
    if run.returncode:
        raise CompilerError(f"vramcast's C code does not compile here ({shlex.join(compiler)}):\n{run.stderr.strip()[-2000:]}")


def shared_library(source: Path, *, sanitize: bool = False) -> Path:
    """Return the library made of one C file, from the cache if it is there.

    Args:
        source: Needs no other headers than the C library's and those in its folder.
        sanitize: Compile with address and undefined-behaviour sanitizers (for CI).
    Raises:
        CompilerError: no compiler, or the cache folder cannot be written.
        CacheError: others can write to the cache.
    """
    flags = [*FLAGS, *(SANITIZERS if sanitize else ())]
    text = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    digest = hashlib.sha256(text + " ".join(flags).encode()).hexdigest()[:12]

    def make(target: Path) -> None:
        run_compiler(find_compiler(), [*flags, "-shared", "-o", str(target), str(source)])

    return kept(f"{source.stem}-{digest}.so", make)
