"""Advice: the traced variants of a job, their prices, the reasons for the others, and the unchanged model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vramcast  # noqa: E402
from vramcast.core.brief import every_field  # noqa: E402
from vramcast.core.errors import UsageError  # noqa: E402
from vramcast.estimates import advice, command_advice  # noqa: E402
from vramcast.estimates.advice import advise  # noqa: E402
from vramcast.estimates.advice_rows import Advice, Row  # noqa: E402
from vramcast.estimates.bounds.public import PublicBound  # noqa: E402
from vramcast.estimates.estimator import Estimator  # noqa: E402
from vramcast.estimates.result import Estimate  # noqa: E402
from vramcast.hardware.cards import DEVICES  # noqa: E402
from vramcast.jobs.job import Command  # noqa: E402
from vramcast.plans.blocks import blocks_by_worth, forward_us  # noqa: E402
from vramcast.tracer.format.trace import CHANGES, Action, Category, Phase, Trace  # noqa: E402
from vramcast.tracer.protocol.alloc_conf import AllocConf  # noqa: E402

pytestmark = pytest.mark.usefixtures("auto_tracer")
Call = Callable[..., tuple[int, str, str]]
MIB = 2**20


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    """Four blocks after a normalisation over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return x


def estimated(model: Any = None, batch: int = 16_384, **options: Any) -> Estimate:
    x = vramcast.TensorSpec((batch, 64))
    options.setdefault("labels", x)
    return vramcast.estimate(model or Net(), x, device="a100-40gb", **options)


def state_of(model: Net) -> dict[str, Any]:
    """Return all state of a model that an estimate could change, and torch's random state."""
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "attributes": {path: set(vars(module)) for path, module in model.named_modules()},
        "gradients": [parameter.grad is None and parameter.device.type for parameter in model.parameters()],
        "hooks": len(model._forward_hooks),
        "training": model.training,
        "random": torch.get_rng_state().clone(),
    }


@pytest.fixture(scope="module")
def advised(auto_tracer: str) -> tuple[Estimate, Advice, dict[str, Any], dict[str, Any]]:
    """Return an estimate, its advice, and the state of its model before and after."""
    torch.manual_seed(5)
    model = Net()
    before = state_of(model)
    estimate = estimated(model)
    return estimate, vramcast.advise(estimate), before, state_of(model)


@pytest.fixture(scope="module")
def found(advised: tuple[Estimate, Advice, Any, Any]) -> tuple[Estimate, Advice]:
    return advised[:2]


def row(found: Advice, name: str) -> Row:
    (one,) = [row for row in found.rows if row.name.startswith(name)]
    return one


def taken(found: Advice, name: str) -> int:
    """Return the reserved bytes of a traced row."""
    reserved = row(found, name).reserved
    assert reserved is not None, name
    return reserved


# ------------------------------------------------------------------------------------------------ the table
def test_includes_unchanged_job(found: tuple[Estimate, Advice]) -> None:
    estimate, said = found
    asis = row(said, "as it is")
    assert (asis.reserved, asis.bound) == (estimate.reserved, estimate.upper_bound)
    assert asis.fits == {key: estimate.fits(key) for key in DEVICES}
    assert asis.fits_card is True


def test_sorts_rows_by_bound(found: tuple[Estimate, Advice]) -> None:
    bounds = [row.bound for row in found[1].rows]
    known = [bound for bound in bounds if bound is not None]
    assert len(known) > 8
    assert known == sorted(known)
    assert bounds == known + [None] * (len(bounds) - len(known))
    for one in found[1].rows:
        assert (one.reason is None) == (one.bound is not None) == (one.reserved is not None) == (one.fits is not None)


def test_variants_lower_the_peak(found: tuple[Estimate, Advice]) -> None:
    said = found[1]
    asis = taken(said, "as it is")
    assert taken(said, "checkpointing all 4 blocks") < taken(said, "checkpointing 2 of 4 blocks") < asis
    for name in ("precision bf16", "half the batch, accumulated twice", "follow a plan"):
        assert taken(said, name) < asis, name


def test_pool_is_at_least_live_bytes(found: tuple[Estimate, Advice]) -> None:
    assert found[0].trace.peak_live()[0] <= taken(found[1], "follow a plan") <= found[0].reserved


def test_variant_equals_its_own_estimate(found: tuple[Estimate, Advice]) -> None:
    said = found[1]
    for name, options in (
        ("precision amp-bf16", {"precision": "amp-bf16"}),
        ("SGD without momentum", {"optimizer": "sgd"}),
        ("fused optimizer", {"optimizer": "adam:fused=true"}),
        ("zero_grad after-step", {"zero_grad": "after-step"}),
        ("expandable segments", {"alloc_conf": "expandable_segments:True"}),
    ):
        other = estimated(**options)
        one = row(said, name)
        assert (one.reserved, one.bound) == (other.reserved, other.upper_bound), name


def test_explains_missing_checkpointing_switch(found: tuple[Estimate, Advice]) -> None:
    one = row(found[1], "checkpointing, the model's switch")
    assert one.bound is None
    assert "Net has no switch" in (one.reason or "")
    assert f"not traced: {one.name}: Net has no switch" in str(found[1])


def test_prices_state_known_costs(found: tuple[Estimate, Advice], auto_tracer: str) -> None:
    said = found[1]
    assert row(said, "half the batch").price == "twice the launches per step; batch norm sees half batches"
    assert row(said, "precision bf16").price == "other numerics"
    half, all_ = row(said, "checkpointing 2 of 4 blocks").price, row(said, "checkpointing all 4 blocks").price
    if auto_tracer == "nullgpu":
        shares = [float(text.partition("%")[0]) for text in (half, all_)]
        assert 0 < shares[0] < shares[1] < 100  # the normalisation is in no block
        assert ": blocks." in half
    else:
        assert half.startswith("one more forward pass of these blocks: blocks.")


def test_plans_swap_or_gives_reason(found: tuple[Estimate, Advice], auto_tracer: str) -> None:
    one = row(found[1], "swapping without overhead")
    if auto_tracer != "nullgpu":
        assert "does not record reads of blocks" in (one.reason or "")
        return
    pytest.importorskip("optuna")
    assert taken(found[1], one.name) <= found[0].trace.peak_live()[0]
    assert "each way per step over pcie4" in one.price


def test_shards_until_the_job_fits(found: tuple[Estimate, Advice], auto_tracer: str) -> None:
    one = row(found[1], "sharded over")
    if auto_tracer != "nullgpu":
        assert "fake tracer runs one rank alone" in (one.reason or "")
        return
    two = estimated(parallel="fsdp", world_size=2, level=found[0].level)
    assert (one.name, one.reserved, one.bound) == ("sharded over 2 cards (FSDP2)", two.reserved, two.upper_bound)
    assert [
        v[0] for v in advice._ranks(estimated(parallel="ddp", world_size=4), found[0].estimator) if isinstance(v, tuple)
    ] == ["sharded over 4 cards (FSDP2)"]
    assert list(advice._ranks(two, two.estimator)) == []


def test_doubles_cards_until_the_job_fits(found: tuple[Estimate, Advice]) -> None:
    """Check a job that fits on 16 cards, and one that fits on none."""

    class Sized:
        def __init__(self, enough: int) -> None:
            self.enough, self.asked = enough, list[int]()

        def estimate_job(self, job: Any, options: Any) -> Any:
            size = job.parallel.world.size
            self.asked.append(size)
            return replace(found[0], reserved=size, unbounded_calls=() if size >= self.enough else ("too much",))

    for enough, size in ((16, 16), (2, 2), (1024, 1024), (5000, 1024)):
        estimator = Sized(enough)
        one = advice._sharded(found[0], estimator)  # type: ignore[arg-type]
        name = f"sharded over {size} cards (FSDP2)" if enough <= 1024 else "sharded, up to 1024 cards (FSDP2)"
        assert (one.name, one.reserved, one.fits_card) == (name, size, enough <= 1024)
        assert ("not enough" in one.price) is (enough > 1024)
        assert len(estimator.asked) <= 7


@pytest.mark.parametrize("enough", [2, 16, 5000])
def test_finds_fewest_cards(found: tuple[Estimate, Advice], enough: int) -> None:
    one, size_bytes = found[0], 1 << 50
    large = replace(one, reserved=size_bytes, process=size_bytes, bound=PublicBound(size_bytes, one.libraries, one.unknown))
    said = vramcast.largest(
        large, "cards", traces=9, trace=lambda job, _: one if job.parallel.world.size >= enough else large
    )  # fmt: skip
    value = enough if enough < 1024 else 0
    assert (said.value, said.next, said.exit_code) == (value, enough // 2 if value else 1024, 0 if value else 1)
    assert said.words.startswith(f"fewest cards that fit: {value or 'none'} (")
    assert said.way == (f"--parallel fsdp --world-size {value}" if value else "")


def test_only_training_on_one_card_is_sharded() -> None:
    with pytest.raises(UsageError, match="Only a training job on one card"):
        vramcast.largest(estimated(mode="infer"), "cards")


def test_fake_tracer_has_no_swap_plan() -> None:
    said = advise(estimated(batch=512, tracer="fake"))
    assert "fake tracer does not record reads of blocks" in (row(said, "swapping").reason or "")
    assert row(said, "checkpointing all 4 blocks").price == "at most one more forward pass"
    assert row(said, "checkpointing 2 of 4 blocks").price.startswith("one more forward pass of these blocks: blocks.")


def test_text_names_smallest_card_and_notes(found: tuple[Estimate, Advice]) -> None:
    text = str(found[1])
    assert text.splitlines()[0].split() == ["advice", "reserved", "bound", "card", "fits", "from", "price"]
    assert row(found[1], "as it is").smallest_device in text
    assert "--optimizer adamw_8bit" in text
    many = Row("blocks", f"once more: {', '.join(f'layers.{i}' for i in range(40))}", 1, 1, True, dict.fromkeys(DEVICES, True))
    assert len(many.price) > 300
    assert str(Advice((many,), 0.99)).splitlines()[1].endswith("layers.6, layers.7, ...")
    nowhere = Row("huge", "none", 1 << 50, 1 << 50, False, dict.fromkeys(DEVICES, False))
    assert nowhere.smallest_device is None
    assert str(Advice((nowhere,), 0.99)).splitlines()[1].split()[-3:] == ["no", "none", "none"]


# ------------------------------------------------------------------------------------------------ variants
def names(estimate: Estimate) -> list[str]:
    return [v.name if isinstance(v, Row) else v[0] for v in advice._variants(estimate, None)]


def test_inference_has_no_training_variants() -> None:
    found = names(estimated(mode="infer", labels=None))
    assert found == ["expandable segments", "precision bf16", "precision amp-bf16", "half the batch"]


def test_omits_settings_already_in_use() -> None:
    estimate = estimated()
    job = replace(estimate.job, alloc_conf="expandable_segments:True").with_training(
        precision="bf16", optimizer="SGD:fused=true", zero_grad="after-step", checkpointing=True, channels_last=True
    )
    settings = AllocConf(job.alloc_conf or "", "option")
    assert names(replace(estimate, job=job, alloc_conf=settings)) == [
        "half the batch, accumulated twice",
        "zero_grad step-start",
    ]
    autocast = estimate.job.with_training(precision="amp-fp16")
    assert "precision bf16" in names(replace(estimate, job=autocast))
    assert "precision amp-bf16" not in names(replace(estimate, job=autocast))


def test_keeps_other_settings() -> None:
    estimate = estimated(alloc_conf="max_split_size_mb:128", optimizer="adamw:foreach=true,weight_decay=0.1")
    jobs = {v[0]: v[2] for v in advice._variants(estimate, None) if not isinstance(v, Row)}
    assert jobs["expandable segments"].alloc_conf == "max_split_size_mb:128,expandable_segments:True"
    assert jobs["fused optimizer"].training.optimizer == "adamw:weight_decay=0.1,fused=true"


def test_channels_last_needs_convolutions() -> None:
    estimate = vramcast.estimate(torch.nn.Conv2d(3, 8, 3), vramcast.TensorSpec((4, 3, 16, 16)), device="t4")
    assert "channels_last" in names(estimate)
    assert "channels_last" not in names(estimated())
    assert "batch norm" not in str(list(advice._variants(estimate, None)))


@pytest.mark.parametrize("batch", [1, 7])
def test_explains_odd_batch(batch: int) -> None:
    (one,) = [
        v for v in advice._variants(estimated(torch.nn.Linear(64, 64), batch), None) if isinstance(v, Row) and "half" in v.name
    ]
    assert one.reason == f"first dimensions of the batch's tensors: {batch}; one even number is needed"


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({}, "a batch of unknown size has no half"),
        ({"value": 7}, "a batch of 7 has no half"),
        ({"value": 8, "search": "Ultralytics' batch=-1"}, "Ultralytics' batch=-1 chooses the batch: give it a smaller limit"),
    ],
)
def test_explains_command_whose_batch_has_no_half(batch: dict[str, Any], reason: str) -> None:
    estimate = estimated()
    estimate.trace.header[CHANGES] = {"batch": batch}
    (one,) = [v for v in command_advice._variants(estimate) if v.name.startswith("half")]
    assert (one.changes, one.way) == ((), reason)


def test_explains_callable_optimizer_and_missing_blocks() -> None:
    rows = [
        v for v in advice._variants(estimated(torch.nn.Linear(64, 64), optimizer=torch.optim.Adam), None) if isinstance(v, Row)
    ]
    assert [(one.name, bool(one.reason)) for one in rows] == [("checkpointing by block", True), ("another optimizer", True)]


def test_uses_the_bound_of_the_estimate(monkeypatch: pytest.MonkeyPatch, auto_tracer: str) -> None:
    """Check with an artifact that triples every bound: a row with another kind of bound would be far too high in the table."""
    pytest.importorskip("xgboost")
    from vramcast.learner.conformal import calibrate
    from vramcast.learner.model import Head, LearnedModel

    threefold = np.full(200, math.log(3))
    calibration = calibrate((0.5,), np.zeros((200, 1)), threefold, [str(i) for i in range(200)], [{}] * 200)
    made_up = LearnedModel(Head(None, calibration))
    plain = estimated(mode="infer", level=0.9, timeout_s=321.0)
    estimate = replace(plain.estimator, learned=("made up", made_up)).apply_artifact(plain)
    asked = set()

    def uncorrected(self: Estimator, *asked_for: Any) -> Estimate:
        asked.add((self.tracer, self.level, self.timeout_s))
        return plainly(self, *asked_for)

    plainly = Estimator.uncorrected
    monkeypatch.setattr(Estimator, "uncorrected", uncorrected)
    rows = [row for row in advise(estimate).rows if row.reserved is not None and row.bound is not None]
    assert {row.name for row in rows} >= {"as it is", "follow a plan", "expandable segments", "half the batch"}
    beside = estimate.upper_bound - 3 * estimate.reserved  # the context and its uncertainty, which all variants share
    for row in rows:
        assert row.bound == pytest.approx(3 * (row.reserved or 0) + beside, abs=2), row.name
    assert asked == {(auto_tracer, 0.9, 321.0)}


def test_command_without_training_step_gets_no_advice() -> None:
    estimate = estimated()
    script = replace(estimate, job=replace(estimate.job, command=Command(("train.py",)), model=None))
    with pytest.raises(UsageError, match="makes no training step to change"):
        advise(script)


# ------------------------------------------------------------------------------------------------ blocks
def test_sorts_blocks_by_bytes_per_time() -> None:
    modules = ["layers.0.a", "layers.1.a", "layers.1", "head", "layers.2"]
    # Blocks of 4 and of 6 MiB, made by one and by two operators of 10 us; the head and a leaf with a number are not blocks.
    rows = [
        (Action.ALLOC, 4, 0, 0, 0), (Action.WRITE, 4, 0, -1, 0),
        (Action.ALLOC, 1, 2, 1, 0), (Action.WRITE, 1, 2, -1, 10),
        (Action.ALLOC, 5, 4, 2, 0), (Action.WRITE, 5, 4, -1, 20), (Action.READ, 1, 2, -1, 20),
        (Action.ALLOC, 9, 7, 3, 0), (Action.WRITE, 9, 7, -1, 30),
        (Action.ALLOC, 9, 9, 4, 0),
    ]  # fmt: skip
    action, mib, block, module, time_us = zip(*rows, strict=True)
    trace = Trace.build(
        {
            "action": action, "size_bytes": [n * MIB for n in mib], "block": block, "module": module, "time_us": time_us,
            "category": [Category.ACTIVATION] * 10, "phase": [Phase.FORWARD] * 10,
        },
        modules=modules,
        header={"clock": {"source": "test", "end_us": 100}},
    )  # fmt: skip
    found = blocks_by_worth(trace, trace)
    assert [(b.path, b.held_bytes, b.forward_us) for b in found] == [("layers.0", 4 * MIB, 10), ("layers.1", 6 * MIB, 20)]
    assert [b.path for b in blocks_by_worth(trace, None)] == ["layers.1", "layers.0"]
    assert forward_us(trace).sum() == 100


def test_no_blocks_without_accesses() -> None:
    empty = Trace.build({"action": [], "size_bytes": [], "block": []}, header={"clock": {"end_us": 0}})
    assert blocks_by_worth(empty, empty) == []
    assert forward_us(empty).tolist() == []


# ------------------------------------------------------------------------------------------------ unchanged model
def test_does_not_change_the_model(advised: tuple[Estimate, Advice, dict[str, Any], dict[str, Any]]) -> None:
    _, found, before, after = advised
    assert isinstance(found, vramcast.Advice)
    assert all(torch.equal(value, after["weights"][name]) for name, value in before["weights"].items())
    assert torch.equal(before["random"], after["random"])
    same = ("attributes", "gradients", "hooks", "training")
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    assert before["training"]
    assert set(before["gradients"]) == {"cpu"}


# ------------------------------------------------------------------------------------------------ command line
@pytest.fixture(scope="module")
def answers() -> dict[str, Estimate]:
    """Return the estimates of this module's commands by job."""
    return {}


@pytest.fixture
def job(tiny_models: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Estimate]) -> list[str]:
    """Return a function that runs a command with advice; a job traced by an earlier test is not traced again."""
    trace = Estimator.uncorrected

    def remembered(self: Estimator, *asked_for: Any) -> Estimate:
        key = every_field(asked_for)
        if key not in answers:
            answers[key] = trace(self, *asked_for)
        return answers[key]

    monkeypatch.setattr(Estimator, "uncorrected", remembered)
    return ["estimate", f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "t4", "--advise"]


def test_command_line_prints_advice_after_estimate(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from vramcast.cli.main import main

    assert main(job) == 0
    out = capsys.readouterr().out
    assert out.startswith("fits: ")
    assert out.index("peak ") < out.index("assumes ") < out.index("advice ") < out.index("note: 8-bit")


def test_json_lists_rows(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from vramcast.cli.main import main

    assert main([*job, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1
    assert main([*job[:-1], "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert set(said) == set(plain) | {"advice"}
    assert said["peaks"] == plain["peaks"]
    keys = {"name", "price", "reserved", "bound", "fits_card", "fits", "reason", "kv_cache_tokens", "max_concurrency"}
    keys |= {"how", "saves_bytes", "verdict", "change"}
    assert all(set(one) == keys for one in said["advice"])
    assert {"as it is", "follow a plan", "SGD without momentum"} <= {one["name"] for one in said["advice"]}
