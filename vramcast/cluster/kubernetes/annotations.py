"""Annotations `vramcast.dev/...` of a pod: those that describe its job, and those that the webhook writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.cluster.answer import value_of
from vramcast.core.errors import UsageError

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
# spec: github.com/NVIDIA/gpu-feature-discovery, the node label with the card's name
_PRODUCT: Final = "nvidia.com/gpu.product"
_LONGEST: Final = 10_000  # arbitrary: characters of one annotation


@dataclass(frozen=True, slots=True)
class AnnotatedRequest:
    """The request in a pod's annotations.

    Attributes:
        question: Body of the check, without the client's waiting time.
        container: Name of the container that uses the GPU; "": the one that requests a GPU, else the first.
        format: Request format of the scheduler; "": that of the scheduler named by the pod.
    """

    question: dict[str, Any]
    container: str = ""
    format: str = ""


def read(annotations: Mapping[str, str], spec: Mapping[str, Any]) -> AnnotatedRequest | None:
    """Return the request in a pod's annotations; None: it has no `vramcast.dev/target`.

    The annotation `vramcast.dev/world-size: "8"` is the option `world_size` of the service. Several inputs of `batch` are
    separated by blanks. Without `device`, the node selector's card is used.

    Raises:
        UsageError: An annotation is not a valid option, or no card is named.
    """
    if TARGET not in annotations:
        return None
    question: dict[str, Any] = {}
    for name, text in annotations.items():
        if not name.startswith(PREFIX) or name in _NOTES:
            continue
        if len(text) > _LONGEST:
            raise UsageError(
                f"the annotation {name} has {len(text)} characters, but at most {_LONGEST} are allowed: shorten it"
            )
        key = name.removeprefix(PREFIX).replace("-", "_")
        question[key] = text.split() if key == "batch" else value_of(text)
    if "device" not in question:
        product = (spec.get("nodeSelector") or {}).get(_PRODUCT)
        if not isinstance(product, str):
            raise UsageError(f"no card is named: add {PREFIX}device, or a nodeSelector {_PRODUCT}")
        question["device"] = product.removesuffix("-SHARED").replace("-", " ")
    return AnnotatedRequest(question, annotations.get(CONTAINER, ""), annotations.get(FORMAT, ""))
