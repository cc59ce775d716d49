"""The accounts of vLLM's engine, read from its objects: what it measured, and how it divided the card.

Before it measures, the null GPU takes the memory that a card's driver would (`hardware/engine_memory.py`). The accounts are
noted in the process that has the card: the engine's own one, unless the script runs it in its process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.hardware.device import Device
from vramcast.hardware.engine_memory import engine_memory, stack_bytes
from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.hooks.tensors import tensors_in

# spec: vLLM 0.19 to 0.33, with its V1 engine.
_ENGINE: Final = "vllm.v1.engine.core"
_CACHE: Final = "vllm.v1.core.kv_cache_utils"
_SAMPLER: Final = "vllm.v1.sample.ops.topk_topp_sampler"
_SAMPLER_KERNEL: Final = "apply_top_k_top_p_triton"  # spec: vLLM 0.18 to 0.33; FlashInfer's may stand in for it
_SAMPLER_ROWS: Final = 8  # spec: the same; fewer rows are sorted
_WORKER: Final = "vllm.v1.worker.gpu_worker"
_ANY_LENGTH: Final = 1 << 32  # arbitrary: longer than any context
_ANY_SIZE: Final = 1 << 50  # arbitrary: larger than any cache


@contextmanager
def noted(
    accounts: dict[str, Any],
    card: Device,
    set_driver: Callable[[int, int, int], None],
    note_kv_cache: Callable[[list[Any]], None] = lambda _: None,
) -> Iterator[None]:
    """Note an engine's accounts inside, under the names of the answer's JSON; a value that it does not tell stays out.

    Args:
        accounts: Receives them.
        card: The card.
        set_driver: Takes the driver's memory: `NullGpu.set_driver`.
        note_kv_cache: Receives the tensors of the KV cache.
    """

    refusals: list[str] = []
    graphs = (0, 0)  # bytes of a graph and of a node
    longest = 0  # stack for the sampler so far

    def profiled(measure: Callable[[Any], int]) -> Callable[[Any], int]:
        def determine_available_memory(worker: Any) -> int:
            nonlocal graphs
            version, ranks = sys.modules["vllm"].__version__, worker.vllm_config.parallel_config
            tensor, pipeline = ranks.tensor_parallel_size, ranks.pipeline_parallel_size
            outside = engine_memory(version, card.name, tensor=tensor, pipeline=pipeline)
            graphs = outside.graph_bytes, outside.node_bytes
            set_driver(outside.non_torch_bytes, *graphs)
            available = measure(worker)
            accounts.update(engine="vllm", version=version)
            accounts.update(outside_less_bytes=outside.less_bytes, outside_more_bytes=outside.more_bytes)
            accounts.update(tensor_parallel=tensor, pipeline_parallel=pipeline)
            accounts["available_bytes"] = int(available)
            weights_bytes = int(worker.model_runner.model_memory_usage)
            if hasattr(worker, "total_consumed"):  # later than vLLM 0.22, which logs both together
                worker.non_torch_memory = worker.total_consumed - weights_bytes
            is_seen = not refusals and getattr(worker, "non_torch_memory", -1) >= 0
            if is_seen and _is_divided_by_share(worker.vllm_config):
                accounts["utilization"] = float(worker.vllm_config.cache_config.gpu_memory_utilization)
            accounts["ranks_alike"] = pipeline == 1 and not ranks.enable_expert_parallel
            accounts["weights_bytes"] = weights_bytes
            for ours, theirs in {"activation_bytes": "peak_activation_memory", "non_torch_bytes": "non_torch_memory"}.items():
                # Absent if the user sets the size of the KV cache; below 0 if the peak is more than the card has.
                if getattr(worker, theirs, -1) >= 0:
                    accounts[ours] = int(getattr(worker, theirs))
            return available

        return determine_available_memory

    def sampled(select: Callable[..., Any]) -> Callable[..., Any]:
        def apply_top_k_top_p(logits: Any, k: Any, p: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal longest
            rows, vocabulary = logits.shape
            has_kernel = _SAMPLER_KERNEL in vars(sys.modules[_SAMPLER]) and rows >= _SAMPLER_ROWS
            is_used = has_kernel and not (k is None and p is None)
            if is_used and (wanted := stack_bytes(card, vocabulary)) > longest:
                set_driver(wanted - longest, *graphs)
                longest = wanted
            return select(logits, k, p, *args, **kwargs)

        return apply_top_k_top_p

    def requested(request: Callable[..., int]) -> Callable[..., int]:
        def request_memory(snapshot: Any, *args: Any, **kwargs: Any) -> int:
            try:
                return request(snapshot, *args, **kwargs)
            except ValueError as error:  # more than is free: the engine goes on here until its peak is seen
                refusals.append(str(error))
                return int(snapshot.free_memory)

        return request_memory

    def divided(divide: Callable[..., Any]) -> Callable[..., Any]:
        def get_kv_cache_configs(config: Any, specs: Any, available: Any, *args: Any, **kwargs: Any) -> Any:
            if refusals:
                accounts.update(starts=False, reason=refusals[0])
                raise ValueError(refusals[0])
            room, asked = int(available[0]), int(config.model_config.max_model_len)
            starts = _starting(config, lambda size: divide(config, specs, [size] * len(specs), *args, **kwargs))
            try:
                found = divide(config, specs, available, *args, **kwargs)
            except ValueError as error:  # its check of the least cache
                accounts.update(starts=False, reason=str(error))
                request_bytes = bisect_left(range(_ANY_SIZE), True, key=lambda size: starts(asked, size))
                accounts.update(request_bytes=request_bytes, context_tokens=asked, **_longest(starts, room))
                accounts["missing_bytes"] = request_bytes - max(room, 0)
                raise
            requests = sys.modules[_CACHE].get_max_concurrency_for_kv_cache_config(config, found[0])
            tensors = found[0].kv_cache_tensors
            # Parts of one block have the size of the whole: packed ones in vLLM 0.25, all in 0.33.
            are_views = any(getattr(tensor, "block_stride", 0) for tensor in tensors)
            cache_bytes = int((max if are_views else sum)(tensor.size for tensor in tensors))
            accounts["kv_cache_bytes"] = cache_bytes
            accounts["kv_cache_tokens"] = int(requests * config.model_config.max_model_len)
            accounts["max_concurrency"] = float(requests)
            accounts.update(request_bytes=math.ceil(cache_bytes / requests), context_tokens=config.model_config.max_model_len)
            accounts.update(_longest(starts, room))
            return found

        return get_kv_cache_configs

    def captured(warm_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def compile_or_warm_up_model(worker: Any) -> Any:
            runner, capture = worker.model_runner, worker.model_runner.capture_model

            def capture_model() -> int:
                accounts["graphs_bytes"] = int(capture())
                return int(accounts["graphs_bytes"])

            runner.capture_model = capture_model
            try:
                result = warm_up(worker)
            finally:
                del runner.capture_model
            accounts.setdefault("graphs_bytes", 0)
            accounts["starts"] = True
            return result

        return compile_or_warm_up_model

    def reserved(make: Callable[..., Any]) -> Callable[..., Any]:
        def initialize_from_config(worker: Any, *args: Any, **kwargs: Any) -> Any:
            result = make(worker, *args, **kwargs)
            note_kv_cache(tensors_in(getattr(worker.model_runner, "kv_caches", ())))
            return result

        return initialize_from_config

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _WORKER, "Worker.initialize_from_config", reserved)
        replace_when_imported(stack, _WORKER, "request_memory", requested, if_there=True)  # vLLM 0.11 has none
        replace_when_imported(stack, _WORKER, "Worker.determine_available_memory", profiled)
        replace_when_imported(stack, _WORKER, "Worker.compile_or_warm_up_model", captured)
        replace_when_imported(stack, _SAMPLER, "apply_top_k_top_p", sampled)
        replace_when_imported(stack, _ENGINE, "get_kv_cache_configs", divided)
        yield


def _starting(config: Any, divide: Callable[[int], Any]) -> Callable[[int, int], bool]:
    """Return a function that tells by an engine's own check whether it starts with a context and a size of the KV cache."""
    model = config.model_config

    def starts(tokens: int, size_bytes: int) -> bool:
        said, quiet = (model.max_model_len, model.original_max_model_len), logging.root.manager.disable
        model.max_model_len = model.original_max_model_len = tokens
        logging.disable()  # the engine logs each division
        try:
            divide(size_bytes)
        except ValueError:
            return False
        finally:
            model.max_model_len, model.original_max_model_len = said
            logging.disable(quiet)
        return True

    return starts


def _longest(starts: Callable[[int, int], bool], room: int) -> dict[str, int]:
    """Return the longest context of one request that a cache holds; the engine's own search ends at the context asked for."""
    longest = bisect_left(range(1, _ANY_LENGTH), True, key=lambda tokens: not starts(tokens, room))
    return {"max_context": longest} if 0 < longest < _ANY_LENGTH - 1 else {}  # a sliding window's cache holds any length


def _is_divided_by_share(config: Any) -> bool:
    """Return whether only the cache changes with the size of the card.

    The user may set the cache itself, or let the engine choose the context. The kernels of experts are tuned by card name.
    """
    cache, model = config.cache_config, config.model_config
    is_set = cache.kv_cache_memory_bytes or cache.num_gpu_blocks_override
    return not is_set and model.original_max_model_len != -1 and not getattr(model, "is_moe", True)
