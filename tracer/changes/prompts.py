"""Prompts of transformers' `generate`: their length, how long they may be, and longer or shorter ones in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.changes.change import Change, Facts
from vramcast.tracer.hooks.replacement import replace_when_imported

_GENERATION: Final = "transformers.generation.utils"
# spec: transformers 4.56 to 5, arguments of `generate` with a column for each token; the prompt is the first that is given
_BY_TOKEN: Final = ("inputs", "input_ids", "inputs_embeds", "attention_mask", "token_type_ids")
_DEFAULT_LENGTH: Final = 20  # spec: transformers 4.56, the `max_length` that stands for "not given"; 5 has None


@contextmanager
def installed(tokens: int | None, facts: Facts) -> Iterator[None]:
    """Give `generate` prompts of another length inside. Calls that it makes itself keep theirs.

    Args:
        tokens: Their length; None: the job's own.
        facts: Gets the length of the longest prompt as `value`, and what limits it.
    """
    depth = 0

    def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
        def generate(model: Any, /, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            given = {**dict(zip(("inputs", "generation_config"), args, strict=False)), **kwargs}
            prompt = next((given[name] for name in _BY_TOKEN[:3] if isinstance(given.get(name), torch.Tensor)), None)
            if depth or prompt is None or prompt.dim() < 2:
                return run(model, *args, **kwargs)
            had = prompt.shape[1]
            if had > facts.get("value", 0):
                facts.update(value=had, **_limit(model, given))
            if tokens is not None:
                facts.update(now=tokens, way="a prompt of this length for generate()")
                own = {name: one for name, one in given.items() if name in _BY_TOKEN and _has_columns(one, had)}
                given |= {name: with_length(one, tokens) for name, one in own.items()}
            depth += 1
            try:
                return run(model, given.pop("inputs", None), given.pop("generation_config", None), *args[2:], **given)
            finally:
                depth -= 1

        return generate

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _GENERATION, "GenerationMixin.generate", wrapped)
        yield


def with_length(rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the end of rows of tokens, or rows with their last token repeated: it is neither padding nor part of an image."""
    more = tokens - rows.shape[1]
    return rows[:, -tokens:] if more <= 0 else torch.cat([rows, rows[:, -1:].expand(-1, more, *rows.shape[2:])], dim=1)


def _has_columns(one: Any, count: int) -> bool:
    return isinstance(one, torch.Tensor) and one.dim() >= 2 and one.shape[1] == count


def _limit(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the length of the longest prompt that the call allows, and what limits it; nothing if nothing is known to."""
    config = given.get("generation_config") or getattr(model, "generation_config", None)
    new, length = (given.get(name, getattr(config, name, None)) for name in ("max_new_tokens", "max_length"))
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    is_default = length is None or (length == _DEFAULT_LENGTH and "max_length" not in given)
    limits = []
    if new is None and not is_default:
        limits.append((length - 1, f"max_length={length} of the call"))
    if positions is not None:
        tokens = 0 if model.config.is_encoder_decoder else 1 if new is None else new
        limits.append((positions - tokens, f"the model's {positions:,} positions" + f", {tokens:,} of them new" * bool(tokens)))
    return dict(zip(("most", "limit"), min(limits), strict=True)) if limits else {}


CHANGE: Final = Change("prompt", installed, is_observed=True)
