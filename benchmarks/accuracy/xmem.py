"""xMem's published runs: reserved bytes on RTX 3060, RTX 4060 and A100, compared with the estimates of four other tools.

    python -m benchmarks.accuracy.xmem [--fresh] [--limit N]    # all variants

The rows rebuild the runs (docs/accuracy.md has the evidence): 4 steps, float32, torchvision's constructors on 3 x 86 x 86
images, transformers 4.51 on 128 tokens, zero_grad as in the row. Nothing is fitted.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from benchmarks.accuracy import builders
from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import (
    ROOT,
    Answer,
    Case,
    Variant,
    arguments,
    run_cases,
    write_csv,
)
from benchmarks.measured.measured_run import MeasuredRun, runs_of
from benchmarks.measured.published_tables import xmem_runs
from benchmarks.peers.authors.xmem import CNNS
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Batch, Job, TensorSpec, Training, ZeroGrad
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.protocol.run_options import RunOptions

STEPS: Final = 4  # spec: xMem's loop ends when its 0-based step index reaches 3
TOKENS: Final = 128  # spec: xMem truncates there; a batch of 10 lines nearly always holds a line of that length
# arbitrary: a batch is padded to its longest line. If a fifth of the lines reach the limit, one in a hundred runs of four
# batches of 27 lines has a shorter batch, 4 * 0.8 ** 27; smaller batches vary.
LINES: Final = 27
IMAGE: Final = (3, 86, 86)  # spec: xMem, CIFAR-10 resized
STACK: Final = stack.parse("torch==2.6.0")  # spec: xMem, CUDA 12.4
TRANSFORMERS: Final = ROOT / "build" / "transformers-4.51"
CONFIGS: Final = Path(__file__).parent / "configs"
# Copied from the result files, 2026-11: what could be listed, without the configurations that are kept back to judge.
FURTHER: Final = ROOT / "benchmarks" / "measured" / "xmem_further.csv"

REPOSITORY: Final = "Stone-ResearchLife/xMem"

_GPUS = {"NVIDIA-GeForce-RTX-3060": "rtx3060", "NVIDIA-GeForce-RTX-4060": "rtx4060", "NVIDIA-A100-SXM4-40GB": "a100-40gb"}
_ZERO_GRADS: tuple[ZeroGrad, ...] = ("step-start", "before-backward", "after-step")
_FAR: Final = 0.1  # arbitrary: error from which rows are listed one by one
_TOOLS = ("xmem", "dnnmem", "schedtune", "llmem")


# The worker does not find benchmarks/, and with this folder on its path, datasets/ would shadow another package.
cloudpickle.register_pickle_by_value(builders)


def case_of(run: MeasuredRun) -> Case:
    """Return the job of a measured run, on an unlimited card."""
    assert run.batch is not None
    batch, family, mode = run.batch, str(run.options["family"]), run.options.get("zero_grad_mode", "")
    if family == "cnn":
        name, classes = CNNS[run.model]
        target = f"torchvision:{name}"
        inputs: Batch = TensorSpec((batch, *IMAGE))
        labels: TensorSpec | None = TensorSpec((batch,), "int64", high=10)
    else:
        config = run.model.rpartition("/")[2].lower().removesuffix("-it")
        target, classes, labels = f"hf:{CONFIGS / config}.json", None, None
        tokens = TensorSpec((batch, TOKENS), "int64", least=(batch, TOKENS if batch >= LINES else 1))
        inputs = {"input_ids": tokens, "attention_mask": tokens, "labels": tokens}
    is_adafactor = run.optimizer == "Adafactor"
    key = _GPUS[run.card]
    job = Job(
        device(key),
        target=target,
        batch=inputs,
        labels=labels,
        num_classes=classes,
        training=Training(
            optimizer=cloudpickle.dumps(builders.transformers_adafactor) if is_adafactor else run.optimizer.lower(),
            steps=STEPS,
            zero_grad=_ZERO_GRADS[mode or 0],
        ),
        memory_bytes=run.card_bytes,
        stack=STACK,
    )
    context = context_bytes(key, STACK.cuda_major or 0, ("cublas", "cudnn")).bytes
    options = RunOptions(context_bytes=context, limited=False)
    facts = {
        "device": key,
        "gpu": run.card,
        "family": family,
        "generation": str(run.options["generation"]),
        "model": run.model,
        "optimizer": run.optimizer,
        "batch": str(batch),
        "zero_grad_mode": str(mode),
        "real_oom": str(run.status == "oom"),
        **{f"{tool}_{name}": str(said) for tool, cells in run.published.items() for name, said in cells.items()},
    }
    return Case(f"{run.model} {run.optimizer} {batch} {key}", job, run.measured_bytes, facts, options)


def cases() -> list[Case]:
    """Return the cases of all rows."""
    return [case_of(run) for run in runs_of(REPOSITORY)]


def further_cases() -> list[Case]:
    """Return the cases of the further runs, which only train: no table of accuracy has them."""
    with open(FURTHER, newline="", encoding="utf-8") as file:
        return [case_of(run) for run in xmem_runs(csv.DictReader(file))]


def limited(case: Case) -> Case:
    """Return the same job on a card of its real size, where the allocator may have to release and retry."""
    return replace(case, options=replace(case.options, limited=True))


def _answers(of: list[Case], *, fresh: bool, oracle: bool = True) -> list[Answer]:
    """Return the answers, each library of the rows' time in a worker of its own."""
    suffix = "" if oracle else ", no cuDNN"
    packages = TRANSFORMERS if TRANSFORMERS.is_dir() else None
    kinds = {False: Variant(f"torchvision{suffix}", oracle), True: Variant(f"transformers{suffix}", oracle, packages)}
    answers: dict[int, Answer] = {}
    for is_transformer, variant in kinds.items():
        chosen = [i for i, case in enumerate(of) if (case.facts["family"] != "cnn") == is_transformer]
        answers |= dict(zip(chosen, run_cases([of[i] for i in chosen], variant, fresh=fresh), strict=True))
    return [answers[i] for i in range(len(of))]


def _as_estimated(card: Answer, need: Answer) -> int:
    """Return the peak as in `vramcast.Estimator.estimate_job`: the result on the card if the job fits, else its need."""
    return card.reserved if card.status == "ok" else need.reserved


def software() -> str:
    """Return what the estimates rest on, next to the runs' own software."""
    transformers = "4.51" if TRANSFORMERS.is_dir() else metadata.version("transformers")
    packages = f"torch {metadata.version('torch')}, transformers {transformers}; the runs have torch 2.6.0, transformers 4.51."
    return f"{packages} cuDNN: {choose(STACK).warning or choose(STACK).library}."


def run(*, fresh: bool = False, limit: int | None = None, variants: bool = True) -> list[dict[str, object]]:
    """Return a row of figures for each case; write build/accuracy/xmem.csv if it has all variants.

    Args:
        fresh: Run jobs with a kept answer too.
        limit: The number of cases; None: all.
        variants: Whether to add the unlimited card, no workspaces, and the installed cuDNN: four times the runs.
    """
    all_cases = cases()[:limit]
    ending = _answers([limited(case) for case in all_cases], fresh=fresh)
    need = dict(enumerate(ending))
    outside = [i for i, card in need.items() if variants or card.status != "ok"]
    need |= dict(zip(outside, _answers([all_cases[i] for i in outside], fresh=fresh), strict=True))
    rows: list[dict[str, object]] = []
    for i, (case, card) in enumerate(zip(all_cases, ending, strict=True)):
        facts = case.facts
        estimate = _as_estimated(card, need[i])
        rows.append(
            {
                "gpu": facts["device"],
                "family": facts["family"],
                "generation": facts["generation"],
                "model": facts["model"],
                "optimizer": facts["optimizer"],
                "batch": int(facts["batch"]),
                "zero_grad_mode": facts["zero_grad_mode"],
                "real_oom": facts["real_oom"] == "True",
                "predicted_oom": card.status == "oom",
                "status": need[i].status,
                "measured_bytes": case.measured_bytes,
                "estimate_bytes": estimate,
                "retries": card.retries,
                "residual_mib": (case.measured_bytes - estimate) / MIB,
                "seconds": need[i].seconds,
                "message": need[i].message or card.message,
                **{f"{tool}_{said}": facts.get(f"{tool}_{said}", "") for said in ("bytes", "oom") for tool in _TOOLS},
            }
        )
    if variants:
        for i, row in enumerate(rows):
            row |= {"endless_bytes": need[i].reserved, "no_workspace_bytes": "", "installed_bytes": ""}
        cnns = [i for i, case in enumerate(all_cases) if case.facts["family"] == "cnn"]
        plain = _answers([all_cases[i] for i in cnns], fresh=fresh, oracle=False)
        here = [replace(all_cases[i], job=replace(all_cases[i].job, stack=None)) for i in cnns]
        installed = _answers([limited(case) for case in here], fresh=fresh)
        endless = _answers(here, fresh=fresh)
        for i, without, card, unlimited in zip(cnns, plain, installed, endless, strict=True):
            rows[i] |= {"no_workspace_bytes": without.reserved, "installed_bytes": _as_estimated(card, unlimited)}
        write_csv("xmem", rows)
    return rows


def _pairs(rows: list[dict[str, object]], column: str) -> list[tuple[float, float]]:
    """Return (estimate, measured) of the rows that ran to their end and have an estimate in `column`."""
    return [
        (float(str(row[column])), float(str(row["measured_bytes"])))
        for row in rows
        if not row["real_oom"] and row.get(column, "") not in ("", 0)
    ]


def report(rows: list[dict[str, object]]) -> str:
    """Return the tables as Markdown."""
    groups = sorted({(str(row["gpu"]), str(row["family"])) for row in rows})
    columns = {"vramcast": "estimate_bytes", "vramcast, the installed cuDNN (CNN)": "installed_bytes"}
    columns |= {"vramcast, no cuDNN workspaces (CNN)": "no_workspace_bytes"}
    columns |= {name: f"{tool}_bytes" for name, tool in zip(("xMem", "DNNMem", "SchedTune", "LLMem"), _TOOLS, strict=True)}
    chosen = {
        f"{gpu} {family}": [row for row in rows if (row["gpu"], row["family"]) == (gpu, family)] for gpu, family in groups
    }
    lines = []
    for title, of_group in {**chosen, "all": rows}.items():
        for name, column in columns.items():
            figures = summarize(_pairs(of_group, column))
            if figures.n:
                lines.append([title, name, *figures.cells()])
    text = table(["rows", "tool", *SUMMARY_COLUMNS], lines)
    parts = ["Out of memory, all rows:", _oom_table(rows)]
    if not all("no_workspace_bytes" in row for row in rows):
        return "\n\n".join([text, *parts])
    parts += [
        "By model:",
        _by_model(rows),
        f"CNN rows off by more than {100 * _FAR:.1f} %, MiB:",
        _far_rows(rows),
    ]
    return "\n\n".join([text, *parts])


def _oom_table(rows: list[dict[str, object]]) -> str:
    def count(column: str) -> list[object]:
        said = [(bool(row["real_oom"]), str(row[column]) == "True") for row in rows if row[column] != ""]
        return [len(said), *(said.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))]

    names = ("xMem", "DNNMem", "SchedTune", "LLMem")
    lines = [["vramcast", *count("predicted_oom")]]
    lines += [[name, *count(f"{tool}_oom")] for name, tool in zip(names, _TOOLS, strict=True)]
    return table(["tool", "n", "foreseen", "missed", "false alarm", "rightly none"], lines)


def _by_model(rows: list[dict[str, object]]) -> str:
    lines = []
    for gpu, model in sorted({(str(row["gpu"]), str(row["model"])) for row in rows}):
        of_model = [row for row in rows if (row["gpu"], row["model"]) == (gpu, model)]
        errors = sorted(estimate / measured - 1 for estimate, measured in _pairs(of_model, "estimate_bytes"))
        if errors:
            middle = errors[len(errors) // 2]
            lines.append([f"{gpu} {model}", len(errors), *(f"{100 * e:+.2f} %" for e in (middle, errors[0], errors[-1]))])
    return table(["model", "n", "median", "lowest", "highest"], lines)


def _far_rows(rows: list[dict[str, object]]) -> str:
    lines: list[tuple[float, list[object]]] = []
    for row in rows:
        if row["family"] != "cnn" or row["real_oom"]:
            continue
        sizes = [int(str(row[column])) for column in ("measured_bytes", "estimate_bytes", "no_workspace_bytes")]
        error = sizes[1] / sizes[0] - 1
        if abs(error) > _FAR:
            name = f"{row['gpu']} {row['model']} {row['optimizer']} {row['batch']}"
            lines.append((error, [name, *(f"{size // MIB:,}" for size in sizes), f"{100 * error:+.1f} %", row["retries"]]))
    heads = ["row", "measured", "estimate", "without workspaces", "error", "retries"]
    return table(heads, [cells for _, cells in sorted(lines, key=lambda line: line[0])])


if __name__ == "__main__":
    options = arguments(__doc__)
    print(report(run(fresh=options.fresh, limit=options.limit)))
