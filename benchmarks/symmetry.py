"""Whether the ranks which `--ranks auto` traces are enough: ten jobs of eight ranks, against all eight traced.

python -m benchmarks.symmetry [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.figures import table
from benchmarks.distributed_jobs import ALIKE, HEAD, JOBS
from vramcast.units import MIB

_SIZE: Final = 8


def answer(script: Path, ranks: str) -> dict[str, Any]:
    """Return the JSON of a job whose ranks are chosen so."""
    command = [sys.executable, "-m", "vramcast", "run", "--json", "--device", "h100", "--until", "steps", "--no-bracket"]
    launched = [*command, "--ranks", ranks, "--", "torchrun", f"--nproc_per_node={_SIZE}", script.name]
    done = subprocess.run(launched, cwd=script.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script.name} --ranks {ranks}: {done.stderr.strip().splitlines()[-1]}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a job; exit 1 where one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name has this in it")
    only = parser.parse_args(arguments).only
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ALIKE:
            if only not in name:
                continue
            script = Path(folder) / "train.py"
            script.write_text(HEAD + JOBS[name], encoding="utf-8")
            every, some = answer(script, "all"), answer(script, "auto")
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
