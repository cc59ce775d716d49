"""One rank of a serving engine: vLLM's workers for the other cards are absent.

vLLM starts a process for each card. Here the engine's own process is the traced rank, as under vLLM's external launcher, and
starts no others. The first rank writes objects to a ring in shared memory, and does not wait here for its absent readers. A
stage of a pipeline does not warm up its kernels, which needs the others' tensors; by then the engine has divided the card.
vLLM's all-reduce over peer memory needs handles of the others: NCCL's takes its place, as between cards without NVLink, and
its own buffers are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.jobs.ranks import World
from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.hooks.torch_api import VLLM_PEER_CHECK

# spec: vLLM 0.11 to 0.33.
_ARGUMENTS: Final = "vllm.engine.arg_utils"
_QUEUES: Final = "vllm.distributed.device_communicators.shm_broadcast"
_ALL_REDUCE: Final = "vllm.distributed.device_communicators.custom_all_reduce"
_WARM_UP: Final = "vllm.v1.worker.gpu.warmup"
_LAUNCHER: Final = "external_launcher"


class _Unread:
    """A queue with absent readers."""

    def broadcast_object(self, obj: Any = None) -> Any:
        return obj

    def enqueue(self, obj: Any, timeout: float | None = None) -> None: ...

    def wait_until_ready(self) -> None: ...

    def shutdown(self) -> None: ...


@contextmanager
def one_rank(world: World) -> Iterator[None]:
    """Let an engine be one rank of many inside.

    Args:
        world: All ranks of the job.
    """

    def in_this_process(create: Callable[..., Any]) -> Callable[..., Any]:
        def create_engine_config(arguments: Any, *args: Any, **kwargs: Any) -> Any:
            ranks = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
            if arguments.data_parallel_size > 1:
                raise CannotEstimate(
                    "vLLM's data parallel engines are not supported: ask for one of them, without --data-parallel-size; the "
                    "others take as much, unless the model has experts."
                )
            if ranks != world.size:
                raise UsageError(
                    f"vLLM needs {ranks} ranks (tensor parallel size x pipeline parallel size), and the job has {world.size}: "
                    f"add --world-size {ranks}."
                )
            if world.size > 1:
                arguments.distributed_executor_backend = _LAUNCHER
            return create(arguments, *args, **kwargs)

        return create_engine_config

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _ARGUMENTS, "EngineArgs.create_engine_config", in_this_process)
        if world.size > 1:
            unread = lambda _: lambda *_, **__: _Unread()  # noqa: E731
            replace_when_imported(stack, _QUEUES, "MessageQueue.create_from_process_group", unread)
            replace_when_imported(stack, _WARM_UP, "warmup_kernels", _except_stages)
            replace_when_imported(stack, _ALL_REDUCE, VLLM_PEER_CHECK, lambda _: lambda *_, **__: False)
        yield


def _except_stages(warm_up: Callable[..., None]) -> Callable[..., None]:
    def warmup_kernels(runner: Any, *args: Any) -> None:
        if runner.vllm_config.parallel_config.pipeline_parallel_size == 1:
            warm_up(runner, *args)

    return warmup_kernels
