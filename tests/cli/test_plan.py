"""`plan`: its JSON, its exit codes, the file for other programs, and the inputs it rejects."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vramcast.cli.verbs import plan as verb
from vramcast.core.errors import CannotEstimate, TraceFileError
from vramcast.core.plain import to_plain
from vramcast.plans import planner
from vramcast.plans.runtime.plan_file import PlanFile
from vramcast.plans.runtime.swapping import swapping
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Action, Trace

Call = Callable[..., tuple[int, str, str]]
MIB = 2**20
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
KEYS = {"schema", "device", "peak_live", "pool", "caching", "swap", "free_options", "to"}
POOL_KEYS = {"bytes", "ratio", "algorithm", "seconds"}
SWAP_KEYS = {"limit", "feasible", "moved_bytes", "overhead_ms", "schedule", "hooks"}


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    """Return a job of twelve layers whose outputs, 32 MiB each, stay until the backward pass."""
    path = tmp_path / "deep.py"
    path.write_text(
        "import torch\n"
        "def deep():\n"
        "    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(1024, 1024), torch.nn.Tanh())]\n"
        "    return torch.nn.Sequential(*layers)\n"
    )
    return [f"{path}:deep", "--batch", "8192x1024", "--labels", "8192x1024", "--device", "a100-40gb"]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Return a history of blocks of 30, 40 and 60 MiB; the caching allocator needs a new place for the third.

    row  0 ALLOC 30   1 ALLOC 40   2 FREE 30   3 FREE 40   4 ALLOC 60
    """
    base = 1 << 40
    rows = [
        (Action.SEGMENT_ALLOC, base, 30, -1), (Action.ALLOC, base, 30, 1),
        (Action.SEGMENT_ALLOC, base + 30 * MIB, 40, -1), (Action.ALLOC, base + 30 * MIB, 40, 3),
        (Action.FREE_REQUESTED, base, 30, 1), (Action.FREE_COMPLETED, base, 30, 1),
        (Action.FREE_REQUESTED, base + 30 * MIB, 40, 3), (Action.FREE_COMPLETED, base + 30 * MIB, 40, 3),
        (Action.SEGMENT_ALLOC, base + 70 * MIB, 60, -1), (Action.ALLOC, base + 70 * MIB, 60, 9),
    ]  # fmt: skip
    action, address, mib, block = zip(*rows, strict=True)
    starts, sizes = [base, base + 30 * MIB, base + 70 * MIB], [30 * MIB, 40 * MIB, 60 * MIB]
    segments = {"address": starts, "total_size": sizes, "stream": [0] * 3, "is_large": [True] * 3, "is_expandable": [False] * 3}
    trace = Trace.build(
        {"action": action, "address": address, "size_bytes": [n * MIB for n in mib], "block": block},
        segments=segments,
        blocks={
            "segment": [0, 1, 2], "address": starts, "size_bytes": sizes, "requested_bytes": [0, 0, 60 * MIB],
            "state": [2, 2, 0],
        },
    )  # fmt: skip
    path = tmp_path / "history.pickle"
    write_snapshot(trace, path)
    trace.save(tmp_path / "history.npz")
    (tmp_path / "history.pickle.gz").write_bytes(gzip.compress(path.read_bytes()))
    return path


def prove(plan: dict[str, Any]) -> None:
    """Fail unless a file's pool holds every block within its height, at aligned offsets, without overlap of live blocks."""
    blocks, pool = plan["blocks"], plan["pool"]
    columns = (blocks["birth"], blocks["death"], pool["size_bytes"], pool["offset_bytes"])
    assert min(map(len, columns)) > 0
    live: list[tuple[int, int, int]] = []  # offset, end, death
    for birth, death, size, offset in sorted(zip(*columns, strict=True)):
        live = [block for block in live if block[2] > birth]
        assert offset % pool["alignment_bytes"] == 0
        assert 0 <= offset <= pool["height_bytes"] - size
        assert not [block for block in live if block[0] < offset + size and offset < block[1]]
        live.append((offset, offset + size, death))


# ------------------------------------------------------------------------------------------------ a history
@pytest.mark.parametrize("suffix", [".pickle", ".pickle.gz", ".npz"])
def test_history_gets_pool_without_swap(call: Call, history: Path, suffix: str) -> None:
    code, out, _ = call("plan", str(history.with_name("history" + suffix)), "--json")
    said = json.loads(out)
    assert code == 0
    assert set(said) == KEYS
    assert (said["schema"], said["peak_live"], said["swap"]) == (1, 70 * MIB, None)
    assert set(said["pool"]) == POOL_KEYS
    assert (said["pool"]["bytes"], said["pool"]["ratio"]) == (70 * MIB, 1.0)
    assert said["caching"] == {"bytes": 130 * MIB, "ratio": 130 / 70}


def test_text_shows_savings_of_pool(call: Call, history: Path) -> None:
    code, out, _ = call("plan", str(history), "--pool")
    assert code == 0
    assert "130.0 MiB   1.8571 times that" in out
    assert "70.0 MiB   1.0000 times that, 46.2% below the caching allocator" in out
    assert "swapping" not in out


def test_settings_change_allocator_but_not_pool(call: Call, history: Path) -> None:
    said = json.loads(call("plan", str(history), "--alloc-conf", "expandable_segments:True", "--json")[1])
    assert said["caching"]["bytes"] == 80 * MIB  # the pages of large blocks come in 20 MiB
    assert said["pool"]["bytes"] == 70 * MIB


def test_places_blocks_older_than_history(call: Call, tmp_path: Path) -> None:
    base = 1 << 40
    rows = [(Action.FREE_REQUESTED, base, 50), (Action.FREE_COMPLETED, base, 50), (Action.ALLOC, base, 20)]
    action, address, mib = zip(*rows, strict=True)
    layout = {"address": [base], "total_size": [50 * MIB], "stream": [0], "is_large": [True], "is_expandable": [False]}
    trace = Trace.build(
        {"action": action, "address": address, "size_bytes": [n * MIB for n in mib], "block": [-1, -1, 2]},
        segments=layout,
        blocks={
            "segment": [0, 0], "address": [base, base + 20 * MIB], "size_bytes": [20 * MIB, 30 * MIB],
            "requested_bytes": [20 * MIB, 0], "state": [0, 2],
        },
    )  # fmt: skip
    trace.save(tmp_path / "warm.npz")
    said = json.loads(call("plan", str(tmp_path / "warm.npz"), "--json")[1])
    assert said["peak_live"] == said["pool"]["bytes"] == said["caching"]["bytes"] == 50 * MIB


def test_written_plan_is_verifiable(call: Call, history: Path, tmp_path: Path) -> None:
    code, _, _ = call("plan", str(history), "--out", str(tmp_path / "plan.json"))
    assert code == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["format"], plan["version"], plan["of"]) == ("vramcast-plan", 2, "history.pickle")
    plan = plan["ranks"][0]
    assert plan["swap"] is None
    assert plan["blocks"]["requested_bytes"] == [30 * MIB, 40 * MIB, 60 * MIB]
    assert plan["blocks"]["death"][2] == plan["rows"]
    prove(plan)
    plan["pool"]["offset_bytes"] = [0, 0, 0]
    with pytest.raises(AssertionError):
        prove(plan)


def test_chart_shows_before_and_after(call: Call, history: Path, tmp_path: Path) -> None:
    assert call("plan", str(history), "--chart", str(tmp_path / "a.html"))[0] == 0
    text = (tmp_path / "a.html").read_text()
    assert "caching allocator: 130.0 MiB, 1.857 times the allocated peak" in text
    assert "70.0 MiB, 1.000 times the allocated peak" in text
    assert call("plan", str(history), "--chart", str(tmp_path / "a.png"))[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(PNG_MAGIC)


def test_never_prints_refuted_plan(call: Call, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = planner.pool.plan

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = good(*arguments, **options)
        object.__setattr__(found, "offset_bytes", np.zeros_like(found.offset_bytes))
        return found

    monkeypatch.setattr(planner.pool, "plan", wrong)
    code, out, err = call("plan", str(history), "--out", str(tmp_path / "plan.json"))
    assert (code, out) == (CannotEstimate.exit_code, "")
    assert "report" in err
    assert not (tmp_path / "plan.json").exists()


# ------------------------------------------------------------------------------------------------ a job
def test_job_gets_both_plans(call: Call, job: list[str], tmp_path: Path, needs_null_gpu: None) -> None:
    pytest.importorskip("optuna")
    code, out, _ = call("plan", *job, "--json", "--out", str(tmp_path / "plan.json"))
    said = json.loads(out)
    assert code == 0
    assert set(said) == KEYS
    assert set(said["swap"]) == SWAP_KEYS
    assert (said["swap"]["limit"], said["swap"]["feasible"], said["swap"]["overhead_ms"]) == (None, True, 0.0)
    assert said["device"] == "a100-40gb"
    assert said["peak_live"] <= said["pool"]["bytes"] <= said["caching"]["bytes"]
    plan = json.loads((tmp_path / "plan.json").read_text())["ranks"][0]
    prove(plan)
    assert plan["swap"]["schedule"] == said["swap"]["schedule"]
    assert plan["swap"]["step"] == 3  # counted from 1: the last of three


def test_keeps_limit_or_exits_1(call: Call, job: list[str], needs_null_gpu: None) -> None:
    pytest.importorskip("optuna")
    peak = json.loads(call("plan", *job, "--pool", "--json")[1])["peak_live"]
    code, out, _ = call("plan", *job, "--swap", "--limit", str(peak * 9 // 10), "--link", "nvlink-c2c", "--json")
    said = json.loads(out)
    assert code == 0
    assert said["pool"] is None
    assert (said["swap"]["limit"], said["swap"]["feasible"]) == (peak * 9 // 10, True)
    assert said["swap"]["moved_bytes"] == sum(move["size_bytes"] for move in said["swap"]["schedule"]) > 0
    hooks = said["swap"]["hooks"]
    assert hooks["peak_bytes"] <= peak * 9 // 10
    assert 0 < hooks["moved_bytes"] <= hooks["host_bytes"]
    code, out, _ = call("plan", *job, "--swap", "--limit", "1MiB", "--json")
    said = json.loads(out)["swap"]
    assert code == 1
    assert (said["feasible"], said["overhead_ms"], said["schedule"]) == (False, None, [])
    code, out, _ = call("plan", *job, "--limit", "1MiB")
    assert code == 1
    assert "above the limit of 1.0 MiB" in out


@pytest.mark.integration
def test_limit_that_only_the_full_schedule_keeps_exits_1(
    call: Call, job: list[str], needs_null_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CannotEstimate("Hooks get down to 2 GiB.")

    monkeypatch.setattr(verb, "hook_swaps", refuse)
    peak = json.loads(call("plan", *job, "--json")[1])["peak_live"]
    code, out, err = call("plan", *job, "--swap", "--limit", str(peak * 9 // 10), "--link", "nvlink-c2c", "--json")
    said = json.loads(out)["swap"]
    assert (code, said["feasible"], said["hooks"]) == (1, True, None)
    assert "although the full schedule stays there: Hooks get down to 2 GiB." in err
    assert call("plan", *job, "--swap")[0] == 0
    assert "pool" in out


def test_default_card_is_named(call: Call, job: list[str], auto_tracer: str) -> None:
    code, out, err = call("plan", *job[: job.index("--device")], "--tracer", "fake", "--pool", "--json")
    assert (code, json.loads(out)["device"]) == (0, "h200")
    assert "no card is named, so the plan is for NVIDIA H200" in err


def test_slower_link_never_costs_less(call: Call, job: list[str], needs_null_gpu: None) -> None:
    pytest.importorskip("optuna")
    peak = json.loads(call("plan", *job, "--pool", "--json")[1])["peak_live"]
    costs = [
        json.loads(call("plan", *job, "--swap", "--limit", str(peak * 8 // 10), "--link", link, "--json")[1])["swap"]
        for link in ("pcie3", "pcie5")
    ]
    assert costs[0]["overhead_ms"] >= costs[1]["overhead_ms"]


def test_other_tracer_gets_pool_without_swap(call: Call, job: list[str], auto_tracer: str) -> None:
    code, out, err = call("plan", *job, "--tracer", "fake", "--json")
    said = json.loads(out)
    assert code == 0
    assert "no card is named" not in err
    assert said["swap"] is None
    assert said["pool"]["bytes"] >= said["peak_live"] > 0
    code, out, err = call("plan", *job, "--tracer", "fake", "--swap")
    assert (code, out) == (2, "")
    assert "--tracer nullgpu" in err


# ------------------------------------------------------------------------------------------------ rejected inputs
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{history}", "--swap"), ("does not record when blocks are read", "--pool")),
        (("{history}", "--limit", "1GiB"), ("does not record when blocks are read", "--pool")),
        (("{history}", "--pool", "--limit", "1GiB"), ("--limit applies to swapping", "add --swap")),
        (("{history}", "--pool", "--link", "pcie4"), ("--link applies to swapping", "add --swap")),
        (("{history}", "--swap", "--limit", "much"), ("'much'", "12GiB")),
        (("{history}", "--chart", "a.pdf"), (".pdf", ".png or .html")),
        (("{history}", "--link", "usb"), ("usb", "pcie4")),
        (("resnet50", "--pool"), ("'resnet50' is neither a file nor a TARGET", "torchvision:resnet50")),
        (("{folder}/no.pickle",), ("no.pickle", "memory history")),
        (("{folder}/empty.npz",), ("has no allocation to plan", "_record_memory_history")),
        (("{folder}/damaged.pickle",), ("damaged.pickle",)),
    ],
)
def test_wrong_usage_exits_2_with_one_line(
    call: Call, history: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    Trace.build({"action": [Action.SNAPSHOT], "size_bytes": [0], "block": [-1]}).save(history.with_name("empty.npz"))
    history.with_name("damaged.pickle").write_bytes(b"\x80\x04junk")
    code, out, err = call("plan", *(text.format(history=history, folder=history.parent) for text in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("vramcast: ")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize("option", ["--out=plan.json", "--chart=plan.html"])
def test_unwritable_file_exits_3_with_json(call: Call, history: Path, option: str) -> None:
    option = option.replace("=", f"={history.parent}/no/")
    code, out, err = call("plan", str(history), "--pool", option, "--json")
    assert code == 3
    assert "cannot be written: No such file or directory. Choose another path." in err
    assert json.loads(out)["error"] == "OutputError"


@pytest.mark.parametrize("option", [("--swap",), ("--limit", "1GiB"), ("--link", "pcie4")])
def test_rejects_swaps_of_several_ranks(call: Call, tmp_path: Path, option: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    code, out, err = call("plan", "--on", "t4", *option, "--", "torchrun", "--nproc-per-node", "2", str(script))
    assert (code, out) == (2, "")
    assert "has 2 ranks: plan only the pools (--pool)" in err


def test_command_gets_hooks_and_pool_of_its_requests_with_hooks(
    call: Call, tmp_path: Path, job: list[str], needs_null_gpu: None
) -> None:
    pytest.importorskip("optuna")
    script = Path(job[0].split(":")[0]).with_name("train.py")
    script.write_text(
        "import torch, deep\n"
        "model = deep.deep().cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(6):\n"
        "    loss = model(torch.randn(8192, 1024, device='cuda')).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    path = tmp_path / "plan.json"
    code, out, _ = call(
        "plan", "--on", "t4", "--swap", "--pool", "--link", "pcie3", "-o", str(path), "--", "python", str(script)
    )
    assert code == 0
    assert "as traced with its hooks" in out
    assert "of pinned host memory" in out
    plan = PlanFile.read(path).of_rank(0)
    assert plan.pool is not None
    assert plan.swap is not None
    prove({"blocks": plan.blocks, "pool": to_plain(plan.pool)})
    hooks = plan.swap["hooks"]
    assert plan.pool.height_bytes >= hooks["peak_bytes"]
    assert plan.pool.height_bytes < plan.swap["peak_live"]
    with swapping(plan):
        torch.ones(2, requires_grad=True).exp().sum().backward()
    with pytest.raises(TraceFileError, match=r"swap\.hooks"):
        swapping(replace(plan, swap={"hooks": {"rounds": [{"size_bytes": [-1]}]}}))


@pytest.fixture
def blocks(tmp_path: Path) -> list[str]:
    """Return a job of four blocks, each of which holds 96 MiB until the backward pass."""
    path = tmp_path / "blocks.py"
    path.write_text(
        "import torch\n"
        "def model():\n"
        "    def block():\n"
        "        return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))\n"
        "    return torch.nn.Sequential(*(block() for _ in range(4)))\n"
    )
    return [f"{path}:model", "--batch", "8192x256", "--labels", "8192x256", "--device", "rtx4090", "--json"]


@pytest.mark.integration
def test_job_stays_within_a_size_at_the_least_cost(call: Call, blocks: list[str], needs_null_gpu: None) -> None:
    def ways(size: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = call("plan", *blocks, "--to", size)
        return code, json.loads(out)["to"]

    code, enough = ways("2GiB")
    assert (code, enough["cheapest"], [mix["allocator"] for mix in enough["mixes"]]) == (0, 0, ["as it is"])
    size_bytes = enough["mixes"][0]["reserved_bytes"] // 2
    code, half = ways(f"{size_bytes}B")
    best = half["mixes"][half["cheapest"]]
    assert code == 0
    assert best["reserved_bytes"] <= size_bytes
    assert set(best["checkpointed"]) <= {"0", "1", "2", "3"}
    assert best["longer_ms"] == min(mix["longer_ms"] for mix in half["mixes"] if mix["reserved_bytes"] <= size_bytes) > 0
    code, none = ways("1MiB")
    assert (code, none["cheapest"]) == (1, None)
    assert any(len(mix["checkpointed"]) == 4 for mix in none["mixes"])


@pytest.mark.parametrize("option", ["--pool", "--swap", "--limit=1GiB"])
def test_rejects_a_size_with_the_tools_it_chooses(call: Call, history: Path, option: str) -> None:
    code, _, error = call("plan", str(history), "--to", "1GiB", option)
    assert code == 2
    assert "--to chooses among pool, swaps and more itself" in error


def test_rejects_a_size_for_a_recording(call: Call, history: Path) -> None:
    code, _, error = call("plan", str(history), "--to", "1GiB")
    assert code == 2
    assert "does not record when blocks are read" in error
