"""How schedulers are asked for a part of a card: the names they read, all in MiB. Sources: the table in docs/kubernetes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vramcast.core.checks import decimal
from vramcast.core.units import MIB
from vramcast.schedulers.kubernetes.quantities import quantity

Pod: TypeAlias = MutableMapping[str, Any]  # what has `metadata` and `spec`: a Pod, or a job's template of it
Container: TypeAlias = MutableMapping[str, Any]

# spec: github.com/NVIDIA/k8s-device-plugin, the resource of whole cards
CARDS: Final = "nvidia.com/gpu"
# How a pod asks for a part of a card, in anybody's spelling. # spec: KAI at 72de64f, docs/gpu-sharing; HAMi 2.5, README;
# volcano-vgpu-device-plugin 1.10, README; k8s-device-plugin 0.17, README (MIG's and time slices' names)
_PARTS: Final = re.compile(
    r"nvidia\.com/(gpumem(-percentage)?|gpucores|mig-.+|gpu\.shared)|volcano\.sh/vgpu-(memory(-percentage)?|cores)"
)
_PARTS_IN_ANNOTATIONS: Final = ("gpu-memory", "gpu-fraction", "gpu-fraction-num-devices")


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
        found = decimal(str((pod["metadata"].get("annotations") or {}).get(self.memory, "")))
        return None if found is None else found * MIB

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


def parts_of_cards(pod: Pod) -> list[str]:
    """Return the names by which a pod asks for a part of a card, whatever the value: a request of its user's own."""
    annotations = pod["metadata"].get("annotations") or {}
    found = [name for name in _PARTS_IN_ANNOTATIONS if name in annotations]
    for container in (*pod["spec"]["containers"], *_others(pod)):
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            found += [name for name in resources.get(kind) or {} if _PARTS.fullmatch(name)]
        if resources.get("claims"):  # spec: kubernetes.io, Dynamic Resource Allocation: which device stands elsewhere
            found.append("resources.claims")
    return list(dict.fromkeys(found))


def _others(pod: Pod) -> list[Container]:
    """Return the containers that run before the others, as far as they have the form of some."""
    found = pod["spec"].get("initContainers")
    some = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [one for one in some if isinstance(one.get("resources"), dict | None) and _has_maps(one.get("resources") or {})]


def _has_maps(resources: Mapping[str, Any]) -> bool:
    return all(isinstance(resources.get(kind), dict | None) for kind in ("limits", "requests"))


def _count(container: Mapping[str, Any], name: str) -> int:
    """Return a resource's whole number in limits, else in requests; 0: none."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        if found := quantity((resources.get(kind) or {}).get(name)):
            return max(0, found)
    return 0
