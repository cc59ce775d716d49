"""Verdicts on the public edges of timm: the largest batch that ran on a card, and the next larger one, which failed.

    python -m benchmarks.accuracy.timm_edges [--sample N] [--seed S] [--card C] [--torch V] [--layout L] [--half H]
    python -m benchmarks.accuracy.timm_edges --summary

Each edge gets two verdicts, as `vramcast.estimate(mode="infer", precision=P, cudnn_benchmark=True, on=CARD, stack="torch==V")`
gives them on a step of timm's benchmark.py, which makes its images once, keeps no output, and comes after a failed try.
(`vramcast estimate timm:MODEL` has the loop of a script that reads data: the last batch and output are still there when the
next batch comes.) Results are appended to build/accuracy/timm-edges.jsonl, so a stopped run can be resumed; delete the file
after a change of the tracer. `--half` takes half of the models: what is set by results of one half is judged on the other.

Each file of results is repeated with the release of timm of its date (`RELEASES`): a ViT of timm 1.0.9 keeps up to 4.5 GiB more
than one of 1.0.31. Convolutions raise the errors of their release (`check_indexing`). timm's option --fast-norm
(norms in half precision under autocast) is not published. The results themselves show it, one model for each file: see
`WITHOUT_FAST_NORMS`.

The screens are rules on the table and the model, written before any verdict was looked at:

- the job was compiled by Inductor, where `estimate` has the eager model;
- the batch failed for another reason than memory: torch raises another error for it on the null GPU, where torch's own
  checks run (32-bit indexing, also that of `check_indexing`); or a card with twice the memory, same precision, failed at the
  same batch; or a batch of the same layout that ran, on any card and with any torch, shows that it takes less
  than four fifths of this card, since twice the images take at most twice the memory.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import torch
from torch._subclasses import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook

import vramcast
from benchmarks.accuracy.runner import BUILD
from benchmarks.measured.measured_run import EDGE, MeasuredRun, runs_of
from benchmarks.repeats.packages import packages
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.core.files import digest
from vramcast.core.plain import from_plain, to_plain
from vramcast.estimates.bounds.learned import SHIPPED, bound_of, load, named
from vramcast.estimates.bounds.support import BoundSource
from vramcast.estimates.learner_input import observed
from vramcast.hardware.cards import device
from vramcast.hardware.context import LIBRARIES, Context, context_bytes
from vramcast.hardware.device import Device
from vramcast.learner.examples import Example
from vramcast.learner.intervals import between
from vramcast.learner.model import LearnedModel

REPOSITORY: Final = "huggingface/pytorch-image-models"
RESULTS: Final = BUILD / "timm-edges.jsonl"
CARDS: Final = {
    **{name: device(name) for name in ("rtx3090", "rtx4090", "rtx5090")},
    # spec: 96 GB of the RTX 5090's chip; assumed: the same part of it is hidden from torch
    "rtx pro 6000 max-q": device("rtx5090").with_memory(3 * device("rtx5090").total_bytes),
}
HALVES: Final = ("calibration", "judged")
FORMATS: Final = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# efficientnet_b3_g8_gn at 320 pixels, batch 768, ran on cards of 24 GB, and keeps 42 GiB without fast norms; batch 2048 ran on
# 96 GB. On the RTX 5090, batch 512 failed, which with fast norms is smaller than that batch of the smaller cards.
WITHOUT_FAST_NORMS: Final = frozenset({"rtx5090"})
# the last release before the commits of the files of results: 4 and 5 September 2024, 6 January 2026
RELEASES: Final = {"2.4.0": "1.0.9", "2.9.1": "1.0.23"}
PATH: Final = tuple(sys.path)
_MOST_INDEXED: Final = 2**31 - 1  # spec: of 32 bits
_CANNOT_INDEX: Final = "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false."
# the largest batch of each file; the others begin with 1024
FIRST_BATCHES: Final = {("rtx pro 6000 max-q", "2.9.1", "nchw"): 2048, ("rtx4090", "2.4.0", "nhwc"): 512}
_SMALL_SHARE: Final = 0.8  # arbitrary: of a card; releases of torch differ by less in a job's memory
# arbitrary: a batch that failed at less than half of the card by the estimate failed for another reason: no measured run takes
# twice its estimate, and some kernels end at 2 ** 31 elements
_OTHER_REASON: Final = 2.0
_CUDA_MAJOR: Final = 12  # spec: of both releases of torch
_FEW: Final = 0.9
_MOST_CALLED_FITS, _MOST_UNCERTAIN = 0.01, 0.1  # arbitrary: the shares to aim at
PRECISIONS: Final = {"amp": "amp-fp16", "amp_bf16": "amp-bf16", "bf16": "bf16"}


@dataclass(frozen=True, slots=True)
class Edge:
    """The largest batch that ran, and the next larger one, which failed."""

    model: str
    image_size: int
    ran_batch: int
    failed_batch: int
    precision: str
    layout: str
    card: str
    torch: str

    @classmethod
    def of(cls, run: MeasuredRun) -> Edge:
        """Return the edge of a row of the data set."""
        assert run.batch is not None
        assert run.failed_batch is not None
        numbers = int(run.sizes), run.batch, run.failed_batch
        return cls(run.model, *numbers, run.precision, run.options["layout"], run.card, run.torch)

    @property
    def half(self) -> str:
        """The half of the models that the job is in: one may be learned from, and the other judges."""
        return HALVES[int(digest(self.model, digits=8), 16) % 2]

    @property
    def first_batch(self) -> int:
        """The batch that timm tried first in the file of results."""
        return FIRST_BATCHES.get((self.card, self.torch, self.layout), 1024)

    @property
    def fast_norm(self) -> bool:
        """The norms' precision in the file of results: true if it is half."""
        return self.card not in WITHOUT_FAST_NORMS

    @property
    def device(self) -> Device:
        """Return the card."""
        return CARDS[self.card]

    @property
    def job(self) -> tuple[object, ...]:
        """Return what the same job has in common on all cards, with any torch and layout."""
        return self.model, self.image_size, self.precision


def key_of(edge: Edge) -> str:
    """Return the key of an edge's result."""
    return digest(json.dumps(asdict(edge), sort_keys=True), digits=12)


# ------------------------------------------------------------------------------------------------ screens
def edges_of(runs: Iterable[MeasuredRun], *, is_compiled: bool = False) -> list[Edge]:
    """Return the edges of jobs that failed for lack of memory, as far as the edges of other cards show it."""
    found = [Edge.of(run) for run in runs if run.figure == EDGE and ("compiled" in run.traits) == is_compiled]
    alike: dict[tuple[object, ...], list[Edge]] = defaultdict(list)
    for edge in found:
        alike[edge.job].append(edge)
    return [edge for edge in found if not any(_is_other_reason(edge, other) for other in alike[edge.job])]


def _is_other_reason(edge: Edge, other: Edge) -> bool:
    """Return whether the same job's edge shows that memory was not the reason for the failure."""
    own_bytes, other_bytes = edge.device.total_bytes, other.device.total_bytes
    if edge.failed_batch == other.failed_batch and max(own_bytes, other_bytes) >= 2 * min(own_bytes, other_bytes):
        return True
    most_bytes = other_bytes * edge.failed_batch / other.ran_batch  # if its norms are not smaller than here
    is_alike = edge.layout == other.layout and other.fast_norm <= edge.fast_norm
    return is_alike and most_bytes <= _SMALL_SHARE * own_bytes


# ------------------------------------------------------------------------------------------------ verdicts
class Step(torch.nn.Module):
    """A step of timm's benchmark.py: its images are made once on the card, and the output is dropped at the step's end.

    After a failed try, the next one empties the cache and builds its model while the model and images of the failed one are
    still there; they are freed before the first step.
    """

    def __init__(
        self, model: torch.nn.Module, shape: tuple[int, ...], tried: tuple[int, ...] | None, memory_format: torch.memory_format
    ) -> None:
        super().__init__()
        self.model, self.shape, self.tried, self.memory_format = model, shape, tried, memory_format
        self.images: torch.Tensor | None = None

    def forward(self, told: torch.Tensor) -> torch.Tensor:
        """Run the model on its images; return what was given."""
        if self.images is None:
            if self.tried is not None:
                self.images = self._images(self.tried, told.device)
                torch.cuda.empty_cache()
                self.model = copy.deepcopy(self.model)
                self.images = None
            self.images = self._images(self.shape, told.device)
        self.model(self.images)
        return told

    def _images(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return torch.randn(shape, device=device).contiguous(memory_format=self.memory_format)


def timm_step(name: str, image_size: int, batch: int, tried: int | None, layout: str, *, fast_norm: bool, release: str) -> Step:
    """Return a step of timm's model for a batch, after a larger one was tried; None: it is the first."""
    timm: Any = importlib.import_module("timm")
    timm.layers.set_fast_norm(fast_norm)
    register_module_forward_hook(functools.partial(check_indexing, release))
    model = timm.create_model(name)
    if hasattr(model, "set_input_size") and model.default_cfg["input_size"][-1] != image_size:
        # benchmark.py builds the pretrained tag of that size; Swin V2 of 1.0.9 and 1.0.23 would lose its mask
        model.set_input_size(img_size=(image_size, image_size))
    before = (tried, 3, image_size, image_size) if tried is not None else None
    return Step(model, (batch, 3, image_size, image_size), before, FORMATS[layout])


def check_indexing(release: str, module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], found: torch.Tensor) -> None:
    """Raise the error of a release of torch if ATen's own kernel for depthwise convolutions has too many elements to index.

    It is a hook of modules. torch 2.9.1 takes this kernel in channels-last, because it does not trust its cuDNN, 9.10.2. 2.4.0
    takes it as for fewer elements, where later releases prefer cuDNN, so an eighth of the batch shows the kernel.

    Source: https://github.com/pytorch/pytorch/blob/v2.4.0/aten/src/ATen/native/cuda/DepthwiseConv2d.cu, and
    `use_cudnn_depthwise` in ATen/native/Convolution.cpp
    """
    if not isinstance(module, torch.nn.Conv2d) or max(arguments[0].numel(), found.numel()) <= _MOST_INDEXED:
        return
    if release != "2.4.0":
        is_last = any(
            one.is_contiguous(memory_format=FORMATS["nhwc"]) and not one.is_contiguous()
            for one in (arguments[0], module.weight)
        )
        if is_last and 1 < module.groups == module.in_channels and arguments[0].numel() > _MOST_INDEXED:
            raise RuntimeError(_CANNOT_INDEX)
        return
    layout = FORMATS["nhwc" if arguments[0].is_contiguous(memory_format=torch.channels_last) else "nchw"]
    half = functools.partial(torch.empty, dtype=found.dtype, device=found.device)
    with FakeTensorMode():
        images = half(len(found) // 8, *arguments[0].shape[1:]).to(memory_format=layout)
        weight = half(module.weight.shape)
        sizes = module.stride, (0, 0), module.dilation, False, (0, 0), module.groups
        kernel = torch._C._select_conv_backend(images, weight, None, *sizes)
    if kernel.name == "CudaDepthwise2d":
        raise RuntimeError(_CANNOT_INDEX)


def tried_before(batch: int, first: int) -> int | None:
    """Return the batch that timm tries before this one: 1024, 768, 512, 384, ...; None if it tries this one first."""
    is_power_of_two = batch & (batch - 1) == 0
    larger = max(batch + 1, batch * 3 // 2 if is_power_of_two else batch * 4 // 3)
    return larger if larger <= first else None


def judged(edge: Edge, batch: int) -> dict[str, Any]:
    """Return the verdict on one batch, and the sizes behind it in bytes."""
    tried = tried_before(batch, edge.first_batch)
    step = functools.partial(
        timm_step, edge.model, edge.image_size, batch, tried, edge.layout,
        fast_norm=edge.fast_norm, release=edge.torch,
    )  # fmt: skip
    started = time.perf_counter()
    sys.path[:] = [str(packages(f"timm=={RELEASES[edge.torch]}")), *PATH]
    try:
        found = vramcast.estimate(
            step, vramcast.TensorSpec((1,)), mode="infer", precision=PRECISIONS[edge.precision],  # type: ignore[arg-type]
            cudnn_benchmark=True, on=edge.device, channels_last=edge.layout == "nhwc", stack=f"torch=={edge.torch}",
        )  # fmt: skip
    except VramcastError as error:
        return {"verdict": "none", "message": str(error)}
    need = found.need()
    return {
        "verdict": found.verdict.value,
        "verdict at 0.9": found.verdict_on(level=0.9).value,
        "bound": need.bound_bytes,
        "need": need.point_bytes,
        "allocated": found.allocated,
        "process": found.process,
        "min_feasible": found.min_feasible,
        "context": found.context.bytes,
        "runs": min(found.process, found.min_feasible or found.process) <= edge.device.total_bytes,
        "seconds": round(time.perf_counter() - started, 1),
        "example": to_plain(observed(found)),
    }


def result_of(edge: Edge) -> dict[str, Any]:
    """Return an edge with its two verdicts."""
    batches = {"ran": edge.ran_batch, "failed": edge.failed_batch}
    return {"key": key_of(edge), **asdict(edge), **{which: judged(edge, batch) for which, batch in batches.items()}}


# ------------------------------------------------------------------------------------------------ evidence
def edge_in(line: dict[str, Any]) -> Edge:
    """Return the edge of a result."""
    return Edge(**{field.name: line[field.name] for field in fields(Edge)})


def evidence(half: str = HALVES[0]) -> Iterator[Example]:
    """Yield the failed batch of each edge of a half of the models, with the ends of its reserved peak."""
    for line in kept():
        edge = edge_in(line)
        if edge.half != half or "none" in (line["ran"]["verdict"], line["failed"]["verdict"]):
            continue
        ran, failed = (from_plain(Example, line[which]["example"], line["key"]) for which in ("ran", "failed"))
        found = between(ran, failed, edge.device.total_bytes - failed.context)
        if (found.measured_reserved or 0) > _OTHER_REASON * failed.reserved:
            continue
        yield replace(found, id=line["key"], group=edge.model, family="timm", facts={"model": edge.model})


# ------------------------------------------------------------------------------------------------ summary
def _share(results: list[dict[str, Any]], is_so: Callable[[dict[str, Any]], bool]) -> str:
    return f"{100 * sum(map(is_so, results)) / len(results):.0f} %"


def figures(name: str, results: list[dict[str, Any]]) -> list[object]:
    """Return a line of the summary; verdicts are of both batches of each edge."""
    judged_ones = [result[which] for result in results for which in ("ran", "failed")]
    return [
        name,
        len(results),
        _share(results, lambda result: result["failed"]["verdict"] == "fits"),
        _share(results, lambda result: result["ran"]["verdict"] == "does not fit"),
        _share(judged_ones, lambda one: one["verdict"] == "uncertain"),
        _share(results, lambda result: result["ran"]["runs"] and not result["failed"]["runs"]),
        _share(results, lambda result: not result["ran"]["runs"]),
        _share(results, lambda result: result["failed"]["runs"]),
    ]


def widths(results: list[dict[str, Any]]) -> str:
    """Return the width that a bound must have to call few failed batches "fits", and the one that leaves few uncertain.

    Both are factors on the point estimate. The first is a conformal quantile, which takes 99 edges.
    """
    room = sorted(CARDS[result["card"]].total_bytes / result["failed"]["need"] for result in results)
    rank = math.ceil((1 - _MOST_CALLED_FITS) * (len(room) + 1))
    needed = max(room[rank - 1], 1.0) if rank <= len(room) else None
    free = [CARDS[result["card"]].total_bytes / result[which]["need"] for result in results for which in ("ran", "failed")]
    above = sorted(ratio for ratio in free if ratio >= 1)
    most = int(_MOST_UNCERTAIN * len(free))
    allowed = above[most] if most < len(above) else math.inf
    said = f"must be {needed:.3f}" if needed is not None else f"not known from {len(room)} edges"
    return (
        f"A bound that calls at most {_MOST_CALLED_FITS:.0%} of failed batches 'fits': {said}. One that leaves "
        f"{_MOST_UNCERTAIN:.0%} uncertain: {allowed:.3f}."
    )


def summary(lines: Iterable[dict[str, Any]]) -> str:
    """Return the summary as a table."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    left_out = 0
    for line in lines:
        if "none" in (line["ran"]["verdict"], line["failed"]["verdict"]):
            left_out += 1
            continue
        for group in ("all", f"torch {line['torch']}", f"{line['card']}, {line['torch']}, {line['layout']}"):
            groups[group].append(line)
        lower = {which: {**line[which], "verdict": line[which]["verdict at 0.9"]} for which in ("ran", "failed")}
        groups["all, at level 0.9"].append({**line, **lower})
    columns = [
        *("edges", "n", "failed, called fits", "ran, called does not fit", "uncertain", "largest batch right", "too small"),
        "too large",
    ]  # fmt: skip
    rows = [figures(name, results) for name, results in sorted(groups.items())]
    left = f"{left_out} edges left out, because a batch raised an error"
    return f"{table(columns, rows)}\n\n{left}\n{widths(groups['all'])}"


def rejudged(line: dict[str, Any], learned: LearnedModel) -> dict[str, Any]:
    """Return a result with the verdicts that another artifact gives on the same traces."""
    card, found = CARDS[line["card"]], dict(line)
    for which in ("ran", "failed"):
        one = line[which]
        if one["verdict"] == "none":
            continue
        bound, context = bound_on_card(line, which, learned)
        levels = (bound.support.default_level, _FEW)
        bounds = [max(bound.quantile(level, card, context), one["need"]) for level in levels]
        verdicts = [
            "does not fit" if one["verdict"] == "does not fit" else "fits" if size <= card.total_bytes else "uncertain"
            for size in bounds
        ]
        found[which] = {**one, "verdict": verdicts[0], "verdict at 0.9": verdicts[1], "bound": bounds[0]}
    return found


def bound_on_card(line: dict[str, Any], which: str, learned: LearnedModel) -> tuple[BoundSource, Context]:
    """Return the bound of a batch of a result by an artifact, and the context on its card."""
    example = from_plain(Example, line[which]["example"], line["key"])
    libraries = set(example.libraries) & set(LIBRARIES)
    return bound_of(example, learned), context_bytes(CARDS[line["card"]], _CUDA_MAJOR, libraries, torch=line["torch"])


def kept() -> Iterator[dict[str, Any]]:
    """Yield the results so far."""
    if RESULTS.exists():
        yield from map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Judge a sample of edges and print the summary of all results so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="number of edges; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--card", choices=CARDS)
    parser.add_argument("--torch", metavar="V")
    parser.add_argument("--layout", choices=("nchw", "nhwc"))
    parser.add_argument("--half", choices=HALVES, help="half of the models; default: both")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no edge after this time")
    parser.add_argument("--summary", action="store_true", help="only print the summary")
    parser.add_argument("--artifact", metavar="DIR", help="judge the same traces by this artifact; default: the shipped one")
    options = parser.parse_args()
    if not options.summary:
        wanted = {name: value for name in ("card", "torch", "layout", "half") if (value := getattr(options, name))}
        edges = [e for e in edges_of(runs_of(REPOSITORY)) if all(getattr(e, name) == wanted[name] for name in wanted)]
        random.Random(options.seed).shuffle(edges)
        done = {line["key"] for line in kept()}
        started = time.perf_counter()
        for edge in edges[: options.sample]:
            if key_of(edge) in done:
                continue
            if time.perf_counter() - started > options.seconds:
                break
            line = result_of(edge)
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    learned = load(named(options.artifact or SHIPPED))
    wanted_half = options.half or HALVES[1]
    print(f"models of the half '{wanted_half}'\n")
    print(summary(rejudged(line, learned) for line in kept() if edge_in(line).half == wanted_half))


if __name__ == "__main__":
    main()
