"""Survey of cuDNN's engines: those that accept a convolution without a device, and the reasons why the others do not.

    python -m benchmarks.hardware.cudnn_engines [--cudnn DIR] [--brief] [--against DIR]

Queries every engine of the installed cuDNN, or of the one in DIR, about every convolution below on one card of each
architecture, reads the reason of each refusal from cuDNN's own log, and separates refusals due to the missing device from the
others. Repeats this with a cuBLASLt that does not work, like NVIDIA's own without a device, to show the effect of the stand-in.
Then it surveys PyTorch's attention, and the calls that need a handle and so cannot be queried. With --against, it checks
whether another cuDNN has the same lists except for the engines that the first refuses. docs/cudnn-engines.md explains the
tables.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.hardware.workspaces import questions as asked_questions
from benchmarks.tables import table
from vramcast.core.compiler import FLAGS, find_compiler, run_compiler
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn import backend as cb
from vramcast.tracer.nullgpu.cudnn import graph as cg
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
from vramcast.tracer.nullgpu.library.entry_points import CSRC
from vramcast.tracer.protocol.run_options import RunOptions

CARDS: Final = {  # one per architecture
    70: "v100-16gb", 75: "t4", 80: "a100-40gb", 86: "rtx3060", 89: "rtx4090", 90: "h100", 100: "b200",
}  # fmt: skip
OPERATIONS: Final = {10: "forward", 11: "backward_filter", 12: "backward_data"}  # spec: cudnnBackendDescriptorType_t
TYPES: Final = {"fp32": 0, "fp16": 2, "bf16": 9}  # spec: cudnnDataType_t; fp32 with TF32 if the card has it
INSTANT, MODE_B, FALLBACK, MODE_A = 0, 1, 2, 3  # spec: cudnnBackendHeurMode_t
# Questions: sizes of input and weight, and options. A transposed convolution is cuDNN's gradient of the data.
CONVOLUTIONS: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]] = {
    "1x1": ((32, 64, 56, 56), (256, 64, 1, 1), {}),
    "1x1, odd": ((32, 63, 27, 27), (255, 63, 1, 1), {}),
    "1x1, stride 2": ((32, 64, 56, 56), (128, 64, 1, 1), {"stride": 2}),
    "3x3": ((32, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "3x3, odd": ((32, 63, 27, 27), (65, 63, 3, 3), {"padding": 1}),
    "3x3, stride 2": ((32, 64, 56, 56), (128, 64, 3, 3), {"stride": 2, "padding": 1}),
    "5x5": ((32, 32, 28, 28), (32, 32, 5, 5), {"padding": 2}),
    "11x11": ((32, 64, 56, 56), (64, 64, 11, 11), {"padding": 5}),
    "1x7": ((32, 64, 28, 28), (64, 64, 1, 7), {"padding": (0, 3)}),
    "7x7, stride 2, of an image": ((32, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "grouped": ((32, 64, 28, 28), (64, 2, 3, 3), {"padding": 1}),
    "depthwise": ((32, 64, 28, 28), (64, 1, 3, 3), {"padding": 1}),
    "depthwise 5x5, stride 2": ((32, 64, 28, 28), (64, 1, 5, 5), {"stride": 2, "padding": 2}),
    "dilated": ((32, 64, 28, 28), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
    "transposed 4x4, stride 2": ((32, 64, 56, 56), (128, 64, 4, 4), {"stride": 2, "padding": 1}),
    "1-d": ((32, 64, 1, 1000), (64, 64, 1, 3), {"padding": (0, 1)}),
    "3-d": ((4, 32, 16, 28, 28), (64, 32, 3, 3, 3), {"padding": 1}),
    "3-d, odd": ((4, 3, 7, 27, 27), (63, 3, 3, 3, 3), {"padding": 1}),
    "3-d, 1x1x1": ((4, 32, 16, 28, 28), (64, 32, 1, 1, 1), {}),
}
# measured: with only these, every engine builds that builds with any entry of the table; cuDNN 9.19, 2026-11
BRIEF: Final = {
    ("3x3", "fp16", False), ("1x1", "fp32", True), ("1x1", "fp16", False), ("1x1, stride 2", "fp16", False),
    ("depthwise", "fp16", False), ("7x7, stride 2, of an image", "fp32", False), ("3-d", "fp32", False),
}  # fmt: skip
LAYERS: Final = Path(__file__).with_name("cudnn_layers.py")
_FIRST_WITH_ATTENTION: Final = 80  # spec: PyTorch's condition for cuDNN's attention
LEGACY: Final = ("recurrent", "batch_norm", "ctc")

BUILT, ARCHITECTURE, QUESTION, ABSENT, DEVICE, SILENT, NEW = (
    "built", "architecture", "shape, type, layout", "not in this cuDNN", "environment", "no reason", "not understood",
)  # fmt: skip
CLASSES: Final = (BUILT, ARCHITECTURE, QUESTION, ABSENT, DEVICE, SILENT, NEW)
# Classes by the innermost reason in cuDNN's log; the first match counts.
_WORDS: Final = (
    (DEVICE, r"No GPC available|host reserved space|InitializeCudaDevice|\bcu(da|blas)?[A-Z]\w+\("),
    (ABSENT, r"is not (enabled|found) for|^no search results|search_results|can_impl|is_good"),
    (ARCHITECTURE, r"since (Ampere|Hopper|Blackwell)|deviceVer|device_ver"),
    (SILENT, r"^\S*getStatus\(\)$|^initBackends\(\)$|^!chk_ok$|^\(CUDNN_STATUS_NOT_INITIALIZED == status\)"),
    (QUESTION, r"[cC]onv|Desc|[dD]ilat|[sS]trid|[fF]ilter|type|config|align|leading_dim|group|spec"),
)
_STATUS_NAMES: Final = (
    (ARCHITECTURE, r"ARCH_MISMATCH"),
    (QUESTION, r"NOT_SUPPORTED_(SHAPE|LAYOUT|DATA_TYPE|GRAPH_PATTERN|PADDING)"),
    (DEVICE, r"INTERNAL_ERROR|EXECUTION_FAILED|ALLOC|RUNTIME_PREREQUISITE|SUBLIBRARY"),
)
_ENVIRONMENT_STATUSES: Final = {3008, 3009}  # spec: RUNTIME_PREREQUISITE_MISSING, SUBLIBRARY_UNAVAILABLE
_ARCH_MISMATCH, _FIRST_INTERNAL = 3007, 4000  # spec: cudnnStatus_t
_WITHHOLD_NONE: Final = 91300  # measured: 9.13.1, 9.15.1, 9.19 and 9.20 do not withhold; 9.8.0 and 9.10.2 do
_REASON: Final = re.compile(r"CUDNN_STATUS_(\w+); Reason: (.*)")
# cublasLtCreate of a cuBLASLt without a device; the rest is the stand-in's.
_BROKEN: Final = "int cublasLtCreate(void **handle);\nint cublasLtCreate(void **handle) { *handle = 0; return 1; }\n"

Engine = tuple[str, int]  # operation, global index


@dataclass(frozen=True, slots=True)
class Question:
    """A graph and the heuristic modes in which PyTorch queries it."""

    name: str
    operation: str
    graph: str
    modes: tuple[int, ...] = (INSTANT, FALLBACK, MODE_B)


@dataclass(slots=True)
class Survey:
    """Answers of one cuDNN. Keys with `sm` are compute capabilities, 80 for sm_80.

    Attributes:
        refusals: Number of answers by (class, operation, engine, sm, status, reason).
        built: Architectures on which an engine took at least one question.
        lists: For (mode, sm): queried lists, complete lists, announced suggestions, dropped suggestions, and lists whose
            log names the device.
        complete: Among the questions that (operation, engine, sm) refused for the environment: those with a complete
            INSTANT list.
        listed: Number of lists with an engine, by (mode, operation, engine).
        plans: Number of first plans of INSTANT lists by build status; 0 means success.
        answers: By (sm, operation, graph), the engines of the INSTANT list and the first plan's workspace in bytes.
        not_asked: Architectures for which this cuDNN cannot be queried, and the reason.
    """

    version: int = 0
    refusals: Counter[tuple[str, str, int, int, int, str]] = field(default_factory=Counter)
    built: dict[Engine, set[int]] = field(default_factory=lambda: defaultdict(set))
    lists: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    complete: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    listed: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    plans: Counter[int] = field(default_factory=Counter)
    answers: dict[tuple[int, str, str], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    not_asked: dict[int, str] = field(default_factory=dict)

    def count(self, class_: str, sm: int) -> int:
        """Return the number of refusals of a class on an architecture."""
        return sum(n for (of, _, _, on, _, _), n in self.refusals.items() if (of, on) == (class_, sm))

    def never(self, class_: str) -> dict[str, list[int]]:
        """Return the engines that took no question on any architecture and had a refusal of this class."""
        found = {key[1:3] for key in self.refusals if key[0] == class_} - set(self.built)
        return {operation: sorted(i for of, i in found if of == operation) for operation in OPERATIONS.values()}


def convolutions(*, brief: bool) -> list[Question]:
    """Return the questions about convolutions; with `brief`, the few in `BRIEF`."""
    kinds = itertools.product(CONVOLUTIONS, TYPES, (False, True))
    return [
        Question(name, operation, convolution_graph(name, operation, dtype, channels_last))
        for name, dtype, channels_last in kinds
        for operation in OPERATIONS.values()
        if not brief or (name, dtype, channels_last) in BRIEF
    ]


def convolution_graph(name: str, operation: str, dtype: str, channels_last: bool) -> str:
    """Return the graph text of an entry in `CONVOLUTIONS`."""
    x, w, options = CONVOLUTIONS[name]
    return cg.convolution_graph(operation, x, w, dtype=TYPES[dtype], channels_last=channels_last, **options)


def attention(cudnn: Path) -> list[Question]:
    """Return PyTorch's questions about attention, forwards and backwards, from a trace of a job on the null GPU."""
    with tempfile.TemporaryDirectory() as folder:
        cache, card = Path(folder) / "cudnn.sqlite", device("h100")
        oracle = CudnnOracle(cudnn, oracle_libraries(cudnn), cache=cache, device=card.cudnn_record())
        unanswered("attention", lambda _: oracle.__enter__())
        return [Question("attention", "attention", graph, (mode,)) for mode, graph in asked_questions(cache)]


def unanswered(layer: str, start_oracle: Callable[[Path], CudnnOracle] | None = None) -> list[str]:
    """Return the assumptions that the null GPU reports for a job of `cudnn_layers.py`."""
    tracer = NullGpuTracer(start_oracle=start_oracle)
    try:
        job = Job(device("h100"), target=f"{LAYERS}:{layer}", batch=TensorSpec.parse("8x1024x512"))
        return sorted(entry.name for entry in tracer.trace(job, RunOptions(limited=False)).ledger if entry.kind == "assumed")
    finally:
        tracer.close()


def class_of(status: int, name: str, reason: str) -> str:
    """Return the class of a refusal, by cudnnStatus_t and by the innermost status name and reason of cuDNN's log."""
    if status in _ENVIRONMENT_STATUSES or status >= _FIRST_INTERNAL:
        return DEVICE
    by_word = [class_ for class_, words in _WORDS if re.search(words, reason)]
    if DEVICE in by_word:
        return DEVICE
    by_name = [class_ for class_, words in _STATUS_NAMES if re.search(words, name)]
    if status == _ARCH_MISMATCH:
        return ARCHITECTURE
    return (by_name + by_word + [NEW])[0]


def survey(cudnn: Path, libraries: Path, questions: Sequence[Question], cards: Sequence[int] = tuple(CARDS)) -> Survey:
    """Return the answers of the cuDNN in a folder, from a separate process: cuDNN reads the log's path only once.

    Args:
        cudnn: Folder of cuDNN's libraries.
        libraries: Folder of the stand-ins.
        questions: The questions.
        cards: Compute capabilities from `CARDS`.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_survey, cudnn, libraries, tuple(questions), tuple(cards)).result()


def _survey(cudnn: Path, libraries: Path, questions: Iterable[Question], cards: Iterable[int]) -> Survey:
    with tempfile.NamedTemporaryFile("r", prefix="vramcast-", suffix=".log") as log:
        os.environ.update(CUDNN_LOGLEVEL_DBG="2", CUDNN_LOGDEST_DBG=log.name)  # spec: cuDNN's documentation, logging
        cudnn_here = cb.load(cudnn, libraries)
        cudnn_here.withholds &= cudnn_here.version < _WITHHOLD_NONE  # without cuBLASLt, all seem to withhold
        found = Survey(cudnn_here.version)
        parsed = [(question, cg.renumber(cg.parse(question.graph))) for question in questions]
        for sm in cards:
            record = json.dumps(device(CARDS[sm]).cudnn_record())
            try:
                for question, graph in parsed:
                    refused = list(_ask_engines(found, cudnn_here, log, sm, record, question, graph))
                    _ask_lists(found, cudnn_here, log, sm, record, question, graph, refused)
            except cb.CudnnUnusable as error:
                found.not_asked[sm] = str(error)
        return found


def _ask_engines(
    found: Survey, cudnn: cb.Backend, log: Any, sm: int, record: str, question: Question, graph: cg.Descriptor
) -> Iterator[int]:
    """Query each engine; yield those refused for the environment."""
    log.read()
    for engine, status in enumerate(cudnn.statuses(record, graph)):
        reasons = _REASON.findall(log.read())
        if status == 0:
            found.built[question.operation, engine].add(sm)
            found.refusals[BUILT, question.operation, engine, sm, 0, ""] += 1
            continue
        name, reason = reasons[0] if reasons else ("", "")
        class_ = class_of(status, name, reason)
        found.refusals[class_, question.operation, engine, sm, status, re.sub(r"0x[0-9a-f]+", "0x", reason)] += 1
        if class_ == DEVICE:
            yield engine


def _ask_lists(
    found: Survey, cudnn: cb.Backend, log: Any, sm: int, record: str, question: Question, graph: cg.Descriptor,
    refused: Iterable[int],
) -> None:  # fmt: skip
    for mode in question.modes:
        log.read()
        given = cudnn.heuristics(record, mode, graph)
        dropped = cudnn.dropped(record, mode, graph)
        names_device = any(class_of(0, *reason) == DEVICE for reason in _REASON.findall(log.read()))
        counts = {"lists": 1, "complete": dropped == 0, "announced": len(given) + dropped, "dropped": dropped}
        for what, n in (counts | {"device": names_device}).items():
            found.lists[mode, sm, what] += n
        found.listed.update((mode, question.operation, engine) for engine in {config.engine for config in given})
        if mode == INSTANT:
            status, size_bytes = _first_plan(cudnn, record, graph)
            found.plans[status] += bool(given)
            engines = tuple(config.engine for config in given)
            found.answers[sm, question.operation, question.graph] = engines, size_bytes
            for engine in refused:
                found.complete[question.operation, engine, sm] += dropped == 0


def _first_plan(cudnn: cb.Backend, record: str, graph: cg.Descriptor) -> tuple[int, int]:
    """Return the status of the first plan, 0 if there is none, and its workspace."""
    try:
        return 0, cudnn.plan(record, INSTANT, 0, graph).workspace_bytes
    except cb.PlanFailure as failure:
        return failure.status, 0
    except IndexError:
        return 0, 0


def without_cublaslt(libraries: Path, folder: Path) -> Path:
    """Make a folder as `oracle_libraries` does, but with a cuBLASLt that creates no handle, like NVIDIA's own here."""
    (folder / "libcuda.so.1").symlink_to(libraries / "libcuda.so.1")
    name = next(libraries.glob("libcublasLt.so.*")).name
    broken = folder / "broken.c"
    broken.write_text(_BROKEN)
    rest, compiler = folder / "rest.o", find_compiler()
    hidden = ["-DcublasLtCreate=create_of_the_stand_in", f"-DCUDA_MAJOR={name.rpartition('.')[2]}"]
    run_compiler(compiler, [*FLAGS, "-c", *hidden, "-o", str(rest), str(CSRC / "oracle" / "cublaslt.c")])
    shared = ["-shared", "-fvisibility=default", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    run_compiler(compiler, [*FLAGS, *shared, str(rest), str(broken), "-lpthread"])
    return folder


def by_architecture(found: Survey) -> str:
    """Return the number of answers of each class on each architecture."""
    return table(
        ["engines x questions", *CLASSES], [[f"sm_{sm}", *(found.count(c, sm) for c in CLASSES)] for sm in _asked(found)]
    )


def by_environment(found: Survey) -> str:
    """Return the engines refused for the environment, and the number of questions for which the list is still complete."""
    rows: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0])
    engines: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for (class_, operation, engine, sm, _, reason), n in found.refusals.items():
        if class_ == DEVICE:
            key = operation, sm, reason.partition(" at: ")[0]
            rows[key][0] += n
            rows[key][1] += found.complete[operation, engine, sm]
            engines[key].add(engine)
    heads = ["environment", "sm", "reason", "engines", "refusals", "where the INSTANT list is complete"]
    return table(heads, [[*key, _numbers(engines[key]), *rows[key]] for key in sorted(rows)])


def by_list(found: Survey, broken: Survey) -> str:
    """Return the number of cuDNN's own suggestions that failed its check, with the stand-in and without."""
    heads = ["lists", "of", "complete", "suggestions", "left out", "without the stand-in: complete", "left out"]
    rows = []
    for (name, mode), sm in itertools.product((("INSTANT", INSTANT), ("FALLBACK", FALLBACK)), _asked(found)):
        cells = [found.lists[mode, sm, what] for what in ("lists", "complete", "announced", "dropped")]
        rows.append([f"{name} sm_{sm}", *cells, *(broken.lists[mode, sm, what] for what in ("complete", "dropped"))])
    return table(heads, rows)


def lost(found: Survey, broken: Survey) -> str:
    """Return the engines that build only with the stand-in."""
    missing = set(found.built) - set(broken.built)
    rows = [[operation, _numbers(i for of, i in missing if of == operation)] for operation in OPERATIONS.values()]
    return table(["build with the stand-in only", "engines"], rows)


def unexplained(found: Survey) -> str:
    """Return the engines that took no question anywhere, by cuDNN's reason, and those in no INSTANT list."""
    rows = {f"took no question: {of}": found.never(of) for of in (DEVICE, SILENT, ABSENT, NEW)}
    rows["took some, and is in no INSTANT list"] = {
        operation: [i for of, i in found.built if of == operation and not found.listed[INSTANT, operation, i]]
        for operation in OPERATIONS.values()
    }
    return table(["engine", *OPERATIONS.values()], [[name, *map(_numbers, of.values())] for name, of in rows.items()])


def against(found: Survey, other: Survey) -> str:
    """Return whether another cuDNN has the same INSTANT lists, except for the engines that this one refuses."""
    refused = {key[1:3] for key in found.refusals if key[0] == DEVICE}
    rows = []
    for sm in _asked(found):
        pairs = [
            (key[1], found.answers[key], other.answers[key]) for key in found.answers if key[0] == sm and key in other.answers
        ]
        kept = [[[i for i in of[0] if (operation, i) not in refused] for of in both] for operation, *both in pairs]
        alike = sum(mine[0] == its[0] for _, mine, its in pairs), sum(mine == its for mine, its in kept)
        rows.append([f"sm_{sm}", len(pairs), *alike, sum(mine[1] == its[1] for _, mine, its in pairs)])
    heads = [f"INSTANT lists, cuDNN {found.version} and {other.version}", "lists", "equal", "equal without the refused engines"]
    return table([*heads, "equal first workspace"], rows)


def by_layer(cudnn: Path, libraries: Path) -> str:
    """Return the lists of attention, and the result's remarks on the calls that cannot be queried."""
    found = survey(cudnn, libraries, attention(cudnn), [sm for sm in CARDS if sm >= _FIRST_WITH_ATTENTION])
    whats = ("lists", "announced", "dropped", "device")
    rows = [[f"sm_{sm}", *(found.lists[MODE_A, sm, what] for what in whats)] for sm in _asked(found)]
    lists = table(["attention, forwards and backwards", "lists", "suggestions", "left out", "for the device"], rows)
    return lists + "\n\n" + table(["needs a handle", "in the result"], [[x, "; ".join(unanswered(x))] for x in LEGACY])


def _asked(found: Survey) -> list[int]:
    return [sm for sm in CARDS if any(key[3] == sm for key in found.refusals)]


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers)))) or "none"


def main() -> None:
    """Query cuDNN and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cudnn", type=Path, help="folder of libcudnn_graph.so.9; default: the one in use here")
    parser.add_argument("--against", type=Path, metavar="DIR", help="only compare its lists with those of another cuDNN")
    parser.add_argument("--brief", action="store_true", help="only a few questions, enough for every engine that can build")
    options = parser.parse_args()
    cudnn = options.cudnn or choose(None).library.folder
    libraries, questions = oracle_libraries(cudnn), convolutions(brief=options.brief)
    if options.against is not None:
        other = survey(options.against, oracle_libraries(options.against), questions)
        print(against(survey(cudnn, libraries, questions), other))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = survey(cudnn, libraries, questions)
        broken = survey(cudnn, without_cublaslt(libraries, Path(folder)), questions)
    print(f"cuDNN {found.version}, {len(questions)} convolutions on each architecture\n")
    print("\n\n".join([
        by_architecture(found), by_environment(found), lost(found, broken), by_list(found, broken), unexplained(found),
    ]))  # fmt: skip
    for sm, why in found.not_asked.items():
        print(f"\nsm_{sm} was not asked: {why}")
    print(f"\nFirst plans that did not build: {sum(n for status, n in found.plans.items() if status)} of {found.plans.total()}")
    in_b = [sum(found.lists[MODE_B, sm, what] for sm in CARDS) for what in ("device", "lists")]
    print(f"Lists of mode B for which cuDNN looked for a device: {in_b[0]} of {in_b[1]}")
    if options.cudnn is None:
        print("\n" + by_layer(cudnn, libraries))


if __name__ == "__main__":
    main()
