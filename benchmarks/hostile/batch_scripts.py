"""Batch scripts of a grammar, read and run under Bash: how many are understood rightly, left alone, and understood wrongly.

    python -m benchmarks.hostile.batch_scripts [--generated 2000] [--seed 1] [--verbose]

The exit code is 1 if a script is understood wrongly, so that its request would be too small.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.hostile.cluster.batch_scripts import ALONE, RIGHT, WRONG, compared
from benchmarks.hostile.cluster.script_grammar import scripts


def drawn(count: int, number: int = 1) -> list[str]:
    """Return distinct scripts of the grammar."""
    found: dict[str, None] = {}

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(scripts())
    def draw(script: str) -> None:
        found[script] = None

    while len(found) < count:
        draw()
        number += 1
        draw = seed(number)(draw)
    return list(found)[:count]


def main() -> int:
    """Print the counts and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--generated", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print each script that is left alone, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scripts-") as folder:
        found = compared(drawn(options.generated, options.seed), Path(folder))
    for script, outcome, why in found:
        if outcome == WRONG or (options.verbose and outcome == ALONE):
            print(f"--- {outcome}: {why}\n{script}\n")
    counts = Counter(outcome for _, outcome, _ in found)
    print("; ".join(f"{outcome}: {counts[outcome]:,}" for outcome in (RIGHT, ALONE, WRONG)), f"of {len(found):,}")
    return 1 if counts[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
