"""Libraries of the ecosystem on the null GPU, compared with hand arithmetic: 8-bit and 4-bit optimizers and weights.

python -m benchmarks.surveys.ecosystem [--only TEXT]      # --models: LoRA and QLoRA of Llama 3.1 8B too, minutes

Each job is a script of a few lines that prints the growth of PyTorch's allocator over the part in question. By hand: codes,
scales, and tables from the library's own documentation, each tensor rounded up to the allocator's 512 bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tables
from vramcast import Estimator
from vramcast.core.units import gib
from vramcast.jobs.stub_checkpoint import write_stub

_ROUND_BYTES = 512  # spec: kMinBlockSize of PyTorch's allocator
_IN, _OUT = 1024, 4096  # arbitrary: one Linear with 4 Mi parameters
N = _IN * _OUT


def rounded(*sizes: int) -> int:
    """Return the allocator's bytes for tensors of these sizes."""
    return sum(-(-size // _ROUND_BYTES) * _ROUND_BYTES for size in sizes)


@dataclass(frozen=True, slots=True)
class Ecosystem:
    """A job: its script measures `gained`; by hand it is `by_hand` bytes (`formula` explains them).

    Attributes:
        packages: Required packages; without them the job is skipped.
        code: Python; `gained()` gives the bytes since `begin()`.
    """

    name: str
    packages: tuple[str, ...]
    formula: str
    by_hand: int
    code: str

    @property
    def missing(self) -> str:
        """Return the first package that is not installed; "" if there is none."""
        return next((name for name in self.packages if importlib.util.find_spec(name) is None), "")

    @property
    def script(self) -> str:
        """Return the whole script; it writes the growth to the file in its argument."""
        return _PRELUDE + textwrap.dedent(self.code) + "report()\n"


_PRELUDE = """
import json, os, sys
import torch
_at = _result = 0
def begin():
    global _at
    torch.cuda.synchronize()
    _at = torch.cuda.memory_allocated()
def end():
    global _result
    _result = torch.cuda.memory_allocated() - _at
def report():
    one = torch.nn.Parameter(torch.zeros(1, device="cuda"))
    one.sum().backward()
    torch.optim.SGD([one]).step()  # a training, however short
    with open(sys.argv[1], "w") as file: json.dump(_result, file)
def linear(**options): return torch.nn.Linear(1024, 4096, bias=False, device="cuda", **options)
def stepped(model, optimizer):
    model(torch.ones(8, 1024, device="cuda", dtype=next(model.parameters()).dtype)).sum().backward()
    begin()
    optimizer.step()
    end()
"""


def _optimizer(name: str, package: str, make: str, formula: str, *sizes: int) -> Ecosystem:
    code = f"model = linear()\n{make}\nstepped(model, optimizer)\n"
    return Ecosystem(name, (package,), formula, rounded(*sizes), code)


_BLOCK = 256  # spec: bitsandbytes' and torchao's block of optimizer states
_TABLE_BYTES = 256 * 4  # spec: one float for each of 256 codes
JOBS = (
    _optimizer(
        "bitsandbytes Adam8bit, state", "bitsandbytes",
        "import bitsandbytes as bnb; optimizer = bnb.optim.Adam8bit(model.parameters())",
        "2 x (1 byte + 4/256) a parameter, 2 tables of 256 floats",
        N, N, N // _BLOCK * 4, N // _BLOCK * 4, _TABLE_BYTES, _TABLE_BYTES,
    ),
    _optimizer(
        "bitsandbytes AdamW, state", "bitsandbytes",
        "import bitsandbytes as bnb; optimizer = bnb.optim.AdamW(model.parameters())",
        "2 x 4 bytes a parameter", 4 * N, 4 * N,
    ),
    _optimizer(
        "bitsandbytes PagedAdamW8bit, state on the card", "bitsandbytes",
        "import bitsandbytes as bnb; optimizer = bnb.optim.PagedAdamW8bit(model.parameters())",
        "2 x 4/256 a parameter, 2 tables; the codes are managed memory",
        N // _BLOCK * 4, N // _BLOCK * 4, _TABLE_BYTES, _TABLE_BYTES,
    ),
    _optimizer(
        "torchao AdamW8bit, state", "torchao",
        "from torchao.optim import AdamW8bit; optimizer = AdamW8bit(model.parameters())",
        "2 x (1 byte + 4/256) a parameter, 2 tables of 256 floats",
        N, N, N // _BLOCK * 4, N // _BLOCK * 4, _TABLE_BYTES, _TABLE_BYTES,
    ),
    _optimizer(
        "torchao AdamW4bit, state", "torchao",
        "from torchao.optim import AdamW4bit; optimizer = AdamW4bit(model.parameters())",
        "2 x (1/2 byte + 4/128) a parameter, 2 tables of 16 floats",
        N // 2, N // 2, N // 128 * 4, N // 128 * 4, 64, 64,
    ),
    _optimizer(
        "torchao AdamWFp8, state", "torchao",
        "from torchao.optim import AdamWFp8; optimizer = AdamWFp8(model.parameters())",
        "2 x (1 byte + 4/256) a parameter",
        N, N, N // _BLOCK * 4, N // _BLOCK * 4,
    ),
    Ecosystem(
        "torchao int8 weights", ("torchao",), "1 byte a parameter, a float and a byte a row", rounded(N, 4 * _OUT, _OUT),
        """
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
        begin()
        model = torch.nn.Sequential(linear(dtype=torch.bfloat16))
        quantize_(model, Int8WeightOnlyConfig())
        end()
        """,
    ),
    Ecosystem(
        "torchao float8 weights", ("torchao",), "1 byte a parameter, 4 bytes a row", rounded(N, 4 * _OUT),
        """
        from torchao.quantization import Float8WeightOnlyConfig, quantize_
        begin()
        model = torch.nn.Sequential(linear(dtype=torch.bfloat16))
        quantize_(model, Float8WeightOnlyConfig())
        end()
        """,
    ),
    Ecosystem(
        "bitsandbytes nf4 weights", ("bitsandbytes",), "1/2 byte + 4/64 a parameter, a table of 16 floats",
        rounded(N // 2, N // 64 * 4, 64),
        """
        import bitsandbytes as bnb
        begin()
        model = bnb.nn.Linear4bit(1024, 4096, bias=False, quant_type="nf4", compress_statistics=False).to("cuda")
        end()
        """,
    ),
    Ecosystem(
        "bitsandbytes nf4 weights, double quantization", ("bitsandbytes",),
        "1/2 byte + 1/64 + 4/(64 x 256) a parameter, tables of 16 and 256 floats, an offset; a table kept for all layers",
        rounded(N // 2, N // 64, N // 64 // 256 * 4, 64, 1024, 4, 1024),
        """
        import bitsandbytes as bnb
        begin()
        model = bnb.nn.Linear4bit(1024, 4096, bias=False, quant_type="nf4").to("cuda")
        end()
        """,
    ),
    Ecosystem(
        "bitsandbytes int8 weights", ("bitsandbytes",), "1 byte a parameter, 4 bytes a row", rounded(N, 4 * _OUT),
        """
        import bitsandbytes as bnb
        begin()
        model = bnb.nn.Linear8bitLt(1024, 4096, bias=False, has_fp16_weights=False).to("cuda")
        end()
        """,
    ),
)  # fmt: skip


def measured(job: Ecosystem) -> int:
    """Return the growth that the job's script measured on the null GPU."""
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "job.py", Path(folder) / "answer.json"
        script.write_text(job.script)
        Estimator(device="rtx4090").command([str(script), str(answer)])
        return int(json.loads(answer.read_text()))


# ------------------------------------------------------------------------------------------------ whole models
# spec: config.json of Llama 3.1 8B, the parts that decide shapes
LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
_LINEAR = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)] * 32
_EMBEDDING_BYTES, _NORM_BYTES = 2 * 128256 * 4096, 2 * 4096
_LORA = 16 * sum(rows_ + columns for rows_, columns in _LINEAR if (rows_, columns) in ((4096, 4096), (4096, 1024)))
_ROTARY_BYTES = 64 * 4
_OTHERS = (_EMBEDDING_BYTES, _EMBEDDING_BYTES, *([_NORM_BYTES] * 65), _ROTARY_BYTES, _ROTARY_BYTES, 4 * _LORA)
_LORA_SCRIPT = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
options = {"quantization_config": nf4} if sys.argv[2] == "nf4" else {}
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map={"": 0}, **options)
targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
model = get_peft_model(model, LoraConfig(r=16, target_modules=targets, task_type="CAUSAL_LM"))
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    x = torch.ones(1, 256, dtype=torch.long, device="cuda")
    model(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def model_rows() -> Iterator[str]:
    """Yield the rows of LoRA and QLoRA of Llama 3.1 8B: parameters, optimizer state, and host memory."""
    nf4 = rounded(*(s for a, b in _LINEAR for s in (a * b // 2, a * b // 64 * 4, 64)), *_OTHERS)
    bf16 = rounded(*(2 * a * b for a, b in _LINEAR), *_OTHERS)
    for kind, by_hand in (("bf16", bf16), ("nf4", nf4)):
        with tempfile.TemporaryDirectory() as folder:
            config, script = Path(folder) / "config.json", Path(folder) / "train.py"
            config.write_text(json.dumps(LLAMA_8B))
            script.write_text(_LORA_SCRIPT)
            stub = write_stub(str(config), Path(folder) / "stub", dtype="bfloat16")
            found = Estimator(device="rtx4090").command([str(script), str(stub.folder), kind])
        for what, key, hand in (("parameters", "parameters", by_hand), ("state", "optimizer_state", 8 * _LORA)):
            size = found.breakdown[key]
            name, by_formula = f"Llama 3.1 8B, {kind} + LoRA: {what}", f"{hand:,} ({gib(hand)})"
            yield tables.row(name, "", by_formula, f"{size:,}", f"{size - hand:+,}")
        yield tables.row("host memory of that job", "below 4 GiB", "", gib(found.max_resident_bytes), "")


def rows(only: str = "") -> Iterator[str]:
    """Yield the table's rows."""
    yield tables.heading(("job", "by hand", "bytes by hand", "vramcast", "difference"), "ll")
    for job in JOBS:
        if only in job.name:
            if job.missing:
                yield tables.row(job.name, job.formula, f"{job.by_hand:,}", f"needs {job.missing}", "")
                continue
            found = measured(job)
            by_hand = f"{job.by_hand:,} ({gib(job.by_hand)})"
            yield tables.row(job.name, job.formula, by_hand, f"{found:,}", f"{found - job.by_hand:+,}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--models", action="store_true")
    options = parser.parse_args()
    for row in rows(options.only):
        print(row, flush=True)
    for row in model_rows() if options.models else ():
        print(row, flush=True)


if __name__ == "__main__":
    main()
