"""What a pod says of its job, in annotations `vramcast.dev/...`, and what the webhook notes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.schedulers.answer import value_of

PREFIX: Final = "vramcast.dev/"
TARGET: Final = PREFIX + "target"
ESTIMATE_ID: Final = PREFIX + "estimate-id"
VERDICT: Final = PREFIX + "verdict"
REQUEST_MIB: Final = PREFIX + "request-mib"
PROCESS_MIB: Final = PREFIX + "process-mib"
WOULD_REQUEST_MIB: Final = PREFIX + "would-request-mib"
CONTAINER: Final = PREFIX + "container"
FORMAT: Final = PREFIX + "format"
_NOTES: Final = frozenset({ESTIMATE_ID, VERDICT, REQUEST_MIB, PROCESS_MIB, WOULD_REQUEST_MIB, CONTAINER, FORMAT})
# spec: github.com/NVIDIA/gpu-feature-discovery, the label of a node's card
_PRODUCT: Final = "nvidia.com/gpu.product"
_LONGEST: Final = 10_000  # arbitrary: characters of one annotation


@dataclass(frozen=True, slots=True)
class Named:
    """What a pod's annotations ask.

    Attributes:
        question: The body of a check, without how long its client waits.
        container: Whose GPU it is about; "": the one which asks for a GPU, else the first.
        format: Of which scheduler; "": the one which the pod names.
    """

    question: dict[str, Any]
    container: str = ""
    format: str = ""


def read(annotations: Mapping[str, str], spec: Mapping[str, Any]) -> Named | None:
    """Return what a pod names; None: it has no `vramcast.dev/target`.

    A word `vramcast.dev/world-size: "8"` is the option `world_size` of the service. Several inputs of `batch` are separated by
    blanks. Without `device` the node selector's card is taken.

    Raises:
        UsageError: an annotation is no option's value, or no card is named.
    """
    if TARGET not in annotations:
        return None
    question: dict[str, Any] = {}
    for name, text in annotations.items():
        if not name.startswith(PREFIX) or name in _NOTES:
            continue
        if len(text) > _LONGEST:
            raise UsageError(f"the annotation {name} has {len(text)} characters: at most {_LONGEST} are read")
        key = name.removeprefix(PREFIX).replace("-", "_")
        question[key] = text.split() if key == "batch" else value_of(text)
    if "device" not in question:
        product = (spec.get("nodeSelector") or {}).get(_PRODUCT)
        if not isinstance(product, str):
            raise UsageError(f"no card is named: add {PREFIX}device, or a nodeSelector {_PRODUCT}")
        question["device"] = product.removesuffix("-SHARED").replace("-", " ")
    return Named(question, annotations.get(CONTAINER, ""), annotations.get(FORMAT, ""))
