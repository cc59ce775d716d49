"""Training scripts measured on an A100-40GB in 2025 (the CARMA project): process bytes, single-GPU rows.

    python -m benchmarks.accuracy.real_world [--fresh] [--limit N]

process = reserved + 524 MiB, the constant of that stack (fitted by an earlier prototype to its CIFAR-100 rows).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import Case, Variant, arguments, read_rows, run_cases, write_csv
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.tracer.protocol.run_options import RunOptions

CONTEXT_MIB: Final = 524  # measured: CARMA's A100 with its stack of September 2025, process - reserved
# measured: September 2025; the sheet does not state its torch; this was the release of August
STACK: Final = stack.parse("torch==2.8.0")
CONFIGS: Final = Path(__file__).parent / "configs"
_CIFAR = {
    "efficientnet_b0_cifar100": "efficientnet_b0",
    "resnet18_cifar100": "resnet18",
    "resnet34_cifar100": "resnet34",
    "resnet50_cifar100": "efficientnet_b0",  # the script of that name builds EfficientNet-B0
}


def case_of(row: dict[str, str]) -> Case | None:
    """Return the job of a measured row; None if it cannot be rebuilt or was not measured on one GPU in 2025."""
    if row["n_gpus"] != "1" or not row["measured_2025_mib"]:
        return None
    batch = int(row["batch"])
    a100 = device("a100-40gb")
    if row["model"] in _CIFAR:
        job = Job(
            a100,
            target=f"timm:{_CIFAR[row['model']]}",
            num_classes=100,
            batch=TensorSpec((batch, 3, 32, 32)),
            labels=TensorSpec((batch,), "int64", high=100),
            training=Training(optimizer="adamw"),
            stack=STACK,
        )
    elif row["model"] == "BERT_large":
        tokens = TensorSpec((batch, 512), "int64")
        job = Job(
            a100,
            target=f"hf:{CONFIGS / 'bert-large-cased.json'}",
            batch={"input_ids": tokens, "attention_mask": TensorSpec((batch, 512), "int64", fill=1), "labels": tokens},
            training=Training(optimizer="adamw"),
            stack=STACK,
        )
    else:
        return None
    return Case(
        f"{row['model']} {batch}", job, round(float(row["measured_2025_mib"]) * MIB), dict(row), RunOptions(limited=False)
    )


def cases() -> list[Case]:
    """Return every row that can be rebuilt."""
    return [case for row in read_rows("real_world_a100.csv") if (case := case_of(row)) is not None]


def run(*, fresh: bool = False, limit: int | None = None) -> list[dict[str, object]]:
    """Return a row of figures for each case; write build/accuracy/real_world.csv."""
    chosen = cases()[:limit]
    answers = run_cases(chosen, Variant("real world"), fresh=fresh)
    plain = run_cases(chosen, Variant("real world, no cuDNN", oracle=False), fresh=fresh)
    rows: list[dict[str, object]] = [
        {
            "name": case.name,
            "status": answer.status,
            "measured_bytes": case.measured_bytes,
            "process_bytes": answer.reserved + CONTEXT_MIB * MIB,
            "no_workspace_bytes": without.reserved + CONTEXT_MIB * MIB,
            "cudnn_calls": answer.cudnn_calls,
            "message": answer.message,
        }
        for case, answer, without in zip(chosen, answers, plain, strict=True)
    ]
    write_csv("real_world", rows)
    return rows


def report(rows: list[dict[str, object]]) -> str:
    """Return the tables as Markdown."""
    lines, both = [], []
    for row in rows:
        measured = int(str(row["measured_bytes"]))
        cells: list[object] = [row["name"], measured // MIB]
        for column in ("process_bytes", "no_workspace_bytes"):
            size = int(str(row[column]))
            cells += [size // MIB, f"{100 * (size / measured - 1):+.1f} %"]
        lines.append(cells)
    for name, column in (("with workspaces", "process_bytes"), ("no workspaces", "no_workspace_bytes")):
        pairs = [(int(str(row[column])), int(str(row["measured_bytes"]))) for row in rows if row["status"] == "ok"]
        both.append([name, *summarize(pairs).cells()])
    first = table(["job", "measured MiB", "estimate", "error", "no workspaces", "error"], lines)
    return f"{first}\n\n{table(['estimate', *SUMMARY_COLUMNS], both)}"


if __name__ == "__main__":
    options = arguments(__doc__)
    print(report(run(fresh=options.fresh, limit=options.limit)))
