"""Time and host memory of an estimate, compared with the project's limits and with a bare `import torch`.

    python -m benchmarks.speed.command_line [--skip-large]

Prints a Markdown table. "cold" is a whole command line with only compiled stand-ins and cuDNN's cached answers;
"first" has no cached answers either. "warm" is the median of repeated calls on one worker. Ratios: measured / limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tables
from vramcast.core.units import GIB
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training

# The published shape of Llama 3 70B. spec: Llama 3 model card and its config.json
LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}  # spec: its published config.json
RESNET = ("torchvision:resnet50", "--batch", "32x3x224x224", "--labels", "32:int64<1000")
WARM_CALLS = 7  # arbitrary


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    what: str
    seconds: float
    limit_s: float | None
    host_gib: float | None = None
    limit_gib: float | None = None

    def __str__(self) -> str:
        def ratio(value: float | None, limit: float | None) -> str:
            return f"{value / limit:.2f}" if value is not None and limit else "-"

        limit = f"{self.limit_s:g}" if self.limit_s else "-"
        host = f"{self.host_gib:.2f}" if self.host_gib is not None else "-"
        of_limits = ratio(self.seconds, self.limit_s), ratio(self.host_gib, self.limit_gib)
        return tables.row(self.what, f"{self.seconds:.2f}", limit, of_limits[0], host, of_limits[1])


def command_line(what: str, arguments: tuple[str, ...], limit_s: float, limit_gib: float, **environment: str) -> Row:
    """Return the row of one whole command."""
    started = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "vramcast", "estimate", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    seconds = time.perf_counter() - started
    if run.returncode:
        sys.exit(f"{what}: {run.stderr.strip()}")
    return Row(what, seconds, limit_s, json.loads(run.stdout)["host_peak_bytes"] / GIB, limit_gib)


def warm(what: str, job: Job, tracer: str, limit_s: float, limit_gib: float) -> Row:
    """Return the row of repeated calls."""
    seconds = []
    for _ in range(WARM_CALLS + 2):
        started = time.perf_counter()
        found = Estimator(tracer=tracer).estimate_job(job)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[2:])  # the first starts the worker, the second warms its imports
    return Row(what, median, limit_s, found.max_resident_bytes / GIB, limit_gib)


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--skip-large", action="store_true", help="leave out the 70-billion-parameter model")
    given = options.parse_args()
    print(tables.heading(("what", "s", "limit s", "ratio", "host GiB", "ratio")))

    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    print(Row("peer: python -c 'import torch'", time.perf_counter() - started, None), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        print(command_line("ResNet-50, first: compiles, asks cuDNN", RESNET, 60, 1.5, VRAMCAST_CACHE=folder), flush=True)
        print(command_line("ResNet-50, cold command line", RESNET, 12, 1.5, VRAMCAST_CACHE=folder), flush=True)
        fake = (*RESNET, "--tracer", "fake")
        print(command_line("ResNet-50, fake tensors, cold command line", fake, 3, 2, VRAMCAST_CACHE=folder), flush=True)
        job = Job(device("h200"), target=RESNET[0], batch=TensorSpec.parse(RESNET[2]), labels=TensorSpec.parse(RESNET[4]))
        print(warm("ResNet-50, warm call, 3 steps", job, "nullgpu", 1, 1.5), flush=True)
        print(warm("ResNet-50, fake tensors, warm call, 3 steps", job, "fake", 3, 2), flush=True)
        config = Path(folder) / "gpt2-xl.json"
        config.write_text(json.dumps(GPT2_XL))
        batch = {"input_ids": TensorSpec((2, 1024), "int64", high=50257)}
        job = Job(device("h200"), target=f"hf:{config}", batch=batch, training=Training(optimizer="adamw"))
        print(warm("GPT-2 XL, fake tensors, warm call, 2 x 1024 tokens", job, "fake", 30, 2), flush=True)
        if not given.skip_large:
            config = Path(folder) / "llama-3-70b.json"
            config.write_text(json.dumps(LLAMA_70B))
            tokens = "1x2048:int64<128256"
            arguments = (
                *(f"hf:{config}", "--batch", f"input_ids={tokens}", "--batch", f"labels={tokens}"),
                *("--precision", "bf16", "--optimizer", "adamw", "--device", "h200"),
            )
            print(command_line("Llama 3 70B shape, bf16, AdamW, 1 x 2048", arguments, 120, 4))


if __name__ == "__main__":
    main()
