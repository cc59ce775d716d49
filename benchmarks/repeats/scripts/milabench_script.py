"""A training script of milabench, as a script for `vramcast run`.

    python milabench_script.py FOLDER/main.py 64 --model resnet50 --batch-size 64 ...

The script is the project's own. Two things are replaced: the loader's images, which are host memory and are not decoded, and
the clock that ends a run, which takes no card memory.
"""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
from types import ModuleType
from typing import Any, Final

import torch

_BATCHES: Final = 8  # arbitrary: more than the steps that the caller follows


def _module(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


class _Observer:
    """The project's clock, which passes the loader on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def loader(self, loader: Any) -> Any:
        return loader


def main(script: str, batch: int) -> None:
    """Run the script; the caller stops it after its steps."""
    stop = type("StopProgram", (Exception,), {})
    _module("voir")
    _module("voir.phase", StopProgram=stop)
    _module("benchmate.metrics", StopProgram=stop)
    _module("benchmate.observer", BenchObserver=_Observer)
    _module("benchmate.monitor", bench_monitor=lambda **options: contextlib.nullcontext())
    loaders: Any = importlib.import_module("benchmate.dataloader")
    images, labels = torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
    batches: Any = [(images, labels)] * _BATCHES
    loaders.pytorch = lambda *args, **options: torch.utils.data.DataLoader(batches, batch_size=None)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _, path, size, *sys.argv[1:] = sys.argv
    main(path, int(size))
