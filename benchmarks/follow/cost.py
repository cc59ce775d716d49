"""The time of a request, with and without a follower; `run_job` runs in the null GPU's process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from vramcast.core.compiler import shared_library
from vramcast.plans.runtime import library
from vramcast.plans.runtime.follower import Follower
from vramcast.plans.runtime.plan_file import PlannedPeriod, PlannedPool, RankPlan

N_PAIRS = 300_000
N_LIVE = 300


def run_job(followed: str) -> float:
    """Return nanoseconds per pair of a request and its free: "native", "planned", or "stray"."""
    import torch

    n = 2 * N_LIVE
    sizes = (512 << np.random.default_rng(1).integers(0, 15, n)).astype(np.int64)  # 512 B to 8 MiB
    if followed != "native":
        places = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        planned = sizes if followed == "planned" else sizes + 512
        places += 512 * np.arange(n)
        height = int(planned.sum()) + 512 * n
        pool = PlannedPool(height, tuple(planned.tolist()), tuple(places.tolist()), PlannedPeriod(0, n, n))
        rows = tuple(range(n))
        Follower(RankPlan(0, 4 * n, {"birth": rows, "death": tuple(row + 1 for row in rows)}, pool))
    torch.cuda.init()
    path = shared_library(Path(__file__).with_name("cost.cpp"), version=torch.__version__, options=library.options())
    call = ctypes.CDLL(str(path)).pair_ns
    call.restype = ctypes.c_double
    call.argtypes = [np.ctypeslib.ndpointer(np.int64), *[ctypes.c_int64] * 3]
    return min(call(sizes, n, N_LIVE, N_PAIRS) for _ in range(3))
