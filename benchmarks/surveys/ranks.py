"""One rank of Llama 3's shapes with FSDP2 in growing worlds: peaks, seconds, and host memory, against the limits per rank.

python -m benchmarks.surveys.ranks [--jobs 8b:8 8b:64 8b:1024 70b:256 405b:512]
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from pathlib import Path
from typing import Final

from benchmarks.surveys.launched import launched
from benchmarks.tables import table

_LIMITS_S: Final = {"8b": 30.0, "70b": 120.0, "405b": 120.0}  # spec: the aims for one rank
_LIMIT_BYTES: Final = 1.5 * 2**30  # spec: the aim for one rank of the smallest
# spec: the published configurations: hidden, intermediate, layers, heads
_SHAPES: Final = {"8b": (4096, 14336, 32, 32), "70b": (8192, 28672, 80, 64), "405b": (16384, 53248, 126, 128)}
_SCRIPT: Final = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    hidden, intermediate, layers, heads = map(int, sys.argv[1:])
    config = LlamaConfig(
        vocab_size=128256, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        ids = torch.zeros(1, 4096, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def row(shape: str, world_size: int, script: Path) -> list[object]:
    """Return the table cells of rank 0 in a world."""
    words = tuple(map(str, _SHAPES[shape]))
    answer = launched(script, world_size, "--no-bracket", "--until", "steps", "--ranks", "0", words=words)
    found, seconds = answer.need(shape), answer.seconds
    peaks, host = found["peaks"], found["host_peak_bytes"]
    return [
        shape, world_size, f"{peaks['allocated'] / 2**30:.2f}", f"{peaks['reserved'] / 2**30:.2f}", f"{seconds:.0f}",
        f"{seconds / _LIMITS_S[shape]:.2f} of {_LIMITS_S[shape]:.0f} s", f"{host / 2**30:.2f}", f"{host / _LIMIT_BYTES:.2f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    jobs = ["8b:8", "8b:64", "8b:1024", "70b:256", "405b:512"]
    parser.add_argument("--jobs", nargs="+", default=jobs, metavar="SHAPE:N", help="shape and number of ranks, a multiple of 8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(textwrap.dedent(_SCRIPT))
        rows = [row(shape, int(size), script) for shape, size in (job.split(":") for job in options.jobs)]
    print(table(["shape", "ranks", "allocated GiB", "reserved GiB", "s", "time", "host GiB", "of 1.5 GiB"], rows))


if __name__ == "__main__":
    main()
