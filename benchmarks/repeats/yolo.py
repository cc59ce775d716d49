"""Ultralytics' training logs: the reserved memory that the last line of the first epoch prints.

    python -m benchmarks.repeats yolo [--sample N]

A row runs the logged release of Ultralytics on the logged card and torch: the model from its configuration file, images of
noise with the logged number of boxes, and augmentation, optimizer and check of mixed precision as logged. A long epoch is cut
to at least `STEPS` steps and `IMAGES` images. Its last batch is as small as the logged one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.runner import BUILD, Case, has_rows, read_rows
from benchmarks.measured.cells import Row
from benchmarks.measured.logs import yolo_runs
from benchmarks.measured.measured_run import MeasuredRun
from benchmarks.measured.screens import not_repeatable, screened
from benchmarks.repeats import yolo_data
from benchmarks.repeats.packages import FOLDER, packages, search_path
from benchmarks.repeats.scripts import yolo_script
from vramcast.core.errors import UsageError
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training

TABLES: Final = ("public/yolo_logs.csv", "public/yolo_recent.csv")
# If it is there, what else these logs say: boxes of the validation set; and as `log`, "label cache kept" (the data set was read
# before), "run folder 3" (its number), and "in the notebook's process".
BOXES: Final = "public/yolo_boxes.csv"
LEAST_TORCH: Final = (2, 7)
STEPS: Final = 4  # arbitrary: the least number of steps
IMAGES: Final = 64  # measured: yolo26n, batch 4: 706 MiB after 16 images, 720 after 96; the log has 728 after 1,676
USUAL_BOXES: Final = 2.0  # arbitrary: boxes per image where they are unknown
# What all releases import, besides torch, torchvision and what vramcast's own benchmarks need.
_COMMON: Final = ("ultralytics-thop", "opencv-python-headless", "polars", "polars-runtime-32", "seaborn", "py-cpuinfo")
_ARGUMENTS: Final = (
    "close_mosaic", "compile", "copy_paste", "cos_lr", "cutmix", "deterministic", "dropout", "freeze", "mask_ratio", "mixup",
    "mosaic", "overlap_mask", "single_cls",
)  # fmt: skip
_WARM_UP_STEPS: Final = 100  # spec: ultralytics/engine/trainer.py: the least number
_WARM_UP_EPOCHS: Final = 3  # spec: its default.yaml
_NOMINAL_BATCH: Final = 64  # spec: its default.yaml, `nbs`
_SCALE: Final = re.compile(r"(\d)[nsmlx](?=-|$)")  # one file for all scales: yolo11-seg.yaml


# ------------------------------------------------------------------------------------------------ rows
def runs() -> list[MeasuredRun]:
    """Return the rows that have a figure, "screened" if a rule of `benchmarks.measured.screens` leaves one out."""
    boxes = {_place(row): row for row in read_rows(BOXES)} if has_rows(BOXES) else {}
    rows = [boxes.get(_place(row), {}) | row for name in TABLES for row in read_rows(name)]
    return [screened(run) for run in yolo_runs(map(_with_log, rows)) if run.value_bytes is not None]


def _place(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in ("source", "commit", "model", "batch", "imgsz", "figure_first_MiB"))


def _with_log(row: Row) -> Row:
    row = {**row, "flags": "; ".join(filter(None, (row.get("flags"), row.get("log"))))}
    if row.get("boxes_per_image") or not row.get("n_val_boxes"):
        return row
    return {**row, "boxes_per_image": f"{int(row['n_val_boxes']) / int(row['n_val_images']):.2f}"}


def name_of(run: MeasuredRun) -> str:
    """Return the model's name without its folder and ending: yolo11n for D:\\runs\\yolo11n.pt."""
    return re.split(r"[/\\]", run.model)[-1].rpartition(".")[0]


def _obstacles(run: MeasuredRun) -> Iterator[str]:
    """Yield why a row cannot be repeated; a row that a screen leaves out may be."""
    said = run.options
    if tuple(int(part) for part in re.findall(r"\d+", run.torch)[:2]) < LEAST_TORCH:
        yield "its torch is older than 2.7, with a cuDNN that cannot be asked"
    if task_of(run) not in yolo_data.TASKS:
        yield f"no stub data for the task {task_of(run)}"
    if not said.get("n_images") or not said.get("n_classes") or run.batch is None or run.batch < 1:
        yield "the number of images, the number of classes or the batch is unknown"
    yield from not_repeatable(run)


def task_of(run: MeasuredRun) -> str:
    """Return the task: the last word of `Ultralytics 8.4.19 segment`."""
    return run.job.rpartition(" ")[2]


def release_of(run: MeasuredRun) -> str:
    """Return the release of Ultralytics."""
    return run.job.split(" ")[-2]


# ------------------------------------------------------------------------------------------------ cases
def case_of(run: MeasuredRun) -> Case | str:
    """Return the job of a row, or the reason why there is none."""
    for obstacle in _obstacles(run):
        return obstacle
    try:
        card, software = device(run.card), stack.parse(f"torch=={run.torch}")
    except UsageError as error:
        return str(error)
    release = release_of(run)
    theirs = packages(f"ultralytics=={release}")
    network = network_of(name_of(run), theirs)
    if not network:
        return f"ultralytics {release} has no {name_of(run)}: its authors have a release of their own"
    printed = BUILD / f"printed-{run.key}.json"
    is_label_cache_kept = "label cache kept" in run.options.get("flags", "")
    described = {"model": network, "arguments": arguments_of(run), "printed": str(printed), "collects": is_label_cache_kept}
    work = FOLDER / f"ultralytics-{release}"
    work.mkdir(exist_ok=True)
    job = Job(
        card,
        command=Command((yolo_script.__file__, json.dumps(described)), until="end"),
        training=Training(steps=STEPS),
        search_path=search_path(theirs, packages(*_COMMON)),
        stack=software,
        memory_bytes=run.card_bytes,
        working_folder=str(work),
    )
    family = run.reason.partition("; ")[0] if run.quality == "screened" else "judged"
    facts = {"group": name_of(run), "family": family, "stack": run.torch, "model": name_of(run), "batch": str(run.batch)}
    return Case(name_of(run), job, run.measured_bytes, {**facts, "gpu": run.card, "release": release, "printed": str(printed)})


def network_of(model: str, theirs: Path) -> str:
    """Return the name of a model's configuration file in a release of Ultralytics; "" if it has none."""
    name = re.sub(r"^(yolov[35]\w+)u$", r"\1", model)  # yolov5nu is the second release of the weights of yolov5n
    files = {path.stem for path in theirs.glob("ultralytics/cfg/models/*/*.yaml")}
    return name if {name, _SCALE.sub(r"\1", name)} & files else ""


def last_accumulation(batch: int, nominal: int, steps: int) -> int:
    """Return how many batches an optimizer step takes at the end of a first epoch: warm-up raises it to nominal / batch."""
    warm_up = max(_WARM_UP_EPOCHS * steps, _WARM_UP_STEPS)
    return max(round(1 + (nominal / batch - 1) * (steps - 1) / warm_up), 1)


def arguments_of(run: MeasuredRun) -> dict[str, Any]:
    """Return the arguments of `train` for the short epoch."""
    said, logged, batch = run.options, run.options["args"], run.batch or 1
    images = int(said["n_images"])
    logged_steps = -(-images // batch)
    steps = min(logged_steps, max(STEPS, -(-IMAGES // batch)))
    sample = (steps - 1) * batch + (images - 1) % batch + 1
    boxes = float(said.get("boxes_per_image") or USUAL_BOXES)
    data = yolo_data.StubData(task_of(run), sample, images, int(said["n_classes"]), boxes)
    # The same accumulation at the end of the short epoch, reached step by step as in the long one.
    accumulated = last_accumulation(batch, int(logged.get("nbs", _NOMINAL_BATCH)), logged_steps)
    rise = (accumulated - 1) / max(steps - 1, 1)
    return {
        "data": str(yolo_data.written(data)),
        "batch": batch,
        "imgsz": int(run.sizes),
        "epochs": int(said["epochs"]),
        "optimizer": run.optimizer,
        "amp": run.precision == "amp",
        "nbs": round(batch * (1 + rise * _WARM_UP_STEPS)),
        **{name: json.loads(logged[name].lower()) for name in _ARGUMENTS if logged.get(name, "None") != "None"},
        "workers": 0,
        "plots": False,
        "val": False,
        "save": False,
        "exist_ok": True,
    }
