"""Compilation of C code on the user's machine; `cache.py` stores the result."""

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
    """Return the first words of a C compiler's command: $CC (`gcc -pthread`, `ccache gcc`), cc or gcc.

    Raises:
        CompilerError: There is no compiler.
    """
    named = os.environ.get("CC", "")
    try:
        words = shlex.split(named) or ["cc" if shutil.which("cc") else "gcc"]
    except ValueError as error:
        raise CompilerError(f"CC is {named!r}: {error}: write it as in a shell, for example gcc -pthread.") from None
    if shutil.which(words[0]) is None:
        raise CompilerError(f"No C compiler found ({words[0]}): install one (Debian: apt-get install gcc).")
    return words


def run_compiler(compiler: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the compiler.

    Raises:
        CompilerError: The compiler failed; the message includes its output.
    """
    run = subprocess.run([*compiler, *arguments], capture_output=True, text=True)
    if run.returncode:
        raise CompilerError(f"vramcast's C code does not compile here ({shlex.join(compiler)}):\n{run.stderr.strip()[-2000:]}")


def shared_library(source: Path, *, sanitize: bool = False) -> Path:
    """Return the library compiled from one C file, from the cache if possible.

    Args:
        source: The C file; it may use headers of the C library and of its own folder.
        sanitize: Compile with address and undefined-behaviour sanitizers (for CI).
    Raises:
        CompilerError: There is no compiler, or the cache folder cannot be written.
        CacheError: Other users can write to the cache.
    """
    flags = [*FLAGS, *(SANITIZERS if sanitize else ())]
    text = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    digest = hashlib.sha256(text + " ".join(flags).encode()).hexdigest()[:12]

    def make(target: Path) -> None:
        run_compiler(find_compiler(), [*flags, "-shared", "-o", str(target), str(source)])

    return kept(f"{source.stem}-{digest}.so", make)
