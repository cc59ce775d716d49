"""Write a checkpoint with real shapes and no weights, for scripts that call from_pretrained.

vramcast stub-checkpoint meta-llama/Llama-3.1-8B --out stub
vramcast stub-checkpoint llama --dtype bfloat16 --out stub
vramcast stub-checkpoint path/to/config.json --out stub
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vramcast.cli.streams import answer_as
from vramcast.core.units import gib
from vramcast.jobs.stub_checkpoint import write_stub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    what = "a hub id (meta-llama/Llama-3.1-8B), a model type of transformers (llama), a config.json, or a folder with one"
    parser.add_argument("target", metavar="TYPE_OR_CONFIG", help=what)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write to; new or empty")
    parser.add_argument("--dtype", help="dtype of the weights (bfloat16); default: the config's, else float32")


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    stub = write_stub(options.target, Path(options.out), dtype=options.dtype)
    facts = {"parameters": stub.parameters, "bytes": stub.size_bytes, "disk_bytes": stub.disk_bytes}
    size, disk = gib(stub.size_bytes), gib(stub.disk_bytes)
    text = f"{stub.folder}: {stub.parameters:,} parameters in files of {size}, which take {disk} on disk"
    answer_as(options.json, {"schema": 1, "folder": str(stub.folder), **facts}, lambda: text)
    return 0
