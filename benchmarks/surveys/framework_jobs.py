"""Training scripts of DeepSpeed, accelerate, Lightning, and transformers' Trainer, as users write them, and their commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# spec: the model below: embeddings and head, 8 layers (attention, MLP, two norms), the last norm.
PARAMETERS: Final = 2 * 32000 * 1024 + 8 * (4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024) + 1024

_MODEL: Final = """
import torch
from transformers import LlamaConfig

def config():
    return LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=512, use_cache=False,
    )

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 65536

    def __getitem__(self, index):
        ids = torch.randint(0, 32000, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}
"""
_DEEPSPEED: Final = """
import argparse
import deepspeed
from transformers import LlamaForCausalLM
from model import Tokens, config

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--init", action="store_true")
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config, enabled=args.init):
    model = LlamaForCausalLM(config())
engine, _, loader, _ = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), training_data=Tokens()
)
for step, batch in zip(range(4), loader):
    batch = {name: value.to(engine.device) for name, value in batch.items()}
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()
"""
_ACCELERATE: Final = """
import torch
from accelerate import Accelerator
from transformers import LlamaForCausalLM
from model import Tokens, config

accelerator = Accelerator()
model = LlamaForCausalLM(config())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(Tokens(), batch_size=1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, batch in zip(range(4), loader):
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
accelerator.print(accelerator.gather(loss.detach()).mean().item())
"""
_TRAINER: Final = """
from transformers import HfArgumentParser, LlamaForCausalLM, Trainer, TrainingArguments
from model import Tokens, config

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=LlamaForCausalLM(config()), args=args, train_dataset=Tokens()).train()
"""
_LIGHTNING: Final = """
import sys
import lightning
import torch
from transformers import LlamaForCausalLM
from model import Tokens, config

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is None:
            self.model = LlamaForCausalLM(config())

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

strategy, devices, nodes = sys.argv[1:]
trainer = lightning.Trainer(
    accelerator="gpu", devices=int(devices), num_nodes=int(nodes), strategy=strategy, precision="bf16-mixed", max_steps=4,
    logger=False, enable_checkpointing=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(Tokens(), batch_size=1))
"""
_FSDP2: Final = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaForCausalLM
from model import Tokens, config

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = LlamaForCausalLM(config()).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, batch in zip(range(4), torch.utils.data.DataLoader(Tokens(), batch_size=1)):
    model(**{name: value.cuda() for name, value in batch.items()}).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
_MEGATRON: Final = """
import os
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=8, hidden_size=1024, num_attention_heads=16, pipeline_dtype=torch.float32, tensor_model_parallel_size=2,
    pipeline_model_parallel_size=2, finalize_model_grads_func=finalize_model_grads,
)
first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
model = GPTModel(
    config, get_gpt_layer_local_spec(), vocab_size=32000, max_sequence_length=256, pre_process=first, post_process=last
)
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model.cuda())
optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-4, use_distributed_optimizer=True), [model])


def forward(batches, model):
    words = torch.randint(32000, (1, 256), device="cuda")
    places = torch.arange(256, device="cuda").expand(1, -1)
    mask = torch.ones(1, 1, 256, 256, dtype=torch.bool, device="cuda").triu(1)
    loss = model(words, places, mask, labels=words)
    return loss, lambda loss: (loss.mean(), {})


step = get_forward_backward_func()
for _ in range(4):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    step(
        forward_step_func=forward, data_iterator=None, model=[model], num_microbatches=4, seq_length=256, micro_batch_size=1,
        forward_only=False,
    )
    optimizer.step()
"""
_SCRIPTS: Final = {
    "model.py": _MODEL, "ds.py": _DEEPSPEED, "acc.py": _ACCELERATE, "trainer.py": _TRAINER, "light.py": _LIGHTNING,
    "fsdp2.py": _FSDP2, "megatron_gpt.py": _MEGATRON,
}  # fmt: skip

_BUCKET: Final = 5_000_000  # arbitrary: elements; far fewer than the model has, so that the stages differ


def _zero(stage: int, *offloaded: str, **others: Any) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": _BUCKET, "allgather_bucket_size": _BUCKET}
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": _BUCKET, "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 4 * _BUCKET,
        }  # fmt: skip
    zero |= {f"offload_{part}": {"device": "cpu", "pin_memory": True} for part in offloaded}
    return {"zero_optimization": zero, "bf16": {"enabled": True}, "gradient_clipping": 1.0, **others}


_ADAM: Final = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}  # fmt: skip
_AUTO: Final = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
_CONFIGURATIONS: Final = {
    "z1.json": _zero(1, **_ADAM),
    "z2.json": _zero(2, **_ADAM),
    "z3.json": _zero(3, **_ADAM),
    "z1o.json": _zero(1, "optimizer", **_ADAM),
    "z3op.json": _zero(3, "optimizer", "param", **_ADAM),
    "auto2.json": _zero(2, **_AUTO),
    "auto3.json": _zero(3, **_AUTO),
}


def write(folder: Path) -> None:
    """Write the scripts and their configurations."""
    for name, text in _SCRIPTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, configuration in _CONFIGURATIONS.items():
        (folder / name).write_text(json.dumps(configuration), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Job:
    """A job with several ranks.

    Attributes:
        name: Name in the table.
        command: The command with {size}, {nodes} and {local}: ranks, machines, ranks per machine.
        worlds: Numbers of ranks.
        state_bytes: Parameters, gradients, and optimizer states of a rank, from their number and the number of ranks.
    """

    name: str
    command: str
    worlds: tuple[int, ...]
    state_bytes: Callable[[int, int], float]


def _replicated(parameters: int, size: int) -> float:
    return 20 * parameters  # spec: float32 parameters, gradients, two states of Adam, and DDP's buckets


def _sharded(parameters: int, size: int) -> float:
    return 16 * parameters / size  # spec: the same without buckets, or bf16 with float32 copies: 2 + 2 + 12


def _zero1(parameters: int, size: int) -> float:
    return 4 * parameters + 12 * parameters / size  # spec: bf16 parameters and gradients; float32 copy and two states sharded


def _zero2(parameters: int, size: int) -> float:
    return 2 * parameters + 14 * parameters / size


def _zero1_offloaded(parameters: int, size: int) -> float:
    return 4 * parameters


def _nothing(parameters: int, size: int) -> float:
    return 0.0


def _megatron(parameters: int, size: int) -> float:
    """Return the state of a rank of the first stage.

    spec: Megatron's GPT without the norms: words and positions; per layer 12 matrices of the width squared; half the layers,
    and half of each matrix except the positions; two states of Adam are sharded among the copies.
    """
    width, layers = 1024, 8
    held = 32000 * width / 2 + 256 * width + layers / 2 * 12 * width**2 / 2
    return held * (4 + 4 + 8 / (size / 4))


_TORCHRUN: Final = "torchrun --nnodes={nodes} --nproc_per_node={local}"
_LAUNCH: Final = "accelerate launch --num_processes {size} --num_machines {nodes} --mixed_precision bf16"
_WRAP: Final = "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer acc.py"
_ARGUMENTS: Final = "--output_dir out --max_steps 4 --per_device_train_batch_size 1 --bf16 --report_to none --save_strategy no"
_LAYERS: Final = '\'{{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}\''

_DS: Final = "deepspeed --num_nodes {nodes} --num_gpus {local} ds.py --deepspeed_config"
_TRAIN: Final = f"{_TORCHRUN} trainer.py {_ARGUMENTS}"
_FSDP: Final = f"{_TRAIN} --fsdp 'full_shard auto_wrap' --fsdp_config {_LAYERS}"
_LIGHT: Final = f"{_TORCHRUN} light.py {{strategy}} {{local}} {{nodes}}"


def _light(strategy: str) -> str:
    return _LIGHT.replace("{strategy}", strategy)


JOBS: Final = (
    Job("PyTorch FSDP2", f"{_TORCHRUN} fsdp2.py", (8,), _sharded),
    Job("DeepSpeed ZeRO-1", f"{_DS} z1.json", (8, 2, 64), _zero1),
    Job("DeepSpeed ZeRO-2", f"{_DS} z2.json", (8, 2, 64), _zero2),
    Job("DeepSpeed ZeRO-3, zero.Init", f"{_DS} z3.json --init", (8, 2, 64, 1024), _sharded),
    Job("DeepSpeed ZeRO-1, optimizer offloaded", f"{_TORCHRUN} ds.py --deepspeed_config z1o.json", (8,), _zero1_offloaded),
    Job("accelerate, DDP", f"{_LAUNCH} --multi_gpu acc.py", (8,), _replicated),
    Job("accelerate, FSDP1", f"{_LAUNCH} --use_fsdp {_WRAP}", (8,), _sharded),
    Job("accelerate, FSDP2", f"{_LAUNCH} --use_fsdp --fsdp_version 2 {_WRAP}", (8,), _sharded),
    Job("accelerate, DeepSpeed ZeRO-2", f"{_LAUNCH} --use_deepspeed --zero_stage 2 acc.py", (8,), _zero2),
    Job("Trainer, DDP", _TRAIN, (8,), _replicated),
    Job("Trainer, FSDP", _FSDP, (8,), _sharded),
    Job("Trainer, DeepSpeed ZeRO-2", f"{_TRAIN} --deepspeed auto2.json", (8,), _zero2),
    Job("Trainer, DeepSpeed ZeRO-3", f"{_TRAIN} --deepspeed auto3.json", (8,), _sharded),
    Job("Lightning, ddp", _light("ddp"), (8,), _replicated),
    Job("Lightning, ddp, unused found", _light("ddp_find_unused_parameters_true"), (8,), _replicated),
    Job("Lightning, fsdp", _light("fsdp"), (8,), _sharded),
    Job("Lightning, deepspeed_stage_2", _light("deepspeed_stage_2"), (8,), _zero2),
    Job("Megatron-core, tensor 2 x pipeline 2", f"{_TORCHRUN} megatron_gpt.py", (8, 64), _megatron),
    Job("DeepSpeed ZeRO-3, both offloaded", f"{_TORCHRUN} ds.py --init --deepspeed_config z3op.json", (8,), _nothing),
)
