"""Decision on a reviewed object: each of its pods that names a model is checked once."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

from vramcast.cluster.answer import Answer
from vramcast.cluster.kubernetes import annotations as names
from vramcast.cluster.kubernetes.annotations import AnnotatedRequest
from vramcast.cluster.kubernetes.gpu_requests import FORMATS, Container, Format, Pod, format_of, parts_of_cards
from vramcast.cluster.kubernetes.review import AdmissionRequest, admitted, denied
from vramcast.core.errors import NoAnswer, UsageError
from vramcast.core.units import MIB, gib

# watch: records what would be requested. fill: adds missing requests. enforce: rejects pods that cannot run.
Mode: TypeAlias = Literal["watch", "fill", "enforce"]
# Asks the service; raises NoAnswer or UsageError.
Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Answer]]
_SAYS: Final = "vramcast: "


async def mutate(request: AdmissionRequest, ask: Ask, mode: Mode) -> dict[str, Any]:
    """Return an object with the requests of its pods; without an answer it is unchanged, with a warning."""
    changed = copy.deepcopy(request.object)
    warnings: list[str] = []
    for pod in request.pods(changed):
        try:
            found = await _asked(pod, request, ask)
            if found is not None:
                warnings += _changed(pod, *found, mode)
        except (NoAnswer, UsageError) as error:
            warnings.append(f"{_SAYS}no estimate: {error}")
    return admitted(request, changed, warnings)


async def validate(request: AdmissionRequest, ask: Ask, mode: Mode) -> dict[str, Any]:
    """Return whether an object is admitted; mode `enforce` rejects it if one of its pods certainly cannot run."""
    warnings: list[str] = []
    for pod in request.pods(copy.deepcopy(request.object)):
        try:
            found = await _asked(pod, request, ask)
            why = _cannot_run(pod, *found) if found is not None else ""
        except (NoAnswer, UsageError) as error:
            warnings.append(f"{_SAYS}no estimate: {error}")
            continue
        if why and mode == "enforce":
            return denied(request, _SAYS + why, warnings)
        warnings += [_SAYS + why] if why else []
    return admitted(request, None, warnings)


async def _asked(pod: Pod, request: AdmissionRequest, ask: Ask) -> tuple[AnnotatedRequest, Answer] | None:
    """Return a pod's annotations and the answer for it; None: it names no model. A job's own annotations apply to its pods."""
    annotations = {**request.annotations, **(pod["metadata"].get("annotations") or {})}
    found = names.read({str(name): str(text) for name, text in annotations.items()}, pod["spec"])
    if found is None:
        return None
    return found, await ask(found.question)


def _changed(pod: Pod, named: AnnotatedRequest, answer: Answer, mode: Mode) -> list[str]:
    """Write the memory that a pod needs into it; return the messages for its user."""
    noted = pod["metadata"]["annotations"] = pod["metadata"].get("annotations") or {}
    request_mib = -(-answer.request_bytes // MIB)
    noted |= {names.ESTIMATE_ID: answer.id, names.PROCESS_MIB: str(-(-answer.process_bytes // MIB))}
    noted[names.VERDICT] = answer.verdict
    if not answer.may_run:
        return [_SAYS + _too_large(answer)]
    if mode == "watch":
        noted[names.WOULD_REQUEST_MIB] = str(request_mib)
        return []
    container = _container(pod, named)
    if parts := parts_of_cards(pod):
        return _kept(pod, parts, container, named, answer)
    how = _how(pod, named)
    cards = how.cards_of(pod, container)
    if cards > 1 and how is FORMATS["kai"]:
        return [f"{_SAYS}the pod keeps its {cards} whole cards, because gpu-memory applies to a single card"]
    how.write(pod, container, request_mib)
    noted[names.REQUEST_MIB] = str(request_mib)
    return []


def _kept(pod: Pod, parts: list[str], container: Container, named: AnnotatedRequest, answer: Answer) -> list[str]:
    """Return the message for a pod that already requests part of a card; the pod stays unchanged."""
    how = format_of(pod, named.format)
    given = how.request_bytes(pod, container) if how is not None else None
    if given is None:
        return [f"{_SAYS}the pod already requests {', '.join(parts)} and stays unchanged; the job needs {_mib(answer)}"]
    pod["metadata"]["annotations"][names.REQUEST_MIB] = str(given // MIB)
    return _compared(given, answer)


def _cannot_run(pod: Pod, named: AnnotatedRequest, answer: Answer) -> str:
    """Return the reason why a pod cannot run; "": it may run."""
    if not answer.may_run:
        return _too_large(answer)
    how = format_of(pod, named.format)
    given = how.request_bytes(pod, _container(pod, named)) if how is not None else None
    if given is not None and given < answer.process_bytes:
        return f"the pod requests {gib(given)} of the card but needs {gib(answer.process_bytes)}: request {_mib(answer)}"
    return ""


def _compared(given: int, answer: Answer) -> list[str]:
    if given < answer.process_bytes:
        return [f"{_SAYS}the pod requests {gib(given)} but needs {gib(answer.process_bytes)}: request {_mib(answer)}"]
    if given < answer.request_bytes:
        return [f"{_SAYS}the pod requests {gib(given)}, which may be too little: {_mib(answer)} would be enough"]
    return []


def _how(pod: Pod, named: AnnotatedRequest) -> Format:
    how = format_of(pod, named.format)
    if how is None:
        known = ", ".join(FORMATS)
        raise UsageError(f"the request format of its scheduler is unknown: add {names.FORMAT} with one of {known}")
    return how


def _container(pod: Pod, named: AnnotatedRequest) -> Container:
    """Return the container that trains: the named one, else the first that requests a card, else the first."""
    containers: list[Container] = pod["spec"]["containers"]
    if named.container:
        containers = [one for one in containers if one.get("name") == named.container]
        if not containers:
            raise UsageError(f"the pod has no container '{named.container}': name one of its containers")
    with_cards = (one for one in containers if any(how.cards_of(pod, one) for how in FORMATS.values()))
    return next(with_cards, containers[0])


def _too_large(answer: Answer) -> str:
    return f"the job needs {gib(answer.process_bytes)}, but the card has {gib(answer.capacity_bytes)}"


def _mib(answer: Answer) -> str:
    return f"{-(-answer.request_bytes // MIB)} MiB"
