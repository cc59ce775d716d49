"""Training of recommenders by TorchRec's benchmark of pipelines: tables in the messages of commits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import yaml  # type: ignore[import-untyped,unused-ignore]

from benchmarks.measured.cells import traits
from benchmarks.measured.collectors.checkout import Checkout
from benchmarks.measured.collectors.markdown import tables
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.files import digest
from vramcast.core.units import MIB

REPOSITORY = "meta-pytorch/torchrec"
_MODULE: Final = "torchrec.distributed.benchmark.benchmark_train_pipeline"
_CONFIGURATIONS: Final = "torchrec/distributed/benchmark/yaml"
_FIGURES: Final = {
    "gpu peak mem alloc": "allocated peak", "gpu peak mem reserved": "reserved peak", "gpu mem used": "device at print",
}  # fmt: skip
_NUMBER: Final = re.compile(r"([\d.]+) ?GB")
_FACTS: Final = ("num_unweighted_features", "num_weighted_features", "embedding_feature_dim", "pipeline")
# The benchmark prints whole MiB over 1000, and calls it GB.
_UNIT: Final = 1000 * MIB
_OPTION: Final = re.compile(r"--([^\s=]+)=?(\S*)")
_COMMAND: Final = re.compile(r"--yaml_config=(\S+\.ya?ml)((?:\s+(?:\\\s+)?--\S+)*)")


def runs(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the figures of all tables."""
    for commit, message in checkout.messages():
        seen: Counter[tuple[str, str]] = Counter()
        named = _commands(message)
        for table in tables(message):
            columns = {_figure(cell): place for place, cell in enumerate(table[0]) if _figure(cell)}
            for row in table[1:] if columns else []:
                name = re.sub(r"\(.*|\W+$", "", row[0]).strip("* `")
                path, options = named.get(name, (f"{_CONFIGURATIONS}/{name}.yml", {}))
                config = checkout.text(path, commit)
                # A row of which no configuration is known says nothing of its job.
                for figure, place in columns.items() if config else ():
                    found = _NUMBER.match(row[place]) if place < len(row) else None
                    if found and float(found[1]):
                        seen[name, figure] += 1
                        repeat = {"repeat": seen[name, figure]} if seen[name, figure] > 1 else {}
                        facts = {"name": row[0].strip("* `"), **options, **repeat}
                        yield _run(commit, figure, float(found[1]), config, path, facts)


def _figure(header: str) -> str:
    return next((figure for start, figure in _FIGURES.items() if header.lower().startswith(start)), "")


def _commands(message: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the configuration's path and the other options of each command in a message, by the name of its run."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for config, rest in _COMMAND.findall(message):
        given: dict[str, str] = dict(_OPTION.findall(rest))
        path = f"{_CONFIGURATIONS}/{PurePosixPath(config).name}"
        found.setdefault(given.pop("name", PurePosixPath(config).stem), (path, given))
    return found


def _run(commit: str, figure: str, value: float, config: str, path: str, facts: Mapping[str, Any]) -> MeasuredRun:
    parts: dict[str, dict[str, Any]] = yaml.safe_load(config)
    ranks = parts.get("RunOptions", {}).get("world_size")
    model = parts.get("ModelSelectionConfig", {}).get("model_name", "")
    chosen: dict[str, Any] = parts.get("EmbeddingTablesConfig", {}) | parts.get("PipelineConfig", {})
    # The command's options replace those of the configuration.
    options = {name: chosen[name] for name in _FACTS if name in chosen} | dict(facts)
    return MeasuredRun(
        repository=REPOSITORY,
        commit=commit,
        path="",
        licence="BSD-3-Clause",
        job=f"{_MODULE} --yaml_config={path}",
        script=digest(config, digits=12),
        model=f"{model or 'the default model'} of {PurePosixPath(path).stem}",
        figure=figure,
        value_bytes=round(value * _UNIT),
        unit_rule="MiB over 1000, two decimals; of ranks and repeats, 90 % are lower",
        quality="partly",
        batch=parts.get("ModelInputConfig", {}).get("batch_size"),
        precision="fp32",
        options=options,
        traits=traits(ranks=ranks),
        cards=ranks,
    )
