"""LoRA and QLoRA: a named model as the usual scripts prepare it with peft and bitsandbytes, without weights."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from vramcast.core.errors import UsageError
from vramcast.jobs.adapters import ALL_LINEAR, Adapter, ModelAdapters

# spec: peft.TaskType: with a task, the new head of a classifier is trained too.
_TASKS: Final = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS"}


def quantized(model: torch.nn.Module, precision: str) -> torch.nn.Module:
    """Return a model of transformers with its linear layers as NF4 in double quantization, which the card's move makes.

    Args:
        model: The model on the host.
        precision: The job's precision. In bf16 or fp16, the other weights keep that type; otherwise they become float32, as in
            peft's `prepare_model_for_kbit_training`, and so do the activations between the layers without autocast.
    Raises:
        UsageError: A package is missing.
    """
    bitsandbytes, _ = _need("bitsandbytes", "--qlora"), _need("accelerate", "--qlora")
    peft, transformers = _need("peft", "--qlora"), importlib.import_module("transformers")
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
    )
    weights = {name: module for name, module in model.named_modules() if hasattr(module, "weight")}
    kept = importlib.import_module("transformers.quantizers.base").get_keys_to_not_convert(model)
    helpers = importlib.import_module("transformers.integrations.bitsandbytes")
    model = helpers.replace_with_bnb_linear(model, modules_to_not_convert=kept, quantization_config=settings)
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.weight = bitsandbytes.nn.Params4bit(
                _as_linear(weights[name]), requires_grad=False, compress_statistics=True, quant_type="nf4", module=module
            )
            module.bias = weights[name].bias
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # what peft looks at
    if precision not in ("bf16", "fp16"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return model.requires_grad_(False)


def _as_linear(module: torch.nn.Module) -> torch.Tensor:
    """Return a weight as a linear layer holds it: GPT-2's layers keep theirs transposed."""
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]
    return weight if isinstance(module, torch.nn.Linear) else weight.t().contiguous()


def with_adapters(model: torch.nn.Module, adapter: Adapter) -> torch.nn.Module:
    """Return a frozen model with trainable adapters, in float32 for a 16-bit model, as peft makes them.

    Raises:
        UsageError: peft is missing, or the model has no such modules.
    """
    peft = _need("peft", adapter.option)
    known = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    kind = getattr(getattr(model, "config", None), "model_type", "")
    targets: Any = list(adapter.target) or known.get(kind, ALL_LINEAR)
    options = {"r": adapter.r, "lora_alpha": adapter.alpha, "lora_dropout": adapter.dropout, "task_type": _task(model)}
    given = {name: value for name, value in options.items() if value is not None}
    config = peft.LoraConfig(target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets, **given)
    if getattr(model, "is_gradient_checkpointing", False):
        # As Hugging Face's Trainer does: without an input that needs gradients, a checkpointed block would have none.
        model.enable_input_require_grads()  # type: ignore[operator]
    try:
        found: torch.nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(
            f"{adapter.option} {adapter} does not fit {type(model).__name__} ({str(error).splitlines()[0][:120]}): "
            f"{_advice(model, adapter)}"
        ) from None
    return found


def adapted_of(model: torch.nn.Module, adapter: Adapter) -> ModelAdapters:
    """Return what peft made of the adapter of a model on the host."""
    made: Any = next(iter(model.peft_config.values()))  # type: ignore[operator]
    target = tuple(sorted({name.rpartition(".")[2] for name in made.target_modules}))
    taken = Adapter(adapter.is_quantized, made.r, made.lora_alpha, float(made.lora_dropout), target)
    parameters = list(model.parameters())
    # Weights of a block with three dimensions are the experts of all tokens in one parameter, which has no linear layer.
    whole = sum(one.numel() for one in parameters if one.dim() > 2 and not one.requires_grad) if adapter.is_quantized else 0
    return ModelAdapters(taken, sum(one.numel() for one in parameters if one.requires_grad), whole)


def _task(model: torch.nn.Module) -> str | None:
    return next((task for end, task in _TASKS.items() if type(model).__name__.endswith(end)), None)


def _advice(model: torch.nn.Module, adapter: Adapter) -> str:
    names = list(dict.fromkeys(_linear_names(model)))
    close = [match for name in adapter.target for match in difflib.get_close_matches(name, names, n=1)]
    return f"did you mean target={'+'.join(close)}?" if close else f"its linear layers are {', '.join(names[:12])}."


def _linear_names(model: torch.nn.Module) -> Iterator[str]:
    return (name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, torch.nn.Linear))


def _need(package: str, option: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"{option} needs the package {package} ({error}): pip install peft bitsandbytes accelerate."
            if option == "--qlora"
            else f"{option} needs the package {package} ({error}): pip install peft."
        ) from None
