"""Jobs of several ranks as short scripts, one for each way in which PyTorch distributes a model.

Each text follows `HEAD`, for a world of 8, 16, 24 ... ranks.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


def mlp(width=1024, layers=8):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).cuda()


def train(model, optimizer=None, width=1024):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_FSDP1: Final = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
_FSDP2: Final = """
from torch.distributed.fsdp import fully_shard
def shard(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)
"""
_PIPELINE: Final = """
import torch.distributed.pipelining as pp
from torch.distributed.pipelining import schedules
mesh = init_device_mesh("cuda", (4, world // 4), mesh_dim_names=("pp", "dp"))
place, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
def stages(turns, is_v=False):
    parts = [mlp(layers=3 if place == 1 else 2) for _ in range(turns)]
    numbers = [place + 4 * turn if not (is_v and turn) else 7 - place for turn in range(turns)]
    device = torch.device("cuda")
    return [pp.PipelineStage(one, number, 4 * turns, device, group=group) for one, number in zip(parts, numbers)]
def run(schedule, parts):
    optimizer = torch.optim.AdamW([p for part in parts for p in part.submod.parameters()])
    for _ in range(3):
        whole = torch.randn(64, 1024, device="cuda")
        given = [whole] if any(part.is_first for part in parts) else []
        wanted = dict(target=whole, losses=[]) if any(part.is_last for part in parts) else {}
        schedule.step(*given, **wanted)
        optimizer.step()
        optimizer.zero_grad()
loss = lambda out, wanted: (out - wanted).pow(2).mean()
"""
_CONVOLUTIONS: Final = """
net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 900, 10)).cuda()
def images(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.randn(16, 3, 32, 32, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_TRANSFORMER: Final = """
class Attention(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
    def forward(self, x):
        parts = [one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1)]
        y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))
"""
_PARALLEL: Final = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def split(model, mesh):
    styles = {str(n): ColwiseParallel() if n % 2 == 0 else RowwiseParallel() for n in range(len(model))}
    return parallelize_module(model, mesh, styles)
"""
JOBS: Final = {
    "DDP": "train(nn.parallel.DistributedDataParallel(mlp()))",
    "DDP, ZeroRedundancyOptimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(mlp(layers=9))
train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))
""",
    "FSDP1, FULL_SHARD": _FSDP1 + "train(FSDP(mlp(), use_orig_params=True))",
    "FSDP1, SHARD_GRAD_OP": _FSDP1 + "train(FSDP(mlp(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))",
    "FSDP2": _FSDP2 + "train(shard(mlp()))",
    "FSDP2, uneven shards": _FSDP2 + "train(shard(mlp(1001)), width=1001)",
    "HSDP 2 x": _FSDP2 + """
train(shard(mlp(), mesh=init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))))
""",
    "tensor parallel 4 x FSDP2": _FSDP2 + _PARALLEL + """
mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
train(shard(split(mlp(), mesh["tp"]), mesh=mesh["dp"]))
""",
    "pipeline of 4, two copies, 1F1B": _PIPELINE + "parts = stages(1)\nrun(pp.Schedule1F1B(parts[0], 8, loss_fn=loss), parts)",
    "pipeline of 4, two copies, interleaved": _PIPELINE + """
parts = stages(2)
run(pp.ScheduleInterleaved1F1B(parts, 8, loss_fn=loss), parts)
""",
    "DDP, gradients as views of buckets": "train(nn.parallel.DistributedDataParallel(mlp(), gradient_as_bucket_view=True))",
    "DDP, static graph": "train(nn.parallel.DistributedDataParallel(mlp(), static_graph=True))",
    "DDP, unused parameters": """
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = mlp(layers=2), mlp(layers=2)
    def forward(self, x):
        return self.used(x)
train(nn.parallel.DistributedDataParallel(Half(), find_unused_parameters=True))
""",
    "DDP, hook of bf16": """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
model = nn.parallel.DistributedDataParallel(mlp())
model.register_comm_hook(None, bf16_compress_hook)
train(model)
""",
    "DDP, hook PowerSGD": """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
model = nn.parallel.DistributedDataParallel(mlp())
model.register_comm_hook(power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), power.powerSGD_hook)
train(model)
""",
    "DDP, SyncBatchNorm": _CONVOLUTIONS
    + "images(nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net)))",
    "DDP, join": """
from torch.distributed.algorithms.join import Join
model = nn.parallel.DistributedDataParallel(mlp())
with Join([model]):
    train(model)
""",
    "DDP, no_sync": """
model = nn.parallel.DistributedDataParallel(mlp())
with model.no_sync():
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
train(model)
""",
    "FSDP1, NO_SHARD": _FSDP1 + "train(FSDP(mlp(), sharding_strategy=ShardingStrategy.NO_SHARD))",
    "FSDP1, HYBRID_SHARD 2 x": _FSDP1 + """
mesh = init_device_mesh("cuda", (2, world // 2))
train(FSDP(mlp(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh))
""",
    "FSDP1, _HYBRID_SHARD_ZERO2 2 x": _FSDP1 + """
mesh = init_device_mesh("cuda", (2, world // 2))
train(FSDP(mlp(), sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_mesh=mesh))
""",
    "FSDP1, mixed precision": _FSDP1 + """
from torch.distributed.fsdp import MixedPrecision
kept = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
train(FSDP(mlp(), mixed_precision=kept))
""",
    "FSDP1, offloaded": _FSDP1 + """
from torch.distributed.fsdp import CPUOffload
train(FSDP(mlp(), cpu_offload=CPUOffload(offload_params=True)))
""",
    "FSDP2, kept gathered": _FSDP2 + "train(shard(mlp(), reshard_after_forward=False))",
    "FSDP2, resharded to 2 x": _FSDP2 + "train(shard(mlp(), reshard_after_forward=2))",
    "FSDP2, mixed precision": _FSDP2 + """
from torch.distributed.fsdp import MixedPrecisionPolicy
train(shard(mlp(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))
""",
    "FSDP2, offloaded": _FSDP2 + """
from torch.distributed.fsdp import CPUOffloadPolicy
train(shard(mlp(), offload_policy=CPUOffloadPolicy()))
""",
    "FSDP2, checkpointed blocks": _FSDP2 + """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
train(shard(nn.Sequential(*[checkpoint_wrapper(mlp(layers=2)) for _ in range(4)])))
""",
    "FSDP2, clipped, state saved asynchronously": _FSDP2 + """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
model = shard(mlp())
optimizer = torch.optim.AdamW(model.parameters())
train(model, optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
parts, states = get_state_dict(model, optimizer)
group = dist.new_group(backend="gloo")
dcp.async_save({"model": parts, "optimizer": states}, checkpoint_id="saved", process_group=group).result()
""",
    "tensor and sequence parallel": _TRANSFORMER + """
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
mesh = init_device_mesh("cuda", (world,))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.Linear(4096, 1024)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(8192, 1024), nn.Sequential(Block(), Block()), nn.Linear(1024, 8192)
    def forward(self, x):
        return self.head(self.blocks(self.words(x)))
model = Words().cuda()
parallelize_module(model, mesh, {
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
})
for block in model.blocks:
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    })
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    words = torch.randint(8192, (2, 1024), device="cuda")
    with loss_parallel():
        nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "context parallel 8": _TRANSFORMER + """
from torch.distributed.tensor.experimental import context_parallel
mesh = init_device_mesh("cuda", (world // 8, 8), mesh_dim_names=("dp", "cp"))["cp"]
model = nn.Sequential(Attention(), Attention()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    x = torch.randn(1, 512, 512, device="cuda")
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "pipeline of 4, GPipe": _PIPELINE + "parts = stages(1)\nrun(pp.ScheduleGPipe(parts[0], 8, loss_fn=loss), parts)",
    "pipeline of 4, looped": _PIPELINE + "parts = stages(2)\nrun(pp.ScheduleLoopedBFS(parts, 8, loss_fn=loss), parts)",
    "pipeline of 4, zero-bubble": _PIPELINE
    + "parts = stages(2)\nrun(schedules.ScheduleInterleavedZeroBubble(parts, 8, loss_fn=loss), parts)",
    "pipeline of 4, zero-bubble as a V": _PIPELINE
    + "parts = stages(2, is_v=True)\nrun(schedules.ScheduleZBVZeroBubble(parts, 8, loss_fn=loss), parts)",
    "pipeline of 4, dual as a V": _PIPELINE
    + "parts = stages(2, is_v=True)\nrun(schedules.ScheduleDualPipeV(parts, 8, loss_fn=loss), parts)",
    "experts on all ranks": """
import torch.distributed._functional_collectives as funcol
class Experts(nn.Module):
    def __init__(self, width=512, own=2):
        super().__init__()
        self.own, self.gate = own, nn.Linear(width, own * world)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(own)])
    def forward(self, x):
        chosen = self.gate(x).topk(2, -1).indices.flatten()
        order = chosen.argsort()
        sent = torch.bincount(chosen, minlength=self.own * world)
        received = funcol.all_to_all_single(sent, None, None, dist.group.WORLD)
        gave, got = sent.view(world, -1).sum(1).tolist(), received.view(world, -1).sum(1).tolist()
        tokens = funcol.all_to_all_single_autograd(x[order // 2], got, gave, dist.group.WORLD)
        tokens = torch.cat([expert(part) for expert, part in zip(self.experts, tokens.chunk(self.own))])
        back = funcol.all_to_all_single_autograd(tokens, gave, got, dist.group.WORLD)
        return x.index_add(0, order // 2, back)
train(Experts().cuda(), width=512)
""",
}  # fmt: skip
# In these, every rank is traced and compared with `--ranks auto`.
ALIKE: Final = tuple(JOBS)[:10]
