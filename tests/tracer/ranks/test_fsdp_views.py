"""The views of a parameter for all ranks are not profiled."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.ranks.simulated_peers import unprofiled


def test_does_not_profile_rank_views() -> None:
    fsdp2: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    weight = torch.empty(64, 8)
    replaced = ReplacedAttribute(fsdp2, "_chunk_with_empty", unprofiled)
    with torch.autograd.profiler.profile() as profile:
        chunks = fsdp2._chunk_with_empty(weight, 64, dim=0)
        weight.neg()
    replaced.remove()
    assert [chunk.shape for chunk in chunks] == [(1, 8)] * 64
    assert {event.name for event in profile.function_events} == {"aten::neg"}
    with torch.autograd.profiler.profile() as after:
        fsdp2._chunk_with_empty(weight, 64, dim=0)
    assert "aten::chunk" in {event.name for event in after.function_events}
