"""The size of the code by folder: files per folder, and lines below each top-level folder.

    python -m benchmarks.layout [REVISION ...]        default: HEAD

Prints a Markdown table with two columns per revision, lines and files by top-level folder, and then the folders with the most
files. Lines are Python and C (.py, .c, .h); symbolic links do not count.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from pathlib import PurePosixPath
from typing import Final

from benchmarks.tables import table

PRODUCT: Final = ("vramcast", "tracer", "simulator", "learner", "datasets")
_SUFFIXES: Final = (".py", ".c", ".h")
_LINK: Final = "120000"  # spec: git's mode of a symbolic link
_N_FOLDERS: Final = 8  # arbitrary: number of folders to name
_NO_CODE: Final = ("docs", ".github")


def git(*words: str) -> str:
    """Return git's output."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, errors="replace").stdout


def files(revision: str) -> dict[str, int]:
    """Return the lines of each file of code in a revision; 0 for a file without code."""
    found = {}
    for entry in git("ls-tree", "-r", "-z", revision).split("\0"):
        if entry and not entry.startswith(_LINK):
            path = entry.partition("\t")[2]
            found[path] = git("show", f"{revision}:{path}").count("\n") if path.endswith(_SUFFIXES) else 0
    return found


def by_top(found: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return lines and files of code by top-level folder, and those of the product together."""
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for path, n in found.items():
        top = path.partition("/")[0]
        if path.endswith(_SUFFIXES):
            for name in (top, "product") if top in PRODUCT else (top,):
                lines[name] += n
                count[name] += 1
    return {name: (lines[name], count[name]) for name in count}


def fullest(found: dict[str, int]) -> Counter[str]:
    """Return the number of files directly in each folder, without documents."""
    folders = Counter(str(PurePosixPath(path).parent) for path in found if "/" in path)
    return Counter({folder: n for folder, n in folders.items() if not folder.startswith(_NO_CODE)})


def main() -> None:
    """Print the table and the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="*", default=["HEAD"])
    revisions = parser.parse_args().revision
    found = [files(revision) for revision in revisions]
    sizes = [by_top(one) for one in found]
    heads = [f"{what}, {revision}" for revision in revisions for what in ("lines", "files")]
    names = ("product", *PRODUCT, "benchmarks", "tests")
    rows = [[f"`{name}`", *(f"{n:,}" for size in sizes for n in size.get(name, (0, 0)))] for name in names]
    print(table(["folder", *heads], rows))
    for revision, one in zip(revisions, found, strict=True):
        most = ", ".join(f"`{folder}` {n}" for folder, n in fullest(one).most_common(_N_FOLDERS))
        print(f"\nMost files in one folder, {revision}: {most}")


if __name__ == "__main__":
    main()
