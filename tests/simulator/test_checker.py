"""The checker: it accepts every outcome of the simulator and finds every planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vramcast.simulator.card import BASE, AddressPolicy, Card
from vramcast.simulator.engine import play
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import MIB, AllocatorRules
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Action

from .checker import Rule, check, overlaps
from .sequences import decode, requests_of
from .sequences import settings as any_settings

POLICIES: tuple[AddressPolicy, ...] = ("linux", "windows")


def random_requests(data: bytes, *, n_streams: int, pools: bool, waits: bool) -> Requests:
    """Return the requests encoded in `data`; if they wait, some frees are late and some failures are survived."""
    requests, _ = requests_of([decode(data, n_streams=n_streams, pools=pools)])
    if not waits:
        return requests
    random = np.random.default_rng(list(data))
    n = len(requests)
    is_free = (requests.kind == RequestKind.FREE) & (random.random(n) < 0.4)
    is_try = (requests.kind == RequestKind.MALLOC) & (random.random(n) < 0.2)
    kind = np.where(is_free, RequestKind.RETIRE, np.where(is_try, RequestKind.TRY, requests.kind)).astype(np.uint8)
    retired = np.flatnonzero(is_free)
    places = np.minimum(retired + 1 + random.geometric(0.1, len(retired)), n)
    order = np.argsort(places, kind="stable")
    extra = [(int(places[i]), RequestKind.COMPLETE, 0, int(requests.block[retired[i]])) for i in order]
    extra += [(int(at), RequestKind.TAKE, 3 * MIB + 5, -1) for at in random.integers(0, n, 2)]
    extra.sort(key=lambda row: row[0])
    at = np.array([row[0] for row in extra])
    moved = np.arange(n) + np.searchsorted(at, np.arange(n), side="right")

    def inserted(column: Any, values: list[int]) -> Any:
        return np.insert(column, at, values)

    block = inserted(requests.block, [row[3] for row in extra])
    return Requests(
        inserted(kind, [row[1] for row in extra]),
        inserted(requests.size_bytes, [row[2] for row in extra]),
        inserted(requests.stream, [0] * len(extra)),
        np.where(block >= 0, moved[np.maximum(block, 0)], -1),
        np.arange(n + len(extra)),
        waits=True,
    )


def rows(*given: tuple[int, int, int, int], waits: bool = True) -> Requests:
    """Return requests of (kind, bytes, stream, block)."""
    kind, size_bytes, stream, block = (np.array(column) for column in zip(*given, strict=True))
    return Requests(kind.astype(np.uint8), size_bytes, stream.astype(np.int32), block, np.arange(len(given)), waits=waits)


def columns(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    arrays = ("address", "block_bytes", "allocated_bytes", "reserved_bytes", "events")
    return {name: getattr(outcome, name).tolist() for name in arrays} | {
        "statistics": asdict(outcome.statistics),
        "stopped_at": outcome.stopped_at,
    }


@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    settings=any_settings(),
    policy=st.sampled_from(POLICIES),
    total_mib=st.sampled_from([100, 150, 300, 777, 4000]),
    limited=st.booleans(),
    n_streams=st.sampled_from([1, 1, 3]),
    pools=st.booleans(),
    waits=st.booleans(),
    release=st.sampled_from([(2, 11), (2, 14), (2, 15)]),
    stop_at_oom=st.booleans(),
    length=st.integers(1, 150),
    seed=st.integers(0, 2**32 - 1),
)
def test_outcomes_are_sound_and_engines_agree(
    settings: Settings,
    policy: AddressPolicy,
    total_mib: int,
    limited: bool,
    n_streams: int,
    pools: bool,
    waits: bool,
    release: tuple[int, int],
    stop_at_oom: bool,
    length: int,
    seed: int,
) -> None:
    # torch miscounts the segments of private pools that expand, and the simulator does the same: see test_against_torch.
    pools = pools and not settings.expandable_segments
    data = np.random.default_rng(seed).bytes(3 * length)
    requests = replace(random_requests(data, n_streams=n_streams, pools=pools, waits=waits), rules=AllocatorRules(release))
    total_bytes = total_mib * MIB + 12345

    def card() -> Card:
        return Card(total_bytes, context_bytes=7 * MIB, limited=limited, policy=policy)

    outcomes = [play(requests, settings, card(), stop_at_oom=stop_at_oom, engine=engine) for engine in ("compiled", "python")]
    assert columns(outcomes[0]) == columns(outcomes[1])
    assert check(requests, outcomes[0], settings, card()) == []


# ------------------------------------------------------------------------------------------------ broken on purpose
# Two segments, of 2 and 20 MiB; block 0 waits while block 5 is placed; the second segment makes room for one of 30 MiB.
SMALL, LARGE = BASE, BASE + 2 * MIB
SCENE = rows(
    (RequestKind.MALLOC, 1000, 0, -1),
    (RequestKind.MALLOC, 512, 0, -1),
    (RequestKind.MALLOC, 5 * MIB, 0, -1),
    (RequestKind.FREE, 0, 0, 1),
    (RequestKind.RETIRE, 0, 0, 0),
    (RequestKind.MALLOC, 512, 0, -1),
    (RequestKind.COMPLETE, 0, 0, 0),
    (RequestKind.FREE, 0, 0, 2),
    (RequestKind.EMPTY, 0, 0, -1),
    (RequestKind.MALLOC, 30 * MIB, 0, -1),
    (RequestKind.MALLOC, 99 * MIB, 0, -1),
)
Damage = Callable[[Outcome], Outcome]


def scene() -> Outcome:
    return play(SCENE, card=Card(60 * MIB, policy="windows"), stop_at_oom=False)


def put(column: str, row: int, value: int) -> Damage:
    def damage(outcome: Outcome) -> Outcome:
        values = getattr(outcome, column).copy()
        values[row] = value
        return replace(outcome, **{column: values})

    return damage


def put_event(number: int, **values: int) -> Damage:
    def damage(outcome: Outcome) -> Outcome:
        events = outcome.events.copy()
        for name, value in values.items():
            events[number][name] = value
        return replace(outcome, events=events)

    return damage


def take_events(*numbers: int) -> Damage:
    return lambda outcome: replace(outcome, events=outcome.events[list(numbers)])


def put_statistic(name: str, value: Any) -> Damage:
    return lambda outcome: replace(outcome, statistics=replace(outcome.statistics, **{name: value}))


def test_scene_is_sound() -> None:
    outcome = scene()
    assert [event[0] for event in outcome.events.tolist()] == [
        Action.SEGMENT_ALLOC,
        Action.SEGMENT_ALLOC,
        Action.SEGMENT_FREE,
        Action.SEGMENT_ALLOC,
        Action.OOM,
    ]
    assert outcome.address is not None
    assert outcome.address[[0, 1, 2, 5, 9]].tolist() == [SMALL, SMALL + 1024, LARGE, SMALL + 1024, LARGE]
    assert check(SCENE, outcome, Settings(), Card(60 * MIB, policy="windows")) == []


DAMAGES: dict[str, tuple[Damage, Rule, int]] = {
    "a block moved by 512 B into the next": (put("address", 0, SMALL + 512), Rule.BLOCK_OVERLAP, 1),
    "a block put where one waits": (put("address", 5, SMALL + 512), Rule.BLOCK_OVERLAP, 5),
    "a block before its segment": (put("address", 0, SMALL - 512), Rule.BLOCK_OUTSIDE, 0),
    "a block over the end of its segment": (put("address", 2, LARGE + 15 * MIB + 512), Rule.BLOCK_OUTSIDE, 2),
    "a small block in a large segment": (put("address", 5, LARGE + 6 * MIB), Rule.BLOCK_OUTSIDE, 5),
    "a block off by a byte": (put("address", 5, SMALL + 1025), Rule.ALIGNMENT, 5),
    "a block one unit too small": (put("block_bytes", 2, 5 * MIB - 512), Rule.BLOCK_SIZE, 2),
    "a segment off by 512 B": (put_event(1, address=LARGE + 512), Rule.ALIGNMENT, 2),
    "a segment over another": (put_event(1, address=SMALL), Rule.SEGMENT_OVERLAP, 2),
    "a segment never released": (put_event(2, request=7), Rule.EVENTS, 7),
    "a segment for another request": (put_event(1, request=1), Rule.BLOCK_OUTSIDE, 2),
    "a segment of another stream": (put_event(1, stream=1), Rule.EVENTS, 2),
    "a segment that does not exist": (take_events(0, 2, 3, 4), Rule.BLOCK_OUTSIDE, 2),
    "a segment without its release": (take_events(0, 1, 3, 4), Rule.RESERVED, 8),
    "a segment released twice": (take_events(0, 1, 2, 2, 3, 4), Rule.SEGMENT_NOT_HELD, 8),
    "a segment released in part": (put_event(2, size_bytes=18 * MIB), Rule.SEGMENT_NOT_HELD, 8),
    "a segment released early": (put_event(2, request=6), Rule.SEGMENT_IN_USE, 6),
    "the wrong segment released": (put_event(2, address=SMALL, size_bytes=2 * MIB), Rule.SEGMENT_IN_USE, 8),
    "events out of order": (take_events(1, 0, 2, 3, 4), Rule.EVENTS, 11),
    "a failure without an event": (take_events(0, 1, 2, 3), Rule.EVENTS, 10),
    "an OOM for a served request": (put_event(4, request=9), Rule.EVENTS, 9),
    "reserved": (put("reserved_bytes", 3, 22 * MIB + 512), Rule.RESERVED, 3),
    "allocated": (put("allocated_bytes", 4, 5 * MIB - 512), Rule.ALLOCATED, 4),
    "an early end": (put("allocated_bytes", 7, -1), Rule.ALLOCATED, 7),
    "a gap that does not exist": (put("address", 1, SMALL), Rule.CONSERVATION, 1),
    "retries": (put_statistic("n_ooms", 2), Rule.STATISTICS, 11),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_checker_names_broken_rule(name: str) -> None:
    damage, rule, row = DAMAGES[name]
    broken = check(SCENE, damage(scene()), Settings(), Card(60 * MIB, policy="windows"))
    assert (rule, row) in [(found.rule, found.request) for found in broken]
    assert [found.request for found in broken] == sorted(found.request for found in broken)


def test_checker_applies_card_and_fraction() -> None:
    held = [(Rule.CARD, 9, f"{32 * MIB} of {31 * MIB} B")]
    assert [(b.rule, b.request, b.detail) for b in check(SCENE, scene(), Settings(), Card(31 * MIB, policy="windows"))] == held
    assert check(SCENE, scene(), Settings(memory_fraction=0.5), Card(64 * MIB)) == []
    assert [b.rule for b in check(SCENE, scene(), Settings(memory_fraction=0.49), Card(64 * MIB))] == [Rule.FRACTION]


def test_every_rule_can_be_broken() -> None:
    assert {rule for _, rule, _ in DAMAGES.values()} | {Rule.CARD, Rule.FRACTION} == set(Rule)


@pytest.mark.parametrize("name", ["allocated", "reserved", "active", "requested", "n_allocated", "n_segments"])
def test_checker_finds_wrong_peak(name: str) -> None:
    outcome = play(SCENE, card=Card())  # without a retry, all peaks are certain
    level = getattr(outcome.statistics, name)
    assert check(SCENE, outcome, Settings(), Card()) == []
    broken = check(SCENE, put_statistic(name, replace(level, peak=level.peak + 1))(outcome), Settings(), Card())
    assert [(b.rule, b.detail) for b in broken] == [(Rule.STATISTICS, f"{name} is {level.peak + 1}, {level.peak} was seen")]


@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    settings=any_settings(),
    length=st.integers(5, 80),
    waits=st.booleans(),
    damage=st.sampled_from(["drop", "double", "reserved", "allocated", "place", "size"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_checker_finds_random_damage(settings: Settings, length: int, waits: bool, damage: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    requests = random_requests(random.bytes(3 * length), n_streams=2, pools=False, waits=waits)
    outcome = play(requests, settings)
    assert outcome.address is not None
    assert outcome.block_bytes is not None
    mallocs = np.flatnonzero(np.isin(requests.kind, (RequestKind.MALLOC, RequestKind.TRY)))
    if not len(mallocs):
        return
    event, row, n = int(random.integers(len(outcome.events))), int(random.integers(len(requests))), len(outcome.events)
    name = int(random.choice(mallocs))
    if damage in ("drop", "double"):
        spoilt = take_events(*(i for i in range(n) for _ in range(1 if i != event else 2 * (damage == "double"))))(outcome)
    elif damage in ("reserved", "allocated"):
        column = f"{damage}_bytes"
        spoilt = put(column, row, int(getattr(outcome, column)[row]) + 512)(outcome)
    elif damage == "place":  # outside all segments
        spoilt = put("address", name, int(outcome.address[name]) + (1 << 50))(outcome)
    else:
        spoilt = put("block_bytes", name, int(outcome.block_bytes[name]) + 512)(outcome)
    assert check(requests, spoilt, settings, Card())


# ------------------------------------------------------------------------------------------------ overlaps
def test_touching_blocks_do_not_overlap() -> None:
    assert overlaps([0, 512, 0], [512, 512, 1024], [0, 0, 5], [5, 5, 9]) == []


def test_blocks_sharing_byte_and_time_overlap() -> None:
    assert overlaps([0, 511, 0, 700], [512, 512, 1024, 1], [0, 4, 4, 9], [5, 5, 10, 12]) == [(0, 1), (0, 2), (1, 2), (2, 3)]


def test_no_blocks_have_no_overlaps() -> None:
    assert overlaps([], [], [], []) == []


@given(st.lists(st.tuples(*(st.integers(0, 6) for _ in range(4))), max_size=8))
def test_overlaps_match_filled_cells(blocks: list[tuple[int, int, int, int]]) -> None:
    cells = [{(x, t) for x in range(a, a + size) for t in range(begin, end)} for a, size, begin, end in blocks]
    expected = [(i, j) for j in range(len(cells)) for i in range(j) if cells[i] & cells[j]]
    assert overlaps(*zip(*blocks, strict=True)) == expected if blocks else True
