"""The accounts of a serving engine: how it divided the card, and whether it starts at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError
from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.tracer.format.trace import RANKS, SERVING, Trace

_LONGEST: Final = 1000  # arbitrary: characters of a text; an engine's error has some 400


@brief
@dataclass(frozen=True, slots=True)
class EngineAccounts:
    """The accounts of an engine, in its own terms; None: it did not tell.

    Attributes:
        engine, version: Its name and version.
        weights_bytes: Weights of the model.
        activation_bytes: Peak of activations in its profile run.
        graphs_bytes: Memory for CUDA graphs.
        non_torch_bytes: Memory outside PyTorch that its profile run added.
        kv_cache_bytes: The KV cache.
        kv_cache_tokens: Tokens in the KV cache.
        max_concurrency: Number of requests of the longest length at once.
        max_context: Longest context of one request in tokens.
        outside_less_bytes, outside_more_bytes: How much less or more memory outside PyTorch a card may need than assumed.
        available_bytes: What its share of the card leaves for the KV cache; below 0: the share is too small.
        request_bytes: KV cache of one request of the longest length.
        context_tokens: That length: the context that the engine serves.
        tensor_parallel, pipeline_parallel: Ranks that share a layer, and stages.
        utilization: Its share of the card, if only the KV cache changes with the card; None: other parts may.
        missing_bytes: What it lacks to start; None: nothing, or it is not known.
        starts: Whether it starts, by its own check.
        reason: Its error if it does not start; else "".
    """

    engine: str = ""
    version: str = ""
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    graphs_bytes: int | None = None
    non_torch_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_context: int | None = None
    outside_less_bytes: int | None = None
    outside_more_bytes: int | None = None
    available_bytes: int | None = None
    request_bytes: int | None = None
    context_tokens: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    utilization: float | None = None
    missing_bytes: int | None = None
    starts: bool | None = None
    reason: str = ""

    def on_larger_card(self, by_bytes: int) -> EngineAccounts | None:
        """Return the accounts on a card of another size with the same kernels: only the KV cache changes.

        Args:
            by_bytes: How much larger the card is; below 0: how much smaller.

        Returns:
            The accounts there; None: they do not follow from these.

        Example:
            >>> one = Serving("vllm", available_bytes=1000, request_bytes=400, utilization=0.9, starts=True)
            >>> there = one.on_larger_card(-1000)
            >>> there.available_bytes, there.starts, there.missing_bytes
            (100, False, 300)
        """
        if self.utilization is None or self.available_bytes is None or not self.request_bytes:
            return None
        available_bytes = self.available_bytes + math.floor(by_bytes * self.utilization)
        there = replace(self, available_bytes=available_bytes, max_context=None)
        if available_bytes < self.request_bytes:
            left_bytes = max(available_bytes, 0)
            reason = f"one request takes {gib(self.request_bytes)} of KV cache, and {gib(left_bytes)} are left"
            missing_bytes = self.request_bytes - left_bytes
            there = replace(there, starts=False, missing_bytes=missing_bytes, reason=reason)
            return replace(there, kv_cache_bytes=None, kv_cache_tokens=None, max_concurrency=None)
        requests = available_bytes / self.request_bytes
        tokens = None if self.context_tokens is None else int(requests * self.context_tokens)
        there = replace(there, starts=True, missing_bytes=None, reason="")
        return replace(there, kv_cache_bytes=available_bytes, kv_cache_tokens=tokens, max_concurrency=requests)

    def to_dict(self) -> dict[str, Any]:
        """Return the accounts as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """Return the accounts as a line of the answer."""
        if self.kv_cache_bytes is None or self.kv_cache_tokens is None:
            shorter = "" if self.max_context is None else f"; it starts with --max-model-len {self.max_context}"
            return f"{self.engine} {self.version}: it reached no KV cache{shorter}"
        length = "the longest length" if self.context_tokens is None else f"{self.context_tokens:,}"
        requests = "" if self.max_concurrency is None else f", {self.max_concurrency:.2f} requests of {length}"
        cache = f"KV cache {gib(self.kv_cache_bytes)}: {self.kv_cache_tokens:,} tokens{requests}"
        longest = "" if self.max_context is None else f" or one of {self.max_context:,}"
        return f"{cache}{longest} ({self.engine} {self.version})"


def serving_of(trace: Trace) -> EngineAccounts | None:
    """Return the accounts in a trace's header; None: the job serves nothing, or its engine got no further.

    Raises:
        TraceFileError: The header is damaged.
    """
    return _read(trace.header.get(SERVING))


def servings_of(trace: Trace) -> dict[str, EngineAccounts | None]:
    """Return the accounts of each traced rank by its number; empty for a job of one rank, and for one without an engine.

    Raises:
        TraceFileError: The header is damaged.
    """
    ranks = trace.header.get(RANKS)
    said = ranks.get("serving") if isinstance(ranks, dict) else None
    return {number: _read(accounts) for number, accounts in said.items()} if isinstance(said, dict) else {}


def _read(said: Any) -> EngineAccounts | None:
    if not said:
        return None
    try:
        if not isinstance(said, dict):
            raise TypeError(f"a {type(said).__name__}")
        known = {field.name: _checked(field.name, said[field.name]) for field in fields(EngineAccounts) if field.name in said}
    except (TypeError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's accounts of an engine are damaged ({error}): record it again.") from None
    return EngineAccounts(**known)


def are_engines_alike(trace: Trace) -> bool:
    """Return whether all ranks of the trace's engine do the same: vLLM pads shards of tensor parallel to equal sizes."""
    said = trace.header.get(SERVING)
    return isinstance(said, dict) and said.get("ranks_alike") is True


def scarcity(trace: Trace | None) -> tuple[bool, int]:
    """Return a key that is larger for an engine with fewer tokens in its KV cache, and largest for one that did not start.

    All ranks of an engine have as many tokens as the one with the least room.
    """
    said = trace.header.get(SERVING) if trace is not None else None
    return (said.get("starts") is not True, -int(said.get("kv_cache_tokens", 0))) if said else (False, 0)


def _checked(name: str, value: Any) -> Any:
    kind = str if name in ("engine", "version", "reason") else bool if name == "starts" else (int, float)
    if value is None or not isinstance(value, kind) or (name != "starts" and isinstance(value, bool)):
        raise ValueError(f"{name} is a {type(value).__name__}")
    if isinstance(value, str):
        return printable(" ".join(value.split()), _LONGEST)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return value if name in ("starts", "max_concurrency", "utilization") else int(value)
