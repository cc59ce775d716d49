"""The text of a plan's answer."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from vramcast.core.units import GIB
from vramcast.plans.free_options import FreeOptions
from vramcast.plans.mixes import Mix, MixChoice
from vramcast.plans.pool import PoolPlan
from vramcast.report.plan_answer import PlanAnswer
from vramcast.tracer.format.trace import Trace

FREE = FreeOptions(expandable_bytes=5 * GIB, one_block_bytes=6 * GIB, first_bytes=GIB)
NO_TRACE = cast("Trace", None)  # no text needs it


def answer(**plans: Any) -> PlanAnswer:
    """Return an answer for a job with a live peak of 4 GiB, of which the caching allocator makes 8."""
    return PlanAnswer("t4", 4 * GIB, 8 * GIB, FREE, **plans)


def test_pool_is_compared_with_the_best_of_the_options_without_a_plan() -> None:
    def lines(height_bytes: int) -> list[str]:
        pool = PoolPlan(np.zeros(1, np.int64), np.zeros(1, np.int64), height_bytes, "first fit", 0.5)
        return [line.strip() for line in answer(pool=pool).text().splitlines()[-2:]]

    assert lines(4 * GIB)[0].endswith("1.0000 times that, 50.0% below the caching allocator, checked")
    assert lines(4 * GIB)[1] == "20.0% below the best of the three; first fit; 0.5 s"
    assert lines(6 * GIB)[1] == "20.0% above the best of the three; first fit; 0.5 s"


def test_cheapest_way_is_marked_with_what_is_left_to_do() -> None:
    ways = (
        Mix("as it is", 8 * GIB, NO_TRACE),
        Mix("pool", 3 * GIB, NO_TRACE, checkpointed=("h.0", "h.1"), recompute_ms=2.0),
        Mix("pool", 3 * GIB, NO_TRACE, checkpointed=("h.0",), recompute_ms=1.0),
    )
    lines = answer(choice=MixChoice(3 * GIB, ways)).text().splitlines()
    assert [line[0] for line in lines[:3]] == [" ", " ", ">"]
    assert " ".join(lines[2].split()) == "> pool, 1 block recomputed 3.00 GiB 1.0 ms longer per step"
    assert lines[3] == "Wrap in torch.utils.checkpoint: h.0."
    assert "vramcast follow FILE -- COMMAND" in lines[4]
    none = answer(choice=MixChoice(GIB, ways)).text().splitlines()
    assert none[-1] == "No way stays within 1.00 GiB: the least is 3.00 GiB."
    assert not [line for line in none if line.startswith(">")]
