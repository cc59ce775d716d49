"""The spread of a model over ranks as text, and the shards of a rank in a header."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training
from vramcast.jobs.parallel import Parallel, parse
from vramcast.jobs.ranks import ALONE, World
from vramcast.report.answer_text import shard_table
from vramcast.tracer.format.rank_facts import HeldParameters, are_shards_equal, sharding_of
from vramcast.tracer.format.trace import SHARDING, Trace
from vramcast.tracer.portable_tracers import CPU, FAKE, PortableTracer
from vramcast.tracer.protocol.run_options import AS_USUAL


@pytest.mark.parametrize(
    ("text", "size", "per_node", "found", "shards"),
    [
        ("ddp", 8, None, Parallel("ddp", World(8)), 1),
        ("fsdp", 64, 4, Parallel("fsdp", World(64, 4)), 64),
        ("fsdp", 1, None, Parallel("fsdp", World(1)), 1),
        ("hsdp:2x8", None, 8, Parallel("hsdp", World(16, 8), 2), 8),
        ("hsdp:2x8", 16, None, Parallel("hsdp", World(16), 2), 8),
    ],
)
def test_parses_parallel(text: str, size: Any, per_node: Any, found: Parallel, shards: int) -> None:
    assert parse(text, size, per_node) == found
    assert (str(found), found.shards, found.is_sharded) == (text, shards, text != "ddp")


def test_single_rank_needs_no_parallel() -> None:
    assert parse(None) is None
    assert parse(None, 1, 1) is None


@pytest.mark.parametrize(
    ("text", "size", "per_node", "said"),
    [
        (None, 8, None, "world_size .* is 8, but parallel .* is missing"),
        ("tp", 8, None, "is 'tp': use ddp, fsdp, or hsdp:RxS"),
        (3, 8, None, "is 3: use ddp"),
        ("hsdp", 8, None, "is 'hsdp': use ddp, fsdp, or hsdp:RxS"),
        ("fsdp", None, None, "'fsdp' without a number of ranks"),
        ("fsdp", 0, None, "world_size .* is 0"),
        ("ddp", "8", None, "world_size"),
        ("fsdp", 8, 3, "8 ranks cannot fill machines of 3"),
        ("hsdp:2x4", 16, None, "2 x 4 = 8 ranks, but world_size .* is 16"),
        ("hsdp:0x4", None, None, "in hsdp:RxS is 0"),
    ],
)
def test_rejects_wrong_parallel(text: Any, size: Any, per_node: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text, size, per_node)


def test_rejects_second_world() -> None:
    job = Job(device("h100"), target="torchvision:resnet50")
    assert job.world == ALONE
    assert replace(job, parallel=parse("ddp", 16)).world == World(16)
    command = Job(device("h100"), command=Command(("train.py",), world=World(8)))
    assert command.world == World(8)
    with pytest.raises(UsageError, match="a command sets its own ranks"):
        replace(command, parallel=parse("ddp", 16))
    with pytest.raises(UsageError, match="inference ranks run independently"):
        replace(job, parallel=parse("ddp", 16), training=Training(mode="infer"))


@pytest.mark.parametrize("tracer", [FAKE, CPU])
def test_portable_tracers_reject_ranks(tracer: PortableTracer) -> None:
    job = Job(device("h100"), target="torchvision:resnet50", parallel=parse("fsdp", 8))
    with pytest.raises(UsageError, match=f"The {tracer.name} tracer runs one rank alone, not one of 8: use --tracer nullgpu"):
        tracer.trace(job, AS_USUAL)


# ------------------------------------------------------------------------------------------------ shards
@pytest.fixture
def tiny() -> Trace:
    """Return an empty trace."""
    return Trace.build({"action": [], "size_bytes": [], "block": [], "address": []}, header={})


def test_trace_lists_shards_of_rank(tiny: Trace) -> None:
    assert sharding_of(tiny) == ()
    assert not are_shards_equal(tiny)
    tiny.header[SHARDING] = {"modules": [["tokens", 80, 10, 0], ["norm", 8, 0, 8]], "is_even": True}
    assert sharding_of(tiny) == (HeldParameters("tokens", 80, 10, 0), HeldParameters("norm", 8, 0, 8))
    assert are_shards_equal(tiny)


@pytest.mark.parametrize("damaged", [[], {}, {"modules": [["a", 1]]}, {"modules": [["a", 1, 2, "x"]]}, {"modules": 3}])
def test_rejects_damaged_shards(tiny: Trace, damaged: object) -> None:
    tiny.header[SHARDING] = damaged
    with pytest.raises(TraceFileError, match="sharding is damaged"):
        sharding_of(tiny)
    assert not are_shards_equal(tiny)


def test_shard_table_joins_equal_modules() -> None:
    mib = 1 << 20
    rows = [
        HeldParameters("tokens", 8 * mib, mib, 0),
        *(HeldParameters(f"layers.{n}", 16 * mib, 2 * mib, 0) for n in range(32)),
    ]
    rows += [HeldParameters("layers.32", 24 * mib, 3 * mib, 0), HeldParameters("norm", mib, 0, mib)]
    assert [" ".join(line.split()) for line in shard_table(rows)] == [
        "parameters of full shard here replicated",
        "tokens 8.0 MiB 1.0 MiB 0.0 MiB",
        "layers.0 to 31, each 16.0 MiB 2.0 MiB 0.0 MiB",
        "layers.32 24.0 MiB 3.0 MiB 0.0 MiB",
        "norm 1.0 MiB 0.0 MiB 1.0 MiB",
        "all 545.0 MiB 68.0 MiB 1.0 MiB",
    ]
