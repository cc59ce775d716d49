"""The allocator's rules, one small scene each, exact to the byte; addresses count from the first segment."""

from __future__ import annotations

import pytest

from vramcast.core.errors import SimulatedOutOfMemory
from vramcast.simulator.blocks import Block
from vramcast.simulator.caching import CachingAllocator
from vramcast.simulator.card import UNLIMITED_BYTES, Card
from vramcast.simulator.rules import MIB, RULES, AllocatorRules
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Action

BASE = 1 << 46
KIB = 1024


class Scene:
    """An allocator with named blocks."""

    def __init__(
        self,
        text: str = "",
        total_mib: int | None = None,
        *,
        context_mib: int = 0,
        limited: bool = True,
        waits: bool = False,
        rules: AllocatorRules = RULES,
    ) -> None:
        total_bytes = UNLIMITED_BYTES if total_mib is None else total_mib * MIB
        card = Card(total_bytes, context_mib * MIB, limited=limited, policy="windows")  # addresses from 0 on
        self.events: list[tuple[Action, int, int]] = []
        self.allocator = CachingAllocator(Settings.parse(text), card, listener=self._listen, waits=waits, rules=rules)
        self.blocks: dict[str, Block] = {}

    def _listen(self, action: Action, address: int, size_bytes: int, stream: int) -> None:
        if action >= Action.SEGMENT_ALLOC:
            self.events.append((action, address - BASE, size_bytes))

    def malloc(self, name: str, size_bytes: float, stream: int = 0) -> tuple[int, int]:
        """Return (address, size) of a new block."""
        block = self.blocks[name] = self.allocator.malloc(int(size_bytes), stream)
        return block.address - BASE, block.size_bytes

    def free(self, *names: str) -> None:
        for name in names:
            self.allocator.free(self.blocks.pop(name))

    @property
    def reserved(self) -> int:
        return self.allocator.statistics.reserved.current

    def layout(self) -> list[tuple[int, list[tuple[int, bool]]]]:
        """Return each segment's address with its blocks' (size, whether it is taken)."""
        return [
            (row.address - BASE, [(block.size_bytes, block.allocated) for block in row.blocks])
            for row in self.allocator.layout()
        ]


# ------------------------------------------------------------------------------------------------ choice of the block
def test_takes_best_fitting_free_block() -> None:
    scene = Scene()
    for name, mib in (("a", 4), ("x", 2), ("b", 3), ("y", 2)):
        scene.malloc(name, mib * MIB)
    scene.free("a", "b")  # free: 4, 3 and 9 MiB
    assert scene.malloc("c", 3 * MIB) == (6 * MIB, 3 * MIB)


def test_takes_lowest_of_equal_blocks() -> None:
    scene = Scene()
    for name, mib in (("a", 3), ("x", 2), ("b", 3), ("y", 2)):
        scene.malloc(name, mib * MIB)
    scene.free("b", "a")
    assert scene.malloc("c", 3 * MIB) == (0, 3 * MIB)
    assert scene.malloc("d", 3 * MIB) == (5 * MIB, 3 * MIB)


@pytest.mark.parametrize(("release", "place"), [((2, 13), 0), ((2, 14), 40 * MIB)])
def test_takes_equal_block_of_oldest_segment_since_torch_2_14(release: tuple[int, int], place: int) -> None:
    scene = Scene(rules=AllocatorRules(release))
    for name, mib in (("low", 40), ("old", 20)):
        scene.malloc(name, mib * MIB)
    scene.free("low")
    scene.allocator.empty_cache()
    scene.malloc("new", 20 * MIB)  # in the addresses that are free again
    scene.free("new", "old")
    assert scene.malloc("again", 20 * MIB) == (place, 20 * MIB)


def test_small_and_large_requests_have_separate_pools() -> None:
    scene = Scene()
    assert scene.malloc("large", MIB + 1) == (0, MIB + 512)
    assert scene.malloc("small", MIB) == (20 * MIB, MIB)
    assert scene.malloc("small again", 1) == (21 * MIB, 512)
    assert scene.reserved == 22 * MIB


@pytest.mark.parametrize(("request_bytes", "segment_mib"), [(MIB, 2), (3 * MIB, 20), (10 * MIB, 10), (10 * MIB + 1, 12)])
def test_new_segment_has_torchs_size(request_bytes: int, segment_mib: int) -> None:
    scene = Scene()
    scene.malloc("a", request_bytes)
    assert scene.events == [(Action.SEGMENT_ALLOC, 0, segment_mib * MIB)]


# ------------------------------------------------------------------------------------------------ splitting and merging
def test_splits_large_block_above_one_mebibyte() -> None:
    scene = Scene()
    scene.malloc("a", 20 * MIB)
    scene.free("a")
    assert scene.malloc("whole", 19 * MIB) == (0, 20 * MIB)
    scene.free("whole")
    assert scene.malloc("split", 19 * MIB - 512) == (0, 19 * MIB - 512)
    assert scene.layout() == [(0, [(19 * MIB - 512, True), (MIB + 512, False)])]


def test_splits_small_block_to_last_unit() -> None:
    scene = Scene()
    for name, size_bytes in (("a", 1024), ("b", 512)):
        scene.malloc(name, size_bytes)
    scene.free("a")
    assert scene.malloc("c", 512) == (0, 512)
    assert scene.malloc("d", 512) == (512, 512)
    assert scene.layout() == [(0, [(512, True), (512, True), (512, True), (2 * MIB - 1536, False)])]


def test_merges_free_neighbors() -> None:
    scene = Scene()
    for name in "abcd":
        scene.malloc(name, 5 * MIB)
    scene.free("b")
    scene.free("d")
    assert scene.layout() == [(0, [(5 * MIB, True), (5 * MIB, False), (5 * MIB, True), (5 * MIB, False)])]
    scene.free("c")
    assert scene.layout() == [(0, [(5 * MIB, True), (15 * MIB, False)])]
    scene.free("a")
    assert scene.layout() == [(0, [(20 * MIB, False)])]


def test_keeps_free_segments_apart() -> None:
    scene = Scene()
    scene.malloc("a", 20 * MIB)
    scene.malloc("b", 20 * MIB)
    scene.free("a", "b")
    assert scene.malloc("c", 40 * MIB) == (40 * MIB, 40 * MIB)


def test_inactive_split_counts_free_parts_of_segments() -> None:
    scene = Scene()
    for name in "abc":
        scene.malloc(name, 5 * MIB)
    scene.free("b")
    split, n_split = scene.allocator.statistics.inactive_split, scene.allocator.statistics.n_inactive_split
    assert (split.current, split.peak, n_split.current) == (10 * MIB, 15 * MIB, 2)
    scene.free("a", "c")
    assert (split.current, n_split.current) == (0, 0)


# ------------------------------------------------------------------------------------------------ streams
def test_streams_do_not_share_blocks() -> None:
    scene = Scene()
    scene.malloc("a", 5 * MIB)
    scene.free("a")
    assert scene.malloc("b", 5 * MIB, stream=1) == (20 * MIB, 5 * MIB)
    assert scene.reserved == 40 * MIB


def test_next_request_frees_other_streams_block() -> None:
    scene = Scene()
    scene.malloc("a", 5 * MIB)
    scene.allocator.record_stream(scene.blocks["a"], 1)
    scene.free("a")
    statistics = scene.allocator.statistics
    assert (statistics.allocated.current, statistics.active.current) == (0, 5 * MIB)
    assert scene.malloc("b", 3 * MIB) == (0, 3 * MIB)


def test_waiting_block_is_free_after_its_work() -> None:
    scene = Scene(waits=True)
    scene.malloc("a", 5 * MIB)
    block = scene.blocks["a"]
    scene.allocator.record_stream(block, 1)
    scene.free("a")
    assert block in scene.allocator.pending
    assert scene.malloc("b", 5 * MIB) == (5 * MIB, 5 * MIB)
    scene.allocator.complete(block)
    assert scene.malloc("c", 5 * MIB) == (0, 5 * MIB)


def test_block_does_not_wait_for_own_stream() -> None:
    scene = Scene(waits=True)
    scene.malloc("a", 5 * MIB, stream=1)
    scene.allocator.record_stream(scene.blocks["a"], 1)
    scene.free("a")
    assert scene.layout() == [(0, [(20 * MIB, False)])]


def test_emptying_cache_waits_for_all_streams() -> None:
    scene = Scene(waits=True)
    scene.malloc("a", 5 * MIB)
    scene.allocator.record_stream(scene.blocks["a"], 1)
    scene.free("a")
    scene.allocator.empty_cache()
    assert (scene.reserved, scene.layout()) == (0, [])


# ------------------------------------------------------------------------------------------------ a full card
def test_full_card_releases_and_retries() -> None:
    scene = Scene(total_mib=100, context_mib=10)
    scene.malloc("a", 40 * MIB)
    scene.malloc("b", 40 * MIB)
    scene.free("a")
    assert scene.malloc("c", 50 * MIB) == (80 * MIB, 50 * MIB)  # the gap of 40 MiB is too small
    assert (scene.reserved, scene.allocator.statistics.n_retries) == (90 * MIB, 1)
    assert scene.events[2:] == [(Action.SEGMENT_FREE, 0, 40 * MIB), (Action.SEGMENT_ALLOC, 80 * MIB, 50 * MIB)]


def test_full_card_raises_torchs_message() -> None:
    scene = Scene(total_mib=100, context_mib=10)
    scene.malloc("a", 40 * MIB)
    scene.malloc("b", 39 * MIB)
    scene.free("a")
    with pytest.raises(SimulatedOutOfMemory) as caught:
        scene.malloc("c", 60 * MIB - 1)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 60.00 MiB. GPU 0 has a total capacity of 100.00 MiB of which 50.00 MiB is free. "
        "Of the allocated memory 40.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    assert caught.value.requested_bytes == 60 * MIB
    statistics = scene.allocator.statistics
    assert (statistics.n_retries, statistics.n_ooms, scene.reserved) == (1, 1, 40 * MIB)
    assert scene.events[-1] == (Action.OOM, 50 * MIB - BASE, 60 * MIB)
    assert scene.malloc("d", 50 * MIB)[1] == 50 * MIB  # the allocator stays usable


def test_memory_fraction_limits_card() -> None:
    scene = Scene("per_process_memory_fraction:0.5", total_mib=100)
    scene.malloc("a", 3 * MIB)
    scene.malloc("b", 30 * MIB)
    with pytest.raises(SimulatedOutOfMemory) as caught:
        scene.malloc("c", 2 * MIB + 18 * MIB)
    assert "of which 50.00 MiB is free. 50.00 MiB allowed; Of the allocated memory 33.00 MiB is" in str(caught.value)
    assert "and 17.00 MiB is reserved by PyTorch but unallocated." in str(caught.value)
    assert scene.malloc("d", 17 * MIB) == (3 * MIB, 17 * MIB)


def test_outside_memory_does_not_empty_cache() -> None:
    scene = Scene(total_mib=100)
    scene.malloc("a", 60 * MIB)
    scene.free("a")
    with pytest.raises(SimulatedOutOfMemory):
        scene.allocator.take(41 * MIB)
    scene.allocator.take(40 * MIB)
    assert (scene.reserved, scene.allocator.card.free_bytes) == (60 * MIB, 0)


# ------------------------------------------------------------------------------------------------ settings
def test_garbage_collection_releases_oldest_blocks() -> None:
    scene = Scene("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5", total_mib=1000)  # from 250 MiB on
    scene.malloc("a", 50 * MIB)
    scene.malloc("b", 50 * MIB)
    scene.free("a")
    scene.malloc("c", 100 * MIB)
    scene.free("b")
    scene.malloc("d", 80 * MIB)
    scene.malloc("e", 90 * MIB)  # 280 MiB are held: searches passed over `a` three times and over `b` twice
    assert scene.events[-2:] == [(Action.SEGMENT_FREE, 0, 50 * MIB), (Action.SEGMENT_ALLOC, 280 * MIB, 90 * MIB)]
    assert scene.reserved == 320 * MIB


def test_no_garbage_collection_without_memory_fraction() -> None:
    scene = Scene("garbage_collection_threshold:0.1", total_mib=1000)
    for mib in range(40, 80, 10):
        scene.malloc("a", mib * MIB)
        scene.free("a")
    assert scene.reserved == 220 * MIB


@pytest.mark.parametrize(("mib", "place"), [(290, (0, 300)), (281, (0, 300)), (280, (300, 280)), (100, (300, 100))])
def test_unsplittable_block_serves_only_close_sizes(mib: int, place: tuple[int, int]) -> None:
    scene = Scene("max_split_size_mb:200")
    scene.malloc("a", 300 * MIB)
    scene.free("a")
    assert scene.malloc("b", mib * MIB) == (place[0] * MIB, place[1] * MIB)


def test_split_limit_releases_large_block_first() -> None:
    scene = Scene("max_split_size_mb:200", total_mib=500)
    scene.malloc("a", 300 * MIB)
    scene.malloc("b", 30 * MIB)
    scene.free("a", "b")
    scene.malloc("c", 250 * MIB)
    assert scene.reserved == 280 * MIB
    assert scene.allocator.statistics.n_retries == 0


# ------------------------------------------------------------------------------------------------ expandable segments
@pytest.mark.parametrize(
    ("requests_mib", "reserved_mib"),
    [((3,), 20), ((3, 9, 15), 40), ((3, 30), 40), ((1,), 2), ((1, 1, 1), 4), ((3, 1), 22)],
)
def test_expandable_segment_grows_by_pages(requests_mib: tuple[int, ...], reserved_mib: int) -> None:
    scene = Scene("expandable_segments:True")
    for mib in requests_mib:
        scene.malloc(str(mib), mib * MIB)
    assert scene.reserved == reserved_mib * MIB
    assert {action for action, _, _ in scene.events} == {Action.SEGMENT_MAP}
    assert scene.allocator.statistics.n_segments.peak == 0


def test_expandable_segment_needs_contiguous_space() -> None:
    scene = Scene("expandable_segments:True")
    scene.malloc("a", 30 * MIB)
    scene.malloc("b", 30 * MIB)
    scene.free("a")
    assert scene.malloc("c", 45 * MIB) == (60 * MIB, 45 * MIB)
    assert scene.reserved == 120 * MIB


def test_unmaps_only_whole_free_pages() -> None:
    scene = Scene("expandable_segments:True")
    scene.malloc("a", 3 * MIB)
    scene.malloc("b", 25 * MIB)
    scene.free("b")
    scene.allocator.empty_cache()
    assert scene.events[-1] == (Action.SEGMENT_UNMAP, 20 * MIB, 20 * MIB)
    assert scene.layout() == [(0, [(3 * MIB, True), (17 * MIB, False)])]
    assert scene.malloc("c", 30 * MIB) == (3 * MIB, 30 * MIB)  # grows again where it was cut
    scene.free("a", "c")
    scene.allocator.empty_cache()
    assert (scene.reserved, scene.allocator.card.used_bytes) == (0, 0)


def test_pages_move_to_end_of_expandable_segment() -> None:
    scene = Scene("expandable_segments:True", total_mib=200)
    scene.malloc("a", 20 * MIB)
    scene.malloc("b", 40 * MIB)
    scene.malloc("c", 120 * MIB)
    scene.free("b")
    assert scene.malloc("d", 45 * MIB) == (180 * MIB, 45 * MIB)  # the hole is too small
    assert scene.events[-2:] == [(Action.SEGMENT_UNMAP, 20 * MIB, 40 * MIB), (Action.SEGMENT_MAP, 180 * MIB, 60 * MIB)]
    assert (scene.allocator.statistics.n_retries, scene.reserved) == (1, 200 * MIB)


def test_full_address_range_is_followed_by_another() -> None:
    scene = Scene("expandable_segments:True", total_mib=100)  # addresses for 120 MiB
    scene.malloc("a", 20 * MIB)
    scene.malloc("b", 40 * MIB)
    scene.malloc("c", 20 * MIB)
    scene.free("b")
    assert scene.malloc("d", 50 * MIB) == (120 * MIB, 50 * MIB)


def test_request_beyond_address_range_fails() -> None:
    scene = Scene("expandable_segments:True", total_mib=100, limited=False)
    with pytest.raises(SimulatedOutOfMemory):
        scene.malloc("a", 121 * MIB)
    assert scene.malloc("b", 120 * MIB) == (0, 120 * MIB)


# ------------------------------------------------------------------------------------------------ private pools
def test_private_pool_keeps_its_segments() -> None:
    scene = Scene()
    scene.malloc("a", 5 * MIB)
    scene.free("a")
    scene.allocator.begin_pool(1)
    assert scene.malloc("b", 5 * MIB) == (20 * MIB, 5 * MIB)
    scene.allocator.end_pool(1)
    scene.free("b")
    assert scene.malloc("c", 5 * MIB) == (0, 5 * MIB)
    scene.free("c")
    scene.allocator.empty_cache()
    assert scene.layout() == [(20 * MIB, [(20 * MIB, False)])]
    scene.allocator.release_pool(1)
    assert scene.reserved == 20 * MIB
    scene.allocator.empty_cache()
    assert scene.reserved == 0


def test_private_pool_waits_for_all_users() -> None:
    scene = Scene()
    for _ in range(2):
        scene.allocator.begin_pool(1)
        scene.malloc("a", 5 * MIB)
        scene.free("a")
        scene.allocator.end_pool(1)
    assert scene.reserved == 20 * MIB
    for reserved_mib in (20, 0):
        scene.allocator.release_pool(1)
        scene.allocator.empty_cache()
        assert scene.reserved == reserved_mib * MIB


def test_no_retry_while_pool_records() -> None:
    scene = Scene(total_mib=100)
    scene.malloc("a", 60 * MIB)
    scene.free("a")
    scene.allocator.begin_pool(1)
    scene.malloc("b", 30 * MIB)
    scene.free("b")
    with pytest.raises(SimulatedOutOfMemory) as caught:
        scene.malloc("c", 50 * MIB)
    assert "with 30.00 MiB allocated in private pools (e.g., CUDA Graphs), " in str(caught.value)
    assert (scene.allocator.statistics.n_retries, scene.reserved) == (0, 90 * MIB)


def test_waiting_block_stays_taken_while_pool_records() -> None:
    scene = Scene()
    scene.allocator.begin_pool(1)
    scene.malloc("a", 5 * MIB)
    scene.allocator.record_stream(scene.blocks["a"], 1)
    scene.free("a")
    assert scene.malloc("b", 5 * MIB) == (5 * MIB, 5 * MIB)
    scene.allocator.end_pool(1)
    scene.malloc("c", KIB)
    assert scene.layout()[0] == (0, [(5 * MIB, False), (5 * MIB, True), (10 * MIB, False)])
