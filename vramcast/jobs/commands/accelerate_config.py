"""The configuration file of `accelerate launch`, which supplies options that were not given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vramcast.core.configuration import read_configuration
from vramcast.core.errors import UsageError

# Sections with keys for options of this prefix. # spec: accelerate 1.15, _validate_launch_command
_PREFIXES: Final = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_KIND_OF: Final = {
    "DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp", "MEGATRON_LM": "use_megatron_lm", "MULTI_GPU": "multi_gpu",
    "TPU": "tpu", "XLA": "tpu",
}  # fmt: skip
_HEADS: Final = ("compute_environment", "distributed_type")


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """A parsed configuration file.

    Attributes:
        kind: The option for its kind of job; "" for a plain process.
        options: Values by option name.
        deepspeed_fields: Keys of its section for DeepSpeed.
    """

    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    deepspeed_fields: tuple[str, ...] = ()


def of_launch(named: str | None, environment: Mapping[str, str], *, is_default_read: bool) -> LaunchConfig:
    """Return the configuration of a launch, from the named file or the one in the default place.

    Raises:
        UsageError: The file is absent or cannot be read.
    """
    if named is not None:
        path = Path(named)
        if not path.is_file():
            raise UsageError(f"accelerate launch: the file '{named}' of --config_file does not exist.")
        return _read(path)
    path = _default_path(environment)
    return _read(path) if is_default_read and path.is_file() else LaunchConfig()


def _default_path(environment: Mapping[str, str]) -> Path:
    """Return the path that `accelerate config` writes. # spec: accelerate 1.15, commands/config/config_args.py."""
    caches = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(os.path.expanduser(environment.get("HF_HOME", os.path.join(caches, "huggingface"))))
    return home / "accelerate" / "default_config.yaml"


def _read(path: Path) -> LaunchConfig:
    try:
        said = read_configuration(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"accelerate launch: '{path}' cannot be read ({error}).") from None
    if not isinstance(said, dict):
        raise UsageError(f"accelerate launch: '{path}' is not a configuration of accelerate: it has no keys.")
    if said.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        return LaunchConfig("sagemaker")
    kind = _KIND_OF.get(str(said.get("distributed_type", "NO")).upper(), "")
    options: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, dict):
            prefix = _PREFIXES.get(name, "")
            options |= {key if key.startswith(prefix) else prefix + key: inner for key, inner in value.items()}
        elif name not in _HEADS:
            options[name] = value
    deepspeed = said.get("deepspeed_config") or {}
    return LaunchConfig(kind, {name: value for name, value in options.items() if value not in (None, "")}, tuple(deepspeed))
