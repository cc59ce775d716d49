"""Training programs whose need of memory changes late: what `vramcast check` says of them, compared with the truth.

    python -m benchmarks.hostile.late_programs [--only TEXT] [--cases FOLDER] [--keep FOLDER] [--truth]

Prints a Markdown table and counts. The programs are in late/, in the style of published recipes; `--cases` takes those of a
review from FOLDER instead. The truth (late/truths.json) is what the same program needs if it reaches its late state within a
few steps and runs to its end (`--truth` measures it again).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile.late_table import GIB, LATE, REVIEWED, Late
from benchmarks.tables import heading, row

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = Path(__file__).resolve().parent / "late"
TRUTHS: Final = PROGRAMS / "truths.json"
CARD: Final = "rtx4060"
_TIMEOUT_S: Final = 120.0  # arbitrary: more than twice the longest time allowed
_LONGEST_S: Final = 45.0  # spec: the aim for one program
_NEAR: Final = 0.15  # spec: the aim for the number
_TRUTH_TIMEOUT_S: Final = 600.0  # arbitrary
_COLUMNS: Final = ("program", "kind", "verdict", "said, GiB", "truth, GiB", "ratio", "s", "judged")


@dataclass(frozen=True, slots=True)
class Truth:
    """The need of a program in bytes: `low` with the best use of the cache, `high` as the allocator behaves on a large card."""

    fits: bool
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a program: the JSON, empty without one, the exit code (None: too late), and the time."""

    said: dict[str, Any]
    code: int | None
    seconds: float
    message: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict's word; of a failure, what happened."""
        if self.code is None:
            return "timeout"
        return str((self.said.get("verdict") or {}).get("value") or f"exit {self.code}")

    @property
    def size_bytes(self) -> int | None:
        """Return the peak of the process."""
        size = (self.said.get("peaks") or {}).get("process")
        return size if isinstance(size, int) else None


def sources(late: Late, cases: Path | None) -> Path:
    """Return the program's file."""
    if cases is None:
        return PROGRAMS / late.name
    found = sorted(cases.glob(f"{late.name}_*.py"))
    if len(found) != 1:
        raise SystemExit(f"{cases} has {len(found)} files {late.name}_*.py")
    return found[0]


def checked(program: Path, folder: Path, *options: str, timeout_s: float = _TIMEOUT_S) -> Answer:
    """Run `vramcast check` on a program in an empty folder."""
    library = (
        folder / "library"
    )  # the checkout's other folders would be packages for the program: transformers asks for `datasets`
    library.mkdir()
    (library / "vramcast").symlink_to(ROOT / "vramcast")
    environment = {**os.environ, "PYTHONPATH": str(library), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "vramcast", "check", "--on", CARD, "--json", *options, "--", "python", str(program)]
    begun = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its own processes
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            return Answer({}, None, time.perf_counter() - begun)
    seconds = time.perf_counter() - begun
    try:
        said = json.loads(output)
    except ValueError:
        said = {}
    return Answer(said, process.returncode, seconds, (errors.strip().splitlines() or [""])[-1])


def early(late: Late, text: str) -> str:
    """Return the program's text with its late state in the first steps."""
    for old, new in late.early:
        if text.count(old) != 1:
            raise SystemExit(f"{late.name}: {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text


def truth_of(late: Late, program: Path) -> Truth:
    """Measure what a program needs: it runs to its end, with its late state in the first steps."""
    with tempfile.TemporaryDirectory(prefix="late-") as folder:
        copy = Path(folder) / program.name
        copy.write_text(early(late, program.read_text(encoding="utf-8")), encoding="utf-8")
        limits = ("--until", "end", "--timeout", str(_TRUTH_TIMEOUT_S))
        answer = checked(copy, Path(folder), *limits, timeout_s=_TRUTH_TIMEOUT_S + 30)
    peaks = answer.said.get("peaks") or {}
    if not peaks or answer.said.get("ended"):
        raise SystemExit(f"{late.name}: no truth: {answer.verdict}: {answer.message}")
    high = int(peaks["process"]) + late.kept_bytes
    low = int(peaks.get("min_feasible") or peaks["process"]) + late.kept_bytes
    return Truth(high <= answer.said["memory_bytes"], min(low, high), high)


def named_lines(said: dict[str, Any], name: str) -> list[int]:
    """Return the lines of the program that the answer names, in the order of their numbers."""
    parts = [said.get(key) for key in ("verdict", "doubts", "not_reached", "growth", "ended", "warnings")]
    found = re.findall(rf"{re.escape(name)}:(\d+)|\bline (\d+)", json.dumps(parts))
    return sorted({int(one or other) for one, other in found})


def right_lines(late: Late, text: str) -> set[int]:
    """Return the lines that an uncertain answer may name."""
    numbered = list(enumerate(text.splitlines(), 1))
    found = {part: {number for number, line in numbered if part in line} for part in late.lines}
    if absent := [part for part, numbers in found.items() if not numbers]:
        raise SystemExit(f"{late.name}: no line has {absent[0]!r}")
    return set().union(*found.values())


def judged(late: Late, truth: Truth, answer: Answer, program: Path) -> str:
    """Return the judgement, in up to four words."""
    said, size = answer.verdict, answer.size_bytes
    if said == "uncertain":
        if late.is_harmless:
            return "FALSE ALARM"
        named = named_lines(answer.said, program.name)
        right = right_lines(late, program.read_text(encoding="utf-8")) & set(named)
        if right:
            return f"uncertain(line {min(right)})"
        return f"uncertain, other line ({', '.join(map(str, named)) or 'none'})"
    if said == "fits" and not truth.fits:
        return "UNSAFE"
    if said == "does not fit" and truth.fits:
        return "FALSE ALARM"
    if said not in ("fits", "does not fit") or size is None:
        return "NO ANSWER"
    return "OK" if truth.low * (1 - _NEAR) <= size <= truth.high * (1 + _NEAR) else "OK, number off"


def rows(
    programs: Sequence[Late], cases: Path | None, truths: dict[str, Truth], keep: Path | None
) -> Iterator[tuple[Late, Answer, str]]:
    """Run the programs, print a line for each, and yield the judgements."""
    print(heading(_COLUMNS, "lllrrrrl"), flush=True)
    for late in programs:
        program = sources(late, cases)
        with tempfile.TemporaryDirectory(prefix="late-") as folder:
            answer = checked(program, Path(folder))
        truth = truths[late.name]
        judgement = judged(late, truth, answer, program)
        if answer.seconds > _LONGEST_S:
            judgement += ", SLOW"
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{program.stem}.json").write_text(json.dumps(answer.said, indent=1), encoding="utf-8")
        size = answer.size_bytes
        number, ratio = ("-", "-") if size is None else (f"{size / GIB:.2f}", f"{size / truth.high:.2f}")
        needed = f"{truth.high / GIB:.2f}"
        if truth.low < truth.high * (1 - _NEAR):
            needed = f"{truth.low / GIB:.2f} to {needed}"
        print(
            row(program.stem, late.kind, answer.verdict, number, needed, ratio, f"{answer.seconds:.0f}", judgement), flush=True
        )
        yield late, answer, judgement


def main() -> int:
    """Run the programs and return 1 if one is called fitting that does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose name or kind contains TEXT")
    parser.add_argument("--cases", type=Path, metavar="FOLDER", help="a review's programs, in place of those of late/")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="store the answers there")
    parser.add_argument("--truth", action="store_true", help="measure the truths which are not stored, and store them")
    parser.add_argument("--fresh", action="store_true", help="with --truth: measure all again")
    options = parser.parse_args()
    known = REVIEWED if options.cases else LATE
    programs = [late for late in known if options.only in f"{late.name} {late.kind}"]
    stored = json.loads(TRUTHS.read_text(encoding="utf-8")) if TRUTHS.exists() else {}
    if options.truth:
        for late in programs:
            if late.name in stored and not options.fresh:
                continue
            program = sources(late, options.cases)
            right_lines(late, program.read_text(encoding="utf-8"))
            begun = time.perf_counter()
            truth = truth_of(late, program)
            stored[late.name] = {"fits": truth.fits, "low": truth.low, "high": truth.high}
            TRUTHS.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n", encoding="utf-8")
            seconds = time.perf_counter() - begun
            print(
                f"{late.name}: {truth.low / GIB:.2f} to {truth.high / GIB:.2f} GiB, fits: {truth.fits}, {seconds:.0f} s",
                flush=True,
            )
        return 0
    truths = {name: Truth(**one) for name, one in stored.items()}
    if absent := [late.name for late in programs if late.name not in truths]:
        raise SystemExit(f"no truth of {', '.join(absent)}: use --truth")
    found = list(rows(programs, options.cases, truths, options.keep))
    counts = Counter(re.split(r"[(,]", judgement)[0].strip() for _, _, judgement in found)
    off = sum("number off" in judgement for _, _, judgement in found)
    slow = sum("SLOW" in judgement for _, _, judgement in found)
    elsewhere = sum("other line" in judgement for _, _, judgement in found)
    print(
        f"\n{len(found)} programs: {counts['OK']} OK ({off} of them with a number off by more than {100 * _NEAR:.0f} %), "
        f"{counts['UNSAFE']} UNSAFE, {counts['uncertain']} uncertain ({elsewhere} name another line), "
        f"{counts['FALSE ALARM']} false alarms, {counts['NO ANSWER']} without an answer; {slow} slower than {_LONGEST_S:.0f} s"
    )
    return 1 if counts["UNSAFE"] else 0


if __name__ == "__main__":
    sys.exit(main())
