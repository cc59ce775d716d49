from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.core.errors import DoesNotFit, UsageError  # noqa: E402
from vramcast.datasets import journal  # noqa: E402
from vramcast.estimates.first_batch import largest_batch  # noqa: E402
from vramcast.estimates.verdict import Verdict  # noqa: E402
from vramcast.integrations import memory_watch, trainer_step  # noqa: E402
from vramcast.integrations.memory_watch import MemoryWatch  # noqa: E402

CARD = "a100-40gb"


def step(fits_up_to: int, *, refuses: str = "", batch_size: int = 24) -> Any:
    """Return a made-up step of which batches up to a size fit."""
    asked: list[int] = []

    def estimate(_: Any, size: int) -> Any:
        asked.append(size)
        if refuses:
            raise ValueError(refuses)
        value: Any = "fits" if size <= fits_up_to else "does not fit"
        peaks = {"allocated": size, "reserved": 2 * size, "process": 3 * size, "upper_bound": 4 * size}
        return SimpleNamespace(verdict=Verdict(value, f"a batch of {size}"), **peaks)

    return SimpleNamespace(batch_size=batch_size, accumulation=2, estimate=estimate, asked=asked)


@pytest.fixture
def resized() -> list[tuple[int, int]]:
    return []


def test_rejects_unknown_action_and_card() -> None:
    with pytest.raises(UsageError, match=r"when_too_large is 'shrink': give one of warn, raise, resize, record"):
        MemoryWatch(when_too_large="shrink")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not known"):
        MemoryWatch(on="a101")


def test_fitting_job_is_not_touched(resized: list[tuple[int, int]]) -> None:
    watch = MemoryWatch(on=CARD, when_too_large="resize")
    watch.ask(lambda: step(24), lambda *new: resized.append(new))
    assert resized == []
    assert watch.values()["vramcast/predicted_reserved_bytes"] == 48


def test_warns_of_job_that_does_not_fit(resized: list[tuple[int, int]]) -> None:
    with pytest.warns(UserWarning, match="does not fit: a batch of 24"):
        MemoryWatch(on=CARD).ask(lambda: step(8), lambda *new: resized.append(new))
    assert resized == []


def test_raises_for_job_that_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match=r"The training does not fit: a batch of 24\."):
        MemoryWatch(on=CARD, when_too_large="raise").ask(lambda: step(8), lambda *new: None)


@pytest.mark.parametrize(("fits_up_to", "expected"), [(23, (12, 4)), (11, (8, 6)), (1, (1, 48))])
def test_resizes_to_largest_batch_of_same_global_batch(
    fits_up_to: int, expected: tuple[int, int], resized: list[tuple[int, int]]
) -> None:
    watch, asked = MemoryWatch(on=CARD, when_too_large="resize"), step(fits_up_to)
    with pytest.warns(UserWarning, match=f"a batch of {expected[0]} with {expected[1]} accumulated is used"):
        watch.ask(lambda: asked, lambda *new: resized.append(new))
    assert resized == [expected]
    assert watch.values()["vramcast/predicted_allocated_bytes"] == expected[0]
    assert len(asked.asked) <= 5


def test_raises_if_no_batch_fits(resized: list[tuple[int, int]]) -> None:
    with pytest.raises(DoesNotFit, match="a batch of 24"):
        MemoryWatch(on=CARD, when_too_large="resize").ask(lambda: step(0), lambda *new: resized.append(new))
    assert resized == []


def test_says_how_a_late_callback_can_resize() -> None:
    with pytest.raises(DoesNotFit, match="the callback must be in the Trainer's `callbacks`"):
        MemoryWatch(on=CARD, when_too_large="resize").ask(lambda: step(8))


def test_without_verdict_training_goes_on() -> None:
    with pytest.warns(UserWarning, match="no verdict, and training goes on: the set is empty") as said:
        MemoryWatch(on=CARD, when_too_large="raise").ask(lambda: step(0, refuses="the set is empty"))
    assert len(said) == 1


def test_without_card_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="this process has no card: name the one"):
        MemoryWatch().ask(lambda: step(24))


def test_own_card_is_asked_about_with_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    properties = SimpleNamespace(name="NVIDIA GeForce RTX 4090", total_memory=24 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    asked = step(24)
    answer = asked.estimate
    asked.estimate = lambda estimator, size: (seen.append(estimator.card), answer(estimator, size))[1]
    MemoryWatch().ask(lambda: asked)
    assert [(card.key, card.total_bytes) for card in seen] == [("rtx4090", 24 * 10**9)]


def test_recording_asks_nothing() -> None:
    asked = step(0)
    MemoryWatch(when_too_large="record").ask(lambda: asked)
    assert asked.asked == []


def test_job_on_null_gpu_is_not_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vramcast.tracer.nullgpu.cuda_guard", SimpleNamespace())
    asked = step(0)
    MemoryWatch(on=CARD, when_too_large="raise").ask(lambda: asked)
    assert asked.asked == []


def test_values_are_measured_beside_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "counters", lambda: {"allocated_bytes": 5, "reserved_bytes": None})
    monkeypatch.setattr(memory_watch, "process_bytes", lambda: (9, "nvml"))
    watch = MemoryWatch(on=CARD)
    assert watch.values() == {"vramcast/measured_allocated_bytes": 5, "vramcast/measured_process_bytes": 9}
    watch.ask(lambda: step(24))
    assert watch.values()["vramcast/predicted_process_bytes"] == 72


def test_out_of_memory_leaves_row_report_and_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = {"device_traces": [[{"action": "oom"}]], "segments": []}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr("vramcast.tracer.hooks.torch_api.memory_snapshot", lambda: snapshot, raising=False)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    for name in ("vramcast.datasets.collector.run_recorder.process_bytes", "vramcast.integrations.memory_watch.process_bytes"):
        monkeypatch.setattr(name, lambda: (3 << 30, "nvml"))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"reserved_bytes.all.peak": 2 << 30})
    watch = MemoryWatch(tmp_path / "runs", on=CARD)
    watch.ask(lambda: step(24))
    watch.begin(torch.nn.Linear(2, 2), tmp_path / "checkpoints")
    with pytest.warns(UserWarning, match=r"vramcast-out-of-memory\.txt"):
        watch.end(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."), steps=3)
    text = (tmp_path / "checkpoints" / "vramcast-out-of-memory.txt").read_text()
    assert text.startswith("OutOfMemoryError: CUDA out of memory.")
    assert "Before the first step: fits: a batch of 24\n" in text
    assert "measured_reserved_bytes: 2.00 GiB\nmeasured_process_bytes: 3.00 GiB\n" in text
    assert "\nout of memory: probably too large: a request of 2.0 MiB" in text
    assert (tmp_path / "checkpoints" / "vramcast-out-of-memory.pickle").stat().st_size
    (run,) = journal.read_runs(tmp_path / "runs" / "runs.jsonl").runs
    assert (run.measurement.status, run.measurement.steps, run.measurement.oom_requested_bytes) == ("oom", 3, 2 << 20)


def test_training_that_never_ended_is_recorded_before_the_next(tmp_path: Path) -> None:
    watch = MemoryWatch(when_too_large="record")
    for _ in range(2):
        watch.begin(torch.nn.Linear(2, 2), tmp_path)
    watch.end(steps=5)
    watch.end(steps=6)
    runs = journal.read_runs(tmp_path / "runs.jsonl").runs
    assert [(run.measurement.status, run.measurement.steps) for run in runs] == [("unknown", None), ("ok", 5)]


# ------------------------------------------------------------------------------------------------ the step
def test_largest_batch_has_longest_samples_and_draws_nothing() -> None:
    rows = [{"ids": [1] * (n % 50), "label": 0} for n in range(5000)]
    loader = torch.utils.data.DataLoader(
        rows, batch_size=4, shuffle=True, collate_fn=lambda some: [len(x["ids"]) for x in some]
    )
    before = torch.get_rng_state()
    assert largest_batch(loader, 3) == [49, 49, 49]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("loader", [iter([1]), torch.utils.data.DataLoader([1, 2], batch_size=None)])
def test_refuses_loader_that_makes_its_own_batches(loader: Any) -> None:
    with pytest.raises(UsageError, match="makes its own batches"):
        largest_batch(loader, 3)


def test_optimizer_steps_and_clears_after_last_micro_batch() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = trainer_step._every(lambda parameters: torch.optim.SGD(parameters, lr=1.0), 2, 1.0, [weight])
    seen = []
    for _ in range(4):
        (weight * 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append((round(float(weight.detach()), 3), weight.grad is None))
    assert seen == [(0.0, False), (-1.0, True), (-1.0, False), (-2.0, True)]  # gradients of 6, clipped to 1


def test_prepared_model_is_pickled_as_it_was_and_stays_prepared() -> None:
    model = torch.nn.Linear(2, 2)
    original, prepared = model.forward, lambda x: x
    model.forward, model._original_forward = prepared, original
    with trainer_step._unprepared(model):
        assert model.forward == original
        assert "forward" not in vars(model)
    assert (vars(model)["forward"], vars(model)["_original_forward"]) == (prepared, original)


def test_models_forward_of_others_is_kept_without_accelerates() -> None:
    model = torch.nn.Linear(2, 2)
    model.forward, model._original_forward = (lambda x: x), (replaced := lambda x: 2 * x)
    with trainer_step._unprepared(model):
        assert vars(model)["forward"] is replaced
        assert "_original_forward" not in vars(model)
