"""`explain`: why a job ran out of memory, from whatever is left of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.core.units import gib
from vramcast.estimates.advice import AS_IT_IS, advise
from vramcast.estimates.result import Estimate
from vramcast.explanations.answer import Explanation, ProvedChange
from vramcast.explanations.causes import GROWTH
from vramcast.explanations.histories import explain_history, explain_on_card
from vramcast.explanations.texts import explain_text
from vramcast.hardware.cards import DEFAULT, checked_card_bytes
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.device import Device
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.rank_facts import beside_bytes
from vramcast.tracer.format.snapshot import READ_LIMIT_BYTES

_BINARY: Final = (b"\x80", b"\x1f\x8b")  # spec: pickle protocol 2 and later, gzip (RFC 1952)


def explain(
    source: str | os.PathLike[str] | bytes | BaseException | Estimate,
    *,
    device: str | Device | None = None,
    memory: int | str | None = None,
) -> Explanation:
    """Explain why a job ran out of memory: the cause, what held the card, and the changes that would have let it live.

    Args:
        source: A file (an error text or a log, a memory snapshot, the text of `torch.cuda.memory_summary()`), such a text
            itself or an exception, a file's bytes, or an estimate of the job on its card (`vramcast.estimate_command`).
        device: The card, whose size a snapshot does not hold. A snapshot without an error is replayed on it.
        memory: The card's size, if it is not the device's own: bytes, or `12GiB`.

    Returns:
        The explanation; `print` shows at most seven lines.

    Raises:
        UsageError: The source has no out-of-memory error, is empty or binary, or a card is missing.
        TraceFileError: The snapshot is damaged.

    Example:
        >>> found = vramcast.explain(
        ...     "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 9.15 GiB already allocated; "
        ...     "1.20 GiB free; 14.00 GiB reserved in total by PyTorch)"
        ... )
        >>> found.cause, found.changes[0].change
        ('fragmentation', 'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True')
    """
    if isinstance(source, Estimate):
        return _of_estimate(source)
    card = device if isinstance(device, Device) else None
    if card is None and (device is not None or memory is not None):
        card = find_device(str(device or DEFAULT))
    if card is not None and memory is not None:
        card = card.with_memory(checked_card_bytes(memory))
    if isinstance(source, BaseException) or (isinstance(source, str) and " " in source and not os.path.exists(source)):
        return explain_text(str(source))
    if isinstance(source, bytes):
        return _of_bytes(source, None, card)
    with open(source, "rb") as file:
        return _of_bytes(file.read(READ_LIMIT_BYTES + 1), source, card)


def _of_bytes(data: bytes, path: str | os.PathLike[str] | None, card: Device | None) -> Explanation:
    """Return the explanation of a file's content, which shows its kind; `path` is None for standard input."""
    name = "Standard input" if path is None else f"'{shorten(str(path))}'"
    is_snapshot = data.startswith(_BINARY) and path is not None
    problem = "is empty" if not data.strip() else "" if is_snapshot or b"\0" not in data else "is neither a text nor a snapshot"
    if problem or len(data) > READ_LIMIT_BYTES:
        problem = problem or f"has more than {gib(READ_LIMIT_BYTES)}"
        raise UsageError(f"{name} {problem}: give the part of a log with the first error, or the file of a memory snapshot.")
    return explain_history(path, card) if is_snapshot and path is not None else explain_text(data.decode("utf-8", "replace"))


def _of_estimate(estimate: Estimate) -> Explanation:
    """Return the explanation of a job on its card; raise UsageError without one."""
    if not estimate.has_card:
        raise UsageError("No card is given: name the card on which the job died (--on, --memory; in Python, device=).")
    trace, growth, card_bytes = estimate.trace, estimate.growth, estimate.card_bytes
    found = explain_on_card(trace, Settings.parse(estimate.alloc_conf.value), card_bytes, others_bytes=beside_bytes(trace))
    if found.cause in (None, GROWTH) and growth is not None and growth.fills(card_bytes):
        found = replace(found, cause=GROWTH, is_certain=True, reason=str(growth), where=growth.where)
    elif found.cause is None and estimate.out_of_memory is not None:
        found = explain_text(estimate.out_of_memory)
    if found.cause is None:
        return replace(found, reason=f"the command needs {gib(estimate.process)}", unknown="other data, other processes")
    cards = found.changes[-1:]  # a larger card costs most
    return replace(found, changes=(*found.changes[:-1], *_advised(estimate), *cards))


def _advised(estimate: Estimate) -> tuple[ProvedChange, ...]:
    """Return the traced changes of a job that fit, those without a price first."""
    try:
        rows = advise(estimate).rows
    except UsageError:  # a script that advice cannot change
        return ()
    fitting = [row for row in rows if row.fits_card and row.name != AS_IT_IS and row.reserved is not None]
    fitting.sort(key=lambda row: not row.price.startswith("none"))
    return tuple(ProvedChange(row.name, "traced", {"reserved": row.reserved or 0, "bound": row.bound or 0}) for row in fitting)
