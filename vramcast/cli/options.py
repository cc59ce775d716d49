"""Options which several verbs share, and the `Job` they describe."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramcast.devices import DEVICES, device
from vramcast.errors import UsageError
from vramcast.job import MODES, PRECISIONS, TRACERS, ZERO_GRADS, Batch, Job, TensorSpec
from vramcast.result import Estimate
from vramcast.units import parse_bytes


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what every verb with an estimate understands."""
    parser.add_argument("--device", default="h200", help=f"the card: {', '.join(DEVICES)} (default: h200)")
    parser.add_argument("--memory", metavar="SIZE", help="the card's size instead of the device's own: 12622168064 or 12GiB")
    parser.add_argument("--alloc-conf", default="", help="PYTORCH_CUDA_ALLOC_CONF of the job, e.g. expandable_segments:True")
    parser.add_argument("--tracer", choices=TRACERS, default="auto")
    parser.add_argument("--level", type=float, default=0.99, help="of the upper bound (default: 0.99)")
    parser.add_argument("--steps", type=int, default=3, help="training steps to trace (default: 3)")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="stop the job after so long")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--snapshot", metavar="FILE", help="write the allocator's history for pytorch.org/memory_viz")
    parser.add_argument("--verbose", action="store_true", help="show the job's traceback when it raises")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the description of a job by TARGET."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="torchvision:NAME, timm:NAME, hf:MODEL_TYPE_OR_CONFIG.json, package.module:factory or file.py:factory",
    )
    parser.add_argument(
        "--batch",
        action="append",
        metavar="SPEC",
        help="an input tensor: 32x3x224x224, 8x128:int64<30522, or input_ids=8x128:int64 for a keyword; repeatable, in order",
    )
    parser.add_argument("--labels", metavar="SPEC", help="what the loss compares with, e.g. 32:int64<1000")
    parser.add_argument("--num-classes", type=int)
    parser.add_argument("--optimizer", default="adam", help="of torch.optim, any case; sgdm; adamw:fused=true (default: adam)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--mode", choices=MODES, default="train")
    parser.add_argument("--zero-grad", choices=ZERO_GRADS, default="step-start")
    parser.add_argument(
        "--overlap-inputs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the last step's inputs live until the next ones are on the device (default), or are dropped before",
    )
    parser.add_argument("--checkpointing", action="store_true", help="switch the model's gradient checkpointing on")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--cudnn-benchmark", action="store_true")


def parse_batch(specs: list[str] | None) -> Batch:
    """Return the batch of `--batch` options: one tensor, a tuple of several, or a dict when they have names."""
    if not specs:
        raise UsageError("--batch is missing: give each input tensor, for example --batch 32x3x224x224.")
    named: dict[str, TensorSpec] = {}
    plain: list[TensorSpec] = []
    for text in specs:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text)
        if match:
            named[match[1]] = TensorSpec.parse(match[2])
        else:
            plain.append(TensorSpec.parse(text))
    if named and plain:
        raise UsageError("--batch mixes named and unnamed tensors: name all of them (input_ids=8x128:int64) or none.")
    return named or (plain[0] if len(plain) == 1 else tuple(plain))


def job_of(options: argparse.Namespace) -> Job:
    """Return the job which the options describe."""
    return Job(
        device=device(options.device),
        target=options.target,
        batch=parse_batch(options.batch),
        labels=TensorSpec.parse(options.labels) if options.labels else None,
        num_classes=options.num_classes,
        optimizer=options.optimizer,
        lr=options.lr,
        precision=options.precision,
        mode=options.mode,
        steps=options.steps,
        zero_grad=options.zero_grad,
        overlap_inputs=options.overlap_inputs,
        checkpointing=options.checkpointing,
        channels_last=options.channels_last,
        cudnn_benchmark=options.cudnn_benchmark,
        alloc_conf=options.alloc_conf,
        memory_bytes=parse_bytes(options.memory) if options.memory else None,
        search_path=("", *sys.path),
        working_folder=os.getcwd(),
    )


def finish(options: argparse.Namespace, estimate: Estimate, extra: dict[str, Any] | None = None) -> None:
    """Write the snapshot if one is wanted, and print the estimate."""
    if options.snapshot:
        estimate.save_snapshot(Path(options.snapshot))
    if options.json:
        import json

        print(json.dumps({**estimate.to_dict(), **(extra or {})}))
    else:
        print(estimate)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Say on stderr what is going on, when a person looks at it; wiped when done."""
    if not sys.stderr.isatty():
        yield
        return
    started = time.perf_counter()
    print(f"{text} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r\x1b[K{text}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
