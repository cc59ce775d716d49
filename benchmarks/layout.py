"""The size of the code: lines and files of each part with its budget, and the fullest folders.

    python -m benchmarks.layout [REVISION ...]        default: the working tree

Prints a Markdown table: for the working tree lines, files, the budget and what is left of it; lines and files of each revision
otherwise. Then come the folders with the most files. Lines are those of Python, C and C++; symbolic links do not count.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Final

from benchmarks.tables import table

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = ("vramcast", "tracer", "simulator", "learner", "datasets")
# The most lines of each part. To raise one, say in the commit what the lines buy.
BUDGETS: Final = {
    "vramcast": 36_480, "tracer": 29_820, "simulator": 4_640, "learner": 4_350, "datasets": 5_800,
    "benchmarks": 35_380, "tests": 63_100,
}  # fmt: skip
_SUFFIXES: Final = (".py", ".c", ".h", ".cpp")
_LINK: Final = "120000"  # spec: git's mode of a symbolic link
_N_FOLDERS: Final = 8  # arbitrary: number of folders to name
_NO_CODE: Final = ("docs", ".github")


def git(*words: str) -> str:
    """Return git's output."""
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True, errors="replace", cwd=ROOT)
    return done.stdout


def files(revision: str | None = None) -> dict[str, int]:
    """Return the lines of each file of a revision, or of the working tree; 0 for a file without code."""
    listed = git("ls-tree", "-r", "-z", revision) if revision else git("ls-files", "-s", "-z")
    paths = [entry.partition("\t")[2] for entry in listed.split("\0") if entry and not entry.startswith(_LINK)]
    return {path: _text(path, revision).count("\n") if path.endswith(_SUFFIXES) else 0 for path in paths}


def _text(path: str, revision: str | None) -> str:
    if revision:
        return git("show", f"{revision}:{path}")
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.exists() else ""


def by_part(lines_of: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return lines and files of code by top-level folder, and those of the product together."""
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for path, n in lines_of.items():
        part = path.partition("/")[0]
        if path.endswith(_SUFFIXES):
            for name in (part, "product") if part in PRODUCT else (part,):
                lines[name] += n
                count[name] += 1
    return {name: (lines[name], count[name]) for name in count}


def fullest(lines_of: dict[str, int]) -> Counter[str]:
    """Return the number of files directly in each folder, without documents."""
    folders = Counter(str(PurePosixPath(path).parent) for path in lines_of if "/" in path)
    return Counter({folder: n for folder, n in folders.items() if not folder.startswith(_NO_CODE)})


def size_table(revisions: list[str]) -> str:
    """Return the table of revisions; of the working tree, with its budgets, if there is none."""
    names = ("product", *BUDGETS)
    if revisions:
        sizes = [by_part(files(revision)) for revision in revisions]
        heads = [f"{what}, {revision}" for revision in revisions for what in ("lines", "files")]
        rows = [[f"`{name}`", *(f"{n:,}" for size in sizes for n in size.get(name, (0, 0)))] for name in names]
        return table(["part", *heads], rows)
    budgets = {"product": sum(BUDGETS[name] for name in PRODUCT), **BUDGETS}
    rows = []
    for name, (lines, count) in ((name, by_part(files())[name]) for name in names):
        rows.append([f"`{name}`", f"{lines:,}", f"{count:,}", f"{budgets[name]:,}", f"{budgets[name] - lines:,}"])
    return table(["part", "lines", "files", "budget", "left"], rows)


def main() -> None:
    """Print the table and the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="*")
    revisions = parser.parse_args().revision
    print(size_table(revisions))
    for revision in revisions or [None]:
        most = ", ".join(f"`{folder}` {n}" for folder, n in fullest(files(revision)).most_common(_N_FOLDERS))
        print(f"\nMost files in one folder, {revision or 'working tree'}: {most}")


if __name__ == "__main__":
    main()
