"""Launchers: the program they would start, its rank and its environment."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.jobs.commands.accelerate import ACCELERATE
from vramcast.jobs.commands.deepspeed import DEEPSPEED
from vramcast.jobs.commands.launcher import Launcher
from vramcast.jobs.commands.launchers import TORCH_LAUNCH, TORCHRUN
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command
from vramcast.jobs.ranks import World


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a script in it."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _read(text: str, **environment: str) -> Command:
    return read(shlex.split(text), {"HF_HOME": "/nonexistent", **environment})


@pytest.mark.parametrize(
    ("text", "words", "is_module"),
    [
        ("torchrun train.py --lr 3", ("train.py", "--lr", "3"), False),
        ("torchrun --standalone --nproc-per-node gpu --nnodes 1:1 train.py", ("train.py",), False),
        ("torchrun --nproc_per_node=1 -m pkg.main a", ("pkg.main", "a"), True),
        ("python -m torch.distributed.run --rdzv-backend c10d train.py -t x", ("train.py", "-t", "x"), False),
        ("torchrun --no-python python -m pkg", ("pkg",), True),
        ("python -m torch.distributed.launch train.py a", ("train.py", "--local-rank=0", "a"), False),
        ("python -m torch.distributed.launch --use_env train.py a", ("train.py", "a"), False),
        ("deepspeed train.py --deepspeed ds.json", ("train.py", "--local_rank=0", "--deepspeed", "ds.json"), False),
        ("deepspeed --num_gpus 1 --no_local_rank --module pkg a", ("pkg", "a"), True),
        ("deepspeed --include localhost:3 train.py", ("train.py", "--local_rank=0"), False),
        ("accelerate launch --multi_gpu --num_processes 1 -m pkg --num_processes 8", ("pkg", "--num_processes", "8"), True),
        ("accelerate-launch --mixed-precision=bf16 train.py", ("train.py",), False),
        ("python -m accelerate.commands.launch train.py", ("train.py",), False),
        ("python -m accelerate.commands.accelerate_cli launch train.py", ("train.py",), False),
        ("OMP_NUM_THREADS=4 uv run torchrun train.py", ("train.py",), False),
    ],
)
def test_finds_program_behind_launcher(text: str, words: tuple[str, ...], is_module: bool) -> None:
    found = _read(text)
    assert (found.words, found.is_module) == (words, is_module)


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("torchrun --nproc_per_node=8 train.py", World(8, 8)),
        ("torchrun --nnodes=1:2 --nproc-per-node=4 train.py", World(8, 4)),
        ("PET_NPROC_PER_NODE=2 torchrun train.py", World(2, 2)),
        ("deepspeed --num_gpus=2 train.py", World(2, 2)),
        ("deepspeed --num_nodes 2 --num_gpus=2 train.py", World(4, 2)),
        ("deepspeed --include 'worker-0:0,1@worker-1:0,2' train.py", World(4, 2)),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py", World(2, 2)),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 4 train.py", World(4, 4)),
        ("deepspeed --hostfile hosts --log_level error train.py", World(8, 4)),
        ("deepspeed --hostfile hosts --num_nodes 1 train.py", World(4, 4)),
        ("deepspeed --hostfile hosts --num_gpus 2 train.py", World(4, 2)),
        ("deepspeed --hostfile hosts --include worker-1 train.py", World(4, 4)),
        ("deepspeed --hostfile hosts --include worker-1:0,1@worker-1:3 train.py", World(3, 3)),
        ("deepspeed --hostfile hosts --exclude worker-0:3@worker-1:0 train.py", World(6, 3)),
        ("deepspeed --hostfile hosts --exclude worker-0 train.py", World(4, 4)),
        ("accelerate launch --num_processes 4 train.py", World(4, 4)),
        ("accelerate launch --num_processes 4 --num_machines 2 train.py", World(4, 2)),
        ("torchrun train.py", World(1, 1)),
    ],
)
def test_launcher_sets_number_of_ranks(folder: Path, text: str, world: World) -> None:
    (folder / "hosts").write_text("# two machines\nworker-0 slots=4\n\nworker-1 slots=4\n")
    found = _read(text)
    assert (found.world.size, found.world.local_size) == (world.size, world.local_size)
    told = dict(found.environment)
    if world.size > 1:
        assert (told["WORLD_SIZE"], told["RANK"], told["LOCAL_RANK"]) == (str(world.size), "0", "0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--hostfile absent", "host file 'absent', .*does not exist"),
        ("--exclude localhost:0", "no host file here"),
        ("--include a:0 --num_gpus 2", "either --include, or --exclude"),
        ("--include a:0,1@b:0", "have 2, 1 ranks"),
        ("--include a:x", "a whole number"),
        ("--hostfile hosts --include c", "not in the host file"),
        ("--hostfile hosts --include a:7", "not in the host file"),
        ("--hostfile hosts --exclude a", "leaves no card"),
        ("--hostfile bad", "that DeepSpeed rejects: b 4"),
    ],
)
def test_rejects_missing_deepspeed_cards(folder: Path, options: str, said: str) -> None:
    (folder / "hosts").write_text("a slots=4\n")
    (folder / "bad").write_text("a slots=4\nb 4\n")
    with pytest.raises((UsageError, CannotEstimate), match=said):
        _read(f"deepspeed {options} train.py")


@pytest.mark.parametrize("include", ["", "b@a", "b:1,0@b:1", "a:3@b:2"])
@pytest.mark.parametrize("exclude", ["", "b", "a:0@b:3"])
def test_selects_same_cards_as_deepspeed(folder: Path, include: str, exclude: str) -> None:
    pytest.importorskip("deepspeed")
    if include and exclude:
        return
    runner = importlib.import_module("deepspeed.launcher.runner")
    (folder / "hosts").write_text("a slots=4\nb slots=4\n")
    theirs = runner.parse_inclusion_exclusion(runner.fetch_hostfile("hosts"), include, exclude)
    choice = f"--include {include}" if include else f"--exclude {exclude}" if exclude else ""
    world = _read(f"deepspeed --hostfile hosts {choice} train.py").world
    assert [world.local_size] * world.machines == [len(cards) for cards in theirs.values()]


def test_torchrun_sets_variables_of_one_rank() -> None:
    found = dict(_read("torchrun --max-restarts 2 --rdzv_id job7 train.py").environment)
    assert {found[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")} == {"0"}
    assert {found[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"1"}
    assert (found["TORCHELASTIC_MAX_RESTARTS"], found["TORCHELASTIC_RUN_ID"]) == ("2", "job7")
    assert found["TORCHELASTIC_USE_AGENT_STORE"] == "False"  # otherwise the process would wait for an agent
    assert int(found["MASTER_PORT"]) > 0


def test_accelerate_options_reach_the_script() -> None:
    found = dict(_read("accelerate launch --mixed_precision bf16 --dynamo_backend inductor --gpu_ids 3 train.py").environment)
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert found["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    assert "RANK" not in found  # a single process of accelerate is a plain one


def test_accelerate_config_supplies_missing_options(folder: Path) -> None:
    pytest.importorskip("yaml")
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "num_machines: 1\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: none\n  zero3_init_flag: false\n"
    )
    (folder / "config.yaml").write_text(text)
    assert _read("accelerate launch --config_file config.yaml train.py").world.size == 8
    found = dict(_read("accelerate launch --config_file config.yaml --num_processes 1 --zero_stage 3 train.py").environment)
    assert found["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert found["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert found["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "false"
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert found["ACCELERATE_CONFIG_DS_FIELDS"] == "zero_stage,offload_optimizer_device,zero3_init_flag,mixed_precision"
    assert found["RANK"] == "0"


def test_reads_default_accelerate_config(folder: Path) -> None:
    pytest.importorskip("yaml")
    (folder / "accelerate").mkdir()
    (folder / "accelerate" / "default_config.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 1\nmixed_precision: fp16\n"
        "fsdp_config:\n  fsdp_version: 2\n  transformer_layer_cls_to_wrap: Block\n"
    )
    found = dict(_read("accelerate launch train.py", HF_HOME=str(folder)).environment)
    assert found["ACCELERATE_USE_FSDP"] == "true"
    assert (found["FSDP_VERSION"], found["FSDP_TRANSFORMER_CLS_TO_WRAP"]) == ("2", "Block")
    assert found["FSDP_SHARDING_STRATEGY"] == "FULL_SHARD"
    assert found["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert "ACCELERATE_USE_FSDP" not in dict(_read("accelerate launch --cpu train.py", HF_HOME=str(folder)).environment)


@pytest.mark.parametrize(
    ("content", "said"), [("- 1\n", "has no keys"), ("{", "cannot be read"), ("distributed_type: MEGATRON_LM", "megatron_lm")]
)
def test_rejects_empty_configuration(folder: Path, content: str, said: str) -> None:
    pytest.importorskip("yaml")
    (folder / "config.yaml").write_text(content)
    with pytest.raises((UsageError, CannotEstimate), match=said):
        _read("accelerate launch --config_file config.yaml train.py")
    with pytest.raises(UsageError, match="does not exist"):
        _read("accelerate launch --config_file absent.yaml train.py")


def _torchruns() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = importlib.import_module("torch.distributed.run").get_args_parser()
    return parser


def _accelerates() -> argparse.ArgumentParser:
    pytest.importorskip("accelerate")
    parser: argparse.ArgumentParser = importlib.import_module("accelerate.commands.launch").launch_command_parser()
    return parser


def _deepspeeds() -> argparse.ArgumentParser:
    """Return DeepSpeed's parser, caught in the function that makes and uses it."""
    pytest.importorskip("deepspeed")
    runner = importlib.import_module("deepspeed.launcher.runner")
    caught: list[argparse.ArgumentParser] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda self, **_: caught.append(self))
        runner.parse_args([])
    return caught[0]


@pytest.mark.parametrize(
    ("launcher", "theirs"),
    [(TORCHRUN, _torchruns), (TORCH_LAUNCH, _torchruns), (ACCELERATE, _accelerates), (DEEPSPEED, _deepspeeds)],
)
def test_tables_match_launchers_parsers(launcher: Launcher, theirs: Callable[[], argparse.ArgumentParser]) -> None:
    ours = {name: action.nargs for action in launcher.parser()._actions for name in action.option_strings}
    for action in theirs()._actions:
        for name in action.option_strings:
            if name not in ("-h", "--help"):
                assert name in ours, name
                assert (ours[name] == 0) == (action.nargs == 0), name


def test_deepspeed_options_take_values(folder: Path) -> None:
    (folder / "hosts").write_text("localhost slots=1\n")
    words = ["-H", "hosts", "--master_port", "29501", "--save_pid", "--bind_cores_to_rank", "train.py", "--num_gpus", "8"]
    assert DEEPSPEED.launched(words, {}).words == ("train.py", "--local_rank=0", "--num_gpus", "8")


_CONFIGS = {
    "plain": "distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
    "fsdp": "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 1\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Block\n"
    "  fsdp_offload_params: true\n",
    "deepspeed": "distributed_type: DEEPSPEED\nmixed_precision: fp16\nnum_processes: 1\ndeepspeed_config:\n  zero_stage: 3\n"
    "  zero3_init_flag: true\n  offload_param_device: none\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n",
}


@pytest.mark.parametrize("kind", _CONFIGS)
@pytest.mark.parametrize("options", ["", "--mixed_precision no", "--dynamo_backend eager --zero_stage 2 --fsdp_version 1"])
def test_environment_matches_accelerate(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    parser = _accelerates()
    launch = importlib.import_module("accelerate.commands.launch")
    monkeypatch.setattr("os.environ", {"PATH": ""})
    (folder / "config.yaml").write_text("compute_environment: LOCAL_MACHINE\nnum_machines: 1\n" + _CONFIGS[kind])
    words = ["--config_file", "config.yaml", *options.split(), "train.py"]
    arguments, defaults, is_precision_theirs = launch._validate_launch_command(parser.parse_args(words))
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if is_precision_theirs else [])]
    arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
    if kind == "fsdp":
        theirs = launch.prepare_multi_gpu_env(arguments)
    else:
        prepare = launch.prepare_simple_launcher_cmd_env if kind == "plain" else launch.prepare_deepspeed_cmd_env
        theirs = prepare(arguments)[1]
    ours = dict(_read("accelerate launch " + " ".join(words)).environment)
    told = ("ACCELERATE_", "FSDP_")
    assert {k: v for k, v in ours.items() if k.startswith(told)} == {k: v for k, v in theirs.items() if k.startswith(told)}
