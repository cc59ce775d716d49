"""`estimate()`: its arguments, its answer, and the unchanged model."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vramcast  # noqa: E402
from vramcast import Estimate, Estimator, TensorSpec, estimate  # noqa: E402
from vramcast.core.errors import CannotEstimate, DoesNotFit, JobError, NullGpuError, TimeLimit, UsageError  # noqa: E402
from vramcast.hardware.cards import DEVICES  # noqa: E402
from vramcast.tracer.format.trace import Action  # noqa: E402
from vramcast.tracer.nullgpu.client import NullGpuTracer  # noqa: E402
from vramcast.tracer.observation import Observation  # noqa: E402
from vramcast.tracer.portable_tracers import PortableTracer  # noqa: E402

pytestmark = pytest.mark.usefixtures("auto_tracer")
WEIGHTS = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)


def wide() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024))


@pytest.fixture(scope="module")
def found(auto_tracer: str) -> Estimate:
    return estimate(wide(), (torch.zeros(64, 1024), torch.zeros(64, 1024)), optimizer="adam", device="a100-40gb")


# ------------------------------------------------------------------------------------------------ the arguments
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": (torch.zeros(8, 4) for _ in range(2))}, "generator: pass one batch of it, for example next"),
        ({"batch": {"x": iter([1])}}, "list_iterator: pass one batch"),
        ({"batch": torch.eye(4).to_sparse()}, "sparse tensor"),
        ({"batch": lambda: None}, "holds no tensor"),
        ({"batch": {"x": threading.Lock()}}, "cannot be sent"),
        ({"batch": "32x3x224x224"}, "which holds no tensor: pass an example, or describe one with TensorSpec"),
        ({"batch": (32, 3, 224, 224)}, "which holds no tensor"),
        ({"batch": torch.utils.data.TensorDataset(torch.zeros(8, 4))}, "TensorDataset): give batch_size too"),
        ({"batch": (torch.zeros(8, 4), torch.utils.data.DataLoader([1, 2]))}, "DataLoader: pass one batch"),
        ({"batch": np.array(["a"])}, "array of <U1, which no tensor can hold"),
        ({"labels": [1, 2, 3]}, "labels is [1, 2, 3]"),
        ({"labels": (n for n in range(2))}, "generator"),
        ({"memory": True}, "a whole number is expected"),
        ({"memory": 1.5}, "a whole number is expected"),
        ({"memory": b"12GiB"}, "a whole number is expected"),
        ({"memory": 12}, "add a unit, for example 12GiB"),
        ({"memory": 11441}, "add a unit"),  # MiB, as nvidia-smi prints
        ({"memory": ""}, "''"),
        ({"level": "0.9"}, "level is '0.9'"),
        ({"level": float("nan")}, "finite"),
        ({"steps": "3"}, "steps is '3'"),
        ({"device": 0}, "device is 0"),
        ({"alloc_conf": 1}, "alloc_conf is 1"),
        ({"timeout_s": -1}, "must be between"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"loss": "mse"}, "loss is 'mse'"),
        ({"optimizer": None}, "optimizer is None"),
        ({"stack": 5}, "stack is 5"),
        ({"artifact": 5}, "artifact is 5"),
        ({"tracer": None}, "tracer None is unknown"),
        ({"channels_last": 1}, "channels_last is 1"),
    ],
)
def test_rejects_wrong_argument_before_tracing(arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimator, "uncorrected", lambda *args: pytest.fail("the job was traced"))
    with pytest.raises(UsageError) as error:
        estimate(torch.nn.Linear(4, 4), **{"batch": torch.zeros(8, 4), **arguments})
    assert words in str(error.value)


def test_rejects_labels_out_of_range(auto_tracer: str) -> None:
    labels = torch.tensor([0, 3, -100, 1])
    assert estimate(torch.nn.Linear(4, 4), (torch.zeros(4, 4), labels), tracer=auto_tracer).allocated > 0
    labels[1] = 4
    with pytest.raises(UsageError, match="labels hold 4, but the output has 4 classes"):
        estimate(torch.nn.Linear(4, 4), (torch.zeros(4, 4), labels), tracer=auto_tracer)


# ------------------------------------------------------------------------------------------------ the answer
def test_peaks_are_ordered_integers(found: Estimate) -> None:
    assert 4 * WEIGHTS < found.allocated <= found.reserved < found.process <= found.upper_bound
    assert {type(n) for n in (found.allocated, found.reserved, found.process, found.upper_bound)} == {int}
    assert found.process == found.reserved + found.context.bytes


def test_bound_grows_with_level(found: Estimate) -> None:
    levels = [0.01, 0.3, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
    bounds = [found.bound_at(level) for level in levels]
    assert bounds == sorted(bounds)
    assert found.quantile(0.5) == found.process
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.quantile(1.5)


def test_breakdown_sums_to_process_peak(found: Estimate) -> None:
    parts = found.breakdown
    assert set(parts) == {
        "parameters",
        "gradients",
        "optimizer_state",
        "activations",
        "inputs",
        "workspaces",
        "temporaries",
        "fragmentation",
        "context",
    }
    assert sum(parts.values()) == found.process
    assert parts["parameters"] == WEIGHTS
    assert parts["optimizer_state"] == 2 * WEIGHTS
    assert all(size >= 0 for size in parts.values())
    assert found.workspace_bytes >= 8_519_680  # torch < 2.15 holds two


def test_timeline_ends_below_its_peak(found: Estimate) -> None:
    live = [point[2] for point in found.timeline]
    reserved = [point[3] for point in found.timeline]
    assert max(live) == found.trace.peak_live()[0]
    assert max(reserved) == found.reserved
    assert {point[1] for point in found.timeline} >= {"build", "forward", "backward", "optimizer"}


def test_modules_sum_to_live_peak(found: Estimate) -> None:
    sizes = list(found.by_module.values())
    assert sum(sizes) == found.trace.peak_live()[0]
    assert sizes == sorted(sizes, reverse=True)
    assert set(found.peak_at) == {"step", "phase", "module", "op"}
    assert found.peak_at["step"] in (0, 1, 2)


def test_json_has_schema_keys(found: Estimate) -> None:
    said = json.loads(json.dumps(found.to_dict()))
    keys = (
        "schema target device tracer torch precision optimizer steps peaks quantiles upper_bound context_bytes workspace_bytes"
    )
    keys += " breakdown peak_at fits seconds artifact out_of_distribution warnings stack"
    assert set(keys.split()) <= set(said)
    assert said["schema"] == 1
    assert (said["device"], said["precision"], said["optimizer"], said["steps"]) == ("a100-40gb", "fp32", "adam", 3)
    assert set(said["peaks"]) == {"allocated", "reserved", "process", "min_feasible"}
    assert set(said["quantiles"]) == {"0.5", "0.9", "0.95", "0.99"}
    assert {"level", "bytes", "method", "n_calibration", "covers"} <= set(said["upper_bound"])
    assert set(said["fits"]) == set(DEVICES)
    assert all(type(fits) is bool for fits in said["fits"].values())
    assert {"total", "trace", "simulate", "learn"} <= set(said["seconds"])


def test_unknown_values_are_null(found: Estimate) -> None:
    said = found.to_dict()
    assert said["target"] is None  # a module has no name
    # From the shipped artifact, or from the built-in rule for a tracer that the artifact lacks.
    assert (said["artifact"], said["out_of_distribution"]) in (("default", False), (None, None))
    if found.min_feasible is None:
        assert said["peaks"]["min_feasible"] is None
    else:
        assert 0 < found.min_feasible <= found.process


def test_text_names_three_peaks(found: Estimate) -> None:
    assert all(word in str(found) for word in ("peak ", "bound ", "reserved", "GiB"))
    assert all(word in found.details() for word in ("process peak", "upper bound", "reserved", "allocated", "GiB"))


def test_torch_reads_snapshot(found: Estimate, tmp_path: Path) -> None:
    path = tmp_path / "trace.pickle"
    found.save_snapshot(path)
    data = pickle.loads(path.read_bytes())
    from torch.cuda import _memory_viz

    assert "trace" in _memory_viz.trace_plot(data)[:20000] or len(_memory_viz.trace_plot(data)) > 1000
    assert len(_memory_viz.segsum(data)) > 0
    ours = np.isin(found.trace.action, (Action.CONTEXT, Action.EMPTY_CACHE))
    assert len(data["device_traces"][0]) == len(found.trace) - ours.sum()


def test_fits_if_bound_fits(found: Estimate) -> None:
    assert found.fits("h200")
    assert found.fits()
    small = found.job.device.with_memory(found.process)
    assert not found.fits(small)  # the point estimate fits, but its bound does not
    assert found.fits(found.job.device.with_memory(found.upper_bound))
    with pytest.raises(UsageError, match="h300"):
        found.fits("h300")


def test_estimates_job_too_large_for_card(found: Estimate) -> None:
    full = estimate(wide(), (torch.zeros(64, 1024), torch.zeros(64, 1024)), optimizer="adam", device="a100-40gb", memory="1GiB")
    assert full.out_of_memory is None or "Tried to allocate" in full.out_of_memory
    tiny = estimate(wide(), (torch.zeros(64, 1024), torch.zeros(64, 1024)), device="a100-40gb", memory=600 << 20)
    assert tiny.out_of_memory is not None
    assert not tiny.fits()
    assert tiny.verdict.value == "does not fit"
    assert tiny.reserved == found.reserved
    assert any("does not fit" in text for text in tiny.warnings)


# ------------------------------------------------------------------------------------------------ models and batches
@pytest.mark.parametrize("precision", ["bf16", "fp16", "amp-bf16", "amp-fp16"])
def test_every_precision_runs(found: Estimate, precision: Any) -> None:
    other = estimate(wide(), (torch.zeros(64, 1024), torch.zeros(64, 1024)), precision=precision, device="a100-40gb")
    if precision in ("bf16", "fp16"):
        assert other.breakdown["parameters"] == WEIGHTS // 2
    else:
        assert other.breakdown["parameters"] == WEIGHTS


def test_accepts_tensors_tuples_dicts_and_specs(found: Estimate) -> None:
    spec = TensorSpec((64, 1024))
    for batch, labels in (
        ((spec, spec), None),
        (torch.zeros(64, 1024), spec),
        ([spec], torch.zeros(64, 1024)),
        ({"input": spec}, spec),
    ):
        other = estimate(wide(), batch, labels=labels, device="a100-40gb")
        assert (other.allocated, other.reserved) == (found.allocated, found.reserved)


def test_accepts_callable_loss_and_optimizer(found: Estimate) -> None:
    def loss(output: Any, labels: Any) -> Any:
        return torch.nn.functional.mse_loss(output, labels)

    spec = TensorSpec((64, 1024))
    other = estimate(wide, (spec, spec), loss=loss, optimizer=lambda p: torch.optim.Adam(p, lr=0.5), device="a100-40gb")
    assert (other.allocated, other.reserved) == (found.allocated, found.reserved)
    by_class = estimate(wide, (spec, spec), optimizer=torch.optim.Adam, device="a100-40gb")
    assert by_class.reserved == found.reserved


def test_inference_takes_less_than_training(found: Estimate) -> None:
    spec = TensorSpec((64, 1024))
    other = estimate(wide, spec, mode="infer", device="a100-40gb")
    assert WEIGHTS < other.allocated < found.allocated / 3
    assert (other.breakdown["gradients"], other.breakdown["optimizer_state"]) == (0, 0)
    assert other.to_dict()["optimizer"] is None


def test_never_changes_the_model() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 600), torch.nn.BatchNorm1d(600), torch.nn.Dropout(), torch.nn.Linear(600, 4)
    ).eval()
    model(torch.randn(8, 16)).sum().backward()
    calls: list[str] = []
    model.register_forward_hook(lambda *a: calls.append("hook"))
    hooks = len(model._forward_hooks)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    ids = [id(p) for p in model.parameters()]
    batch = torch.randn(8, 16)
    copied = batch.clone()
    random = torch.get_rng_state()
    estimate(model, batch, device="a100-40gb", channels_last=False, precision="bf16")
    assert all(model.state_dict()[name].equal(value) for name, value in state.items())
    assert all(p.grad is not None and p.grad.equal(g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert [id(p) for p in model.parameters()] == ids
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert not any(module.training for module in model.modules())
    assert len(model._forward_hooks) == hooks
    assert torch.get_rng_state().equal(random)
    assert batch.equal(copied)
    assert calls == []


def test_accepts_model_defined_in_main(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, vramcast
            WIDTH = 32
            class Mine(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.a = torch.nn.Linear(16, WIDTH)
                def forward(self, x):
                    return helper(self.a(x))
            def helper(x):
                return x.relu()
            print(vramcast.estimate(Mine(), torch.zeros(8, 16), loss=lambda out, batch: out.sum(), device="t4").reserved)
            """
        )
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) > 0
    assert said.stderr == ""


def test_accepts_notebook_class() -> None:
    cell = types.ModuleType("__main__")
    source = (
        "import torch\nfactor = 3\n"
        "class Net(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * factor\n"
    )
    saved = sys.modules["__main__"]
    sys.modules["__main__"] = cell
    try:
        exec(source, cell.__dict__)
        assert cell.Net.__module__ == "__main__"
        assert estimate(cell.Net(16, 4), torch.zeros(8, 16), device="t4").allocated > 0
    finally:
        sys.modules["__main__"] = saved


def test_estimates_model_larger_than_host_memory() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(16384, 16384, bias=False) for _ in range(40)])  # 40 GiB
    big = estimate(model, TensorSpec((4, 16384)), mode="infer", steps=1, device="h200")
    assert big.breakdown["parameters"] == 40 * 16384 * 16384 * 4
    assert big.max_resident_bytes < 4 << 30


# ------------------------------------------------------------------------------------------------ rejected arguments
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamm"}, "Optimizer 'adamm' is unknown"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"mode": "test"}, "mode 'test' is unknown"),
        ({"zero_grad": "never"}, "zero_grad 'never' is unknown"),
        ({"device": "h300"}, "h300"),
        ({"memory": "12 apples"}, "Size '12 apples'"),
        ({"level": 1.0}, "level is 1.0"),
        ({"steps": 0}, "steps is 0"),
        ({"tracer": "magic"}, "magic"),
        ({"checkpointing": True}, "has no switch for gradient checkpointing"),
        ({"labels": TensorSpec((9,), "int64")}, "do not fit the output"),
    ],
)
def test_rejects_wrong_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        estimate(wide(), TensorSpec((64, 1024)), **options)
    assert isinstance(error.value, UsageError)


@pytest.mark.parametrize("model", [5, None, lambda: 7])
def test_rejects_non_model(model: Any) -> None:
    with pytest.raises(UsageError, match=r"nn\.Module"):
        estimate(model, TensorSpec((1, 2)))


def test_wrong_shape_raises_job_error() -> None:
    with pytest.raises(JobError, match=r"RuntimeError: .*shapes cannot be multiplied") as error:
        estimate(wide(), TensorSpec((64, 1000)))
    assert "Traceback" in error.value.job_traceback
    assert isinstance(error.value, CannotEstimate)


def test_names_torch_in_traceback(found: Estimate, auto_tracer: str) -> None:
    assert found.torch == torch.__version__
    assert found.tracer == auto_tracer
    assert vramcast.Estimate is Estimate


def test_overlap_inputs_can_be_disabled(found: Estimate) -> None:
    batch = TensorSpec((64, 1024 * 1024))  # 256 MiB against a model of 4 MiB
    layer = torch.nn.Linear(1024 * 1024, 1)
    overlapping = estimate(layer, batch, optimizer="sgd", device="a100-40gb")
    apart = estimate(layer, batch, optimizer="sgd", device="a100-40gb", overlap_inputs=False)
    assert overlapping.reserved - apart.reserved == 256 * 2**20


# ------------------------------------------------------------------------------------------------ other settings
def test_what_if_matches_other_settings(found: Estimate) -> None:
    default, expandable = found.what_if(["", "expandable_segments:True"])
    assert (default.allocated, default.reserved) == (found.allocated, found.reserved)
    assert default.min_feasible == found.min_feasible
    assert expandable.reserved <= default.reserved
    assert found.min_feasible is not None
    sizes = (found.min_feasible, found.min_feasible - 1, "t4", "12GiB")
    assert [case.out_of_memory is None for case in found.what_if(cards=sizes)] == [True, False, True, True]
    with pytest.raises(UsageError, match="'t5'"):
        found.what_if(cards=["t5"])


def test_fragmentation_names_blocks(found: Estimate) -> None:
    report = found.fragmentation()
    assert report.reserved_bytes == found.reserved
    assert report.live_bytes + report.free_bytes == report.reserved_bytes


def test_trace_includes_context(found: Estimate) -> None:
    taken = found.trace.size_bytes[found.trace.action == Action.CONTEXT]
    assert int(taken.sum()) == found.context.bytes
    assert len(taken) == 2  # the context itself, and cuBLAS at the first matrix product


# ------------------------------------------------------------------------------------------------ the portable tracers
@pytest.mark.parametrize("tracer_name", ["fake", "cpu"])
def test_portable_tracer_matches_null_gpu(found: Estimate, tracer_name: str) -> None:
    batch = (torch.zeros(64, 1024), torch.zeros(64, 1024))
    ran = estimate(wide(), batch, optimizer="adam", device="a100-40gb", tracer=tracer_name)
    assert ran.tracer == tracer_name
    assert (ran.reserved, ran.min_feasible) == (found.reserved, found.min_feasible)
    assert ran.allocated == pytest.approx(found.allocated, rel=0.005)
    assert ran.libraries == {"cublas"}
    assert sum(ran.breakdown.values()) == ran.process
    assert found.min_feasible is not None
    less = found.min_feasible - 1
    full = estimate(wide(), batch, optimizer="adam", device="a100-40gb", tracer=tracer_name, memory=less)
    assert full.out_of_memory is not None
    assert "CUDA out of memory. Tried to allocate" in full.out_of_memory
    assert full.reserved == ran.reserved
    assert full.verdict.value == "does not fit"


def test_auto_falls_back_with_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> NullGpuTracer:
        raise NullGpuError("no compiler")

    monkeypatch.setattr(NullGpuTracer, "shared", absent)
    batch = (torch.zeros(64, 1024), torch.zeros(64, 1024))
    assert "no compiler" in estimate(wide(), batch, device="a100-40gb").warnings[0]
    assert estimate(wide(), batch, device="a100-40gb").tracer == "fake"
    with pytest.raises(NullGpuError, match="no compiler"):
        estimate(wide(), batch, device="a100-40gb", tracer="nullgpu")


class Broken(torch.nn.Module):
    """A model that raises for any values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x[:, :7])


class Counts(Broken):
    """A model that continues with a number of rows computed from an activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(torch.ones_like(self.linear(x)).sum(1).mean().item())
        return self.linear(x) if n == 4 else self.linear(x[:, :n])


def traced_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the portable tracers, in order of their calls."""
    called: list[str] = []
    observe = PortableTracer.observe

    def noted(self: PortableTracer, *arguments: Any, **options: Any) -> Observation:
        called.append(self.name)
        return observe(self, *arguments, **options)

    monkeypatch.setattr(PortableTracer, "observe", noted)
    return called


def test_broken_model_has_no_fallback(needs_null_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = traced_by(monkeypatch)
    with pytest.raises(JobError, match="mat1 and mat2 shapes cannot be multiplied"):
        estimate(Broken(), torch.zeros(8, 16), device="a100-40gb")
    assert called == []


class Refused(Broken):
    """A model with an error on every card: another card, or a product of two dtypes, optionally after a read by the host."""

    def __init__(self, what: str, reads: bool) -> None:
        super().__init__()
        self.what, self.reads = what, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.reads:
            float(y.sum().item())
        return y.to("cuda:1") if self.what == "card" else y @ torch.ones(4, 4, dtype=torch.float16, device=x.device)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("what", "message"), [("card", "invalid device ordinal"), ("dtype", "same dtype")])
def test_rejects_what_a_card_rejects(needs_null_gpu: None, what: str, message: str, reads: bool) -> None:
    with pytest.raises(JobError, match=message):
        estimate(Refused(what, reads), torch.zeros(8, 16), device="a100-40gb")


@pytest.mark.parametrize(("what", "message"), [("card", "invalid device ordinal"), ("dtype", "same dtype")])
def test_fake_tensors_reject_it_too(what: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        estimate(Refused(what, False), torch.zeros(8, 16), device="a100-40gb", tracer="fake")


class Lazy(torch.nn.Module):
    """A model that creates its weights at its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.LazyLinear(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_traces_lazy_module(needs_null_gpu: None) -> None:
    assert estimate(Lazy, torch.zeros(8, 16), device="a100-40gb").tracer == "nullgpu"


def test_huge_batch_does_not_fit(auto_tracer: str) -> None:
    with pytest.raises(DoesNotFit, match=r"does not fit on NVIDIA A100.*one batch alone takes 59604\.64 GiB") as caught:
        estimate(wide(), TensorSpec((10**9, 16, 1000)), device="a100-40gb", tracer=auto_tracer)
    assert caught.value.exit_code == 1


def test_cpu_answers_model_that_needs_values(needs_null_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = traced_by(monkeypatch)
    found = estimate(Counts(), torch.zeros(8, 16), device="a100-40gb")
    assert called == ["fake", "cpu"]
    assert found.tracer == "cpu"
    assert found.warnings[0].startswith("traced by the cpu tracer: the null GPU failed (The job raised RuntimeError")
    assert "fake tensors failed" in found.warnings[0]


def test_timeout_has_no_fallback(needs_null_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = traced_by(monkeypatch)
    with pytest.raises(TimeLimit, match=r"did not end within 0\.001 s"):
        estimate(wide(), torch.zeros(64, 1024), device="a100-40gb", timeout_s=0.001)
    assert called == []


def test_mask_of_ones_skips_masking(auto_tracer: str, need: Callable[[str], Any]) -> None:
    transformers = need("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    ids = torch.zeros(4, 64, dtype=torch.long)

    def masks_made(mask: Any) -> int:
        batch = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
        found = estimate(model, batch, device="a100-40gb")
        assert found.host_reads == 0
        return int((found.trace.size_bytes[found.trace.action == Action.ALLOC] == 4 * 64 * 64).sum())

    padded = torch.ones_like(ids)
    padded[:, 32:] = 0
    assert masks_made(None) == masks_made(torch.ones_like(ids)) == 0
    assert masks_made(padded) > 0
