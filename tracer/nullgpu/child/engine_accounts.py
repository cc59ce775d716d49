"""The accounts of vLLM's engine, read from its objects: what it measured, and how it divided the card.

Before it measures, the null GPU takes the memory that a card's driver would (`hardware/engine_memory.py`). The accounts are
noted in the process that has the card: the engine's own one, unless the script runs it in its process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.hardware.engine_memory import engine_memory
from vramcast.tracer.hooks.replacement import replace_when_imported

# spec: vLLM 0.22, with its V1 engine.
_ENGINE: Final = "vllm.v1.engine.core"
_CACHE: Final = "vllm.v1.core.kv_cache_utils"
_WORKER: Final = "vllm.v1.worker.gpu_worker"


@contextmanager
def noted(accounts: dict[str, Any], card: str, set_driver: Callable[[int, int, int], None]) -> Iterator[None]:
    """Note an engine's accounts inside, under the names of the answer's JSON; a value that it does not tell stays out.

    Args:
        accounts: Receives them.
        card: The card's name in torch.
        set_driver: Takes the driver's memory: `NullGpu.set_driver`.
    """

    def profiled(measure: Callable[[Any], int]) -> Callable[[Any], int]:
        def determine_available_memory(worker: Any) -> int:
            version, ranks = sys.modules["vllm"].__version__, worker.vllm_config.parallel_config
            outside = engine_memory(version, card, tensor=ranks.tensor_parallel_size, pipeline=ranks.pipeline_parallel_size)
            set_driver(outside.non_torch_bytes, outside.graph_bytes, outside.node_bytes)
            available = measure(worker)
            accounts.update(engine="vllm", version=version)
            accounts.update(outside_less_bytes=outside.less_bytes, outside_more_bytes=outside.more_bytes)
            accounts["ranks_alike"] = ranks.pipeline_parallel_size == 1 and not ranks.enable_expert_parallel
            accounts["weights_bytes"] = int(worker.model_runner.model_memory_usage)
            for ours, theirs in {"activation_bytes": "peak_activation_memory", "non_torch_bytes": "non_torch_memory"}.items():
                if hasattr(worker, theirs):  # not if the user sets the size of the KV cache
                    accounts[ours] = int(getattr(worker, theirs))
            return available

        return determine_available_memory

    def divided(divide: Callable[..., Any]) -> Callable[..., Any]:
        def get_kv_cache_configs(config: Any, specs: Any, available: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                found = divide(config, specs, available, *args, **kwargs)
            except ValueError as error:  # its check of the least cache
                accounts.update(starts=False, reason=str(error))
                with contextlib.suppress(Exception):  # another version's: then the text alone says it
                    wanted = sys.modules[_CACHE].max_memory_usage_bytes(config, specs[0].values())
                    accounts["missing_bytes"] = max(int(wanted) - max(int(available[0]), 0), 0)
                raise
            requests = sys.modules[_CACHE].get_max_concurrency_for_kv_cache_config(config, found[0])
            accounts["kv_cache_bytes"] = sum(int(tensor.size) for tensor in found[0].kv_cache_tensors)
            accounts["kv_cache_tokens"] = int(requests * config.model_config.max_model_len)
            accounts["max_concurrency"] = float(requests)
            return found

        return get_kv_cache_configs

    def captured(warm_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def compile_or_warm_up_model(worker: Any) -> Any:
            runner, capture = worker.model_runner, worker.model_runner.capture_model
            accounts["graphs_bytes"] = 0

            def capture_model() -> int:
                accounts["graphs_bytes"] = int(capture())
                return int(accounts["graphs_bytes"])

            runner.capture_model = capture_model
            try:
                result = warm_up(worker)
            finally:
                del runner.capture_model
            accounts["starts"] = True
            return result

        return compile_or_warm_up_model

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _WORKER, "Worker.determine_available_memory", profiled)
        replace_when_imported(stack, _WORKER, "Worker.compile_or_warm_up_model", captured)
        replace_when_imported(stack, _ENGINE, "get_kv_cache_configs", divided)
        yield
