"""AdmissionReview `admission.k8s.io/v1`: the API server's request and its response."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import jsonpatch
from pydantic import BaseModel, Field, ValidationError

from vramcast.cluster.kubernetes.gpu_requests import Pod
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten

Version: TypeAlias = Literal["admission.k8s.io/v1"]
Kind: TypeAlias = Literal["AdmissionReview"]
_WARNING_CHARACTERS: Final = 256  # spec: kubernetes.io, Dynamic Admission Control: longer warnings may be cut
_DEEPEST: Final = 100  # arbitrary: a PyTorchJob has about 12 levels; copies and patches recurse several calls per level
_FORBIDDEN: Final = 403  # spec: the status in the documentation's example of a denied request
# Path of the pod templates by kind. # spec: batch/v1 Job, apps/v1, kubeflow.org/v1 PyTorchJob
_TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "Job": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "PyTorchJob": ("spec", "pytorchReplicaSpecs", "*", "template"),
}


class AdmissionRequest(BaseModel):
    """The request in a review."""

    uid: str
    object: dict[str, Any] = Field(description="the object that is created or changed")

    def pods(self, of: dict[str, Any]) -> Iterator[Pod]:
        """Yield the pods in an object, or its pod templates."""
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
        """The object's own annotations."""
        metadata = self.object.get("metadata")
        found = metadata.get("annotations") if isinstance(metadata, dict) else None
        return found if isinstance(found, dict) else {}


class AdmissionReview(BaseModel):
    """A request of the API server; unused fields are ignored."""

    apiVersion: Version
    kind: Kind
    request: AdmissionRequest


class AdmissionResponse(BaseModel):
    """The decision on the object."""

    uid: str
    allowed: bool
    patchType: Literal["JSONPatch"] | None = None
    patch: Annotated[str | None, Field(description="a JSON patch, base64")] = None
    status: dict[str, Any] | None = None
    warnings: list[str] | None = None


class ReviewedAdmission(BaseModel):
    """The answer to an AdmissionReview."""

    apiVersion: Version
    kind: Kind
    response: AdmissionResponse


def _is_pod(found: dict[str, Any]) -> bool:
    """Return whether a value has the fields of a pod that are read here; a custom kind's template may lack them."""

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


def read(body: bytes) -> AdmissionRequest:
    """Return the request of the API server.

    Raises:
        UsageError: The body is not an AdmissionReview of version v1, or it is about a deletion.
    """
    try:
        found = json.loads(body)
        if _depth(found) > _DEEPEST:
            raise RecursionError
        return AdmissionReview.model_validate(found).request
    except ValidationError as error:
        wrong = error.errors(include_input=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "the body"
        raise UsageError(f"The body is not an AdmissionReview of admission.k8s.io/v1 ({where}: {wrong['msg']}).") from None
    except RecursionError:
        raise UsageError("The body is not an AdmissionReview of admission.k8s.io/v1 (it is nested too deeply).") from None
    except ValueError as error:  # not JSON, or a number of thousands of digits
        why = shorten(str(error).partition(";")[0])
        raise UsageError(f"The body is not an AdmissionReview of admission.k8s.io/v1 ({why}).") from None


def _depth(value: Any) -> int:
    """Return the nesting depth of a JSON value."""
    depth, level = 0, [value]
    while level := [one for part in level if isinstance(part, dict | list) for one in _parts(part)]:
        depth += 1
    return depth


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def admitted(request: AdmissionRequest, changed: dict[str, Any] | None = None, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return a response that admits an object, with its changes as a JSON patch."""
    response = AdmissionResponse(uid=request.uid, allowed=True)
    patch = jsonpatch.make_patch(request.object, changed).patch if changed is not None else []
    if patch:
        response.patchType, response.patch = "JSONPatch", base64.b64encode(json.dumps(patch).encode()).decode()
    return _answer(response, warnings)


def denied(request: AdmissionRequest, why: str, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return a response that rejects an object, with the reason."""
    status = {"code": _FORBIDDEN, "message": why}
    return _answer(AdmissionResponse(uid=request.uid, allowed=False, status=status), warnings)


def _answer(response: AdmissionResponse, warnings: Sequence[str]) -> dict[str, Any]:
    response.warnings = [one[:_WARNING_CHARACTERS] for one in warnings] or None
    answer = ReviewedAdmission(apiVersion="admission.k8s.io/v1", kind="AdmissionReview", response=response)
    return answer.model_dump(exclude_none=True)
