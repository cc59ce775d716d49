"""How schedulers are asked for a part of a card: the names they read, all in MiB. Sources: the table in docs/kubernetes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vramcast.core.units import MIB

Pod: TypeAlias = MutableMapping[str, Any]  # what has `metadata` and `spec`: a Pod, or a job's template of it
Container: TypeAlias = MutableMapping[str, Any]

# spec: github.com/NVIDIA/k8s-device-plugin, the resource of whole cards
CARDS: Final = "nvidia.com/gpu"
# spec: kubernetes.io, Quantity: the API server writes 3000 as 3k, and 1024 as it was given, 1Ki or 1024
_SUFFIXES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_QUANTITY: Final = re.compile(rf"([0-9]{{1,18}})({'|'.join(_SUFFIXES)})")


@dataclass(frozen=True, slots=True)
class Resources:
    """A scheduler which reads a container's limits.

    Attributes:
        cards: The resource which counts cards.
        memory: The resource with the MiB of each of them.
    """

    cards: str
    memory: str

    def cards_of(self, pod: Pod, container: Container) -> int:
        """Return how many cards a container asks for, by this scheduler's name or the device plugin's."""
        return max(_count(container, self.cards), _count(container, CARDS))

    def request_bytes(self, pod: Pod, container: Container) -> int | None:
        """Return what a container asks for of each card; None: nothing."""
        return _count(container, self.memory) * MIB or None

    def write(self, pod: Pod, container: Container, size_mib: int) -> None:
        """Let a container ask for so much of each of its cards, of one where it asked for none."""
        cards = max(1, self.cards_of(pod, container))
        resources = container["resources"] = container.get("resources") or {}
        limits = resources["limits"] = resources.get("limits") or {}
        if self.cards != CARDS:
            for kind in ("limits", "requests"):
                (resources.get(kind) or {}).pop(CARDS, None)
        limits[self.cards] = str(cards)
        limits[self.memory] = str(size_mib)
        for name in (self.cards, self.memory):  # spec: of an extended resource requests and limits are equal
            if name in (resources.get("requests") or {}):
                resources["requests"][name] = limits[name]


@dataclass(frozen=True, slots=True)
class Annotation:
    """A scheduler which reads an annotation of the pod, and wants no card asked for beside it.

    Attributes:
        memory: The annotation's name.
    """

    memory: str

    def cards_of(self, pod: Pod, container: Container) -> int:
        """Return how many whole cards a container asks for."""
        return _count(container, CARDS)

    def request_bytes(self, pod: Pod, container: Container) -> int | None:
        """Return what the pod asks for; None: nothing."""
        text = str((pod["metadata"].get("annotations") or {}).get(self.memory, ""))
        return int(text) * MIB if text.isdecimal() else None

    def write(self, pod: Pod, container: Container, size_mib: int) -> None:
        """Let a pod ask for so much of one card."""
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[self.memory] = str(size_mib)
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            (resources.get(kind) or {}).pop(CARDS, None)


Format: TypeAlias = Resources | Annotation
FORMATS: Final[dict[str, Format]] = {
    "kai": Annotation("gpu-memory"),
    "hami": Resources(CARDS, "nvidia.com/gpumem"),
    "volcano": Resources("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"),
}
# spec: the schedulers' own names, as their documents' examples have them
_SCHEDULERS: Final = {"kai-scheduler": "kai", "hami-scheduler": "hami", "volcano": "volcano"}


def format_of(pod: Pod, named: str) -> Format | None:
    """Return how a pod's scheduler is asked: as it is named, else by its scheduler's name, else by what it asks for already."""
    if named:
        return FORMATS.get(named)
    scheduler = _SCHEDULERS.get(str(pod["spec"].get("schedulerName", "")))
    if scheduler is not None:
        return FORMATS[scheduler]
    containers = pod["spec"]["containers"]
    for one in FORMATS.values():
        if any(one.request_bytes(pod, container) is not None for container in containers):
            return one
    return None


def _count(container: Mapping[str, Any], name: str) -> int:
    """Return a resource's whole number in limits, else in requests; 0: none."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        if quantity := _QUANTITY.fullmatch(str((resources.get(kind) or {}).get(name, ""))):
            return int(quantity[1]) * _SUFFIXES[quantity[2]]
    return 0
