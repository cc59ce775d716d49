"""xMem's results: one `evaluation_result.json` per run, or a table of them (CSV) with the columns of `COLUMNS`.

`ground` is NVML's used memory of the card less its first sample, which includes the context: about the reserved peak. It is
stored as `reserved_bytes`, and the passport notes its origin.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.plain import json_value
from vramcast.datasets.histories.reader import Tally, lines, near_capacity, table, whole, whole_text
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

COLUMNS: Final = (
    "path", "model", "optimizer", "batch", "gpu", "total_gpu_memory", "zero_grad_mode", "target_iteration", "ground_bytes",
    "real_oom",
)  # fmt: skip
HOW: Final = "nvml device minus first sample: about reserved, without the context"
LICENCE: Final = "Stone-ResearchLife/xMem: MIT"
IMAGE: Final = "3x86x86"  # spec: xMem, CIFAR-10 resized
_TORCH: Final = "2.6.0"  # spec: xMem's paper; an older file of its repository says 2.3
# xMem's name -> torchvision's, number of classes (None: the constructor's 1000).
CNNS: Final[dict[str, tuple[str, int | None]]] = {
    "VGG16": ("vgg16", None),
    "VGG19": ("vgg19", None),
    "ResNet101": ("resnet101", None),
    "ResNet152": ("resnet152", None),
    "MobileNetV2": ("mobilenet_v2", None),
    "ConvNeXtTiny": ("convnext_tiny", None),
    "ConvNeXtBase": ("convnext_base", None),
    "RegNetX400MF": ("regnet_x_400mf", None),
    "RegNetY400MF": ("regnet_y_400mf", None),
    "MnasNet": ("mnasnet1_0", 10),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
}
# Rows of the older generation have no mode: step-start fits them best.
_ZERO_GRADS: Final = {"": "step-start", "0": "step-start", "1": "before-backward", "2": "after-step"}


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of a table, or of one result file.

    Raises:
        DatasetError: the file cannot be read, or has neither form.
    """
    tally = Tally(path)
    first = next((text for _, text in lines(path) if text.strip() and not text.lstrip().startswith("#")), "")
    if first.lstrip().startswith("{"):
        values = json_value(whole_text(path), f"'{path}'")
        tally.rows += 1
        # The folders name the run, and its own text distinguishes equal names.
        name = "/".join(tally.path.parts[-3:])
        tally.run([("", "")], lambda: _run(_row(values, f"{name} {digest(json.dumps(values))}")))
    else:
        for place, row in table(path, COLUMNS, tally):
            tally.run([(place, row["path"])], lambda row=row: _run(row))
    tally.note("ground is used memory of the card less its first sample: taken as the reserved peak")
    tally.note("of runs out of memory, ground is the level at which they died: censored")
    return tally.done()


def _row(values: Any, path: str) -> dict[str, str]:
    """Return a result file as a row of the table."""
    info = values.get("train info") if isinstance(values, dict) else None
    if not isinstance(info, dict):
        raise DatasetError("It has no 'train info': an evaluation_result.json of xMem is expected.")
    verdict = next((tool for tool in values.values() if isinstance(tool, dict) and "ground" in tool and "real_oom" in tool), {})
    names = {"batch": "batch_size", "optimizer": "optimiser", "gpu": "gpu_name"}
    row = {column: info.get(names.get(column, column)) for column in COLUMNS}
    row |= {"path": path, "ground_bytes": verdict.get("ground"), "real_oom": verdict.get("real_oom")}
    return {column: "" if value is None else str(value)[:200] for column, value in row.items()}


def _run(row: dict[str, str]) -> Run:
    batch = whole(row["batch"], "batch")
    ground, total = whole(row["ground_bytes"], "ground_bytes"), whole(row["total_gpu_memory"], "total_gpu_memory")
    last_step = whole(row["target_iteration"], "target_iteration")
    if not row["model"] or batch is None:
        raise DatasetError("It has no model or batch size: a row of xMem's results is expected.")
    if row["real_oom"] not in ("True", "False") or row["zero_grad_mode"] not in _ZERO_GRADS:
        raise DatasetError(f"real_oom is {row['real_oom'][:20]!r}, zero_grad_mode {row['zero_grad_mode'][:20]!r}: unknown.")
    is_oom = row["real_oom"] == "True"
    name, classes = CNNS.get(row["model"], (None, None))
    is_cnn = name is not None
    messages = ["ground is the level at which it died"] if is_oom else []
    if row["optimizer"] == "Adafactor":
        messages.append("Adafactor is transformers', with relative_step=False")
    if row["zero_grad_mode"] == "":
        messages.append("where gradients are dropped is not recorded: step-start fits")
    return Run(
        id=f"xmem-{digest(row['path'])}",
        workload=Workload(
            name=row["model"],
            family="torchvision" if is_cnn else "hf",
            target=f"torchvision:{name}" if is_cnn else None,
            batch=(f"{batch}x{IMAGE}",) if is_cnn else (),
            labels=f"{batch}:int64<10" if is_cnn else None,
            batch_size=batch,
            num_classes=classes,
            optimizer=row["optimizer"].lower() or None,
            precision="fp32",
            mode="train",
            steps=None if last_step is None else last_step + 1,
            zero_grad=_ZERO_GRADS[row["zero_grad_mode"]],
            gpus=1,
        ),
        passport=Passport(
            measured_by="xMem",
            how=HOW,
            gpu=row["gpu"].replace("-", " ") or None,
            gpu_total_bytes=total,
            torch=_TORCH,
            licence=LICENCE,
        ),
        measurement=Measurement(
            status="oom" if is_oom else "ok",
            reserved_bytes=ground or None,
            censored=is_oom or near_capacity(ground, total),
            message="; ".join(messages),
        ),
    )
