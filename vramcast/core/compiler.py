"""C and C++ code, as the wheel carries it compiled, or else compiled on the user's machine; `cache.py` stores the result."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from vramcast.core import prebuilt
from vramcast.core.cache import find, kept
from vramcast.core.errors import CompilerError

FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_CPP_FLAGS: Final = ("-std=gnu++17", *FLAGS[1:])
_CPP20_SINCE: Final = (2, 14)  # spec: the first torch with headers in C++20; those before are written in C++17
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


def cpp_standard(torch: str) -> str:
    """Return the compiler's option for code on top of a release of torch."""
    release = tuple(int(part) for part in torch.split(".")[:2])
    return "-std=gnu++20" if release >= _CPP20_SINCE else "-std=gnu++17"


def run_compiler(compiler: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the compiler.

    Raises:
        CompilerError: The compiler failed; the message includes its output from the first error on.
    """
    run = subprocess.run([*compiler, *arguments], capture_output=True, text=True)
    if run.returncode:
        first = re.search(r"^.*\berror: .*", run.stderr, re.MULTILINE)
        said = run.stderr[first.start() :] if first else run.stderr
        raise CompilerError(f"vramcast's C code does not compile here ({shlex.join(compiler)}):\n{said.strip()[:2000]}")


def compiled(name: str, make: Callable[[Path], object], *, once: bool = False) -> Path:
    """Return the library or folder of this name: from the wheel or the cache if possible, else compiled.

    Args:
        name: Path within the cache; it must encode everything that determines the content.
        make: Function that compiles it to a given path in an empty folder.
        once: Whether the same compiler tries only once: its failure is stored, and raised from then on.
    Raises:
        CompilerError: There is no compiler, or the cache folder cannot be written; says also why the wheel's is not used.
        CacheError: Other users can write to the cache.
    """
    if (carried := prebuilt.find(name)) is not None:
        return carried
    failure = f"{name}-{_identity()}.failed" if once and find(name) is None else ""
    if failure and (stored := find(failure)) is not None:
        raise CompilerError(f"{stored.read_text()} To try again, delete {stored}.")
    try:
        return kept(name, make)
    except CompilerError as error:
        end = "\n" if "\n" in str(error) else " "  # the compiler's own lines
        text = f"{error}{end}vramcast compiles here because {prebuilt.lack(name)}."
        if failure:
            with contextlib.suppress(CompilerError):
                kept(failure, lambda target: target.write_text(text))
        raise CompilerError(text) from None


def _identity() -> str:
    """Return a text that another compiler, or an upgraded one, changes."""
    try:
        path = Path(shutil.which(find_compiler()[0]) or "").resolve()
        return hashlib.sha256(f"{path} {path.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    except (CompilerError, OSError):
        return "none"


def shared_library(
    source: Path, *, sanitize: bool = False, version: str = "", options: Sequence[str] = (), once: bool = False
) -> Path:
    """Return the library compiled from one file, in C or, by its name, in C++; see `compiled`.

    Args:
        source: The file; it may use headers of the C library, of its own folder, and those that `options` lead to.
        sanitize: Compile with address and undefined-behaviour sanitizers (for CI).
        version: The version of other headers and libraries.
        options: More options of the compiler, which lead to them.
        once: See `compiled`.
    Raises:
        CompilerError: There is no compiler, or the cache folder cannot be written.
        CacheError: Other users can write to the cache.
    """
    flags = [*(_CPP_FLAGS if source.suffix == ".cpp" else FLAGS), *(SANITIZERS if sanitize else ())]
    text = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    digest = hashlib.sha256(text + " ".join([*flags, version]).encode()).hexdigest()[:12]

    def make(target: Path) -> None:
        run_compiler(find_compiler(), [*flags, "-shared", "-o", str(target), str(source), *options])

    return compiled(f"{source.stem}-{digest}.so", make, once=once)
