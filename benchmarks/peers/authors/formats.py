"""Formats of `python -m benchmarks.peers.authors`: tables published by authors, and the first collector's."""

from __future__ import annotations

from typing import Final

from benchmarks.peers.authors import collected, gpumemnet, xmem
from vramcast.datasets.histories.formats import Format

FORMATS: Final = {
    one.name: one
    for one in (
        Format("gpumemnet", "GPUMemNet's tables of MLPs and CNNs, rebuilt", gpumemnet.read),
        Format("xmem", "xMem's evaluation_result.json, or a table of them", xmem.read),
        Format("collect", "the first collector's runs.jsonl", collected.read),
    )
}
