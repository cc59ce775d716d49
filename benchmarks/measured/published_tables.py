"""Importers of tables that people published: each yields the measured runs of a table's rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from benchmarks.measured.cells import PAGE, Row, figure, has_convolutions, mib, number, spdx, traits
from benchmarks.measured.measured_run import EDGE, MeasuredRun
from vramcast.core.units import GIB

_SWIFT: Final = "modelscope/ms-swift"  # spec: it cuts samples at max_length, and only packing fills lines up to that length
_XMEM: Final = "Stone-ResearchLife/xMem"
# spec: the commits that added the folders
_XMEM_COMMITS: Final = {
    "plot/data/005-ScalabilityOnCoLab/": "d076b7d6e441a470282d8146f35e99b987daf12f",
    "plot/data/": "d61e0764486838fff7a444bb03be7d6d2cd8bbaa",
    "plot/data_new/001-Anova/": "e570c18ef5847b42200e0aa618dd6cb854bdc8e7",
    "plot/data_new/002-Monte Carlo/": "100c2bfa7a5c1eb61082d969f0eb3c6553cee592",
}
_XMEM_TOOLS: Final = ("xmem", "dnnmem", "schedtune", "llmem")
_XMEM_CELLS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "bytes": ("bytes", lambda text: round(float(text))),
    "runtime_s": ("seconds", float),
    "pred_oom": ("oom", "True".__eq__),
    "round2_oom": ("second_oom", "True".__eq__),
}
# Those that decide memory; the number of a loader's processes does not.
_VISION_OPTIONS: Final = (
    "optim_flag", "gradient_accumulation", "num_steps", "memory_format", "scale", "stage", "precompute", "rank", "trainable",
    "gradient_checkpointing", "enable_slicing", "enable_tiling", "quantization", "sparsify", "compile", "compile_vae",
    "quantize_vae", "fuse", "fuse_qkv", "case", "phase", "tiling", "mixed_precision", "lora_rank", "checkpointing",
    "model_type", "weights", "argv", "config",
)  # fmt: skip
_SHEET_FIGURES: Final = {"max_allocated": "allocated peak", "max_reserved": "reserved peak", "nvidia_smi": "process peak"}


def xmem_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield xMem's runs, with the estimates of four tools that its files print."""
    for row in rows:
        published = {
            tool: {name: read(text) for column, (name, read) in _XMEM_CELLS.items() if (text := row.get(f"{tool}_{column}"))}
            for tool in _XMEM_TOOLS
        }
        mode = {"zero_grad_mode": int(row["zero_grad_mode"])} if row["zero_grad_mode"] else {}
        yield MeasuredRun(
            repository=_XMEM,
            commit=row.get("commit")
            or next(commit for folder, commit in _XMEM_COMMITS.items() if row["path"].startswith(folder)),
            path=row["path"],
            licence="MIT",
            job="exp/run.py",
            model=row["model"],
            figure="reserved peak",
            value_bytes=int(row["ground_bytes"]),
            unit_rule="bytes",
            quality="repeatable",
            status="oom" if row["real_oom"] == "True" else "ok",
            batch=int(row["batch"]),
            sizes=row["input_size"],
            precision="fp32",
            optimizer=row["optimizer"],
            options={"family": row["family"], "generation": row["generation"], **mode},
            # spec: xMem's collator pads the lines of a text batch to the longest one
            traits=traits(convolutions=row["family"] == "cnn", varied=row["family"] != "cnn"),
            cards=1,
            card=row["gpu"],
            card_bytes=int(row["total_gpu_memory"]),
            torch="2.6.0",
            published={tool: cells for tool, cells in published.items() if cells},
        )


def paged_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the runs of tables that have a page with its commit in each row."""
    for row in rows:
        page = PAGE.fullmatch(row["url"])
        # Without a commit, or not clear what was measured or what ran.
        if page is None or " or " in row["metric"] or "cmd not found" in row["notes"]:
            continue
        counted = re.search(r"NGPU=(\d+)|(\d+) (?:GPU|ranks)", row["parallelism"])
        cards = int(counted[1] or counted[2]) if counted else None
        yield MeasuredRun(
            repository=page[1],
            commit=page[2],
            path=page[3] or "",
            licence=spdx(row["license"]),
            job=" ".join(row["job"].split()),
            script=row.get("script_sha", ""),
            model=row["model"] if row["model"] != "see notes" else "",
            figure=figure(row["metric"]),
            value_bytes=mib(row["value_mib"]),
            unit_rule="GiB, rounded",
            quality="partly" if row["batch"] != "see notes" else "figure only",
            batch=number(row["batch"]),
            sizes=row["seq"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options=_notes(row),
            traits=traits(
                compiled=row.get("compile") == "1" or "compile" in row["job"],
                ranks=cards,
                varied=page[1] == _SWIFT and "packing" not in row["job"],
            ),
            cards=cards,
            card=row["gpu"].partition(" (")[0],
            torch="" if row["torch"].startswith(("not stated", "see page")) else row["torch"].partition(" (")[0],
        )


def _notes(row: Row) -> dict[str, str]:
    """Return what the row says about the job, without the text around it in the source."""
    notes = row["notes"].partition(" | context:")[0].partition("; steps=")[0]
    return {name: text for name, text in (("parallelism", row["parallelism"]), ("notes", notes)) if text}


def vision_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the runs of vision.csv."""
    for row in rows:
        if not row["value_MiB"] or not figure(row["figure_kind"]):  # a failure without a figure, or the size of the weights
            continue
        repository, _, path = row["source"].removeprefix("github.com/").partition(":")
        extra = json.loads(row["extra"] or "{}")
        cards = number(row["n_gpus"])
        yield MeasuredRun(
            repository="/".join(repository.split("/")[:2]),
            commit=row["commit"],
            path=path,
            licence=spdx(row["licence"]),
            job=extra.get("benchmark") or row["framework"],
            model=row["model"],
            figure=figure(row["figure_kind"]),
            value_bytes=mib(row["value_MiB"]),
            unit_rule=row["unit_rule"].partition(" (")[0],
            quality="repeatable" if row["completeness"].startswith("yes") else "partly",
            reason=row["flags"],
            batch=number(row["batch"]),
            sizes=row["image_size"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options={name: extra[name] for name in _VISION_OPTIONS if name in extra},
            traits=traits(convolutions="conv" in row["kind_of_model"], compiled=bool(extra.get("compile")), ranks=cards),
            cards=cards,
            card=row["card"],
            card_bytes=mib(row["card_mib"]) if row["card_mib"] else None,
            torch=row["torch"].partition(" (")[0],
            cuda=row["cuda"].partition(" (")[0],
            cudnn=row["cudnn"],
            os=row["os"],
        )


def sheet_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the runs of peft.csv, zoo.csv and timm_a100.csv; a page that names a branch gives no commit."""
    for row in rows:
        if row.get("source", "").startswith(("xMem", "GPUMemNet", "snapshot")):  # they have tables of their own
            continue
        page = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(?:blob|tree)/([^/]+)/(.+)", row.get("url", ""))
        yield MeasuredRun(
            repository=page[1] if page else "" if "url" in row else "itu-rad/GPUMemNet",
            commit=page[2] if page and re.fullmatch("[0-9a-f]{40}", page[2]) else "",
            path=page[3] if page else "",
            licence="",
            job=row.get("library", "train.py"),
            model=row["model"],
            figure=_SHEET_FIGURES.get(row["metric"], ""),
            value_bytes=round(float(row["gib"]) * GIB),
            unit_rule="GiB",
            quality="partly",
            batch=number(row["batch"]),
            sizes=row.get("input_shape", ""),
            precision=row["dtype"],
            optimizer=row["optimizer"],
            options={"extra": row["extra"]},
            traits=traits(
                convolutions="url" not in row and has_convolutions(row["model"]),
                varied="longest in batch" in row.get("input_shape", ""),
            ),
            cards=1,
            card=row["gpu"],
            torch=row["torch_version"],
        )


def gpumemnet_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield GPUMemNet's random networks; the file's name describes the job."""
    for row in rows:
        is_cnn = "Conv2d Count" in row
        yield MeasuredRun(
            repository="itu-rad/GPUMemNet",
            commit="",
            path="",
            licence="",
            job="cnn" if is_cnn else "mlp",
            model=row["Filename"],
            figure="process peak",
            value_bytes=mib(row["Max GPU Memory (MiB)"]),
            unit_rule="MiB",
            quality="repeatable",
            status="oom" if "oom" in row.get("Status", "").lower() else "ok",
            batch=number(row["Batch Size"]),
            precision="fp32",
            traits=traits(convolutions=is_cnn),
            cards=1,
            card="A100-40GB",
        )


def edge_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the edges of timm's benchmark: the largest batch that ran, and the next larger one of its ladder."""
    for row in rows:
        if not row["failed_batch"]:  # the first batch of the ladder ran
            continue
        repository, _, path = row["source"].partition(":")
        yield MeasuredRun(
            repository=repository,
            commit=row["commit"],
            path=path,
            licence=spdx(row["licence"]),
            job="benchmark.py --bench infer",
            model=row["model"],
            figure=EDGE,
            value_bytes=None,
            unit_rule="samples",
            quality="repeatable",
            batch=int(row["ran_batch"]),
            failed_batch=int(row["failed_batch"]),
            sizes=row["image_size"],
            precision=row["precision"],
            optimizer="none",
            options={"layout": row["layout"]},
            traits=traits(convolutions=has_convolutions(row["model"]), compiled=row["compiled"] == "1"),
            cards=1,
            card=row["card"],
            torch=row["torch"],
            cuda=row["cuda"],
        )
