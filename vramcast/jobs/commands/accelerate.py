"""A parser of `accelerate launch`: its options, its configuration, and the environment that it would give to the script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.jobs.commands import accelerate_config
from vramcast.jobs.commands.launcher import OPTIONS, Launcher, LauncherProcesses, first_rank, whole_number
from vramcast.jobs.ranks import World

_OPTIONS: Final = OPTIONS["accelerate"]
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_KINDS: Final = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "multi_gpu", "tpu")


def _of_accelerate(options: dict[str, Any], words: tuple[str, ...], environment: Mapping[str, str]) -> LauncherProcesses:
    config = accelerate_config.of_launch(options.get("config_file"), environment, is_default_read="cpu" not in options)
    given = {**config.options, **options}
    kind = next((kind for kind in _KINDS if kind in options), config.kind)
    if kind in ("use_megatron_lm", "tpu", "sagemaker"):
        raise CannotEstimate(
            f"accelerate launch would start the script through {kind.removeprefix('use_')}, which is not supported."
        )
    machines = whole_number("--num_machines", given.get("num_machines") or "1")
    processes = whole_number("--num_processes", given.get("num_processes") or "1")
    processes = max(machines, processes)
    world = World(processes, processes // machines)
    is_on_cpu = "cpu" in options or _is_true(given.get("use_cpu"))
    variables = {} if world.size == 1 and (kind in ("", "multi_gpu") or is_on_cpu) else first_rank(world)
    if kind in ("", "multi_gpu") or is_on_cpu:
        variables["ACCELERATE_USE_CPU"] = str(is_on_cpu)
    variables["ACCELERATE_MIXED_PRECISION"] = str(given.get("mixed_precision") or "no")
    if _is_true(given.get("debug")):
        variables["ACCELERATE_DEBUG_MODE"] = "true"
    if str(given.get("gpu_ids") or "all") != "all":
        variables["CUDA_VISIBLE_DEVICES"] = str(given["gpu_ids"])
    if variables["ACCELERATE_MIXED_PRECISION"] == "fp8":
        variables |= {f"ACCELERATE_{name.upper()}": str(value) for name, value in given.items() if name.startswith("fp8_")}
    if kind == "use_deepspeed" and not is_on_cpu:
        variables |= _of_accelerates_deepspeed(given, config)
    else:
        variables |= _of_dynamo(given)
    if kind == "use_fsdp" and not is_on_cpu:
        variables |= _of_accelerates_fsdp(given)
    if "use_parallelism_config" in options or any(name.startswith("parallelism_config_") for name in config.options):
        variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        sizes = {f"parallelism_config_{name}_size": "1" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
        named = {name: value for name, value in given.items() if name.startswith("parallelism_config_")}
        variables |= {name.upper(): str(value) for name, value in {**sizes, **named}.items()}
    is_module, is_command = _is_true(given.get("module")), _is_true(given.get("no_python"))
    return LauncherProcesses(words, is_module, is_command, variables, world)


def _of_dynamo(given: Mapping[str, Any]) -> dict[str, str]:
    return {
        "ACCELERATE_DYNAMO_BACKEND": str(given.get("dynamo_backend") or "no").upper(),
        "ACCELERATE_DYNAMO_MODE": str(given.get("dynamo_mode", "default")),
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": str(given.get("dynamo_use_fullgraph", False)),
        "ACCELERATE_DYNAMO_USE_DYNAMIC": str(given.get("dynamo_use_dynamic", False)),
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": str(given.get("dynamo_use_regional_compilation", False)),
    }


def _of_accelerates_fsdp(given: Mapping[str, Any]) -> dict[str, str]:
    chosen = {**_OPTIONS["fsdp_defaults"], **{name: value for name, value in given.items() if name.startswith("fsdp_")}}
    variables = {"ACCELERATE_USE_FSDP": "true"}
    for name, value in chosen.items():
        if value is not None:
            variables[_OPTIONS["fsdp_variables"].get(name, name.upper())] = _as_variable(name, value)
    return variables


def _of_accelerates_deepspeed(given: Mapping[str, Any], config: accelerate_config.LaunchConfig) -> dict[str, str]:
    fields, precision = [*config.deepspeed_fields], config.options.get("mixed_precision")
    if precision is not None and given.get("mixed_precision") == precision:
        fields.append("mixed_precision")
    variables = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower()}
    for name, variable in _OPTIONS["deepspeed_variables"].items():
        if given.get(name) is not None:
            variables[variable] = _as_variable(name, given[name])
    return variables


def _as_variable(option: str, value: Any) -> str:
    return str(value) if option in _OPTIONS["case"]["kept"] else str(value).lower()


def _is_true(value: Any) -> bool:
    return _BOOLEANS.get(str(value).lower(), False)


ACCELERATE: Final = Launcher("accelerate launch", _OPTIONS["valued"], _OPTIONS["flags"], _of_accelerate)
