"""Comparison of convolution plans with the kernels that real cards ran.

    python -m benchmarks.hardware.convolution_kernels [--rows]

The data are an A100's trace of one training step of ResNet-50 (batch 32, fp32 with TF32, cuDNN 8, May 2024), a V100's trace,
and the kernel list of an RTX 5070 Ti (MobileNetV3-Small forward, cuDNN 9.10.2). A trace names kernels, not workspaces: the
workspace of an A100's plan is derived from the copies of operands in another layout and from partial sums for each image.
Partial sums inside a filter gradient's kernel are invisible, so those workspaces are lower bounds. The installed cuDNN
answers, or the one in $VRAMCAST_CUDNN_DIR.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy.runner import read_rows
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.cudnn.backend import EngineConfig
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle, PlanDoesNotBuild
from vramcast.tracer.nullgpu.cudnn.graph import convolution_graph
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
from vramcast.tracer.rules.convolution_workspaces import Operation

BATCH: Final = 32  # spec: both traces
_INSTANT: Final = 0  # spec: cudnnBackendHeurMode_t
_TENSOR_CORE: Final = 0  # spec: cudnnBackendNumericalNote_t
# measured: the engines for 1x1 convolutions that cuDNN 9.8 to 9.19 cannot build without cuBLASLt
# (`python -m benchmarks.hardware.cudnn_engines`).
_GEMM: Final[dict[Operation, int]] = {"forward": 58, "backward_data": 63, "backward_filter": 62}
_NEAR: Final = 0.05  # spec: the tolerance of this comparison
_HOLDS: Final = ("kind", "size", "possible")
_SLACK_MIB: Final = 0.25  # arbitrary: padding of tensors that are smaller than a page


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of ResNet-50 in one direction, as in a row of a kernel table."""

    operation: Operation
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    def graph(self) -> str:
        """Return the operation graph for cuDNN."""
        return convolution_graph(
            self.operation, (BATCH, self.inputs, self.side, self.side), (self.outputs, self.inputs, self.kernel, self.kernel),
            stride=self.stride, padding=self.kernel // 2,
        )  # fmt: skip


def kind_of(operation: Operation, config: EngineConfig) -> str:
    """Return the kind of an engine: a multiplication, a tensor core engine (which needs channels last), or a direct one."""
    if config.engine == _GEMM[operation]:
        return "gemm"
    return "tensor core" if _TENSOR_CORE in config.numerical_notes else "direct"


def first_plan(oracle: CudnnOracle, convolution: Convolution) -> tuple[str, float]:
    """Return the kind and the workspace in MiB of the plan that PyTorch would take."""
    graph = convolution.graph()
    for index, config in enumerate(oracle.heuristics(_INSTANT, graph)):
        try:
            size = oracle.plan(_INSTANT, index, graph)
        except PlanDoesNotBuild:
            continue
        return kind_of(convolution.operation, config), size.workspace_bytes / MIB
    return "none", 0.0


def real_kind(text: str) -> str:
    """Return the kind of the kernels in a row."""
    return "gemm" if text.startswith("gemm") else "tensor core" if "tensor core" in text else "direct"


def is_near(estimate: float, measured: float) -> bool:
    """Return whether a workspace in MiB is within 5 % of the observed one."""
    return abs(estimate - measured) <= max(_NEAR * measured, _SLACK_MIB)


def is_possible(row: Mapping[str, str], estimate: float) -> bool:
    """Return whether a workspace in MiB is possible: near the observed one, or above it if that is a lower bound."""
    least = float(row["real_min_workspace_mib"])
    is_bound = row["op"] == "backward_filter" and real_kind(row["real_kind"]) == "tensor core"
    return is_near(estimate, least) or (is_bound and estimate > least)


def a100(oracle: CudnnOracle, *, rows: bool) -> str:
    """Return the table of the A100's trace; with `rows`, each convolution that differs."""
    found: Counter[tuple[str, str, str]] = Counter()
    different = []
    for row in read_rows("public/cudnn_a100_resnet50.csv"):
        operation: Operation = row["op"]  # type: ignore[assignment]
        convolution = Convolution(operation, *(int(row[name]) for name in ("ci", "co", "k", "stride", "h_in")))
        kind, size = first_plan(oracle, convolution)
        wanted, least = real_kind(row["real_kind"]), float(row["real_min_workspace_mib"])
        times = int(row["times_per_step"])
        for group in (operation, "all"):
            found[group, "rows", "n"] += 1
            found[group, "step", "n"] += times
            for what, holds in (("kind", kind == wanted), ("size", is_near(size, least)), ("possible", is_possible(row, size))):
                found[group, "rows", what] += holds
                found[group, "step", what] += times * holds
        if kind != wanted or not is_near(size, least):
            shape = f"{convolution.inputs}->{convolution.outputs} {convolution.kernel}x{convolution.kernel}"
            place = f"{row['conv']} {shape} /{convolution.stride} at {convolution.side}"
            different.append([f"{operation} {place}", times, wanted, kind, f"{least:.1f}", f"{size:.1f}"])
    lines = [
        [
            group,
            *(
                cell
                for unit in ("rows", "step")
                for cell in (found[group, unit, "n"], *(_share(found, group, unit, what) for what in _HOLDS))
            ),
        ]
        for group in ("forward", "backward_data", "backward_filter", "all")
    ]
    names = ["kind right", "workspace within 5 %", "or above a lower bound"]
    heads = ["A100", "distinct", *names, "of a step", *names]
    text = table(heads, lines)
    if rows:
        text += "\n\n" + table(["differs", "times", "real kind", "kind", "real MiB, at least", "MiB"], different)
    return text


def _share(found: Counter[tuple[str, str, str]], group: str, unit: str, what: str) -> str:
    return f"{100 * found[group, unit, what] / found[group, unit, 'n']:.1f} %"


def v100(oracle: CudnnOracle) -> str:
    """Return the table of the V100's trace, by kernel names: the card has no tensor core for fp32."""
    found: Counter[tuple[str, str]] = Counter()
    for row in read_rows("public/cudnn_v100_resnet50.csv"):
        if row["pass"] != "forward":
            continue
        convolution = Convolution("forward", *(int(row[name]) for name in ("ci", "co", "k", "stride", "h_in")))
        kind, size = first_plan(oracle, convolution)
        names = row["kernels"]
        is_gemm = "sgemm" in names and "scudnn" not in names
        real = "gemm" if is_gemm else "winograd" if "winograd" in names else "direct"
        found[real, f"{kind}, {'no workspace' if size < _SLACK_MIB else 'a workspace'}"] += int(row["times_per_step"])
    return table(["V100 forward, real", "first plan", "of a step"], [[*pair, n] for pair, n in sorted(found.items())])


def rtx5070ti() -> str:
    """Return the kinds of kernels that the card ran; cuDNN cannot answer for its architecture."""
    signs = {
        "multiplication of cuBLAS": "gemm_",
        "split-K of cuBLASLt": "splitKreduce",
        "copy into channels last": "nchwToNhwc",
    }
    real: Counter[str] = Counter(dict.fromkeys(signs, 0))
    for row in read_rows("public/cudnn_rtx5070ti_mobilenetv3.csv"):
        real.update({kind: int(row["instances"]) for kind, sign in signs.items() if sign in row["kernel"]})
    return table(["RTX 5070 Ti, MobileNetV3-Small, cuDNN 9.10.2", "kernels"], list(real.items()))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", action="store_true", help="list each convolution of the A100 that differs")
    options = parser.parse_args()
    cudnn = choose(None).library.folder
    with CudnnOracle(cudnn, oracle_libraries(cudnn), device=device("a100-40gb").cudnn_record()) as oracle:
        print(f"cuDNN {oracle.version()}\n\n{a100(oracle, rows=options.rows)}\n")
        oracle.set_device(device("v100-32gb").cudnn_record())
        print(v100(oracle) + "\n")
    print(rtx5070ti())


if __name__ == "__main__":
    main()
