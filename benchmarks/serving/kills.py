"""The service, killed at random moments while it accepts observations: each acknowledged one must be there afterwards.

python -m benchmarks.serving.kills [--kills 50]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.serving.load import job
from benchmarks.serving.running import Connection, Running, message, running
from benchmarks.tables import table
from vramcast.cluster.service.store import Store

_SEED: Final = 0  # arbitrary
_CLIENTS: Final = 4  # arbitrary
_LONGEST_S: Final = 1.0  # arbitrary: longest life of a service after the first observation


async def _observe(service: Running, number: int, lives_s: float) -> tuple[str, list[str]]:
    """Return the estimate's id, and the jobs whose observation was acknowledged before the service was killed."""
    first = await Connection.open(service.port)
    status, body = await first.ask(message("/v1/estimates", job("torchvision:resnet18", 2)))
    if status != 200:
        raise RuntimeError(f"The estimate failed: {body.decode()[:300]}")
    first.close()
    id_ = json.loads(body)["id"]
    known: list[str] = []

    async def client(client: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # it was killed
            connection = await Connection.open(service.port)
            with contextlib.closing(connection):
                for count in itertools.count():
                    name = f"{number}.{client}.{count}"
                    said: dict[str, Any] = {"estimate_id": id_, "outcome": "finished", "process_bytes": 10**9, "job_id": name}
                    status, _ = await connection.ask(message("/v1/observations", said))
                    if status == 201:
                        known.append(name)

    clients = asyncio.gather(*(client(one) for one in range(_CLIENTS)))
    await asyncio.sleep(lives_s)
    await asyncio.to_thread(service.kill)
    await clients
    return id_, known


def killed(folder: Path, kills: int) -> tuple[int, int, int, int]:
    """Return the number of acknowledged, lost, and duplicate observations, and of repeated estimates."""
    dice = random.Random(_SEED)
    acknowledged: list[str] = []
    ids = set()
    for number in range(kills):
        with running(folder, "--workers", "1") as service:
            id_, known = asyncio.run(_observe(service, number, dice.uniform(0, _LONGEST_S)))
        acknowledged += known
        ids.add(id_)
    with contextlib.closing(Store(folder)) as store:
        (state,) = next(iter(store.groups().values())).values()
    with contextlib.closing(sqlite3.connect(folder / "service.sqlite")) as file:
        kept = [job_id for (job_id,) in file.execute("SELECT job_id FROM observed")]
    lost = len(set(acknowledged) - set(kept))
    assert state.observed == len(kept), "a group has a wrong number of observations"
    return len(acknowledged), lost, len(kept) - len(set(kept)), len(ids) - 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = killed(Path(folder), options.kills)
    print(table(["kills", "acknowledged", "lost", "twice", "estimates made again"], [[options.kills, *counts]]))


if __name__ == "__main__":
    main()
