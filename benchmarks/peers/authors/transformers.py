"""GPUMemNet's random transformers on an A100-40GB as cases: process MiB, read from `gpumemnet_transformer.csv`.

The table is the authors' `Assets/Estimator_Transformer/03-trans_for_trans/trans_data.csv` (itu-rad/GPUMemNet, data CC BY-NC 4.0
by its README). It is not part of this repository: put it in the data folder under that name. Each file name has every setting
of the authors' script; `transformer_script.py` has its loop. float32, Adam, cross-entropy.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Final

from benchmarks.accuracy import timm_a100
from benchmarks.accuracy.runner import Case, read_rows
from benchmarks.accuracy.scripts import transformer_script
from benchmarks.peers.authors.gpumemnet import GPU_TOTAL_BYTES
from vramcast.core.files import digest
from vramcast.core.units import MIB
from vramcast.datasets.histories.reader import near_capacity
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Command, Job, Training
from vramcast.tracer.protocol.run_options import RunOptions

FILE: Final = "gpumemnet_transformer.csv"
CONTEXT_BYTES: Final = context_bytes("a100-40gb", 11, ("cublas",)).bytes  # no convolution loads cuDNN
_NAME: Final = re.compile(
    r"num_classes:(?P<classes>\d+)_embedding_size:(?P<width>\d+)_num_layers:(?P<depth>\d+)_num_heads:(?P<heads>\d+)"
    r"_ff_hidden_size:(?P<inner>\d+)_dropout_rate:(?P<dropout>0\.\d+)_seq_length:(?P<tokens>\d+)"
    r"_input_size:(?P<vocabulary>\d+)_num_samples:(?P<samples>\d+)_batch_size:(?P<batch>\d+)\.out"
)


def name_of(row: dict[str, str]) -> str:
    """Return the name of a row's case."""
    return f"gpumemnet-transformer-{digest(row['Filename'])}"


def case_of(row: dict[str, str]) -> Case | str:
    """Return the job of a measured row, or the reason why it cannot be repeated."""
    match = _NAME.fullmatch(row["Filename"])
    if match is None:
        return f"the file name {row['Filename'][:60]!r} is not of GPUMemNet's transformers"
    said = {key: float(text) if key == "dropout" else int(text) for key, text in match.groupdict().items()}
    if said["width"] % said["heads"]:
        return f"{said['heads']} heads do not divide a width of {said['width']}: its script ended before the first tensor"
    measured = int(row["Max GPU Memory (MiB)"]) * MIB
    job = Job(
        device("a100-40gb"),
        command=Command((transformer_script.__file__, json.dumps(said))),
        training=Training(steps=len(transformer_script.batch_sizes(int(said["batch"]), int(said["samples"])))),
        search_path=tuple(sys.path),
        stack=timm_a100.STACK,
    )
    facts = {
        "group": name_of(row),
        "family": "transformer",
        "stack": "gpumemnet transformer",
        "process": "1",
        "context": str(CONTEXT_BYTES),
        "censored": str(row["Status"] == "OOM_CRASH" or near_capacity(measured, GPU_TOTAL_BYTES)),
    }
    return Case(name_of(row), job, measured, facts, RunOptions(limited=False))


def cases() -> list[Case]:
    """Return the cases of all rows that can be repeated."""
    return [case for case in map(case_of, read_rows(FILE)) if isinstance(case, Case)]
