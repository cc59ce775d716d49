"""Decisions on a submission, from its request and the answers for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cluster.answer import Answer, Unanswerable
from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.cluster.slurm.decision import Decision, decide, shards_of
from vramcast.cluster.slurm.options import RequestedResources, read_options
from vramcast.cluster.slurm.site_settings import SiteSettings
from vramcast.core.errors import NoAnswer
from vramcast.core.units import GIB, MIB

ID = "a" * 64
SETTINGS = SiteSettings("http://x", {"small": "t4", "large": "a100-40gb"}, mode="fill")
SIZES = {"small": 14913 * MIB, "large": 40507 * MIB}


def answers(process_gib: float, request_gib: float) -> dict[str, Answer | NoAnswer]:
    return {
        name: Answer(ID, process_gib * GIB <= size, min(int(request_gib * GIB), size), int(process_gib * GIB), size)
        for name, size in SIZES.items()
    }


def decided(options: dict[str, Any], process_gib: float = 3, request_gib: float = 3.5, **known: Any) -> Decision:
    settings = replace(SETTINGS, **known.pop("settings", {}))
    return decide(read_options(options), answers(process_gib, request_gib), settings, **known)


def granted(decision: Decision) -> tuple[str | None, str | None]:
    return decision.changes.get("gres"), decision.changes.get("partition")


@pytest.mark.parametrize(
    ("share", "said"), [("", "at 0.99"), ("98 of 100 jobs like it (58 ...)", "for 98 of 100 jobs like it (58 ...)")]
)
def test_line_says_what_the_bound_holds_for(share: str, said: str) -> None:
    known = {name: replace(one, holds_for=share) for name, one in answers(3, 3.5).items() if isinstance(one, Answer)}
    line = decide(read_options({"gres": "gpu:1"}), known, SETTINGS).line
    assert f"3.00 GiB, at most 3.50 GiB {said}" in line


@pytest.mark.parametrize(
    ("options", "cards", "shards"),
    [
        ({"gres": "gres:gpu:1"}, 1, 0),
        ({"gres": "gres:gpu:a100:2,gres:craynetwork:1", "nodes": "2"}, 4, 0),
        ({"gpus": "a100:3"}, 3, 0),
        ({"gpus-per-node": "4", "nodes": "2-3"}, 8, 0),
        ({"gpus-per-task": "1", "nodes": "2", "ntasks-per-node": "4"}, 8, 0),
        ({"gres": "gres:shard:6"}, 0, 6),
        ({"gres": "gpu"}, 1, 0),
        ({"mem": "4G"}, 0, 0),
        ({"gpus": "x"}, 0, 0),
    ],
)
def test_reads_cards_and_shards_from_options(options: dict[str, str], cards: int, shards: int) -> None:
    asked = read_options(options)
    assert (asked.cards, asked.shards) == (cards, shards)


# spec: sbatch(1), --ntasks-per-gpu, --gpus-per-task, --tres-per-task
@pytest.mark.parametrize(
    ("options", "cards", "tasks"),
    [
        ({"ntasks-per-gpu": "4", "gpus": "1"}, 1, 4),
        ({"ntasks-per-gpu": "4", "gres": "gpu:a100:2", "nodes": "2"}, 4, 16),
        ({"ntasks-per-gpu": "4", "ntasks": "8"}, 2, 8),
        ({"gpus": "4", "gpus-per-task": "1"}, 4, 4),
        ({"gpus-per-task": "a100:2", "ntasks": "3"}, 6, 3),
        ({"tres-per-task": "gres/gpu:1", "ntasks": "2"}, 2, 2),
        ({"tres-per-task": "cpu:8,gres/gpu:a100=2"}, 2, 1),
        ({"tres-per-task": "cpu:8", "gpus": "1"}, 1, 1),
        ({"gpus": "a100:2,t4:1"}, 3, 1),
        ({"nodes": "2", "gpus-per-node": "4"}, 8, 2),
        ({"nodes": "1", "ntasks": "1", "ntasks-per-node": "4", "gres": "gpu:1"}, 1, 1),
    ],
)
def test_counts_tasks_like_slurm(options: dict[str, str], cards: int, tasks: int) -> None:
    asked = read_options(options)
    assert (asked.cards, asked.tasks) == (cards, tasks)


def test_shrinks_whole_card_to_shards() -> None:
    decision = decided({"gres": "gres:gpu:1,gres:nic:1", "partition": "small"})
    assert decision.changes["gres"] == "shard:4,gres:nic:1"
    assert decision.changes["gpus"] == ""
    assert Ticket.found_in(decision.changes["comment"]) == Ticket(ID, 4 * GIB, 14913 * MIB)
    assert "4 of 14 shards instead of the whole card" in decision.line


def test_keeps_whole_card_for_steps_or_site() -> None:
    assert granted(decided({"gpus": "1", "partition": "small"}, steps_ask_for_cards=True)) == (None, None)
    assert granted(decided({"gpus": "1", "partition": "small"}, settings={"shrinks": False})) == (None, None)


def test_adds_request_and_partition() -> None:
    assert granted(decided({})) == ("shard:4", "small")
    assert granted(decided({}, 20, 24)) == ("shard:24", "large")
    assert granted(decided({}, 14, 14.5)) == ("gpu:1", "small")


def test_raises_or_warns_about_few_shards() -> None:
    assert granted(decided({"gres": "gres:shard:2", "partition": "small"})) == ("shard:4", None)
    tight = decided({"gres": "gres:shard:3", "partition": "small"})
    assert granted(tight) == (None, None)
    assert "may be too few" in tight.line
    assert granted(decided({"gres": "gres:shard:9", "partition": "small"})) == (None, None)


def test_refuses_job_and_names_fitting_partition() -> None:
    small = decided({"gres": "gres:gpu:1", "partition": "small"}, 20, 24)
    assert small.is_refused
    assert "It fits in partition large" in small.line
    nowhere = decided({"gres": "gres:gpu:1"}, 60, 70)
    assert nowhere.is_refused
    assert "make the job smaller" in nowhere.line


def test_drops_partitions_without_room() -> None:
    assert granted(decided({"gres": "gres:gpu:1", "partition": "small,large"}, 20, 24)) == ("shard:24", "large")
    assert granted(decided({"gres": "gres:gpu:1", "partition": "small,large"})) == ("shard:4", None)


def test_ignores_several_cards_and_unknown_partitions() -> None:
    assert granted(decided({"gres": "gres:gpu:2", "partition": "small"})) == (None, None)
    assert decided({"gres": "gres:gpu:1", "partition": "small,other"}) == Decision()


def test_watch_mode_changes_only_comment() -> None:
    watch = {"settings": {"mode": "watch"}}
    assert set(decided({"gres": "gres:gpu:1", "comment": "mine"}, **watch).changes) == {"comment"}
    assert decided({"gres": "gres:gpu:1", "comment": "mine"}, **watch).changes["comment"].startswith("mine vramcast=")
    large = decided({"gres": "gres:gpu:1", "partition": "small"}, 20, 24, **watch)
    assert not large.is_refused
    assert Ticket.found_in(large.changes["comment"]) is not None


@pytest.mark.parametrize(("when_away", "is_refused"), [("submit", False), ("refuse", True)])
def test_site_decides_without_answer(when_away: Any, is_refused: bool) -> None:
    decision = decide(read_options({}), dict.fromkeys(SIZES, NoAnswer("away")), replace(SETTINGS, when_away=when_away))
    assert (decision.is_refused, decision.changes) == (is_refused, {})
    assert "away" in decision.line


def test_submits_job_without_possible_answer() -> None:
    why = dict.fromkeys(SIZES, Unanswerable("line 3 is not understood"))
    decision = decide(read_options({}), why, replace(SETTINGS, when_away="refuse"))
    assert (decision.is_refused, decision.changes) == (False, {})
    assert "line 3" in decision.line


def test_overlapping_commands_get_sum_without_ticket() -> None:
    sums = {name: replace(one, id="") for name, one in answers(3, 3.5).items() if isinstance(one, Answer)}
    decision = decide(read_options({"gpus": "1", "comment": "mine", "partition": "small"}), sums, SETTINGS)
    assert decision.changes["gres"] == "shard:4"
    assert "comment" not in decision.changes


@pytest.mark.parametrize(
    ("nodes", "number"),
    [
        ("2", 2),
        ("2-4", 2),
        ("2k", 2048),
        ("1K-2K", 1024),
        ("1m", 1 << 20),
        ("1_000", 0),
        ("２", 0),
        ("two", 0),
        ("9" * 5000, 0),
    ],
)
def test_reads_nodes_like_sbatch(nodes: str, number: int) -> None:
    assert read_options({"nodes": nodes}).nodes == (number or 1)


@pytest.mark.parametrize("gres", ["gres:gpu:１", "gres:gpu:1_0", "gres:gpu:" + "9" * 5000])
def test_ignores_non_decimal_card_counts(gres: str) -> None:
    assert read_options({"gres": gres, "gpus": gres}).cards == 0


def test_unknown_partition_may_have_room() -> None:
    known = {"small": answers(20, 24)["small"], "large": NoAnswer("not ready")}
    assert decide(read_options({"gpus": "1"}), known, SETTINGS) == Decision()


@given(
    process_gib=st.floats(0.1, 60), more=st.floats(1, 2), cards=st.integers(0, 2), shards=st.integers(0, 40),
    partition=st.sampled_from([(), ("small",), ("large",), ("small", "large")]),
)  # fmt: skip
def test_granted_memory_holds_point_estimate(
    process_gib: float, more: float, cards: int, shards: int, partition: tuple[str, ...]
) -> None:
    asked = RequestedResources(cards, shards, partition, 1, 1)
    decision = decide(asked, answers(process_gib, process_gib * more), SETTINGS)
    if decision.is_refused:
        assert all(process_gib * GIB > SIZES[name] for name in partition or SIZES)
    elif (gres := decision.changes.get("gres")) and gres.startswith("shard:"):
        assert int(gres.removeprefix("shard:")) >= shards_of(int(process_gib * GIB), SETTINGS)


def test_ticket_keeps_comment_and_replaces_ticket() -> None:
    ticket = Ticket(ID, 3 * GIB, 14 * GIB)
    comment = ticket.added_to("two words")
    assert Ticket.found_in(comment) == ticket
    assert replace(ticket, request_bytes=4 * GIB).added_to(comment) == f"two words {replace(ticket, request_bytes=4 * GIB)}"
    assert Ticket.found_in("vramcast=xyz:1:2") is None
