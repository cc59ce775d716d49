"""Runs the tests on copies of the checkout that have one seeded fault each, and reports which faults they find.

    python -m tests.seeded_faults                                   each fault against the tests in its header
    python -m tests.seeded_faults --whole-lane --lane fast NAME     one fault against all unit tests

mutmut and cosmic-ray generate their mutants by operators on Python code: neither takes a hand-written patch, nor changes C.
These faults are patches, in Python and C, chosen for what they would do to users.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
LANES: Final = {"fast": "not integration and not release", "commit": "not release", "all": ""}
_HEADER: Final = re.compile(r"Fault: (.+)\nTests: (.+)\n\ndiff --git ")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
_COMPILED: Final = "build/test-cache"
_LONGEST_S: Final = 3600  # arbitrary: a fault may make a test wait forever
_NO_TEST: Final = 5  # spec: pytest's exit code where no test was collected
_OUTPUT_LINES: Final = 20  # arbitrary: of a run that went wrong

Outcome: TypeAlias = Literal["found", "missed", "error"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One patch with its header.

    Attributes:
        text: What is wrong with the patch applied.
        area: The folder it lies in: the part of the product that it changes.
        tests: Files or node ids of tests expected to find it; empty: none is known.
    """

    name: str
    text: str
    area: str
    tests: tuple[str, ...]

    @property
    def patch(self) -> Path:
        """The file."""
        return FOLDER / self.area / f"{self.name}.patch"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one fault; `test` is the first test that failed."""

    name: str
    area: str
    expected: bool
    outcome: Outcome
    test: str
    seconds: float


def read_faults() -> list[Fault]:
    """Return all faults by name.

    Raises:
        ValueError: A header is incomplete.
    """
    faults = []
    for path in sorted(FOLDER.glob("*/*.patch")):
        header = _HEADER.match(path.read_text())
        if header is None:
            raise ValueError(f"{path.name} doesn't begin with Fault, Tests, and an empty line.")
        tests = () if header[2] == "-" else tuple(header[2].split(" "))
        faults.append(Fault(path.stem, header[1], path.parent.name, tests))
    return faults


def copy_checkout(root: Path, copy: Path) -> None:
    """Copy the files that git doesn't ignore, links as links, and what was compiled before."""
    listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and os.path.lexists(root / name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name, follow_symlinks=False)
    if (root / _COMPILED).is_dir():
        shutil.copytree(root / _COMPILED, copy / _COMPILED)


def run_tests(root: Path, patch: Path | None, options: Sequence[str]) -> tuple[Outcome, str]:
    """Return what pytest finds in a copy with a patch applied, and the first test that fails; show a run that goes wrong."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        copy = Path(folder) / "checkout"
        copy_checkout(root, copy)
        alone = Path(folder) / "import"  # the checkout's datasets/ would stand for the package of that name
        alone.mkdir()
        (alone / "vramcast").symlink_to(copy / "vramcast")
        own = {"PYTHONPATH": str(alone), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GIT_CEILING_DIRECTORIES": folder}
        environment = os.environ | own  # no repository around the copy, or git applies nothing and reports no error
        if patch is not None:
            subprocess.run(["git", "apply", str(patch)], cwd=copy, env=environment, check=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
        try:
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return "error", f"no end after {_LONGEST_S} s"
    failed = _FAILED.search(done.stdout)
    if done.returncode == _NO_TEST and "" not in options:  # `-m ""` leaves out nothing
        return "missed", "the lane has none of the tests"
    if done.returncode not in (0, 1):
        print("\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-_OUTPUT_LINES:]), file=sys.stderr)
        return "error", f"pytest ended with {done.returncode}"
    return ("found", failed[1] if failed else "") if done.returncode else ("missed", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if a fault isn't found that should be, or a run went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeded_faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults; default: all")
    parser.add_argument("--lane", choices=LANES, default="all", help="which tests count (default: %(default)s)")
    parser.add_argument("--whole-lane", action="store_true", help="run the lane instead of the tests in each header")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="checkout to copy (default: this one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here too")
    asked = parser.parse_args(arguments)
    faults = [fault for fault in read_faults() if not asked.names or fault.name in asked.names]
    if unknown := set(asked.names) - {fault.name for fault in faults}:
        parser.error(f"no fault has the name {', '.join(sorted(unknown))}")
    # A patch that is applied does not apply again: its own test would find every fault.
    whole = ("-n", "2", "--dist", "loadfile", "--ignore", "tests/test_seeded_faults.py")
    lane = ["-m", LANES[asked.lane], *(whole if asked.whole_lane else ("-n", "0"))]
    named = dict.fromkeys(test for fault in faults for test in fault.tests)
    if asked.whole_lane or named:  # else every fault would be found by a test that fails anyway
        outcome, test = run_tests(asked.root, None, [*lane, *(() if asked.whole_lane else named)])
        if outcome != "missed":
            print(f"The tests don't pass without a fault: {test}", file=sys.stderr)
            return 1
    results: list[Result] = []
    for fault in faults:
        began = time.monotonic()
        can_run = asked.whole_lane or fault.tests
        ran = run_tests(asked.root, fault.patch, [*lane, *(() if asked.whole_lane else fault.tests)]) if can_run else None
        outcome, test = ran or ("missed", "no test is known")
        results.append(Result(fault.name, fault.area, bool(fault.tests), outcome, test, round(time.monotonic() - began, 1)))
        print(f"{fault.name:<30} {fault.area:<10} {outcome:<6} {results[-1].seconds:>7.1f} s  {test}", flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    counts = Counter((one.area, one.outcome) for one in results)
    for area in dict.fromkeys(one.area for one in results):
        print(f"{area:<10}", ", ".join(f"{counts[area, outcome]} {outcome}" for outcome in ("found", "missed", "error")))
    return int(any(one.outcome == "error" or (one.outcome == "missed" and one.expected) for one in results))


if __name__ == "__main__":
    sys.exit(main())
