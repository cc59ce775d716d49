"""Hostile inputs, replayed: counts the inputs of each kind that vramcast handles well.

    python -m benchmarks.hostile [--group NAME ...] [--verbose]

Prints a Markdown table, then the inputs that were not handled; the exit code is 1 if there are any. Each group is a module of
this folder with `cases(folder)`.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks import tables
from benchmarks.hostile.case import Case, Verdict, Wrong

CLUSTER = ("tenants", "page", "batch_scripts", "hooks")  # in the folder cluster/
GROUPS: tuple[str, ...] = (
    "truth", "processes", "process_sums", "arguments", "random_inputs", "trust", "files", "doors", "values",
    "host_reads", "verdicts", "behaviour", "growth", *CLUSTER,
)  # fmt: skip


def table(found: Iterable[tuple[Case, Verdict]]) -> str:
    """Return the Markdown table: a row per kind, a column per possible fault."""
    tried: Counter[str] = Counter()
    wrong: dict[str, Counter[Wrong]] = {}
    for case, verdict in found:
        tried[case.kind] += 1
        of_kind = wrong.setdefault(case.kind, Counter())
        if verdict.wrong is not None:
            of_kind[verdict.wrong] += 1
    rows = []
    for kind, n in [*tried.items(), ("all", tried.total())]:
        counts = wrong[kind] if kind in wrong else sum(wrong.values(), Counter())
        rows.append((kind, f"{n:,}", f"{n - counts.total():,}", *(counts[one] for one in Wrong)))
    return tables.table(("kind", "tried", "handled", *(one.value for one in Wrong)), rows)


def main() -> int:
    """Run the groups and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--verbose", action="store_true", help="name each case on stderr when it ends")
    options = parser.parse_args()
    # In the background and under nohup, all child processes would ignore these two signals.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found: list[tuple[Case, Verdict]] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        for group in options.group or GROUPS:
            place = Path(folder) / group
            place.mkdir()
            for case in importlib.import_module(f"benchmarks.hostile.{'cluster.' if group in CLUSTER else ''}{group}").cases(
                place
            ):
                begun = time.perf_counter()
                found.append((case, case.verdict()))
                if options.verbose:
                    verdict = found[-1][1]
                    how = "handled" if verdict.wrong is None else f"{verdict.wrong.value}: {verdict.seen}"
                    print(f"{time.perf_counter() - begun:6.1f} s  {case.kind}: {case.name}: {how}", file=sys.stderr, flush=True)
    print(table(found))
    missed = [(case, verdict) for case, verdict in found if verdict.wrong is not None]
    for case, verdict in missed:
        assert verdict.wrong is not None
        print(f"- {case.kind}: {case.name}: {verdict.wrong.value}: {verdict.seen}")
    print(f"\n{len(found):,} inputs in {time.perf_counter() - started:.0f} s; not handled: {len(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
