"""What becomes of a reviewed object: each of its pods which names a model is asked about, once."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

from vramcast.core.errors import NoAnswer, UsageError
from vramcast.core.units import MIB, gib
from vramcast.schedulers.answer import Answer
from vramcast.schedulers.kubernetes import annotations as names
from vramcast.schedulers.kubernetes.annotations import Named
from vramcast.schedulers.kubernetes.gpu_requests import FORMATS, Container, Format, Pod, format_of, parts_of_cards
from vramcast.schedulers.kubernetes.review import AdmissionRequest, admitted, denied

# watch: notes what would be requested. fill: fills requests which are missing. enforce: refuses what cannot run.
Mode: TypeAlias = Literal["watch", "fill", "enforce"]
# Asks the service; raises NoAnswer or UsageError.
Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Answer]]
_SAYS: Final = "vramcast: "


async def mutate(request: AdmissionRequest, ask: Ask, mode: Mode) -> dict[str, Any]:
    """Return an object with the requests of its pods; without an answer it is as it was, with a warning."""
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
    """Return whether an object is admitted: in mode `enforce` not where it is certain that a pod of it cannot run."""
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


async def _asked(pod: Pod, request: AdmissionRequest, ask: Ask) -> tuple[Named, Answer] | None:
    """Return what a pod names and what is known of it; None: it names nothing. A job's own annotations hold for its pods."""
    annotations = {**request.annotations, **(pod["metadata"].get("annotations") or {})}
    found = names.read({str(name): str(text) for name, text in annotations.items()}, pod["spec"])
    if found is None:
        return None
    return found, await ask(found.question)


def _changed(pod: Pod, named: Named, answer: Answer, mode: Mode) -> list[str]:
    """Write into a pod what it needs; return what its user should read."""
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
        return [f"{_SAYS}the pod keeps its {cards} whole cards: gpu-memory is of one card"]
    how.write(pod, container, request_mib)
    noted[names.REQUEST_MIB] = str(request_mib)
    return []


def _kept(pod: Pod, parts: list[str], container: Container, named: Named, answer: Answer) -> list[str]:
    """Return what to say of a pod that asks for a part of a card itself: it stays as it is."""
    how = format_of(pod, named.format)
    given = how.request_bytes(pod, container) if how is not None else None
    if given is None:
        return [f"{_SAYS}the pod asks for {', '.join(parts)} itself and stays as it is; the job needs {_mib(answer)}"]
    pod["metadata"]["annotations"][names.REQUEST_MIB] = str(given // MIB)
    return _compared(given, answer)


def _cannot_run(pod: Pod, named: Named, answer: Answer) -> str:
    """Return why a pod cannot run; "": it may."""
    if not answer.may_run:
        return _too_large(answer)
    how = format_of(pod, named.format)
    given = how.request_bytes(pod, _container(pod, named)) if how is not None else None
    if given is not None and given < answer.process_bytes:
        return f"the pod asks for {gib(given)} of the card and takes {gib(answer.process_bytes)}: ask for {_mib(answer)}"
    return ""


def _compared(given: int, answer: Answer) -> list[str]:
    if given < answer.process_bytes:
        return [f"{_SAYS}the pod asks for {gib(given)} and takes {gib(answer.process_bytes)}: ask for {_mib(answer)}"]
    if given < answer.request_bytes:
        return [f"{_SAYS}the pod asks for {gib(given)}, which may be too little: {_mib(answer)} would hold it"]
    return []


def _how(pod: Pod, named: Named) -> Format:
    how = format_of(pod, named.format)
    if how is None:
        known = ", ".join(FORMATS)
        raise UsageError(f"how its scheduler is asked is unknown: add {names.FORMAT}, one of {known}")
    return how


def _container(pod: Pod, named: Named) -> Container:
    """Return the container which trains: as it is named, else the first that asks for a card, else the first."""
    containers: list[Container] = pod["spec"]["containers"]
    if named.container:
        containers = [one for one in containers if one.get("name") == named.container]
        if not containers:
            raise UsageError(f"the pod has no container '{named.container}'")
    with_cards = (one for one in containers if any(how.cards_of(pod, one) for how in FORMATS.values()))
    return next(with_cards, containers[0])


def _too_large(answer: Answer) -> str:
    return f"the job takes {gib(answer.process_bytes)}, and the card has {gib(answer.capacity_bytes)}"


def _mib(answer: Answer) -> str:
    return f"{-(-answer.request_bytes // MIB)} MiB"
