"""`#VRAMCAST` lines of batch scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cluster.slurm.script_marks import read_marks


def test_reads_job_from_script() -> None:
    first = "#VRAMCAST target=hf:bert batch=input_ids=8x128:int64<30522 batch=4x2"
    second = "#VRAMCAST labels='8:int64<2' steps=4 channels_last=true"
    assert read_marks(f"#!/bin/bash\n{first}\n{second}\n").named == {
        "target": "hf:bert",
        "batch": ["input_ids=8x128:int64<30522", "4x2"],
        "labels": "8:int64<2",
        "steps": 4,
        "channels_last": True,
    }
    assert read_marks("#VRAMCAST off").is_off
    assert read_marks("#VRAMCAST target").unknown == "target"
    assert read_marks("#VRAMCAST target='a").unknown == "target='a"
    assert read_marks("python train.py # VRAMCAST off\n").named is None


@pytest.mark.parametrize(
    ("script", "asks"),
    [
        ("srun --gres=gpu:1 python train.py", True),
        ("srun -n 1 -G 1 python train.py", True),
        ("srun \\\n  --gpus-per-task=1 python train.py", True),
        ("X='--gres=gpu:1'\nsrun $X python train.py", True),
        ("srun --gres=shard:2 python train.py", False),
        ("#SBATCH --gres=gpu:1\nsrun python train.py", False),
        ("# srun --gres=gpu:1\npython train.py", False),
        ("python train.py --gpus 1", False),
    ],
)
def test_finds_steps_that_request_cards(script: str, asks: bool) -> None:
    assert read_marks(f"#VRAMCAST target=x\n{script}").steps_ask_for_cards == asks


@given(st.text(alphabet="#VRAMCAST \n='\"off-srun$", max_size=200))
def test_reads_any_text_without_error(text: str) -> None:
    read_marks(text)
