"""Texts of torch 1.12 to 2.15, anywhere in a log: the first error with its numbers (to about 15 MiB), or a memory summary."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.core.units import GIB, KIB, MIB
from vramcast.explanations import causes
from vramcast.explanations.answer import Explanation, ProvedChange
from vramcast.explanations.causes import FRAGMENTATION, HOST, LIMIT, OTHERS, OUTSIDE, STEP, TOO_LARGE, FullCard
from vramcast.explanations.changes import ALONE, EXPANDABLE, NO_LIMIT, larger_card

_UNITS: Final = {"bytes": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
_SIZE: Final = r"(\d{1,18}(?:\.\d{1,9})?) ?(bytes|[KMGT]iB|B)"
# spec: c10/cuda/CUDACachingAllocator.cpp, torch 1.12 to 2.15
_ALLOCATOR: Final = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory\. (?:Tried to allocate (?:more than 1EB|\d)|Allocation was preemptively rejected)"
)
_LIBRARY: Final = re.compile(
    r"CU(?:BLAS|SOLVER|SPARSE|FFT|DNN)_\w*ALLOC(?:ATION)?_FAILED|Cuda failure (?:\d+ )?'out of memory'"
    r"|CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_NOT_INITIALIZED"
)
_HOST: Final = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|oom[-_]kill|OOMKilled|Out of memory: Killed process"
    r"|\bOUT_OF_MEMORY\b|insufficient shared memory"
    r"|Cannot allocate memory|^\w*(?<!OutOf)MemoryError\b|std::bad_alloc", re.M,
)  # fmt: skip
_KILLED: Final = re.compile(r"^.{0,80}\bKilled\b|exitcode *: *-9\b|SIGKILL", re.M)  # also of a user or a time limit
# spec: vllm/v1/core/kv_cache_planning.py and vllm/v1/worker/utils.py, vLLM 0.6 to 0.33
_CACHE: Final = re.compile(
    r"No available memory for the cache blocks|[\d.]+ GiB KV cache is needed, which is larger than the available KV cache "
    r"memory \([\d.]+ GiB\)|is larger than the maximum number of tokens that can be stored in KV cache \(\d+\)"
)
_SHARE: Final = re.compile(r"Free memory on device [^)]*\) on startup is less than desired GPU memory utilization")
_FITTING: Final = re.compile(r"estimated maximum model length is (\d+)|stored in KV cache \((\d+)\)")
_VAGUE: Final = ("CUDA error", "cudaError", "CUDA_ERROR", "CUBLAS_STATUS_NOT")  # says neither what was requested nor by whom
_FIELDS: Final = {
    "request": rf"(?:Tried to allocate|Requested size:) {_SIZE}",
    "total": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|{_SIZE} free;",
    "process": rf"this process has {_SIZE} memory in use",
    "allowed": rf"{_SIZE} allowed;",
    "live": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "private": rf"with {_SIZE} allocated in private pools",
    "holes": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} (?:reserved in total by PyTorch|cached)",
}
_OTHER: Final = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_RANK: Final = re.compile(r"\s*(?:\[(?:rank|default)?(\d+)\]|(\d+):|rank ?(\d+)\b)", re.I)
_LONGEST: Final = 1500  # arbitrary: characters of a message, with all processes of a card
_BEFORE: Final = 40_000  # arbitrary: characters of a traceback and of the progress before it
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_PROGRESS: Final = re.compile(r"\b(?:step|iter|iteration|batch)s?[ :=#\[]{1,3}(\d{1,9})\b|\b(\d{1,9})/\d+ \[[\d:]+<", re.I)
_SUMMARY: Final = re.compile(r"\| (Allocated|GPU reserved|Non-releasable) memory +\| +(\d{1,18}) +([KMGT]?i?B) ")
_OOMS: Final = re.compile(r"CUDA OOMs: (\d{1,9})")
_WHY: Final = {
    _LIBRARY: (OUTSIDE, "a library or the driver had no memory"),
    _HOST: (HOST, "the machine, not the card, had no memory"),
    _KILLED: (HOST, "the machine, not the card, had no memory"),
    _CACHE: (TOO_LARGE, "no room for the KV cache"),
    _SHARE: (OTHERS, "less is free than the engine may take"),
}
_UNKNOWN: Final = "growth, tensors, whether a change is enough: explain a snapshot or the command"


def explain_text(text: str) -> Explanation:
    """Return the explanation of the first error in a text, or else of a memory summary; raise UsageError without any."""
    found = [(match, one) for one in (_ALLOCATOR, *_WHY) if one is not _KILLED and (match := one.search(text))]
    if not found and _OOMS.search(text):
        return _of_summary(text)
    found = found or [(match, _KILLED) for match in [_KILLED.search(text)] if match]
    if not found:
        raise UsageError("The text has no out-of-memory error: give torch's, CUDA's or Slurm's message, or a log with it.")
    first, kind = min(found, key=lambda one: one[0].start())
    before = text[max(first.start() - _BEFORE, 0) : first.start()]
    frames = _FRAME.findall(before.rpartition("Traceback (most recent call last)")[2])
    own = [f"{file.rpartition('/')[2]}:{line}" for file, line, _ in frames if not re.search(r"-packages|lib/python", file)]
    where, ranks = own[-1] if own else "", _ranks(text, kind)
    if kind is not _ALLOCATOR:
        cause, why = _WHY[kind]
        certain = kind is not _KILLED and not first[0].startswith(_VAGUE)
        tokens = _FITTING.search(text, first.start()) if kind is _CACHE else None
        names = [f"--max-model-len {tokens[1] or tokens[2]}"] if tokens else [ALONE] * (kind is _SHARE)
        changes = tuple(ProvedChange(name, "numbers of the text", {}) for name in names)
        return Explanation(cause, certain, f"{why}: {first[0]}", FullCard(), where, (), changes, ranks, _UNKNOWN)
    message = " ".join(text[first.start() : first.start() + _LONGEST].split())
    message = message[:12] + _ALLOCATOR.split(message[12:])[0]  # without the next rank's
    card, holders = _card(message)
    steps = max((int(one[1] or one[2]) for one in _PROGRESS.finditer(before)), default=0)
    card = replace(card, steps=steps, place=causes.place_of(name for _, _, name in reversed(frames)))
    cause, why = card.cause()
    if "per_process_memory_fraction limit" in message:
        cause, why = LIMIT, "the request exceeds its per_process_memory_fraction"
    certain = cause != STEP and (card.total_bytes is not None or cause == LIMIT or card.request_bytes >= causes.HUGE_BYTES)
    names = {FRAGMENTATION: [EXPANDABLE], LIMIT: [NO_LIMIT], OTHERS: [ALONE]}.get(cause, [])
    if card.total_bytes is not None and cause != LIMIT:
        names.append(f"at least {larger_card(max(card.request_bytes - card.free_bytes, 0), card.total_bytes)}")
    changes = tuple(ProvedChange(name, "numbers of the text", {}) for name in names)
    return Explanation(cause, certain, why, card, where, holders, changes, ranks, _UNKNOWN)


def _card(message: str) -> tuple[FullCard, tuple[tuple[str, str, int], ...]]:
    """Return the numbers of a message as the state of the card, and what held it."""
    said = {name: _bytes(match) for name, pattern in _FIELDS.items() if (match := re.search(pattern, message))}
    processes = {f"process {one[1]}": _bytes(one) for one in _OTHER.finditer(message)}
    live, total, free, private = said.get("live", 0), said.get("total"), said.get("free", 0), said.get("private", 0)
    holes = said.get("holes", max(said.get("reserved", live) - live, 0))
    process = said.get("process")
    if process is None and "holes" in said:  # in a container, a process does not find its own number among the others
        own = [name for name, size in processes.items() if size >= live + holes]
        process = processes.pop(min(own, key=lambda name: processes[name])) if own else None
    outside = None if process is None else max(process - live - holes, 0)
    others = sum(processes.values())
    if total is not None:
        others = max(others, total - free - (live + holes + causes.CONTEXT_BYTES if process is None else process))
    request = said.get("request", causes.HUGE_BYTES if "1EB" in message else 0)
    held = {
        "allocated by PyTorch": live - private, "private pools (CUDA graphs)": private, "reserved but unallocated": holes,
        "context and libraries": outside or 0, **processes, "other processes": others - sum(processes.values()), "free": free,
    }  # fmt: skip
    card = FullCard(request, total, free, live, holes, outside, others or None, said.get("allowed"))
    return card, tuple(("category", name, size) for name, size in held.items() if size)


def _bytes(match: re.Match[str]) -> int:
    number, unit = [part for part in match.groups() if part is not None][-2:]
    return round(float(number) * _UNITS[unit])


def _ranks(text: str, kind: re.Pattern[str]) -> int:
    """Return the number of ranks with such an error, by the marks of their lines, or else by their GPUs."""
    lines = [text[text.rfind("\n", 0, one.start()) + 1 : one.end() + _LONGEST] for one in kind.finditer(text)]
    marks = {next(filter(None, mark.groups())) for line in lines if (mark := _RANK.match(line))}
    return max(len(marks or {gpu[1] for line in lines if (gpu := re.search(r"GPU (\d+)", line))}), 1)


def _of_summary(text: str) -> Explanation:
    """Return the explanation of a memory summary: certain only if the allocator had hardly anything to return."""
    sizes = {name: int(size) * _UNITS[unit] for name, size, unit in reversed(_SUMMARY.findall(text))}
    live, holes = sizes.get("Allocated", 0), sizes.get("Non-releasable", 0)
    held = {"allocated by PyTorch": live, "free in pieces": holes}
    held["unused segments"] = max(sizes.get("GPU reserved", 0) - live - holes, 0)
    holders = tuple(("category", name, size) for name, size in held.items() if size)
    unknown = "the failed request, the card, other processes, and the tensors: explain the error or a snapshot"
    cause = None if not int(_OOMS.findall(text)[0]) else FRAGMENTATION if 3 * holes > live else TOO_LARGE
    why = f"{_OOMS.findall(text)[0]} errors; {holes * 100 // max(live + holes, 1)} % of what was in use lay free in pieces"
    return Explanation(
        cause, cause == TOO_LARGE, why, FullCard(live_bytes=live, holes_bytes=holes), "", holders, (), 1, unknown
    )
