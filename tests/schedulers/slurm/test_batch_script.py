"""Batch scripts as people write them: which commands train, with which words and variables; what is unknown is not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.schedulers.slurm.batch_script import BatchScript, read_script

FOLDER = Path("/home/ann/job")


def read(text: str, *arguments: str, **environment: str) -> BatchScript:
    return read_script(f"#!/bin/bash\n{text}", arguments, FOLDER, environment)


def words(text: str, *arguments: str, **environment: str) -> list[tuple[str, ...]]:
    return [one.words for one in read(text, *arguments, **environment).commands]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("module load cuda\nsource venv/bin/activate\npython3.12 -m pkg.train", ("python3.12", "-m", "pkg.train")),
        ("srun --label -n 4 python train.py", ("python", "train.py")),
        ("srun -u --cpu-bind=none /opt/bin/python train.py", ("/opt/bin/python", "train.py")),
        (
            "torchrun --nproc_per_node=4 \\\n  train.py \\\n  --x 'a b'",
            ("torchrun", "--nproc_per_node=4", "train.py", "--x", "a b"),
        ),
        ("cd src && python train.py > log.txt 2>&1", ("python", "train.py")),
        ("nohup python train.py &", ("python", "train.py")),
        ("python train.py | tee log", ("python", "train.py")),
        ("if true; then python train.py; fi", ("python", "train.py")),
        ("time CUDA_VISIBLE_DEVICES=0 accelerate launch train.py", ("accelerate", "launch", "train.py")),
    ],
)
def test_the_training_command_is_found(text: str, found: tuple[str, ...]) -> None:
    assert words(text) == [found]


@pytest.mark.parametrize(
    "text",
    [
        "python -c 'print(1)'",
        "python -m venv env",
        "pip install torch",
        "# python train.py",
        "cat <<EOF > x\npython train.py\nEOF",
        "echo python train.py",
        "python",
        "srun hostname",
    ],
)
def test_what_does_not_train_is_no_command(text: str) -> None:
    found = read(text)
    assert not found.commands
    assert not found.unknown


def test_variables_arguments_and_exports_are_followed() -> None:
    text = 'export A=1\nWIDTH=${WIDTH:-64}\nDATA=$HOME/data\nB=2 python train.py --w $WIDTH --d "${DATA}" $1 "$@"'
    one = read(text, "x", "y z", HOME="/home/ann").commands[0]
    assert one.words == ("python", "train.py", "--w", "64", "--d", "/home/ann/data", "x", "x", "y z")
    assert dict(one.environment) == {"A": "1", "B": "2"}


def test_the_folder_follows_cd() -> None:
    assert str(read("cd src\npython train.py").commands[0].folder) == "/home/ann/job/src"
    assert str(read("cd $SLURM_SUBMIT_DIR\npython train.py").commands[0].folder) == "/home/ann/job"


@pytest.mark.parametrize(
    "text", ["python train.py --seed $RANDOM", "python train.py $(date)", "python train.py `cat x`", "python $"]
)
def test_a_command_which_is_known_only_when_it_runs_is_not_guessed(text: str) -> None:
    found = read(text)
    assert not found.commands
    assert found.unknown == [text]


def test_srun_says_how_often_and_whether_it_asks_for_cards() -> None:
    one = read("srun --ntasks 8 --gres=gpu:1 python train.py")
    assert (one.commands[0].tasks, one.commands[0].by_srun, one.steps_ask_for_cards) == (8, True, True)
    assert not read("srun --gres=shard:2 python train.py").steps_ask_for_cards
    assert read("srun -n $N python train.py", N="2").commands[0].tasks == 2


def test_a_job_is_named_in_the_script() -> None:
    first = "#VRAMCAST target=hf:bert batch=input_ids=8x128:int64<30522 batch=4x2"
    second = "#VRAMCAST labels='8:int64<2' steps=4 channels_last=true"
    assert read(f"{first}\n{second}\n").named == {
        "target": "hf:bert",
        "batch": ["input_ids=8x128:int64<30522", "4x2"],
        "labels": "8:int64<2",
        "steps": 4,
        "channels_last": True,
    }
    assert read("#VRAMCAST off").is_off
    assert read("#VRAMCAST target").unknown == ["target"]


@given(st.text(alphabet="$`'\"\\ \n;&|<>#(){}=srunpythoEOF-./@", max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read(text, "a")
