"""One rank of Llama 3 8B's shape by FSDP2 in growing worlds: peaks, seconds and host memory, against the limits for one rank.

python -m benchmarks.ranks [--worlds 8 64 1024]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Final

from benchmarks.accuracy.figures import table

_PER_NODE: Final = 8
_LIMIT_S, _LIMIT_BYTES = 30.0, 1.5 * 2**30  # spec: the aims for one rank
_SCRIPT: Final = """
    import os
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
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


def row(world_size: int, script: Path) -> list[object]:
    """Return what rank 0 takes in a world: its cells of the table."""
    launcher = ["torchrun", f"--nnodes={world_size // _PER_NODE}", f"--nproc_per_node={_PER_NODE}", str(script)]
    options = ["--json", "--device", "h100", "--no-bracket", "--until", "steps", "--ranks", "0"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "vramcast", "run", *options, "--", *launcher], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stderr.strip()[-1000:])
    found = json.loads(done.stdout)
    peaks, host = found["peaks"], found["host_peak_bytes"]
    return [
        world_size, f"{peaks['allocated'] / 2**30:.2f}", f"{peaks['reserved'] / 2**30:.2f}", f"{seconds:.0f}",
        f"{seconds / _LIMIT_S:.2f}", f"{host / 2**30:.2f}", f"{host / _LIMIT_BYTES:.2f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", type=int, nargs="+", default=[8, 64, 1024], metavar="N", help="ranks, multiples of 8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(textwrap.dedent(_SCRIPT))
        rows = [row(world_size, script) for world_size in options.worlds]
    print(table(["ranks", "allocated GiB", "reserved GiB", "s", "of 30 s", "host GiB", "of 1.5 GiB"], rows))


if __name__ == "__main__":
    main()
