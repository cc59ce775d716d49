"""`accelerate launch`, read: its options, its configuration, and the environment which it would give to the script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.jobs.commands import accelerate_config
from vramcast.jobs.commands.launcher import Launched, Launcher, first_rank, whole_number
from vramcast.jobs.ranks import World

_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_VALUED: Final = (
    "config_file", "mixed_precision", "num_processes", "num_machines", "num_cpu_threads_per_process", "dynamo_backend",
    "dynamo_mode", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port", "t|tee", "log_dir", "role",
    "rdzv_backend", "rdzv_conf", "max_restarts", "monitor_interval", "vm", "env", "main_training_function",
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
    "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag",
    "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter",
    "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names", "fsdp_version", "fsdp_offload_params",
    "fsdp_min_num_params", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap", "fsdp_backward_prefetch", "fsdp_state_dict_type", "fsdp_forward_prefetch",
    "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload", "megatron_lm_tp_degree", "megatron_lm_use_custom_fsdp",
    "megatron_lm_no_load_optim", "megatron_lm_eod_mask_loss", "megatron_lm_overlap_cpu_optimizer_d2h_h2d",
    "megatron_lm_no_save_optim", "megatron_lm_optimizer_cpu_offload", "megatron_lm_use_precision_aware_optimizer",
    "megatron_lm_decoder_last_pipeline_num_layers", "megatron_lm_pp_degree", "megatron_lm_num_micro_batches",
    "megatron_lm_sequence_parallelism", "megatron_lm_recompute_activations", "megatron_lm_use_distributed_optimizer",
    "megatron_lm_gradient_clipping", "megatron_lm_recompute_granularity", "megatron_lm_recompute_method",
    "megatron_lm_recompute_num_layers", "megatron_lm_attention_backend", "megatron_lm_expert_model_parallel_size",
    "megatron_lm_context_parallel_size", "megatron_lm_attention_dropout", "megatron_lm_hidden_dropout",
    "megatron_lm_attention_softmax_in_fp32", "megatron_lm_expert_tensor_parallel_size",
    "megatron_lm_calculate_per_token_loss", "megatron_lm_use_rotary_position_embeddings", "fp8_backend", "fp8_margin",
    "fp8_interval", "fp8_format", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_override_linear_precision",
    "fp8_opt_level", "fp8_enable_fsdp_float8_all_gather", "fp8_pad_inner_dim", "aws_access_key_id", "aws_secret_access_key",
    "mpirun_hostfile", "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size",
    "parallelism_config_tp_size", "parallelism_config_cp_size", "parallelism_config_cp_backend",
    "parallelism_config_cp_comm_strategy", "parallelism_config_sp_size", "parallelism_config_sp_backend",
    "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
    "parallelism_config_sp_attn_implementation",
)  # fmt: skip
_FLAGS: Final = (
    "q|quiet", "cpu", "multi_gpu", "tpu", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic",
    "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm",
    "same_network", "m|module", "no_python", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16", "debug",
    "fp8_use_autocast_during_eval",
)  # fmt: skip
# What accelerate says to the script where nobody said anything. # spec: accelerate 1.15, launch_command_parser
_FSDP_DEFAULTS: Final = {
    "fsdp_version": "1", "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false", "fsdp_min_num_params": "100000000", "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true", "fsdp_cpu_ram_efficient_loading": "true", "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false", "fsdp_activation_checkpointing_offload": "false",
}  # fmt: skip
# Options whose variable has another name than theirs. # spec: accelerate 1.15, utils/launch.py
_FSDP_NAMES: Final = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_KEEP_CASE: Final = frozenset(
    {"fsdp_sharding_strategy", "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_backward_prefetch"}
    | {"fsdp_state_dict_type", "fsdp_ignored_modules"}
)
_DEEPSPEED_NAMES: Final = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE", "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}  # fmt: skip
_AS_WRITTEN: Final = frozenset({"deepspeed_config_file", "deepspeed_moe_layer_cls_names"})
_KINDS: Final = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "multi_gpu", "tpu")


def _of_accelerate(options: dict[str, Any], words: tuple[str, ...], environment: Mapping[str, str]) -> Launched:
    config = accelerate_config.of_launch(options.get("config_file"), environment, is_default_read="cpu" not in options)
    given = {**config.options, **options}
    kind = next((kind for kind in _KINDS if kind in options), config.kind)
    if kind in ("use_megatron_lm", "tpu", "sagemaker"):
        raise CannotEstimate(
            f"accelerate launch would start the script through {kind.removeprefix('use_')}: this cannot be read."
        )
    machines = whole_number("--num_machines", given.get("num_machines") or "1")
    processes = whole_number("--num_processes", given.get("num_processes") or "1")
    processes = max(machines, processes)
    world = World(processes, processes // machines)
    is_on_cpu = "cpu" in options or _is_true(given.get("use_cpu"))
    told = {} if world.size == 1 and (kind in ("", "multi_gpu") or is_on_cpu) else first_rank(world)
    if kind in ("", "multi_gpu") or is_on_cpu:
        told["ACCELERATE_USE_CPU"] = str(is_on_cpu)
    told["ACCELERATE_MIXED_PRECISION"] = str(given.get("mixed_precision") or "no")
    if _is_true(given.get("debug")):
        told["ACCELERATE_DEBUG_MODE"] = "true"
    if str(given.get("gpu_ids") or "all") != "all":
        told["CUDA_VISIBLE_DEVICES"] = str(given["gpu_ids"])
    if told["ACCELERATE_MIXED_PRECISION"] == "fp8":
        told |= {f"ACCELERATE_{name.upper()}": str(value) for name, value in given.items() if name.startswith("fp8_")}
    if kind == "use_deepspeed" and not is_on_cpu:
        told |= _of_accelerates_deepspeed(given, config)
    else:
        told |= _of_dynamo(given)
    if kind == "use_fsdp" and not is_on_cpu:
        told |= _of_accelerates_fsdp(given)
    if "use_parallelism_config" in options or config.has_parallelism:
        told["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        sizes = {f"parallelism_config_{name}_size": "1" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
        named = {name: value for name, value in given.items() if name.startswith("parallelism_config_")}
        told |= {name.upper(): str(value) for name, value in {**sizes, **named}.items()}
    is_module, is_command = _is_true(given.get("module")), _is_true(given.get("no_python"))
    return Launched(words, is_module, is_command, told, world)


def _of_dynamo(given: Mapping[str, Any]) -> dict[str, str]:
    return {
        "ACCELERATE_DYNAMO_BACKEND": str(given.get("dynamo_backend") or "no").upper(),
        "ACCELERATE_DYNAMO_MODE": str(given.get("dynamo_mode", "default")),
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": str(given.get("dynamo_use_fullgraph", False)),
        "ACCELERATE_DYNAMO_USE_DYNAMIC": str(given.get("dynamo_use_dynamic", False)),
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": str(given.get("dynamo_use_regional_compilation", False)),
    }


def _of_accelerates_fsdp(given: Mapping[str, Any]) -> dict[str, str]:
    chosen = {**_FSDP_DEFAULTS, **{name: value for name, value in given.items() if name.startswith("fsdp_")}}
    told = {"ACCELERATE_USE_FSDP": "true"}
    for name, value in chosen.items():
        if value is not None:
            told[_FSDP_NAMES.get(name, name.upper())] = str(value) if name in _KEEP_CASE else str(value).lower()
    return told


def _of_accelerates_deepspeed(given: Mapping[str, Any], config: accelerate_config.LaunchConfig) -> dict[str, str]:
    fields = [*config.deepspeed_fields, *(["mixed_precision"] if config.says_precision and config.is_precision(given) else [])]
    told = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower()}
    for name, variable in _DEEPSPEED_NAMES.items():
        if given.get(name) is not None:
            told[variable] = str(given[name]) if name in _AS_WRITTEN else str(given[name]).lower()
    return told


def _is_true(value: Any) -> bool:
    return _BOOLEANS.get(str(value).lower(), False)


ACCELERATE: Final = Launcher("accelerate launch", _VALUED, _FLAGS, _of_accelerate)
