"""Table of all private PyTorch names that vramcast uses: their places, the releases that have them, and their users.

    from vramcast.tracer.hooks.torch_api import tree_map, current_autograd_node      # where the module needs torch anyway
    torch_api.current_autograd_node()                                          # where torch is imported late
    for owner, name in places("empty_cache"): setattr(owner, name, ...)        # names replaced while a job runs

Nothing here imports torch: a name is looked up at its first use. A name that the installed torch lacks raises
`NullGpuError` with its path and its user; `python -m benchmarks.new_torch` prints all of them for a new release, and a test
fails if another module of the product uses one. Not in the table: operators (`torch.ops.aten._softmax`), which are part of
ATen's schema, and names without an underscore in modules without one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vramcast.core.errors import NullGpuError
from vramcast.core.releases import INSTALL, SEEN

if TYPE_CHECKING:  # names with useful types; the rest is Any, from `__getattr__`
    from torch._prims_common import suggest_memory_format as suggest_memory_format
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only
    from torch.utils._pytree import tree_unflatten as tree_unflatten


@dataclass(frozen=True, slots=True)
class Name:
    """One private name of PyTorch.

    Attributes:
        paths: `module:attribute`, newest first; the first that exists is taken. An empty attribute is the module.
        needed_by: The feature that does not work without it.
        since: First release with the name, under any of its paths.
        cuda: Whether a CPU-only build lacks it.
    """

    paths: tuple[str, ...]
    needed_by: str
    since: tuple[int, int] = SEEN[0]
    cuda: bool = False


def _of(module: str, needed_by: str, **names: str) -> dict[str, Name]:
    return {ours: Name((f"{module}:{theirs}",), needed_by) for ours, theirs in names.items()}


# Names compared as text: modules that a job may import, and parts of its objects that not every release has.
DYNAMO: Final = "torch._dynamo"
DYNAMO_ANSWER: Final = (
    "__dynamo_disable"  # spec: torch 2.11, torch/_compile.py, an attribute of functions that are not compiled
)
COMPILED_AHEAD: Final = f"{DYNAMO}.aot_compile"
DYNAMO_DISABLED: Final = "_torchdynamo_disable"  # spec: torch 2.11, torch/_dynamo/eval_frame.py, the same of their wrappers
DYNAMO_INLINED: Final = "_torchdynamo_inline"  # spec: the same; the function in place of which a compiled one stands
INDUCTOR: Final = "torch._inductor"
INDUCTOR_CONFIG: Final = f"{INDUCTOR}.config"
COMPILE_WORKER: Final = "torch/_inductor/compile_worker"  # part of a command line
OPERATORS: Final = "torch._ops"
VLLM_PEER_CHECK: Final = "_can_p2p"  # spec: vLLM 0.11 to 0.33, custom_all_reduce: whether cards reach each other's memory
TENSOR_FILES: Final = ("torch/_tensor.py", "torch/overrides.py")  # between a job's line and a call of a tensor
CHART_POINTS: Final = "torch/utils/tensorboard/_convert_np.py"  # makes a plain number of each point
CHECKS_GRADIENTS: Final = "_amp_foreach_non_finite_check_and_unscale_"  # records whether any gradient is not finite
SYMMETRIC_MEMORY: Final = "torch.distributed._symmetric_memory"
FAKE_GROUP_MAKER: Final = "_create_internal"
FSDP2_SHARDS: Final = "torch.distributed.fsdp._fully_shard._fsdp_param"
# spec: torch 2.6 to 2.11, torch/distributed/fsdp/_flat_param.py (FSDP1)
FSDP1_WRAPPED: Final = "_fsdp_wrapped_module"
FSDP1_FLAT: Final = "_flat_param"
FSDP1_FLATTENED: Final = "_fsdp_flattened"
FSDP1_FULL_SIZE: Final = "_unpadded_unsharded_size"
FSDP1_SHARD: Final = "_local_shard"
# spec: torch 2.6 to 2.15, torch/utils/data/dataloader.py, attributes of the iterators of data loaders
LOADER_SAMPLER: Final = "_sampler_iter"
LOADER_INDICES: Final = "_index_sampler"
LOADER_FETCHER: Final = "_dataset_fetcher"
LOADER_AHEAD: Final = "_prefetch_factor"
LOADER_COLLATION: Final = "_collate_fn"
LOADER_DATA: Final = "_dataset"
DTENSOR_HERE: Final = "_local_tensor"
MODULE_CALLS: Final = ("_call_impl", "_wrapped_call_impl")  # spec: torch 1.12 to 2.15, torch/nn/modules/module.py
COMPILED_FROM: Final = "_orig_mod"  # spec: torch/_dynamo/eval_frame.py, the module of a compiled one
UNPREPARED_FORWARD: Final = "_original_forward"  # spec: accelerate 1.15, Accelerator.prepare_model

# The first exists since 2.10, the second in 2.6 and 2.9.
_SETTERS: Final = ("torch._C:_accelerator_setAllocatorSettings", "torch._C:_cuda_cudaCachingAllocator_set_allocator_settings")
# The first of each exists since 2.9, the second in 2.6.
_BEGIN_POOL: Final = ("torch._C:_cuda_beginAllocateCurrentThreadToPool", "torch._C:_cuda_beginAllocateToPool")
_END_POOL: Final = ("torch._C:_cuda_endAllocateToPool", "torch._C:_cuda_endAllocateCurrentStreamToPool")
_EVENTS: Final = "operators and modules of a trace"
_FAKE: Final = "the fake tracer"
_RAW: Final = "torch's own allocator, driven alone"
_BARE: Final = "jobs that compile: large kernels without their bodies"
_RANKS: Final = "jobs of several ranks"

# Names that are read or called.
NAMES: Final[dict[str, Name]] = {
    **_of(
        "torch.utils._pytree",
        "every tracer: tensors inside tuples and dicts",
        tree_flatten="tree_flatten",
        tree_leaves="tree_leaves",
        tree_map="tree_map",
        tree_map_only="tree_map_only",
        tree_unflatten="tree_unflatten",
    ),
    **_of(
        "torch.utils._python_dispatch",
        "models without weights, the portable tracers, tracing of values",
        TorchDispatchMode="TorchDispatchMode",
        disable_current_modes="_disable_current_modes",
    ),
    **_of("torch._prims_common", "convolutions' layouts", suggest_memory_format="suggest_memory_format"),
    **_of(
        "torch._C",
        _EVENTS,
        RecordFunctionFast="_profiler._RecordFunctionFast",
        enable_record_function="_autograd._enable_record_function",
        EventType="_profiler._EventType",
        current_autograd_node="_current_autograd_node",
        current_graph_task_id="_current_graph_task_id",
        sequence_number="_autograd._get_sequence_nr",
        schemas_of_operator="_jit_get_schemas_for_operator",
    ),
    **_of("torch.cuda", "the null GPU: hooks for the first use of CUDA", lazy_call="_lazy_call"),
    **_of("torch.cuda", "the null GPU: kernels of libraries that are left out", launch_kernel="_sleep"),
    **_of(
        "torch.cuda.memory",
        "the null GPU: the allocator's history",
        record_memory_history="_record_memory_history",
        memory_snapshot="_snapshot",
    ),
    "set_allocator_settings": Name(_SETTERS, "a job's allocator settings"),
    "begin_pool": Name(_BEGIN_POOL, _RAW, cuda=True),
    "end_pool": Name(_END_POOL, _RAW, cuda=True),
    "release_pool": Name(("torch._C:_cuda_releasePool",), _RAW, cuda=True),
    "cuda_arch_flags": Name(("torch._C:_cuda_getArchFlags",), "the null GPU: the cards for which torch has kernels", cuda=True),
    **_of(
        "torch._C",
        "convolution workspaces of the portable tracers",
        cudnn_enabled="_get_cudnn_enabled",
        cudnn_benchmark="_get_cudnn_benchmark",
        cudnn_deterministic="_get_cudnn_deterministic",
        cudnn_allow_tf32="_get_cudnn_allow_tf32",
    ),
    "set_cudnn_enabled": Name(("torch._C:_set_cudnn_enabled",), "the null GPU: convolutions as in torch 2.9"),
    **_of(
        "torch._C",
        "the portable tracers",
        DispatchKey="DispatchKey",
        DispatchKeySet="DispatchKeySet",
        ExcludeDispatchKeyGuard="_ExcludeDispatchKeyGuard",
        PreserveDispatchKeyGuard="_PreserveDispatchKeyGuard",
        DisableTorchDispatch="_DisableTorchDispatch",
        DisableTorchFunction="DisableTorchFunction",
        disabled_torch_function="_disabled_torch_function_impl",
        include_meta="_set_meta_in_tls_dispatch_include",
        set_only_lift_cpu_tensors="_set_only_lift_cpu_tensors",
        all_operator_names="_dispatch_get_all_op_names",
        has_kernel="_dispatch_has_kernel_for_dispatch_key",
        storage_use_count="_storage_Use_Count",
    ),
    "fused_rms_norm": Name(("torch:_fused_rms_norm",), "the portable tracers' RMSNorm; before, a composite", since=(2, 9)),
    **_of("torch._dynamo.eval_frame", _FAKE, OptimizedModule="OptimizedModule"),
    **_of("torch.optim.optimizer", _FAKE, foreach_types_of_optimizers="_foreach_supported_types"),
    **_of("torch.utils._foreach_utils", _FAKE, foreach_types_of_gradients="_foreach_supported_types"),
    **_of("torch.utils._device", "tracing of values", device_constructors="_device_constructors", default_device=""),
    **_of("torch.overrides", "tracing of values", function_modes="_get_current_function_mode_stack"),
    **_of(
        "torch._C",
        "tracing of values",
        functorch_level="_functorch.peek_interpreter_stack",
        n_dispatch_modes="_len_torch_dispatch_stack",
        dispatch_mode="_get_dispatch_mode",
        DispatchModeKey="_TorchDispatchModeKey",
    ),
    **_of(
        "torch.nn.modules.module",
        "jobs that compile: no warning about our hooks",
        global_forward_hooks="_global_forward_hooks",
        global_forward_pre_hooks="_global_forward_pre_hooks",
        global_backward_hooks="_global_backward_hooks",
        global_backward_pre_hooks="_global_backward_pre_hooks",
    ),
    "FakeProcessGroup": Name(("torch._C._distributed_c10d:FakeProcessGroup",), _RANKS),
    **_of("torch.distributed.rendezvous", _RANKS, rendezvous="", rendezvous_handlers="_rendezvous_handlers"),
    **_of("torch.distributed.distributed_c10d", _RANKS, c10d="", group_of_name="_resolve_process_group"),
    "FileSystemWriter": Name(("torch.distributed.checkpoint.filesystem:_FileSystemWriter",), _RANKS),
    "FileSystemReader": Name(("torch.distributed.checkpoint.filesystem:FileSystemReader",), _RANKS),
    "DistWrapper": Name(("torch.distributed.checkpoint.utils:_DistWrapper",), _RANKS),
    **_of("torch._inductor", "jobs that compile: no cached choice of a benchmark", inductor_config="config"),
    **_of("torch._functorch.config", "jobs that compile: a graph that is not kept is compiled again", functorch_config=""),
    **_of("torch._dynamo.config", "jobs that compile: a graph that is not kept is compiled again", dynamo_config=""),
    "compiled_artifacts": Name(
        ("torch.compiler._cache:CacheArtifactManager",), "jobs that compile: one result of each compilation", since=(2, 9)
    ),
    "triton_ir": Name(("triton._C.libtriton:ir",), _BARE, cuda=True),
    "triton_backends": Name(("triton.backends:backends",), _BARE, cuda=True),
}  # fmt: skip

# Names replaced while a job runs: every path that exists. None need exist: then a job cannot call it either.
REPLACED: Final[dict[str, tuple[str, ...]]] = {
    "profiles": tuple(f"torch.autograd.profiler:_{verb}_profiler" for verb in ("prepare", "enable", "disable")),
    "inference_mode": ("torch._C:_InferenceMode",),
    "checkpointed": ("torch.utils.checkpoint:_checkpoint_without_reentrant_generator",),
    "tensor_of_storage": ("torch._utils:_rebuild_tensor",),
    "empty_cache": ("torch._C:_cuda_emptyCache", "torch._C:_accelerator_emptyCache"),
    "reset_statistics": (
        *("torch._C:_cuda_resetPeakMemoryStats", "torch._C:_accelerator_resetPeakStats"),
        *("torch._C:_cuda_resetAccumulatedMemoryStats", "torch._C:_accelerator_resetAccumulatedStats"),
    ),
    "memory_snapshot": ("torch.cuda.memory:_snapshot",),
    "record_memory_history": ("torch._C:_cuda_record_memory_history", "torch._C:_cuda_record_memory_history_legacy"),
    "set_allocator_settings": _SETTERS,
    "change_allocator": ("torch._C:_cuda_changeCurrentAllocator",),
    "foreach_devices_of_gradients": ("torch.utils._foreach_utils:_get_foreach_kernels_supported_devices",),
    "foreach_devices_of_optimizers": ("torch.optim.optimizer:_get_foreach_kernels_supported_devices",),
    "lazy_init": ("torch.cuda:_lazy_init",),
    "count_by_nvml": ("torch.cuda:_device_count_nvml",),
    "verify_shapes_across_ranks": ("torch.nn.parallel.distributed:_verify_param_shape_across_processes",),
    "cut_into_shards": (f"{FSDP2_SHARDS}:_chunk_with_empty",),
    "color_of_ranks": ("torch.distributed.distributed_c10d:_process_group_color",),
    "split_communicator": tuple(f"torch._C._distributed_c10d:{name}" for name in ("Backend.split", "ProcessGroup.split_group")),
    "share_among_ranks": (f"{SYMMETRIC_MEMORY}:enable_symm_mem_for_group",),
    "run_backward": ("torch.autograd:_engine_run_backward",),
    "begin_pass": ("torch.utils.data.dataloader:_BaseDataLoaderIter._reset",),
    "next_batch": ("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",),
    "load_batch": ("torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",),
    "wait_for_batch": ("torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._next_data",),
    # Of torch.compile.
    "run_compiled_ahead": (f"{COMPILED_AHEAD}:AOTCompiledFunction.__call__",),
    "inductor_read_choices": ("torch._inductor.codecache:CacheBase.get_local_cache",),
    "inductor_write_choices": ("torch._inductor.codecache:CacheBase.update_local_cache",),
    "inductor_save_graph": ("torch._inductor.codecache:FxGraphCache._save_graph",),
    "load_kept_graph": ("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load",),
    "tune_by_descent": ("torch._inductor.runtime.coordinate_descent_tuner:CoordescTuner.autotune",),
    "has_global_hooks": ("torch.nn.modules.module:_has_any_global_hook",),  # since 2.9
}


def __getattr__(ours: str) -> Any:
    entry = NAMES.get(ours)
    if entry is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{ours}'")
    for path in entry.paths:
        found = find(path)
        if found is not ABSENT:
            globals()[ours] = found  # later uses find it without a call of this function
            return found
    import torch

    where = entry.paths[0].replace(":", ".").rstrip(".")
    raise NullGpuError(
        f"torch {torch.__version__} has no {where}, which is needed for {entry.needed_by}. "
        f"It was seen from torch {_text(entry.since)} to {_text(SEEN[-1])}: install one of these ({INSTALL})."
    )


def find(path: str) -> Any:
    """Return the object at `module:attribute`, or `ABSENT`."""
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in filter(None, attributes.split(".")):
            found = getattr(found, attribute)
    except (ImportError, AttributeError):
        return ABSENT
    return found


def has(ours: str) -> bool:
    """Return whether the installed torch has the name."""
    return any(find(path) is not ABSENT for path in NAMES[ours].paths)


def places(ours: str) -> Iterator[tuple[Any, str]]:
    """Yield (object, attribute) for each place of `REPLACED` that the installed torch has."""
    for path in REPLACED[ours]:
        if find(path) is not ABSENT:
            owner, _, attribute = path.replace(":", ":.").rpartition(".")
            yield find(owner), attribute


ABSENT: Final = object()


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
