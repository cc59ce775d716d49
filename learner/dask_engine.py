"""Trees grown by a dask cluster, for histories too large for one machine's memory.

The quantiles are as good as those of one machine, but not bit-identical: each worker sketches its own part of the rows.
Needs `pip install ".[dask]"`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xgboost

from vramcast.core.errors import UsageError
from vramcast.core.extras import needed

ADDRESS: Final = "DASK_SCHEDULER_ADDRESS"  # spec: dask's own variable
_Array = npt.NDArray[np.float64]


@contextmanager
def cluster(n_workers: int, address: str | None = None) -> Iterator[None]:
    """Use the cluster at an address or at $DASK_SCHEDULER_ADDRESS, else a local one of processes, while the block runs.

    Args:
        n_workers: Number of processes of a local cluster.
        address: Address of a scheduler: `tcp://host:8786`.
    Raises:
        UsageError: dask is not installed, or there is no scheduler at the address.
    """
    with needed("--engine dask", "dask"):
        from dask.distributed import Client, LocalCluster
    if address := address or os.environ.get(ADDRESS):
        try:
            client = Client(address)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"No dask scheduler answers at '{address}' ({error}): start one, or leave the address out."
            ) from None
        with client:
            yield
        return
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None) as local,
        Client(local),
    ):
        yield


def train(parameters: Mapping[str, Any], X: _Array, y: _Array, weight: _Array, rounds: int) -> xgboost.Booster:
    """Return the booster that the current dask client's workers grow together."""
    from dask import array as da
    from dask.distributed import get_client
    from xgboost import dask as on_dask

    client = get_client()
    workers = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)
    rows = -(-len(y) // workers)
    data = on_dask.DaskQuantileDMatrix(
        client,
        da.from_array(X, chunks=(rows, X.shape[1])),
        da.from_array(y, chunks=rows),
        weight=da.from_array(weight, chunks=rows),
    )
    grown = on_dask.train(client, {**parameters, "verbosity": 0}, data, num_boost_round=rounds)
    booster: xgboost.Booster = grown["booster"]
    return booster
