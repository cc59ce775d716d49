"""The first epoch of a logged Ultralytics training, as a script for `vramcast run`.

    python yolo_script.py '{"model": "yolo11n", "arguments": {"data": "d.yaml", ...}, "printed": "p.json", "collects": false}'

The model has the logged shape and no trained weights. At the end of the first epoch, the script writes the reserved memory
that Ultralytics prints in its last line, and exits. Ultralytics' check of mixed precision runs an untrained model of the name
that the check downloads; it passes, as in the logs.

The model of the check is garbage in a cycle. Ultralytics (8.3.63 to 8.4.115) switches the garbage collector off to load the
cache of labels, and on afterward, unless there is none: after "New cache created" it stays off, and the model stays on the
card. With a cache, Python collects the model while it loads the labels (`collects`).
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def _stub(name: str) -> None:
    """Write a checkpoint of an untrained model to the working folder, where Ultralytics looks before it downloads one."""
    from ultralytics import YOLO

    path = Path(f"{name}.pt")
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.pt")
        YOLO(f"{name}.yaml").save(str(part))
        part.rename(path)


@contextmanager
def _no_boxes() -> Iterator[None]:
    """Let no box of an untrained model through: a trained one finds a few in the image of the check, this one thousands."""
    from ultralytics.utils import ops

    module: Any = ops if hasattr(ops, "non_max_suppression") else importlib.import_module("ultralytics.utils.nms")
    original = module.non_max_suppression
    module.non_max_suppression = lambda found, conf_thres=0.25, *args, **kwargs: original(found, 1.0, *args, **kwargs)
    try:
        yield
    finally:
        module.non_max_suppression = original


def _check(original: Any, collects: bool) -> Any:
    """Return Ultralytics' check of mixed precision with a model that is already here."""
    checked = re.search(r"YOLO\(\"(\w+)\.pt\"\)", inspect.getsource(original))

    def check(model: Any) -> bool:
        if checked is None:
            sys.exit(f"Ultralytics' check_amp names no model: update {Path(__file__).name}.")
        _stub(checked[1])
        with _no_boxes():
            original(model)
        if collects:
            gc.collect()
        else:
            gc.disable()  # as Ultralytics does soon after; nothing between them fills a generation
        return True

    return check


def main(job: dict[str, Any]) -> None:
    """Train the epoch, and write what the log says at its end."""
    os.environ |= {"YOLO_OFFLINE": "True", "YOLO_AUTOINSTALL": "False", "YOLO_CONFIG_DIR": os.getcwd(), "YOLO_VERBOSE": "False"}
    from ultralytics import RTDETR, YOLO
    from ultralytics.cfg import DEFAULT_CFG_DICT
    from ultralytics.engine import trainer

    trainer.check_amp = _check(trainer.check_amp, job["collects"])
    if not job["collects"]:
        for cache in Path(job["arguments"]["data"]).parent.rglob("*.cache"):
            cache.unlink(missing_ok=True)
    model = (RTDETR if "rtdetr" in job["model"] else YOLO)(f"{job['model']}.yaml")

    def end(_: Any) -> None:
        printed = Path(job["printed"])
        printed.parent.mkdir(parents=True, exist_ok=True)
        if not printed.exists():  # a further run of the job with other answers
            printed.write_text(json.dumps({"reserved": torch.cuda.memory_reserved()}))
        sys.exit(0)

    model.add_callback("on_train_epoch_end", end)
    arguments = {**job["arguments"], "project": os.getcwd()}  # without it, the folder of the checkout
    model.train(**{name: value for name, value in arguments.items() if name in DEFAULT_CFG_DICT})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
