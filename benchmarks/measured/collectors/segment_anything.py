"""Inference of Segment Anything by segment-anything-fast: torch's allocated peak over batch sizes and techniques."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from benchmarks.measured.cells import Row, mib, traits
from benchmarks.measured.collectors.checkout import Checkout
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.files import digest

REPOSITORY = "pytorch-labs/segment-anything-fast"
_SCRIPT = "experiments/eval_combo.py"
_FACTS = ("technique", "sam_commit_name", "use_compile", "compress", "use_nested_tensor", "use_rel_pos", "num_batches")


def runs(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the rows of all tables that did not end in an error."""
    script = digest(checkout.text(_SCRIPT), digits=12)
    for path in checkout.paths("experiments"):
        if path.endswith(".csv"):
            for row in csv.DictReader(checkout.text(path).splitlines()):
                if row["sam_model_type"] != "ERROR":
                    yield run_of(row, checkout.commit, path, script)


def run_of(row: Row, commit: str, path: str, script: str) -> MeasuredRun:
    """Return the run of a row."""
    compiled = row["use_compile"] != "False"
    return MeasuredRun(
        repository=REPOSITORY,
        commit=commit,
        path=path,
        licence="Apache-2.0",
        job=_SCRIPT,
        script=script,
        model=f"sam {row['sam_model_type']}",
        figure="allocated peak",
        value_bytes=mib(row["memory(MiB)"]),
        unit_rule="MiB, rounded down",
        quality="partly",
        batch=int(row["batch_size"]),
        sizes="3x1024x1024",
        precision="fp32" if row["use_half"] == "None" else row["use_half"].removeprefix("torch."),
        optimizer="none",
        options={name: row[name] for name in _FACTS if row[name] not in ("None", "False")},
        traits=traits(compiled=compiled, varied=True),
        cards=1,
        card="A100 40GB",
        torch=row["pytorch_version"],
    )
