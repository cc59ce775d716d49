"""Names of the models of torchvision, timm and transformers, read from the installed sources: an import takes seconds."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.jobs import hub

_MOST: Final = 5  # arbitrary: names that a person still reads in a message


@dataclass(frozen=True, slots=True)
class _Source:
    """The files of a library that register models.

    Attributes:
        package: The library.
        files: Pattern of the files, relative to its folder.
        name: Pattern of a registration; its first group with text is the model's name.
    """

    package: str
    files: str
    name: re.Pattern[str]


_DECORATED: Final = r"^@register_model(?:\(\)|\(name=\"(\w+)\"\))?\n(?:(?:@.*|[ )].*|\))\n)*def (\w+)\("
# spec: torchvision 0.26, timm 1.0 and transformers 5.17; a test compares with the lists of the libraries themselves
_SOURCES: Final = {
    "torchvision": _Source("torchvision", "models/**/*.py", re.compile(_DECORATED, re.MULTILINE)),
    "timm": _Source("timm", "models/*.py", re.compile(_DECORATED, re.MULTILINE)),
    "hf": _Source(
        "transformers", "models/auto/*.py", re.compile(r"[\"']([\w.-]+)[\"']\s*[:,]\s*[\"'](?!AutoConfig)\w+Config[\"']")
    ),
}
_TAGGED: Final = re.compile(r"^    '(\w+)\.\w", re.MULTILINE)  # timm's list of pretrained weights: 'MODEL.WEIGHTS': ...


def _files(registry: str) -> list[Path]:
    source = _SOURCES.get(registry)
    spec = importlib.util.find_spec(source.package) if source else None
    if source is None or spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob(source.files))


@functools.cache
def installed_names(registry: str) -> tuple[str, ...]:
    """Return the names in a registry's files; empty if its library is not installed, or has models in another way.

    Models with the most pretrained weights come first, which are the most used ones; equal ones in the library's own order.
    """
    texts = [path.read_text(encoding="utf-8") for path in _files(registry)]
    found = (next(filter(None, match.groups())) for one in texts for match in _SOURCES[registry].name.finditer(one))
    n_weights = Counter(name for one in texts for name in _TAGGED.findall(one))
    return tuple(sorted(dict.fromkeys(found), key=lambda name: -n_weights[name]))


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that a person may have meant: those that begin with it, or else close ones."""
    by_lower = {one.lower(): one for one in known}
    wanted = name.lower()
    longer = [lower for lower in by_lower if lower.startswith(wanted)]
    return [by_lower[lower] for lower in (longer or difflib.get_close_matches(wanted, by_lower, _MOST))[:_MOST]]


@functools.cache
def _every_target() -> dict[str, str]:
    """Return all known TARGETs with their last names."""
    named = {f"{registry}:{name}": name for registry in _SOURCES for name in installed_names(registry)}
    for library in (hub.TRANSFORMERS, hub.DIFFUSERS):
        named |= {f"{library.scheme}:{one}": one.rpartition("/")[2].lower() for one in hub.table_ids(library)}
    return named


@functools.cache
def may_have(registry: str, name: str) -> bool:
    """Return whether a registry has a model of this name or an older one; True if its files are not at hand."""
    files, older = _files(registry), re.compile(rf"['\"]{re.escape(name)}['\"] *:")
    is_known = not files or name in installed_names(registry)
    return is_known or any(older.search(path.read_text(encoding="utf-8")) for path in files)


@functools.cache
def _targets_by_name() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the known TARGETs by their whole names, and by their last ones: each row of a history asks."""
    whole: dict[str, list[str]] = {}
    last: dict[str, list[str]] = {}
    for target, name in _every_target().items():
        whole.setdefault(target.partition(":")[2].lower(), []).append(target)
        last.setdefault(name, []).append(target)
    return whole, last


def exact_targets(text: str) -> list[str]:
    """Return the TARGETs with a bare name: of the whole name, or else of the last part of an id (`Llama-3.1-8B`)."""
    whole, last = _targets_by_name()
    return whole.get(text.lower()) or last.get(text.lower(), [])


def meant_targets(text: str) -> list[str]:
    """Return the TARGETs that a person may have meant by a text without a registry: `resnet18`, `Llama-3.1-8B`.

    A model of this exact name comes before names that begin with it, and those before close ones. torchvision comes before
    timm, which has many of its models too.
    """
    wanted, named = text.rpartition("/")[2].lower(), _every_target()
    if not wanted:
        return []
    longer = [target for target, name in named.items() if name.startswith(wanted)]
    close = difflib.get_close_matches(wanted, named.values(), _MOST)
    found = longer or [target for target, name in named.items() if name in close]
    return sorted(found, key=lambda target: named[target] != wanted)[:_MOST]
