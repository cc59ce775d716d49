"""Verbs that replay a trace: replay, --what-if, --fragmentation; and the smallest card in an estimate."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.what_if_options import COMMON, parse_cards, parse_settings
from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES
from vramcast.simulator.rules import MIB
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Action, Trace

Call = Callable[..., tuple[int, str, str]]
REPLAY_KEYS = {
    *("events", "allocations", "address_matches", "segments_recorded", "segments_predicted", "segments_matched"),
    *("final_layout_equal", "peaks"),
}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Return a snapshot in PyTorch's form: 60 MiB are allocated and freed, then 70 MiB."""
    base = 1 << 40
    rows = (
        (Action.SEGMENT_ALLOC, base, 60, -1),
        (Action.ALLOC, base, 60, 1),
        (Action.FREE_REQUESTED, base, 60, 1),
        (Action.FREE_COMPLETED, base, 60, 1),
        (Action.SEGMENT_ALLOC, base + 60 * MIB, 70, -1),
        (Action.ALLOC, base + 60 * MIB, 70, 5),
    )
    segments = {"address": [base, base + 60 * MIB], "total_size": [60 * MIB, 70 * MIB], "stream": [0, 0]}
    blocks = {"segment": [0, 1], "address": [base, base + 60 * MIB], "size_bytes": [60 * MIB, 70 * MIB]}
    trace = Trace.build(
        {
            "action": [action for action, *_ in rows],
            "address": [address for _, address, *_ in rows],
            "size_bytes": [mib * MIB for _, _, mib, _ in rows],
            "block": [block for *_, block in rows],
        },
        segments={**segments, "is_large": [True, True], "is_expandable": [False, False]},
        blocks={**blocks, "requested_bytes": [0, 70 * MIB], "state": [2, 0]},
    )
    path = tmp_path / "history.pickle"
    write_snapshot(trace, path)
    trace.save(tmp_path / "history.npz")
    (tmp_path / "history.pickle.gz").write_bytes(gzip.compress(path.read_bytes()))
    return path


# ------------------------------------------------------------------------------------------------ replay
@pytest.mark.parametrize("suffix", [".pickle", ".pickle.gz", ".npz"])
def test_compares_history_event_by_event(call: Call, snapshot: Path, suffix: str) -> None:
    code, out, _ = call("replay", str(snapshot.with_name("history" + suffix)), "--json")
    said = json.loads(out)
    assert code == 0
    assert set(said) >= REPLAY_KEYS
    assert (said["events"], said["allocations"], said["address_matches"]) == (6, 2, 2)
    assert (said["segments_recorded"], said["segments_predicted"], said["segments_matched"]) == (2, 2, 2)
    assert said["final_layout_equal"] is True
    assert said["peaks"] == {
        "allocated": {"recorded": 70 * MIB, "simulated": 70 * MIB},
        "reserved": {"recorded": 130 * MIB, "simulated": 130 * MIB},
    }


def test_text_shows_comparison(call: Call, snapshot: Path) -> None:
    code, out, _ = call("replay", str(snapshot))
    assert code == 0
    assert "2   of 2 allocations predicted" in out
    assert "starts cold" in out


def test_replays_history_on_other_cards_and_settings(call: Call, snapshot: Path) -> None:
    options = ("--what-if", "", "--what-if", "expandable_segments:True", "--cards", "75MiB,80MiB", "--context", "10MiB")
    code, out, _ = call("replay", str(snapshot), *options, "--json")
    cases = json.loads(out)["what_if"]
    assert code == 0
    assert [case["card_bytes"] for case in cases] == [None, 75 * MIB, 80 * MIB] * 2
    assert [case["runs"] for case in cases[:3]] == [True, False, True]
    assert {case["peaks"]["min_feasible"] for case in cases[:3]} == {80 * MIB}
    assert cases[1]["out_of_memory"]["size_bytes"] == 70 * MIB
    assert cases[2]["retries"] == 1
    code, out, _ = call("replay", str(snapshot), "--what-if", "common", "--fragmentation")
    assert all(str(Settings.parse(conf)) in out for conf in COMMON)
    assert "pinned" in out


def test_draws_view_of_history(call: Call, snapshot: Path, tmp_path: Path) -> None:
    assert call("replay", str(snapshot), "--plot", str(tmp_path / "view.html"))[0] == 0
    assert "<html" in (tmp_path / "view.html").read_text()
    assert "70.0 MiB" in call("replay", str(snapshot), "--plot", "-")[1]


def test_rejects_empty_history_and_hostile_file(call: Call, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pickle"
    empty.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    hostile = tmp_path / "hostile.pickle"
    hostile.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    for path, words in ((empty, "has no history"), (hostile, "rejected"), (tmp_path / "absent.pickle", "does not exist")):
        code, out, err = call("replay", str(path))
        assert code == 2
        assert out == ""
        assert words in err
        assert "Traceback" not in err


def test_selects_device_of_history(call: Call, snapshot: Path) -> None:
    assert call("replay", str(snapshot), "--device-index", "0")[0] == 0
    code, _, err = call("replay", str(snapshot), "--device-index", "3")
    assert code == 2
    assert "Device 3 is not in the snapshot" in err


# ------------------------------------------------------------------------------------------------ estimates
@pytest.fixture
def job(tiny_models: Path) -> list[str]:
    return [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "a100-40gb"]


@pytest.mark.usefixtures("auto_tracer")
def test_estimate_names_smallest_card(call: Call, job: list[str]) -> None:
    said = json.loads(call("estimate", *job, "--json")[1])
    least = said["peaks"]["min_feasible"]
    assert said["peaks"]["allocated"] < least <= said["peaks"]["process"]
    assert said["seconds"]["simulate"] > 0
    fits = json.loads(call("estimate", *job, "--memory", str(least + 16 * MIB), "--json")[1])
    assert fits["out_of_memory"] is None
    full = json.loads(call("estimate", *job, "--memory", str(least - 2 * MIB), "--json")[1])
    assert full["out_of_memory"] is not None
    assert full["peaks"]["min_feasible"] == least


@pytest.mark.usefixtures("auto_tracer")
def test_estimate_answers_what_if(call: Call, job: list[str]) -> None:
    code, out, _ = call("estimate", *job, "--what-if", "common", "--cards", "t4,1GiB", "--fragmentation", "--json")
    said = json.loads(out)
    assert code == 0
    assert len(said["what_if"]) == 3 * len(COMMON)
    assert said["what_if"][0]["peaks"]["reserved"] == said["peaks"]["reserved"]
    assert said["what_if"][0]["peaks"]["min_feasible"] == said["peaks"]["min_feasible"]
    assert said["fragmentation"]["reserved_bytes"] == said["peaks"]["reserved"]
    assert "smallest" in call("check", *job, "--what-if", "expandable_segments:True")[1]


@pytest.mark.usefixtures("auto_tracer")
def test_sweep_answers_what_if_for_last_size(call: Call, job: list[str], tmp_path: Path) -> None:
    snapshot = tmp_path / "trace.pickle"
    options = ("--batch-sizes", "8,64", "--what-if", "", "--snapshot", str(snapshot), "--json")
    said: dict[str, Any] = json.loads(call("sweep", *job, *options)[1])
    assert said["what_if"][0]["peaks"]["reserved"] == said["rows"][1]["peaks"]["reserved"]
    assert json.loads(call("replay", str(snapshot), "--json")[1])["final_layout_equal"] is True


# ------------------------------------------------------------------------------------------------ options
def test_cards_are_names_or_sizes() -> None:
    assert parse_cards("t4, 12GiB,") == [DEVICES["t4"].total_bytes, 12 << 30]
    assert parse_cards(None) == []


def test_lists_common_settings_once() -> None:
    assert len(parse_settings(["common", "", "expandable_segments:True"])) == len(COMMON)


def test_rejects_wrong_setting_before_running(call: Call) -> None:
    for option in (("--what-if", "max_splitt_size:3"), ("--cards", "huge"), ("--cards", "12 apples")):
        code, _, err = call("estimate", "nowhere.py:nothing", "--batch", "1", *option)
        assert code == 2
        assert "nowhere" not in err
    with pytest.raises(UsageError, match="'max_splitt_size' is unknown"):
        parse_settings(["max_splitt_size:3"])
