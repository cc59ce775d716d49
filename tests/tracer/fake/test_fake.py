"""The fake-tensor tracer against the null GPU, request by request, and its failures."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.core.errors import JobError, UsageError, WorkerError
from vramcast.hardware.cards import device
from vramcast.hardware.stack import parse
from vramcast.jobs.job import Command, Job, TensorSpec, Training
from vramcast.tracer.format.trace import Action, Category, Phase, Trace
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.rules.reductions import split_bytes

TRANSFORMER = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width=64, heads=4, words=512):
        super().__init__()
        self.heads = heads
        self.words = torch.nn.Embedding(words, width)
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + torch.nn.functional.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), 0.1)
        return self.head(torch.nn.functional.gelu(x))

class Unbatched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 3 * 64)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.zeros(x.shape[0], x.shape[1], x.shape[1], device=x.device, dtype=x.dtype)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.block = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.nn.functional.max_pool2d(x + self.block(x), 2)
        return self.head(x.mean((2, 3)))

class Infers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 16))

    @torch.inference_mode()
    def forward(self, x):
        return self.layers(self.layers(x))

class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x):
        assert x.is_cuda and x.device == torch.device("cuda", 0) and not bool((x > 0).any())
        assert x.to("cuda") is x and x.nonzero().shape == (0, 2) and x[x > 0].shape == (0,)
        print(self.linear(x).sum().item())
        return self.linear(x.to(torch.device("cuda")))

def dies():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)

def sleeps():
    import time
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "fake_models.py"
    path.write_text(TRANSFORMER)
    return path


def history(trace: Trace) -> list[int]:
    """Return every request and free in order, frees with a minus."""
    sign = np.where(trace.action == Action.FREE_REQUESTED, -1, np.where(trace.action == Action.ALLOC, 1, 0))
    return [int(n) for n in (sign * trace.size_bytes)[sign != 0]]


CUBLAS_BYTES = (8_519_680, 1 << 20)  # of cuBLAS and cuBLASLt


def job(target: str, batch: str, labels: str | None = None, **options: Any) -> Job:
    card, training = options.pop("device", device("a100-40gb")), Training(**{"steps": 2, **options})
    spec, stated = TensorSpec.parse(batch), TensorSpec.parse(labels) if labels else None
    return Job(card, target, batch=spec, labels=stated, training=training, search_path=tuple(sys.path))


def both(asked: Job, trace: Callable[..., Any]) -> tuple[Trace, Trace]:
    """Return the traces of a job with fake tensors and on the null GPU."""
    null = trace(
        device=asked.device.key, target=asked.target, batch=asked.batch, labels=asked.labels, stack=asked.stack,
        search_path=asked.search_path, **dataclasses.asdict(asked.training),
    ).trace  # fmt: skip
    fake = FAKE.trace(asked, timeout_s=120).trace
    assert fake is not None
    return fake, null


EXACT = {
    "mlp": ("tiny", "mlp", "8x16", "8:int64<4", {}),
    "wide sgd": ("tiny", "wide", "64x1024", None, {"optimizer": "sgdm", "zero_grad": "after-step"}),
    "inference": ("tiny", "mlp", "8x16", None, {"mode": "infer"}),
    "transformer": ("own", "Model", "4x32:int64<512", "4x32:int64<512", {"optimizer": "adamw"}),
    "transformer bf16": ("own", "Model", "4x32:int64<512", "4x32:int64<512", {"precision": "bf16"}),
    "transformer sorts its indices": ("own", "Model", "64x64:int64<512", "64x64:int64<512", {"device": device("t4")}),
    "images": ("own", "Images", "4x3x16x16", "4:int64<4", {}),
    "images channels_last": ("own", "Images", "16x3x32x32", "16:int64<4", {"channels_last": True, "device": device("h100")}),
}


@pytest.mark.parametrize("name", EXACT)
def test_requests_and_frees_match_null_gpu(name: str, trace: Callable[..., Any], models: Path, tiny_models: Path) -> None:
    file, factory, batch, labels, options = EXACT[name]
    asked = job(f"{models if file == 'own' else tiny_models}:{factory}", batch, labels, **options)
    fake, null = both(asked, trace)
    assert history(fake) == history(null)
    ours, theirs = (np.flatnonzero(t.action == Action.ALLOC) for t in (fake, null))
    for column in ("step", "phase"):
        assert getattr(fake, column)[ours].tolist() == getattr(null, column)[theirs].tolist()


@pytest.mark.parametrize(("precision", "card"), [("amp-bf16", "a100-40gb"), ("amp-fp16", "t4"), ("amp-bf16", "h100")])
def test_autocast_requests_same_sizes(precision: str, card: str, trace: Callable[..., Any], models: Path) -> None:
    asked = job(f"{models}:Model", "4x32:int64<512", "4x32:int64<512", precision=precision, device=device(card))
    null = trace(device=card, target=asked.target, batch=asked.batch, labels=asked.labels, steps=2, precision=precision).trace
    fake = FAKE.trace(asked, timeout_s=120).trace
    assert fake is not None
    # The cache of weight casts is emptied in the order of a hash table: only there may the order differ.
    assert sorted(history(fake)) == sorted(history(null))
    assert [n for n in history(fake) if n > 0] == [n for n in history(null) if n > 0]


@pytest.mark.parametrize("torch", ["2.11.0", "2.14.1"])
def test_attention_without_a_batch_matches_null_gpu(torch: str, trace: Callable[..., Any], models: Path) -> None:
    asked = job(f"{models}:Unbatched", "4x256x64", precision="bf16")
    fake, null = both(dataclasses.replace(asked, stack=parse(f"torch=={torch}")), trace)
    assert fake.peak_live()[0] == null.peak_live()[0]
    scores = [n for n in history(fake) if n == 4 * 256 * 256 * 2]
    assert (len(scores) > 2) is (torch == "2.11.0")  # else the masks of two steps alone


@pytest.mark.parametrize("torch", ["2.10.0", "2.11.0"])
def test_casts_in_inference_mode_match_null_gpu(torch: str, trace: Callable[..., Any], models: Path) -> None:
    asked = job(f"{models}:Infers", "8x16", precision="amp-bf16", mode="infer")
    fake, null = both(dataclasses.replace(asked, stack=parse(f"torch=={torch}")), trace)
    # The portable tracers see no matrix products in inference mode, but whole layers, so cuBLAS takes no workspace.
    assert sorted(history(fake)) == sorted(n for n in history(null) if abs(n) not in CUBLAS_BYTES)


def test_reports_categories_and_modules(tiny_models: Path) -> None:
    found = FAKE.trace(job(f"{tiny_models}:mlp", "8x16", "8:int64<4"), timeout_s=120)
    assert found.trace is not None
    trace = found.trace
    sizes = {c: trace.size_bytes[(trace.category == c) & (trace.action == Action.ALLOC)].tolist() for c in Category}
    weights = [32 * 16 * 4, 32 * 4, 4 * 32 * 4, 4 * 4]
    assert sizes[Category.PARAMETER] == weights
    assert sorted(sizes[Category.GRADIENT]) == sorted(weights * 2)
    assert sizes[Category.OPTIMIZER_STATE] == [n for w in weights for n in (w, w)]
    assert {"0", "2"} <= set(trace.modules)
    assert {Phase(p) for p in trace.phase} >= {Phase.BUILD, Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert found.steps == 2


def test_draws_and_counts_host_reads(models: Path) -> None:
    found = FAKE.trace(job(f"{models}:Reads", "8x16:float32=0"), timeout_s=120)
    reads = [entry.hits for entry in found.ledger if entry.kind == "drawn"]
    assert reads == [2]  # the sum, in two steps; the batch is known


def test_names_left_out_requests(models: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(models))  # a file, not a folder of libraries
    images = FAKE.trace(job(f"{models}:Images", "4x3x16x16", "4:int64<4"), timeout_s=120)
    # Two convolutions forward, their three gradients (the images have none), two steps.
    assert [(e.kind, e.hits) for e in images.ledger] == [("assumed", (2 + 3) * 2)]
    assert images.ledger[0].words.startswith("convolution workspaces: 0 (")
    assert FAKE.trace(job(f"{tiny_models}:mlp", "8x16", "8:int64<4"), timeout_s=120).ledger == []


def test_accelerator_answers_like_cuda(tmp_path: Path) -> None:
    """Since 2.14, torch's optimizers ask it whether the stream is capturing."""
    path = tmp_path / "asks.py"
    path.write_text(
        "import torch\n"
        "class Asks(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        assert not torch.accelerator.current_stream().is_capturing()\n"
        "        return super().forward(x)\n"
        "def asks(): return Asks(16, 4)\n"
    )
    assert FAKE.trace(job(f"{path}:asks", "8x16"), timeout_s=120).steps == 2


def test_huge_model_takes_no_host_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.py"
    path.write_text("import torch\ndef big(): return torch.nn.Sequential(*[torch.nn.Linear(16384, 16384) for _ in range(8)])\n")
    found = FAKE.trace(job(f"{path}:big", "8x16384"), timeout_s=120)
    assert found.trace is not None
    assert found.trace.peak_live()[0] > 32 << 30
    assert found.max_resident_bytes < 2 << 30


def test_reports_jobs_own_failures(tiny_models: Path, models: Path) -> None:
    with pytest.raises(JobError, match="the model is broken") as raised:
        FAKE.trace(job(f"{tiny_models}:Raises", "8x16"), timeout_s=120)
    assert "forward" in raised.value.job_traceback
    with pytest.raises(UsageError, match="has no 'nothing'"):
        FAKE.trace(job(f"{tiny_models}:nothing", "8x16"), timeout_s=120)
    with pytest.raises(WorkerError, match="SIGKILL"):
        FAKE.trace(job(f"{models}:dies", "8x16"), timeout_s=120)
    with pytest.raises(WorkerError, match="did not end within 8 s"):
        FAKE.trace(job(f"{models}:sleeps", "8x16"), timeout_s=8)
    with pytest.raises(UsageError, match="not scripts"):
        FAKE.trace(Job(device("t4"), command=Command(("train.py",))), timeout_s=1)


def test_leaves_callers_process_unchanged(tiny_models: Path) -> None:
    import torch

    before = (torch.Tensor.to, torch.cuda.is_available, torch.clear_autocast_cache)
    FAKE.trace(job(f"{tiny_models}:mlp", "8x16", precision="amp-bf16"), timeout_s=120)
    assert (torch.Tensor.to, torch.cuda.is_available, torch.clear_autocast_cache) == before
    assert "vramcast.tracer.fake.mode" not in sys.modules


@pytest.mark.parametrize(
    ("shape", "reduced", "expected"),
    [
        ((4096, 768), [0], (25_165_824, 24)),  # measured: null GPU, torch 2.11.0+cu130, a100-40gb, as all of these
        ((65_536, 768), [0], (113_246_208, 24)),
        ((8, 512), [0], None),
        ((4096, 768), [1], None),
        ((4096, 768), [0, 1], (1536, 4)),
        ((4096, 7680), [0, 1], (1728, 4)),
        ((3125, 64), [0], (409_600, 4)),
    ],
)
def test_reductions_split_as_measured(shape: tuple[int, ...], reduced: list[int], expected: tuple[int, int] | None) -> None:
    assert split_bytes(shape, (shape[1], 1), reduced, 4, device("a100-40gb")) == expected


def test_tied_hugging_face_model_is_exact(trace: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "vocab_size": 128, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    path = tmp_path / "gpt2.json"
    path.write_text(json.dumps({**config, "bos_token_id": 1, "eos_token_id": 2, "architectures": ["GPT2LMHeadModel"]}))
    ids = TensorSpec((2, 32), "int64", high=128)
    options: dict[str, Any] = {"target": f"hf:{path}", "batch": {"input_ids": ids, "labels": ids}}
    one = Job(device("a100-40gb"), search_path=tuple(sys.path), training=Training(steps=2), **options)
    fake = FAKE.trace(one, timeout_s=120).trace
    assert fake is not None
    assert history(fake) == history(trace(**options, steps=2).trace)
