"""Sizes of contexts which others measured, card by card, and the rule for cards which nobody measured. MiB.

Two levels, and what tells them apart is whether the process has launched a kernel:

    bare       a context, nothing else: what nvidia-smi printed of processes which had only chosen their card
    kernels    after torch's first kernels, cuBLAS and cuDNN: PyTorch's out-of-memory messages (see `vramcast.hardware.context`)

Rows "printed" are from the starts of public training logs (MIT licence): the most frequent size of a stack's processes.
Left out: sizes above 5 GiB and stacks in which fewer than half of the processes agree (they hold data), device totals (others'
memory is in them; on Windows there is nothing else), and names which nvidia-smi cut short. `python -m
benchmarks.hardware.contexts` makes the list again.

The same logs have a third level, 400 to 660 MiB above the bare one, in processes of a single rank. It is no property of a
training: the script (openai/parameter-golf, train_gpt.py) prints before its first kernel, and makes a process group where a
launcher started it. That is NCCL's, and stands in `vramcast.estimates.communicators`. Where ranks had launched one kernel on
GPU 0 first (modded-nanogpt, "prevents a bug on some systems"), their contexts there are 610 to 614 on an H100, as in the
messages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vramcast.hardware.devices import DEVICES, Device


@dataclass(frozen=True, slots=True)
class Interval:
    """A size with its low and high end, MiB."""

    mib: float
    low_mib: float
    high_mib: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.mib + other.mib, self.low_mib + other.low_mib, self.high_mib + other.high_mib)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.mib - other.mib, self.low_mib - other.high_mib, self.high_mib - other.low_mib)

    def times(self, factor: float) -> Interval:
        """Return the interval with each end multiplied."""
        return Interval(self.mib * factor, self.low_mib * factor, self.high_mib * factor)


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one card.

    Attributes:
        keys: The cards it holds for, as `vramcast.hardware.devices` calls them, or would.
        libraries: Which the processes had used; none: a bare context.
        size: Point and range.
        seen: The sizes which were printed, or which messages gave.
        source: Whose.
        torch: Minor releases of torch which are known to be behind it.
        threads_1024: Threads which the card can hold at once, in units of 1024; None: as the first key's card.
    """

    keys: tuple[str, ...]
    libraries: frozenset[str]
    size: Interval
    seen: tuple[float, ...]
    source: str
    torch: tuple[str, ...] = ()
    threads_1024: float | None = None

    @property
    def kilothreads(self) -> float:
        """Threads which the card can hold at once, in units of 1024."""
        return kilothreads(DEVICES[self.keys[0]]) if self.threads_1024 is None else self.threads_1024


BARE: Final[frozenset[str]] = frozenset()
_BLAS = frozenset({"cublas"})
_BLAS_DNN = frozenset({"cublas", "cudnn"})
_V100 = ("v100-16gb", "v100-32gb")
_A100 = ("a100-40gb", "a100-80gb", "a100-pcie-40gb")
_OOM = "PyTorch out-of-memory messages in public logs"
_LOGS = "nvidia-smi at the start of public logs"
_HOPPER = "out-of-memory messages, and public logs after one kernel"

# Kernels loaded with their library: CUDA 11 and older. The range of the V100 is +-10 % (one number, arbitrary).
EAGER: Final = (
    Row(_V100, BARE, Interval(1343, 1209, 1477), (1343,), "HF performance docs"),  # measured: CUDA 11.2, HF docs, 2021
    # The two A100 rows are a DGX Station of 2024 whose CUDA version is not published; their size puts them here, which
    # is a guess. Fitted on 5,947 and 1,590 jobs; the range is the largest miss of the first.
    Row(_A100, _BLAS, Interval(1429, 1361, 1497), (1429,), "fitted on GPUMemNet MLPs"),  # measured: arXiv 2602.17817, 2024
    Row(_A100, _BLAS_DNN, Interval(1679, 1611, 1747), (1679,), "fitted on GPUMemNet CNNs"),  # measured: arXiv 2602.17817, 2024
)
EAGER_ELSEWHERE: Final = Row(
    (),
    BARE,
    # measured: V100 as above; low end: 616 MiB with CUDA_MODULE_LOADING=DEFAULT, https://github.com/pytorch/pytorch/pull/86509
    Interval(1343, 616, 1679),
    (1343,),
    "other cards with CUDA 11",
)

# Kernels loaded when first used: CUDA 12 and 13, PyTorch >= 2.1. Left out: jobs with CUDA graphs or kernels of their own.
# The range of messages is theirs, +-15 MiB for their two decimals; +-10 % where there is one message (arbitrary).
LAZY: Final = (
    # Bare contexts: measured by driver 570 and later where no driver is named; processes in brackets.
    Row(_V100, BARE, Interval(308, 293, 323), (308,), _OOM),  # measured: before any library, 2026
    Row(_A100, BARE, Interval(416, 414, 416), (416, 414, 416), _LOGS, ("2.10",)),  # measured: (24), 2026
    Row(("l4",), BARE, Interval(211, 190, 232), (211,), _OOM),  # measured: while loading weights
    # 510 before any library: vllm-project/vllm#35463, the card told by its 79.19 GiB.
    Row(("h100",), BARE, Interval(520, 495, 522), (520, 522, 518, 518), _LOGS, ("2.6", "2.9", "2.11")),  # measured: (73)
    Row(("h100-pcie",), BARE, Interval(448, 403, 493), (448,), _LOGS, ("2.9",)),  # measured: (1)
    Row(("h200",), BARE, Interval(520, 498, 542), (520,), _LOGS, ("2.10",)),  # measured: (1); messages 513, 527
    Row(("rtx3060",), BARE, Interval(104, 68, 138), (104, 83, 89, 106, 123), _LOGS, ("2.11",)),  # measured: (18); messages
    Row(("rtx3090",), BARE, Interval(256, 230, 282), (256,), "invoke-ai/InvokeAI#9413", ("2.7",)),  # measured: idle, 2026
    Row(("rtx4090",), BARE, Interval(384, 384, 386), (384, 384, 384, 386), _LOGS, ("2.9", "2.10")),  # measured: (4)
    Row(("rtx5090",), BARE, Interval(496, 446, 546), (496, 496), _LOGS, ("2.8", "2.9")),  # measured: (2)
    # Cards which vramcast.hardware.devices does not have; a site may (VRAMCAST_SITE). spec: 84, 84 and 46 SMs of 1536 threads
    Row(("a40",), BARE, Interval(260, 234, 286), (260, 260), _LOGS, ("2.6",), 126),  # measured: (115)
    Row(("rtxa6000",), BARE, Interval(262, 236, 288), (262,), _LOGS, ("2.6",), 126),  # measured: (3)
    Row(("rtx4070",), BARE, Interval(154, 139, 169), (154,), _LOGS, ("2.10",), 69),  # measured: (1)
    # After kernels.
    Row(_V100, _BLAS_DNN, Interval(380, 364, 404), (379, 379, 383, 389), _OOM),  # measured: 2026
    Row(("t4",), _BLAS_DNN, Interval(114, 85, 148), (100, 111, 114, 120, 133), _OOM),  # measured: 100: hpcaitech/Open-Sora#697
    Row(("a10",), _BLAS_DNN, Interval(307, 166, 401), (181, 307, 386), _OOM),  # measured: on A10 and A10G
    Row(_A100, _BLAS_DNN, Interval(524, 474, 546), (489, 513, 522, 524, 531), "itu-rad/CARMA, A100"),  # measured: 524, 2025
    Row(("l40s",), _BLAS, Interval(505, 480, 529), (495, 514), _OOM),  # measured: 2025
    # Messages 599, 601, 666 (SXM or PCIe is not said); 610 and 614: 17 stacks with drivers 535 to 570, after one kernel.
    Row(
        ("h100",), _BLAS_DNN,
        Interval(614, 584, 681),  # measured: as above (1,491), 2025-2026
        (599, 601, 666, 610, 614), _HOPPER, ("2.8", "2.9", "2.10"),
    ),
    # An out-of-memory message, so after kernels; 1.23 times the bare context which the rule gives, as the others.
    Row(("b200",), _BLAS, Interval(712, 641, 783), (712,), _OOM),  # measured: stas00/ml-engineering debug/pytorch.md
    Row(("rtx3090",), _BLAS, Interval(354, 292, 435), (307, 354, 420), _OOM),  # measured: 2025
    # flux-webui#11 473, T2ITrainer#37 479, 3DTopia/Phidias-Diffusion#8 504
    Row(("rtx4090",), _BLAS_DNN, Interval(473, 446, 519), (461, 461, 473, 479, 504), _OOM),  # measured: 2025
)  # fmt: skip


def kilothreads(card: Device) -> float:
    """Return how many threads the card can hold at once, in units of 1024."""
    return card.sm_count * card.threads_per_sm / 1024


def bare_mib(threads_1024: float, rows: Iterable[Row] = LAZY) -> float:
    """Return the bare context of a card without a row: as a card with as many threads, else by the rule.

    The rule is a constant and a share for each thread which the card can hold, fitted to the bare rows by least squares of
    relative errors: size / threads is linear in 1 / threads.
    """
    bare = [row for row in rows if row.libraries == BARE]
    alike = [row.size.mib for row in bare if row.kilothreads == threads_1024]
    if alike:
        return statistics.median(alike)
    fitted = statistics.linear_regression(
        [1 / row.kilothreads for row in bare], [row.size.mib / row.kilothreads for row in bare]
    )
    return fitted.slope + fitted.intercept * threads_1024


def kernels_mib(threads_1024: float, rows: Iterable[Row] = LAZY) -> float:
    """Return what kernels add to the bare context of a card without a row: as on a card with as many threads, else by the rule.

    The rule is the median of what they add for each thread.
    """
    rows = tuple(rows)
    bare = {row.keys[0]: row.size.mib for row in rows if row.libraries == BARE}
    after = [row for row in rows if row.libraries != BARE]
    alike = [row for row in after if row.kilothreads == threads_1024]
    shares = [
        (row.size.mib - bare.get(row.keys[0], bare_mib(row.kilothreads, rows))) / row.kilothreads for row in alike or after
    ]
    return statistics.median(shares) * threads_1024
