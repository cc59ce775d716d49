"""Advice on exceptions of a job that are caused by its environment: no network, terminal, or memory."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Exceptions of huggingface_hub, by name: it need not be installed.
_OFFLINE: Final = frozenset({"LocalEntryNotFoundError", "OfflineModeIsEnabled"})
_HUB: Final = re.compile(r"huggingface\.co|is not a local folder and is not a valid model identifier|HF_HUB_OFFLINE")
_NAME: Final = re.compile(r"'([\w.-]+/[\w.-]+)'")
# Exceptions of failed connections, in urllib, http.client, requests, httpx and aiohttp.
_UNCONNECTED: Final = frozenset({"URLError", "gaierror", "ConnectionError", "ConnectError", "ClientConnectorError"})
LESS_MAIN_MEMORY: Final = (
    " Raise the limit (--host-memory), take a larger machine, or load weights in their own dtype (bfloat16), on "
    "the card, or on the meta device."
)
# Packages that are hard to build without a GPU, by the pattern of their names, and what takes as much memory.
_SUBSTITUTES: Final = {
    "flash[-_]?attn|FlashAttention2|flash_attention_2": (
        'PyTorch\'s own attention keeps as much, to first order: attn_implementation="sdpa" (transformers), or '
        "torch.nn.functional.scaled_dot_product_attention."
    ),
    "xformers": "PyTorch's own attention keeps as much, to first order: torch.nn.functional.scaled_dot_product_attention.",
    "torch_(?:sparse|scatter|cluster|spline_conv)": (
        "PyTorch Geometric runs without it: give it torch's own sparse tensors (T.ToSparseTensor(layout=torch.sparse_csr))."
    ),
    "apex": "PyTorch has its optimizers (torch.optim.AdamW(fused=True)), norms (torch.nn.RMSNorm), and autocast.",
}
# spec: torch, c10/cuda/CUDAException.cpp and torch/cuda/__init__.py
_ABSENT_CARD: Final = re.compile("invalid device ordinal|Invalid device id")
_LOADS_WEIGHTS: Final = ("torch/hub.py", "torchvision/models", "timm/models")


def advice(error: BaseException) -> str:
    """Return advice on a job's exception, as a sentence after a space; "" if the cause lies in the job itself."""
    # spec: torch, c10/core/impl/alloc_cpu.cpp
    if isinstance(error, MemoryError) or (type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)):
        return LESS_MAIN_MEMORY
    ways = (missing_files_advice, _download_advice, _terminal_advice, _card_advice, _package_advice)
    return next(filter(None, (way(error) for way in ways)), "")


def missing_files_advice(error: BaseException) -> str:
    """Return advice on a job that lacks files from a hub; "" if it failed for another reason."""
    chain = list(_chain_of(error))
    if not any(type(one).__name__ in _OFFLINE or (isinstance(one, OSError) and _HUB.search(str(one))) for one in chain):
        return ""
    found = _NAME.search(" ".join(str(one) for one in chain))
    name = found[1] if found is not None else "org/name"
    return (
        " The weights need not exist: vramcast stub-checkpoint CONFIG.json --out DIR writes a checkpoint of the true shapes "
        f"without them, from the config.json of '{name}' or from a model type (llama); give DIR in its place. Models of timm "
        "take pretrained=False."
    )


def _download_advice(error: BaseException) -> str:
    if not any(type(one).__name__ in _UNCONNECTED for one in _chain_of(error)):
        return ""
    files = [Path(frame.f_code.co_filename).as_posix() for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(name in file for file in files for name in _LOADS_WEIGHTS):
        return (
            " The weights need not exist, because their values do not affect memory: build the model with weights=None "
            "(torchvision) or pretrained=False (timm, torch.hub)."
        )
    return " This machine does not reach that host: download the file first, and let the job read it from disk."


def _terminal_advice(error: BaseException) -> str:
    if not isinstance(error, EOFError) or "reading a line" not in str(error):  # spec: the message of input()
        return ""
    return " A traced command gets no terminal: provide its input by a pipe or a file (echo yes | vramcast run ...)."


def _card_advice(error: BaseException) -> str:
    if not isinstance(error, (RuntimeError, AssertionError)) or not _ABSENT_CARD.search(str(error)):
        return ""
    import torch  # the job has imported it

    count = torch.cuda.device_count()
    cards = "one card" if count == 1 else f"{count} cards"
    return f" The job has {cards}: --world-size {max(count, 1) + 1} gives it one more, each with a rank of its own."


def _package_advice(error: BaseException) -> str:
    if not isinstance(error, ImportError):
        return ""
    return next((f" {instead}" for name, instead in _SUBSTITUTES.items() if re.search(rf"\b{name}", str(error))), "")


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
