"""Self-supervised training by Lightly's benchmarks: tables in the first lines of the scripts, with torch's allocated peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from benchmarks.measured.cells import traits
from benchmarks.measured.collectors.checkout import Checkout
from benchmarks.measured.collectors.markdown import tables
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.files import digest
from vramcast.core.units import GIB

REPOSITORY = "lightly-ai/lightly"
_FOLDER: Final = "docs/source/getting_started/benchmarks"
_SIZES: Final = {"cifar10": "3x32x32", "imagenet100": "3x224x224", "imagenette": "3x128x128"}
_MEMORY: Final = re.compile(r"([\d.]+) GByte")


def runs(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the rows of the scripts' tables."""
    for data, sizes in _SIZES.items():
        path = f"{_FOLDER}/{data}_benchmark.py"
        script = checkout.text(path)
        names: list[str] = []
        for rows in tables(script):
            for cells in rows:
                names = cells if cells[0] == "Model" else names
                row = dict(zip(names, cells, strict=False))
                memory = _MEMORY.fullmatch(row.get("Peak GPU Usage", ""))
                if memory:
                    yield _run(path, checkout.commit, script, sizes, row, float(memory[1]))


def _run(path: str, commit: str, script: str, sizes: str, row: dict[str, str], memory: float) -> MeasuredRun:
    method, _, backbone = row["Model"].partition(" (")
    backbone = backbone.removesuffix(")").replace("*", "")
    return MeasuredRun(
        repository=REPOSITORY,
        commit=commit,
        path=path,
        licence="MIT",
        job=path,
        script=digest(script, digits=12),
        model=f"{method}, {backbone or 'Res18'}",
        figure="allocated peak",
        value_bytes=round(memory * GIB),
        unit_rule="GiB, one decimal",
        quality="partly",
        batch=int(row["Batch Size"]),
        sizes=sizes,
        precision="fp32",
        options={"epochs": row["Epochs"], "note": row["Model"]},
        traits=traits(convolutions="ViT" not in backbone),
        cards=1,
        card="RTX A6000",
    )
