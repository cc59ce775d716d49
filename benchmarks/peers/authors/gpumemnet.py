"""GPUMemNet's tables of MLPs and CNNs (CSV): every row as a job that can run again.

The file name in each row describes the network. The network is rebuilt from it alone and its list of layers compared with the
row's: only a row with equal lists gets a target. The measurement is nvidia-smi's `memory.used` of the card, once a second,
alone on an A100-SXM4-40GB; the job trained for about a minute: float32, Adam, cross-entropy on the softmax's output.

The tables mark crashed rows as successful. Known causes: one class (the loss rejects it), batch norm over a last batch of one
sample, images below 7 pixels (division by zero before the first tensor). They become runs with status `error`.
"""

from __future__ import annotations

import json
import os
import re
from typing import Final

from benchmarks.peers.authors import architectures
from benchmarks.peers.authors.architectures import ACTIVATIONS, CNN_SHAPES, MLP_SHAPES, Layer
from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.units import MIB
from vramcast.datasets.histories.reader import Tally, near_capacity, size_bytes, table
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Status, Workload

PERIOD_MS: Final = 1000.0  # spec: nvidia-smi -l 1
SAMPLES: Final = 4096  # spec: GPUMemNet, samples per epoch
GPU: Final = "NVIDIA A100-SXM4-40GB"
GPU_TOTAL_BYTES: Final = 42_474_471_424  # measured: torch on this card, xMem's result files
LICENCE: Final = "itu-rad/GPUMemNet: data CC BY-NC 4.0 by its README, cite arXiv 2602.17817"
_PEAK: Final = "Max GPU Memory (MiB)"
_LIST: Final = "Activations-Params"
_NETWORKS: Final = "benchmarks.peers.authors.networks"
_MAX: Final = 100_000  # arbitrary: largest number in a file name; the largest known is 4096
_MAX_DEPTH: Final = 1000  # arbitrary: the deepest known has 30 layers

_NAME: Final = re.compile(
    r"(?:input:(?P<input>\d+)_output:(?P<output>\d+)|input_channels:(?P<channels>\d+)_num_classes:(?P<classes>\d+))"
    r"_depth:(?P<depth>\d+)_arch:(?P<arch>[a-z]+)(?:_base_filters:(?P<filters>\d+))?_batch:(?P<batch>\d+)"
    r"(?:_input_size:(?P<size>\d+))?"
    r"(?:_act:(?P<act>[a-z_]+?)_dropout:(?P<rate>0\.\d+)_dropout:(?P<dropout>True|False)_batchnorm:(?P<norm>True|False))?\.out"
)
_ENTRY: Final = re.compile(r"\('([A-Za-z0-9_]+)', (\d{1,18}), (\d{1,18})\)")


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of one table.

    Raises:
        DatasetError: the file cannot be read, or is not such a table.
    """
    tally = Tally(path)
    verified = unlisted = 0
    for number, row in table(path, ("Filename", _LIST, _PEAK), tally):
        network = listed = None
        try:
            network = _Network(row["Filename"])
            listed = _listed(row[_LIST])
            made = _run(row, network, listed)
        except DatasetError as error:
            tally.reject(number, str(error), row["Filename"])
            continue
        verified += bool(listed) and made.workload.target is not None
        unlisted += not listed
        tally.run([(number, row["Filename"])], lambda made=made: made)
    tally.note(f"{verified} of {tally.rows} networks are rebuilt and equal the row's list of layers")
    if unlisted:
        tally.note(f"{unlisted} rows have an empty list of layers: rebuilt from the file name alone")
    tally.note(
        "peaks are nvidia-smi's, of the whole card, once a second: the context counts, and a job that ended within a second "
        "is measured too low"
    )
    return tally.done()


class _Network:
    """The content of a file name."""

    def __init__(self, name: str) -> None:
        match = _NAME.fullmatch(name)
        if match is None:
            raise DatasetError(f"The file name {name[:60]!r} is not of GPUMemNet's MLPs or CNNs.")
        self.name = name
        said = match.groupdict()
        self.is_cnn = said["channels"] is not None
        numbers = ["depth", "batch", *(("channels", "classes", "filters", "size") if self.is_cnn else ("input", "output"))]
        counts = {key: int(said[key] or 0) if len(said[key] or "") < 9 else _MAX + 1 for key in numbers}
        if bad := [key for key, value in counts.items() if not 1 <= value <= _MAX]:
            raise DatasetError(f"The file name has {bad[0]}:{said[bad[0]]}: 1 to {_MAX:,} is expected.")
        self.depth, self.batch = counts["depth"], counts["batch"]
        if self.depth > _MAX_DEPTH:
            raise DatasetError(f"The file name has depth:{self.depth}: at most {_MAX_DEPTH} is expected.")
        self.counts = counts
        self.shape = said["arch"]
        self.activation = said["act"] or "relu"
        if self.shape not in (CNN_SHAPES if self.is_cnn else MLP_SHAPES) or self.activation not in ACTIVATIONS:
            raise DatasetError(f"The file name has arch:{self.shape} and act:{self.activation}: one of them is unknown.")
        self.dropout = float(said["rate"]) if said["dropout"] == "True" else None
        self.batch_norm = said["norm"] == "True"

    @property
    def classes(self) -> int:
        """Number of classes of the labels."""
        return self.counts["classes" if self.is_cnn else "output"]

    def options(self, choice: int | str | None) -> dict[str, object]:
        """Return the factory's keyword arguments; `choice` is the setting that the name does not contain."""
        shared: dict[str, object] = {"depth": self.depth, "shape": self.shape, "activation": self.activation}
        shared |= {"dropout": self.dropout, "batch_norm": self.batch_norm}
        if self.is_cnn:
            sizes = {key: self.counts[key] for key in ("channels", "classes", "filters", "size")}
            return {**sizes, **shared, "interval": choice}
        return {"inputs": self.counts["input"], "outputs": self.counts["output"], **shared, "last": choice}

    def choices(self, listed: list[Layer]) -> tuple[int | str | None, ...]:
        """Return the possible settings that the name does not contain: a CNN's interval of transitions, an MLP's last layer."""
        if self.is_cnn:
            return architectures.transition_intervals(self.depth, self.counts["size"])
        last = listed[-1].name if listed and listed[-1].name != "linear" else None
        return (last if last in ("Softmax", "Sigmoid", "Identity") else None,)

    def layers(self, choice: int | str | None) -> list[Layer]:
        """Return the list of layers."""
        drops, norms = self.dropout is not None, self.batch_norm
        if self.is_cnn:
            channels, classes, filters, size = (self.counts[key] for key in ("channels", "classes", "filters", "size"))
            assert isinstance(choice, int)
            blocks = architectures.cnn_blocks(channels, self.depth, self.shape, filters, size, choice)
            return architectures.cnn_layers(blocks, channels, classes, self.activation, dropout=drops, batch_norm=norms)
        inputs, outputs = self.counts["input"], self.counts["output"]
        last = choice if isinstance(choice, str) else None
        return architectures.mlp_layers(
            inputs, outputs, self.depth, self.shape, self.activation, dropout=drops, batch_norm=norms, last=last
        )

    @property
    def batch_text(self) -> str:
        """Shape of the input."""
        if self.is_cnn:
            return f"{self.batch}x{self.counts['channels']}x{self.counts['size']}x{self.counts['size']}"
        return f"{self.batch}x{self.counts['input']}"

    def crash(self) -> str | None:
        """Return the reason why this job cannot have trained."""
        if self.classes == 1:
            return "one class: its loss refuses the labels"
        if self.batch_norm and SAMPLES % self.batch == 1 and not self.is_cnn:
            return "batch norm over a last batch of one sample"
        if self.is_cnn and self.counts["size"] < architectures.TARGET_SIZE:
            return "an image below 7 pixels: ended before the first tensor"
        return None


def _listed(text: str) -> list[Layer]:
    """Return the list in a row.

    Raises:
        DatasetError: the text is not a list of (name, number, number).
    """
    found = [Layer(name, int(activations), int(parameters)) for name, activations, parameters in _ENTRY.findall(text)]
    if text.strip() and str([(layer.name, layer.activations, layer.parameters) for layer in found]) != text.strip():
        raise DatasetError(f"The list of layers {text[:60]!r} cannot be read: a list of (name, number, number) is expected.")
    return found


def _run(row: dict[str, str], network: _Network, listed: list[Layer]) -> Run:
    """Return the run of one row."""
    choices = network.choices(listed)
    chosen = next((choice for choice in choices if network.layers(choice) == listed), None if listed else choices[0])
    known = not listed or network.layers(chosen if chosen is not None or not network.is_cnn else choices[0]) == listed
    options = network.options(chosen)
    target = f"{_NETWORKS}:{'cnn' if network.is_cnn else 'mlp'}?{json.dumps(options, separators=(',', ':'))}" if known else None
    parameters = sum(layer.parameters for layer in listed) or None
    peak = size_bytes(row[_PEAK], _PEAK, MIB)
    status: Status = "ok"
    crash = network.crash()
    messages = [] if known else ["the network's list of layers differs from the file name's"]
    messages += [] if listed else ["its list of layers is empty"]
    if row.get("Status", "SUCCESSFUL") == "OOM_CRASH":
        status = "oom"
        messages.append("the peak is the level before it ran out of memory")
    elif crash or peak is None:
        status = "error"
        messages.append(crash or "nothing was measured")
    return Run(
        id=f"gpumemnet-{'cnn' if network.is_cnn else 'mlp'}-{digest(network.name)}",
        workload=Workload(
            name=network.name.removesuffix(".out"),
            family="cnn" if network.is_cnn else "mlp",
            target=target,
            features={} if parameters is None else {"parameters": float(parameters)},
            batch=(network.batch_text,),
            labels=f"{network.batch}:int64<{network.classes}",
            batch_size=network.batch,
            optimizer="adam",
            precision="fp32",
            mode="train",
            zero_grad="step-start",
            overlap_inputs=False,
            gpus=1,
        ),
        passport=Passport(
            measured_by="GPUMemNet",
            how="nvidia-smi device",
            period_ms=PERIOD_MS,
            gpu=GPU,
            gpu_total_bytes=GPU_TOTAL_BYTES,
            licence=LICENCE,
        ),
        measurement=Measurement(
            status=status,
            process_bytes=peak,
            censored=status != "ok" or near_capacity(peak, GPU_TOTAL_BYTES),
            message="; ".join(messages),
        ),
    )
