"""Cells of public tables as values of a measured run."""

from __future__ import annotations

import re
from typing import Final

from benchmarks.measured.measured_run import TRAITS
from vramcast.core.units import MIB

Row = dict[str, str]

PAGE: Final = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:blob|commit)/([0-9a-f]{40})(?:/(.+))?")
_SPDX: Final = {"BSD-3": "BSD-3-Clause"}
_FIGURES: Final = {
    "allocated": "allocated peak", "reserved": "reserved peak", "process": "process peak", "device": "device peak",
}  # fmt: skip
# spec: families of timm without a convolution after the one that cuts the image into patches
_PATCHES_ONLY: Final = re.compile(
    "(?:aimv2|beit|cait|crossvit|deit|eva|flexivit|gmixer|gmlp|jx_nest|mixer|mlp|naflexvit|nest|pe_|pit|resmlp|samvit|sequencer"
    "|swin|tiny_vit|tnt|twins|vit|volo|vjepa|xcit)"
)


def number(text: str) -> int | None:
    """Return a whole number, or None for other text."""
    return int(float(text)) if re.fullmatch(r"\d+(\.0)?", text) else None


def mib(text: str) -> int:
    """Return the bytes of a number in MiB."""
    return round(float(text) * MIB)


def figure(text: str) -> str:
    """Return the kind of a figure by its first word; "" if it is none of ours."""
    kind = _FIGURES.get(re.split("[ _]", text, maxsplit=1)[0], "")
    return kind.replace("peak", "at print") if re.search("at.print", text) and kind else kind


def spdx(text: str) -> str:
    """Return a license without the remark after it, by its SPDX identifier; "" if it is not known."""
    name = text.partition(" (")[0]
    return "" if name.lower() in ("none", "unknown") or " " in name else _SPDX.get(name, name)


def has_convolutions(timm_model: str) -> bool:
    """Return whether a network of timm has convolutions other than the one that cuts its image into patches."""
    return _PATCHES_ONLY.match(timm_model) is None


def traits(*, convolutions: bool = False, compiled: bool = False, ranks: int | None = None, varied: bool = False) -> str:
    """Return the traits of a job, in the order of `measured_run.TRAITS`."""
    applies = (convolutions, compiled, (ranks or 1) > 1, varied)
    return ", ".join(name for name, does in zip(TRAITS, applies, strict=True) if does)
