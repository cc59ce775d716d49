"""AdmissionReview `admission.k8s.io/v1`: what the API server sends, and what it wants back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jsonpatch

from vramcast.core.errors import UsageError
from vramcast.schedulers.kubernetes.gpu_requests import Pod

_VERSION: Final = "admission.k8s.io/v1"
_WARNING_CHARACTERS: Final = 256  # spec: kubernetes.io, Dynamic Admission Control: longer warnings may be cut
_FORBIDDEN: Final = 403  # spec: the status which the example of a denied request has
# Where a kind keeps the templates of its pods. # spec: batch/v1 Job, apps/v1, kubeflow.org/v1 PyTorchJob
_TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "Job": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "PyTorchJob": ("spec", "pytorchReplicaSpecs", "*", "template"),
}


@dataclass(frozen=True, slots=True)
class Review:
    """A request of the API server.

    Attributes:
        uid: Of the request; the answer has the same.
        object: What is created or changed.
    """

    uid: str
    object: dict[str, Any]

    def pods(self, of: dict[str, Any]) -> Iterator[Pod]:
        """Yield the pods in an object, or the templates from which they will be made."""
        places = [of]
        for step in _TEMPLATES.get(str(of.get("kind")), ("none",)):
            inner = [list(place.values()) if step == "*" else [place.get(step)] for place in places]
            places = [one for some in inner for one in some if isinstance(one, dict)]
        for place in places:
            place.setdefault("metadata", {})
            if _is_pod(place):
                yield place

    @property
    def annotations(self) -> dict[str, Any]:
        """The object's own."""
        metadata = self.object.get("metadata")
        found = metadata.get("annotations") if isinstance(metadata, dict) else None
        return found if isinstance(found, dict) else {}


def _is_pod(found: dict[str, Any]) -> bool:
    """Whether something has the form of a pod, as far as it is read here; a custom kind's template need not."""

    def is_map(value: Any) -> bool:
        return value is None or isinstance(value, dict)

    metadata, spec = found["metadata"], found.get("spec")
    if not isinstance(metadata, dict) or not is_map(metadata.get("annotations")) or not isinstance(spec, dict):
        return False
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or not is_map(spec.get("nodeSelector")):
        return False
    return all(
        isinstance(one, dict)
        and is_map(resources := one.get("resources"))
        and all(is_map((resources or {}).get(kind)) for kind in ("limits", "requests"))
        for one in containers
    )


def read(body: bytes) -> Review:
    """Return what the API server asks.

    Raises:
        UsageError: it is no AdmissionReview of version v1.
    """
    try:
        found = json.loads(body)
        request = found["request"]
        if found["apiVersion"] != _VERSION or found["kind"] != "AdmissionReview":
            raise UsageError(f"This is a {found['apiVersion']} {found['kind']}: {_VERSION} AdmissionReview is answered.")
        uid, about = request["uid"], request["object"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"This is no AdmissionReview: POST one of {_VERSION}.") from None
    if not isinstance(uid, str) or not isinstance(about, dict):
        raise UsageError("The AdmissionReview has no uid, or no object: deletions are not reviewed.")
    return Review(uid, about)


def admitted(review: Review, changed: dict[str, Any] | None = None, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return that an object is admitted, with its changes as a JSON patch."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": True}
    patch = jsonpatch.make_patch(review.object, changed).patch if changed is not None else []
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return _answer(response, warnings)


def denied(review: Review, why: str, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return that an object is not admitted, and why."""
    status = {"code": _FORBIDDEN, "message": why}
    return _answer({"uid": review.uid, "allowed": False, "status": status}, warnings)


def _answer(response: dict[str, Any], warnings: Sequence[str]) -> dict[str, Any]:
    if warnings:
        response["warnings"] = [one[:_WARNING_CHARACTERS] for one in warnings]
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}
