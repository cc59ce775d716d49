"""A model on one rank of many, in the usual form: `DistributedDataParallel`, or FSDP2's `fully_shard`, block by block.

Blocks are found by one rule. A block is a child of a `ModuleList`, `ModuleDict` or `Sequential` that has another child of the
same class. It has parameters, is not such a container itself, and lies in no other block: the layers of a transformer, the
bottlenecks of a ResNet. Modules outside all blocks (embeddings, the head) are sharded with the model, as a whole.
"""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.jobs.job import Job
from vramcast.jobs.parallel import Parallel
from vramcast.jobs.ranks import Rank
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program import model_program

_CONTAINERS: Final = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_SHOWN: Final = 200  # arbitrary: characters of PyTorch's own message


def run(job: Job, parallel: Parallel, rank: Rank, device: torch.device, say: Callable[[str], None]) -> Inputs | None:
    """Run a job as one of its ranks; see `step.run`.

    Args:
        job: The job.
        parallel: Its parallelism.
        rank: The rank of this process.
        device: Its card.
        say: Receives notes for the reader of the estimate.
    Returns:
        The inputs, as `model_program.run` returns them.
    Raises:
        UsageError: Its optimizer cannot step on shards; see also `step.run`.
    """
    try:
        hooks = model_program.Hooks(to_ranks=functools.partial(_spread, job, parallel, rank, say))
        return model_program.run(job, device, hooks)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not parallel.is_sharded or not _is_of_optimizer(error):
            raise
        name = job.training.optimizer if isinstance(job.training.optimizer, str) else "you passed"
        raise UsageError(
            f"The optimizer {name} cannot step on sharded parameters under torch {torch.__version__} "
            f"({type(error).__name__}: {shorten(str(error), _SHOWN)}): choose another one, adamw for example, or parallel "
            "(--parallel) ddp."
        ) from error


def _is_of_optimizer(error: Exception) -> bool:
    """Return whether an exception comes from one of PyTorch's optimizers, and not from the model or its loss."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [at for at, file in enumerate(files) if file == Path(model_program.__file__)]
    return any(file.parent == Path(torch.optim.__file__).parent for file in files[ours[-1] if ours else 0 :])


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the blocks of a model; see the module."""
    classes = Counter(type(child) for child in model.children()) if isinstance(model, _CONTAINERS) else Counter[type]()
    for child in model.children():
        is_block = classes[type(child)] > 1 and not isinstance(child, _CONTAINERS)
        if is_block and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from blocks(child)


def _spread(
    job: Job, parallel: Parallel, rank: Rank, say: Callable[[str], None], model: torch.nn.Module, device: torch.device
) -> torch.nn.Module:
    """Return a model from the host on its card, spread over all ranks."""
    distributed: Any = torch.distributed
    torch.cuda.set_device(rank.local)
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=rank.number, world_size=rank.world.size)
    if parallel.kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model.to(device), device_ids=[rank.local])
    _shard(model, parallel, job.training.precision, say)
    return model


def _shard(model: torch.nn.Module, parallel: Parallel, precision: str, say: Callable[[str], None]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dims = {"replicate": parallel.replicas} if parallel.kind == "hsdp" else {}
    dims |= {"shard": parallel.shards}
    options: dict[str, Any] = {"mesh": init_device_mesh("cuda", tuple(dims.values()), mesh_dim_names=tuple(dims))}
    low = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(precision)
    if low is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    found = list(blocks(model))
    for block in found:
        fully_shard(block, **options)
    fully_shard(model, **options)
    if not found:
        say("the model has no repeated blocks (children of one class in a list) to shard separately: it is gathered as a whole")
