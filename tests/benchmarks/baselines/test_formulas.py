"""Tests of the formulas on cases that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.baseline import Sample
from benchmarks.peers.baselines.dnnmem import CUBLAS_BYTES, DnnMem, segments_bytes, step_trace
from benchmarks.peers.baselines.fake_tensor import FakeTensor
from benchmarks.peers.baselines.horus import Horus, horus_bytes
from benchmarks.peers.baselines.llmem import LlMem, llmem_bytes
from benchmarks.peers.baselines.look import look
from benchmarks.peers.baselines.network import Network, Tensor
from benchmarks.peers.baselines.published import Published
from benchmarks.peers.baselines.schedtune import SchedTune, columns
from vramcast.core.errors import JobError
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.learner.examples import Example
from vramcast.tracer.program import meta_pickle

# A linear layer of 4 -> 3 and a ReLU on 2 samples.
SMALL = Network(
    2,
    (Layer("Linear", 3, 15), Layer("ReLU", 3)),
    15,
    input_bytes=32,
    weight_bytes=(48, 12),
    tensors=(Tensor(24, (), (1, 0)), Tensor(24, (0,))),  # the operator reads its bias first
    fake_peak_bytes=200,
)
DECODER = Network(
    2,
    (Layer("Embedding", 8, 40), Layer("Linear", 10, 40)),
    80,
    input_bytes=100,
    weight_bytes=(MIB, 3 * MIB),
    blocks_bytes=(3 * MIB, 3 * MIB),
    logits_bytes=5 * MIB,
)


def sample(network: Network | None, states: int = 0, *, reserved: int | None = None, process: int | None = None) -> Sample:
    features = {"optimizer_states": float(states)}
    example = Example("run", "model", "mlp", "a100-40gb", "", features, 1, 1, reserved, process)
    return Sample(example, network, {"xmem": 7})


def job_of(model: nn.Module, *shape: int) -> Job:
    return Job(device("a100-40gb"), model=meta_pickle.dumps(model), batch=TensorSpec(shape))


def test_horus_counts_gradient_per_sample() -> None:
    assert horus_bytes(6, 15, 2) == 4 * (6 * 2 + 15 + 2 * 15)
    assert Horus().estimate([sample(SMALL), sample(None)]) == [228, None]


def test_fake_tensor_adds_optimizer_state_on_request() -> None:
    asked = [sample(SMALL, states=2), sample(None), sample(replace(SMALL, fake_peak_bytes=None))]
    assert FakeTensor().estimate(asked) == [200, None, None]
    assert FakeTensor(with_optimizer=True).estimate(asked) == [200 + 2 * 60, None, None]


def test_llmem_rounds_parts_to_two_mebibytes() -> None:
    weights, hidden, logits = 2 + 4, 4, 6
    assert llmem_bytes(DECODER, 2) == ((2 + 2) * weights + 2 + (2 + 1 + 1) * hidden + 3 * logits) * MIB


def test_llmem_covers_only_decoders() -> None:
    without_blocks = replace(DECODER, blocks_bytes=())
    without_embedding = replace(DECODER, layers=DECODER.layers[1:])
    asked = [sample(DECODER), sample(without_blocks), sample(without_embedding), sample(None)]
    assert LlMem().estimate(asked) == [llmem_bytes(DECODER, 0), None, None, None]


def test_dnnmem_adds_weights_gradients_and_forward_pass() -> None:
    big = Network(1, (), 1, weight_bytes=(64 * MIB,), tensors=(Tensor(32 * MIB, (), (0,)), Tensor(32 * MIB, (0,))))
    # Backward of the second tensor: 64 of weights, both tensors, both gradients; of the first: the weight's gradient for
    # the second tensor and its gradient.
    peak_bytes, _ = step_trace(big, 0).peak_live()
    assert peak_bytes == (64 + 2 * 32 + 2 * 32) * MIB + CUBLAS_BYTES
    assert segments_bytes(big, 2) >= peak_bytes + 2 * 64 * MIB


def test_dnnmem_frees_forward_pass() -> None:
    trace = step_trace(SMALL, 1)
    live = trace.live_at(len(trace) - 1)
    assert sorted(trace.size_bytes[live].tolist()) == sorted([48, 12] * 3 + [32, CUBLAS_BYTES])


def test_dnnmem_learns_context_from_training_runs() -> None:
    segments = segments_bytes(SMALL, 0)
    method = DnnMem(target="process")
    method.fit([sample(SMALL, process=segments + 500), sample(SMALL, process=segments + 700), sample(None, process=9)])
    assert method.estimate([sample(SMALL), sample(None)]) == [segments + 600, None]
    reserved = DnnMem(target="reserved")
    reserved.fit([sample(SMALL, reserved=segments + 500)])
    assert reserved.estimate([sample(SMALL)]) == [segments]


def test_schedtune_reads_mebibytes_and_card() -> None:
    network = Network(4, (Layer("Conv2d", MIB // 4, 0),), MIB, input_bytes=3 * MIB)
    batch, activations, parameters, inputs, bandwidth, _, sms = columns(network, "a100-40gb")
    assert (batch, activations, parameters, inputs, sms) == (4, 4, 4, 3, 108)
    assert 1500 < bandwidth < 1600  # GB/s of the data sheet: 1555


def test_schedtune_answers_only_after_fit() -> None:
    method = SchedTune(target="reserved")
    assert method.estimate([sample(SMALL)]) == [None]
    train = [sample(replace(SMALL, batch_size=n), reserved=n * MIB) for n in range(1, 41)]
    method.fit(train)
    first = method.estimate(train)
    method.fit(train)
    assert method.estimate(train) == first
    assert all(abs(size - (i + 1) * MIB) < 3 * MIB for i, size in enumerate(first) if size is not None)
    assert None not in first


def test_published_estimate_is_that_of_its_tool() -> None:
    assert Published("xmem", "xMem, published", "reserved").estimate([sample(None)]) == [7]
    assert Published("llmem", "LLMem, published", "reserved").estimate([sample(None)]) == [None]


# Networks of models ------------------------------------------------------------------------------------------------


def test_counts_layers_weights_and_tensors() -> None:
    network = look(job_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), 2, 4))
    assert network.layers == SMALL.layers
    assert (network.batch_size, network.parameters, network.input_bytes) == (2, 15, 32)
    assert network.weight_bytes == (48, 12)
    assert network.tensors[:2] == SMALL.tensors
    assert network.logits_bytes == 24
    assert network.blocks_bytes == ()


def test_fake_peak_counts_live_backward_tensors() -> None:
    network = look(job_of(nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1, bias=False)), 1024, 1024))
    # 4 MiB each: weight, input, the hidden activation, its gradient, the weight's gradient. The activation may be freed by
    # then; the small tensors are below 1 MiB.
    assert network.fake_peak_bytes is not None
    assert 4 * 4 * MIB <= network.fake_peak_bytes < 5 * 4 * MIB + MIB


def test_counts_shared_weight_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    network = look(job_of(nn.Sequential(first, second), 2, 4))
    assert network.weight_bytes == (64,)
    assert [layer.parameters for layer in network.layers] == [16, 0]


class _Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.linear(x) * x.sum().item()


def test_rejects_model_that_reads_values() -> None:
    with pytest.raises(JobError, match="does not run on fake tensors"):
        look(job_of(_Reads(), 2, 4))
