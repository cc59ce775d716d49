"""Check that the ranks traced by `--ranks auto` are enough: ten jobs of eight ranks, compared with all eight traced.

python -m benchmarks.surveys.symmetry [--only TEXT]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.surveys.distributed_jobs import ALIKE, HEAD, JOBS
from benchmarks.surveys.launched import launched
from benchmarks.tables import table
from vramcast.core.units import MIB

_SIZE: Final = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per job; exit with 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name contains TEXT")
    only = parser.parse_args(arguments).only
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ALIKE:
            if only not in name:
                continue
            script = Path(folder) / "train.py"
            script.write_text(HEAD + JOBS[name], encoding="utf-8")
            every, some = (
                launched(script, _SIZE, "--until", "steps", "--no-bracket", "--ranks", ranks).need(f"{name} --ranks {ranks}")
                for ranks in ("all", "auto")
            )
            traced = {one["rank"]: one["peaks"] for one in some["ranks"]}
            is_same = every["peaks"]["reserved"] == some["peaks"]["reserved"] and all(
                one["peaks"] == traced[one["rank"]] for one in every["ranks"] if one["rank"] in traced
            )
            missed += not is_same
            kinds = len({tuple(one["peaks"].values()) for one in every["ranks"]})
            peak = f"{every['peaks']['reserved'] / MIB:,.1f}"
            rows.append([name, kinds, " ".join(map(str, traced)), peak, "the same" if is_same else "differs"])
            print(f"{name}: {rows[-1]}", file=sys.stderr)
    print(table(["job", "different ranks of 8", "auto traces", "fullest rank's reserved MiB", "auto against all"], rows))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
