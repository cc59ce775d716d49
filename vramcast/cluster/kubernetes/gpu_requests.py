"""Requests for part of a card in each scheduler's format, all in MiB. Sources: the table in docs/kubernetes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vramcast.cluster.kubernetes.quantities import quantity
from vramcast.core.checks import decimal
from vramcast.core.units import MIB

Pod: TypeAlias = MutableMapping[str, Any]  # an object with `metadata` and `spec`: a Pod, or a job's pod template
Container: TypeAlias = MutableMapping[str, Any]

# spec: github.com/NVIDIA/k8s-device-plugin, the resource of whole cards
CARDS: Final = "nvidia.com/gpu"
# All names by which a pod can request part of a card. # spec: KAI at 72de64f, docs/gpu-sharing; HAMi 2.5, README;
# volcano-vgpu-device-plugin 1.10, README; k8s-device-plugin 0.17, README (MIG's and time slices' names)
_PARTS: Final = re.compile(
    r"nvidia\.com/(gpumem(-percentage)?|gpucores|mig-.+|gpu\.shared)|volcano\.sh/vgpu-(memory(-percentage)?|cores)"
)
_PARTS_IN_ANNOTATIONS: Final = ("gpu-memory", "gpu-fraction", "gpu-fraction-num-devices")


@dataclass(frozen=True, slots=True)
class Resources:
    """A scheduler that reads a container's limits.

    Attributes:
        cards: The resource that counts cards.
        memory: The resource with the MiB of each card.
    """

    cards: str
    memory: str

    def cards_of(self, pod: Pod, container: Container) -> int:
        """Return the number of cards a container requests, by this scheduler's resource or the device plugin's."""
        return max(_count(container, self.cards), _count(container, CARDS))

    def request_bytes(self, pod: Pod, container: Container) -> int | None:
        """Return the memory a container requests on each card; None: it requests none."""
        return _count(container, self.memory) * MIB or None

    def write(self, pod: Pod, container: Container, size_mib: int) -> None:
        """Request this much memory on each of a container's cards, or on one card if it requests none."""
        cards = max(1, self.cards_of(pod, container))
        resources = container["resources"] = container.get("resources") or {}
        limits = resources["limits"] = resources.get("limits") or {}
        if self.cards != CARDS:
            for kind in ("limits", "requests"):
                (resources.get(kind) or {}).pop(CARDS, None)
        limits[self.cards] = str(cards)
        limits[self.memory] = str(size_mib)
        for name in (self.cards, self.memory):  # spec: requests and limits of an extended resource are equal
            if name in (resources.get("requests") or {}):
                resources["requests"][name] = limits[name]


@dataclass(frozen=True, slots=True)
class Annotation:
    """A scheduler that reads an annotation of the pod, which must then request no card.

    Attributes:
        memory: Name of the annotation.
    """

    memory: str

    def cards_of(self, pod: Pod, container: Container) -> int:
        """Return the number of whole cards a container requests."""
        return _count(container, CARDS)

    def request_bytes(self, pod: Pod, container: Container) -> int | None:
        """Return the memory the pod requests; None: it requests none."""
        found = decimal(str((pod["metadata"].get("annotations") or {}).get(self.memory, "")))
        return None if found is None else found * MIB

    def write(self, pod: Pod, container: Container, size_mib: int) -> None:
        """Request this much memory of one card for a pod."""
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
# spec: the schedulers' own names, as in their documentation's examples
_SCHEDULERS: Final = {"kai-scheduler": "kai", "hami-scheduler": "hami", "volcano": "volcano"}


def format_of(pod: Pod, named: str) -> Format | None:
    """Return the request format of a pod: the named one, else its scheduler's, else that of its present requests."""
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
    """Return the names by which a pod requests part of a card, whatever their values: its user made that request."""
    annotations = pod["metadata"].get("annotations") or {}
    found = [name for name in _PARTS_IN_ANNOTATIONS if name in annotations]
    for container in (*pod["spec"]["containers"], *_others(pod)):
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            found += [name for name in resources.get(kind) or {} if _PARTS.fullmatch(name)]
        if resources.get("claims"):  # spec: kubernetes.io, Dynamic Resource Allocation: another object names the device
            found.append("resources.claims")
    return list(dict.fromkeys(found))


def _others(pod: Pod) -> list[Container]:
    """Return the init containers of a pod, as far as they have a container's form."""
    found = pod["spec"].get("initContainers")
    some = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [one for one in some if isinstance(one.get("resources"), dict | None) and _has_maps(one.get("resources") or {})]


def _has_maps(resources: Mapping[str, Any]) -> bool:
    return all(isinstance(resources.get(kind), dict | None) for kind in ("limits", "requests"))


def _count(container: Mapping[str, Any], name: str) -> int:
    """Return a resource's whole number in limits, else in requests; 0: it is in neither."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        if found := quantity((resources.get(kind) or {}).get(name)):
            return max(0, found)
    return 0
