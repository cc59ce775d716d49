"""GPUMemNet's estimators: ensembles of tiny networks that predict a job's memory class.

Source: arXiv 2602.17817 (2026) and CARMA, arXiv 2508.19073 (2025); details from the authors' public code (itu-rad/GPUMemNet,
`Ensemble/`). Facts from there: thirteen MLPs of 1 to 7 and 1 to 6 layers, 8 neurons wide and 4 from the second layer on,
batch norm and ReLU, the mean of their logits trained as one; two encoders (width 6 with 3 layers, width 4 with 2, one
head, feed-forward 4) over the sequence of layers, summed and followed by such an ensemble; Adam 1e-3, batches of 128, at most
600 epochs, stop after 30 without a better validation loss. The estimate is the upper edge of the class.

Deviations: sizes enter raw and as logarithms, scaled by the training rows (there: only raw, not scaled); the weights of the
best epoch are kept (there: the last); attention runs over the layers of one job, with masked padding (there: `batch_first` is
not set, so it runs over the jobs of a batch); embeddings have no batch norm; kinds of layers are one-hot; and one set of
features serves MLPs, CNNs, and transformers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.peers.authors.architectures import ACTIVATIONS, Layer
from benchmarks.peers.baselines.baseline import Sample, Target
from benchmarks.peers.baselines.network import Network
from vramcast.core.errors import UsageError
from vramcast.core.units import MIB

Kind = Literal["mlp", "transformer"]

DEPTHS: Final = (7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1)  # spec: GPUMemNet, MLP data
WIDTHS: Final = (8, 4)  # spec: GPUMemNet, first layer, all later ones
ENCODERS: Final = ((6, 3), (4, 2))  # spec: GPUMemNet, (width, layers)
FEED_FORWARD: Final = 4  # spec: GPUMemNet
LEARNING_RATE: Final = 1e-3  # spec: GPUMemNet
BATCH_SIZE: Final = 128  # spec: GPUMemNet
EPOCHS: Final = 600  # spec: GPUMemNet
PATIENCE: Final = 30  # spec: GPUMemNet, epochs without a better validation loss
MAX_LAYERS: Final = 256  # arbitrary: longest sequence; later layers are added up in the last place
_HELD_BACK: Final = 0.15  # arbitrary: share of the training rows used for early stopping

_KINDS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in ("norm", "conv", "linear", "dropout|droppath", "embedding", "pool", "attention")
)
_ACTIVATION_NAMES: Final = tuple(sorted(set(ACTIVATIONS.values()), key=str.lower))

LAYER_INPUTS: Final = len(_KINDS) + 1 + 4  # kinds, two sizes and their logarithms

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """Classes of equal width in MiB; a value on an edge belongs to the class below it.

    Attributes:
        width_mib: 1000, 2000 or 8000 in the publication.
        count: Number of classes; the last one has no upper edge.
        first: Index of the lowest class, counted from 0 MiB.
    """

    width_mib: int
    count: int
    first: int = 0

    @classmethod
    def of(cls, measured_bytes: Sequence[int], width_mib: int) -> Bins:
        """Return the bins for these values."""
        if not measured_bytes or width_mib < 1:
            raise UsageError(f"{len(measured_bytes)} values in bins of {width_mib} MiB: at least one of each is needed.")
        first, last = (_class(extreme(measured_bytes), width_mib) for extreme in (min, max))
        return cls(width_mib, last - first + 1, first)

    def index(self, size_bytes: int) -> int:
        """Return the class of a size; sizes outside belong to the nearest class."""
        return min(max(_class(size_bytes, self.width_mib) - self.first, 0), self.count - 1)

    def upper_bytes(self, index: int) -> int:
        """Return the class's upper edge."""
        return (self.first + index + 1) * self.width_mib * MIB


def _class(size_bytes: int, width_mib: int) -> int:
    return max(-(-size_bytes // (width_mib * MIB)) - 1, 0)


# Networks as input of the estimators --------------------------------------------------------------------------------


def kind_of(layer: Layer) -> int:
    """Return the number of a layer's kind; the number of patterns means another kind (activations, pooling, ends)."""
    return next((number for number, pattern in enumerate(_KINDS) if pattern.search(layer.name)), len(_KINDS))


def activation_angle(layers: Sequence[Layer]) -> float | None:
    """Return the first activation function's angle, None without one: its index in the sorted list of names times pi / n."""
    for layer in layers:
        if layer.name in _ACTIVATION_NAMES:
            return _ACTIVATION_NAMES.index(layer.name) * math.pi / len(_ACTIVATION_NAMES)
    return None


def features(network: Network) -> list[float]:
    """Return depth, counts of layers by kind, sizes, their logarithms, and the activation function as sine and cosine."""
    kinds = [kind_of(layer) for layer in network.layers]
    counts = [float(kinds.count(number)) for number in range(len(_KINDS) + 1)]
    angle = activation_angle(network.layers)
    sizes = (network.activations, network.activations * network.batch_size, network.parameters, network.batch_size)
    circle = (math.sin(angle), math.cos(angle)) if angle is not None else (0.0, 0.0)
    return [float(len(kinds)), *counts, *map(float, sizes), *map(math.log1p, sizes), *circle]


def sequence(network: Network) -> Array:
    """Return (layers, LAYER_INPUTS): the kind one-hot; activations, parameters, and the logarithms of both."""
    rows = np.zeros((min(len(network.layers), MAX_LAYERS), LAYER_INPUTS))
    for number, layer in enumerate(network.layers):
        row = rows[min(number, MAX_LAYERS - 1)]
        row[kind_of(layer)] = 1
        row[-4] += layer.activations
        row[-3] += layer.parameters
    rows[:, -2:] = np.log1p(rows[:, -4:-2])
    return rows


# Networks -----------------------------------------------------------------------------------------------------------


class _Stacked(nn.Module):
    """Parallel linear layers: (members, batch, inputs) -> (members, batch, outputs)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))  # Xavier's
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class MlpEnsemble(nn.Module):
    """Parallel MLPs of different depths; returns the mean of their logits.

    Args:
        inputs: Number of features.
        classes: Number of logits.
        depths: Hidden layers of each member, deepest first.
    """

    def __init__(self, inputs: int, classes: int, depths: Sequence[int] = DEPTHS) -> None:
        super().__init__()
        self.members = len(depths)
        self.active = [sum(depth > level for depth in depths) for level in range(max(depths))]
        widths = [inputs, *(WIDTHS[min(level, len(WIDTHS) - 1)] for level in range(max(depths)))]
        levels = list(enumerate(self.active))
        self.hidden = nn.ModuleList([_Stacked(n, widths[level], widths[level + 1]) for level, n in levels])
        self.norms = nn.ModuleList([nn.BatchNorm1d(n * widths[level + 1]) for level, n in levels])
        leaving = [n - after for n, after in zip(self.active, [*self.active[1:], 0], strict=True)]
        self.ends = nn.ModuleList([_Stacked(n, widths[level + 1], classes) for level, n in enumerate(leaving)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, classes) of (batch, inputs)."""
        inner = x.expand(self.members, *x.shape)
        logits: list[torch.Tensor] = []
        for level, (hidden, norm, end) in enumerate(zip(self.hidden, self.norms, self.ends, strict=True)):
            inner = hidden(inner)
            flat = norm(inner.transpose(0, 1).flatten(1)).relu()
            inner = flat.unflatten(1, (self.active[level], -1)).transpose(0, 1)
            stay = self.active[level + 1] if level + 1 < len(self.active) else 0
            logits.append(end(inner[stay:]).sum(0))
            inner = inner[:stay]
        return torch.stack(logits).sum(0) / self.members


class _Encoder(nn.Module):
    """A small transformer encoder over the layers of each job; returns the sum of its outputs."""

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        layer = nn.TransformerEncoderLayer(width, 1, FEED_FORWARD, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        angles = torch.arange(MAX_LAYERS)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("places", torch.stack([angles.sin(), angles.cos()], 2).flatten(1))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        places = self.get_buffer("places")
        inner = self.encoder(self.embedding(x) + places[: x.shape[1]], src_key_padding_mask=padding)
        total: torch.Tensor = inner.masked_fill(padding[:, :, None], 0).sum(1)
        return total


class TransformerEnsemble(nn.Module):
    """Encoders whose sums, together with the features, go through one ensemble of MLPs each; returns the mean of the logits."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.encoders = nn.ModuleList([_Encoder(LAYER_INPUTS, width, layers) for width, layers in ENCODERS])
        self.ends = nn.ModuleList([MlpEnsemble(width + inputs, classes) for width, _ in ENCODERS])

    def forward(self, x: torch.Tensor, layers: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Return (batch, classes) of features (batch, inputs) and sequences (batch, layers, LAYER_INPUTS)."""
        pairs = zip(self.encoders, self.ends, strict=True)
        logits = [end(torch.cat([encoder(layers, padding), x], 1)) for encoder, end in pairs]
        return torch.stack(logits).mean(0)


# Training -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scaler:
    """Scaler of inputs to the range of the training rows."""

    mean: Array
    spread: Array
    layer_spread: Array

    @classmethod
    def of(cls, networks: Sequence[Network]) -> _Scaler:
        raw = np.array([features(network) for network in networks])
        layers = np.concatenate([sequence(network) for network in networks])
        layer_spread = layers.std(0) if len(layers) else np.ones(LAYER_INPUTS)
        layer_spread[:-4] = 1  # one-hot
        return cls(raw.mean(0), _without_0(raw.std(0)), _without_0(layer_spread))

    def features(self, networks: Sequence[Network]) -> torch.Tensor:
        """Return float32 (networks, features)."""
        raw = np.array([features(network) for network in networks])
        return torch.from_numpy(((raw - self.mean) / self.spread).astype(np.float32))

    def sequences(self, networks: Sequence[Network]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 (networks, longest, LAYER_INPUTS) and the mask of padding."""
        found = [sequence(network) / self.layer_spread for network in networks]
        longest = max(1, *(len(rows) for rows in found))
        padded = np.zeros((len(found), longest, LAYER_INPUTS), np.float32)
        padding = np.ones((len(found), longest), bool)
        for i, rows in enumerate(found):
            padded[i, : len(rows)] = rows
            padding[i, : max(len(rows), 1)] = False  # attention over nothing gives NaN
        return torch.from_numpy(padded), torch.from_numpy(padding)


def _without_0(spread: Array) -> Array:
    return np.where(spread > 0, spread, 1.0)


class Classifier:
    """An ensemble and its training.

    Args:
        kind: Kind of the ensemble.
        classes: Number of classes.
        seed: Seed of weights and order.
        epochs, patience: Maximum number of epochs, and the number without a better validation loss after which it stops.
        warm_start: True if `fit` continues from the weights of the previous `fit` (the publication's folds); else it starts
            anew.
    """

    def __init__(
        self,
        kind: Kind,
        classes: int,
        *,
        seed: int = 0,
        epochs: int = EPOCHS,
        patience: int = PATIENCE,
        warm_start: bool = False,
    ) -> None:
        self.kind, self.classes, self.seed = kind, classes, seed
        self.epochs, self.patience, self.warm_start = epochs, patience, warm_start
        self.net: MlpEnsemble | TransformerEnsemble | None = None
        self.epochs_done = 0

    @property
    def weights(self) -> int:
        """Return the number of trained weights."""
        return sum(parameter.numel() for parameter in self.net.parameters()) if self.net else 0

    def fit(
        self,
        networks: Sequence[Network],
        classes: Sequence[int],
        validation: Sequence[Network],
        validation_classes: Sequence[int],
    ) -> None:
        """Train until the validation loss stops falling; keep the weights of its minimum."""
        self._scaler = _Scaler.of(networks)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.net is None or not self.warm_start:
                self.net = self._new(len(self._scaler.mean))
            self._train(self.net, self._inputs(networks), classes, self._inputs(validation), validation_classes)

    def predict(self, networks: Sequence[Network]) -> list[int]:
        """Return each job's class."""
        if self.net is None:
            raise UsageError("This classifier is not fitted: call fit first.")
        self.net.eval()
        with torch.inference_mode():
            return [int(best) for best in self.net(*self._inputs(networks)).argmax(1)] if networks else []

    def _new(self, inputs: int) -> MlpEnsemble | TransformerEnsemble:
        if self.kind == "mlp":
            return MlpEnsemble(inputs, self.classes)
        return TransformerEnsemble(inputs, self.classes)

    def _inputs(self, networks: Sequence[Network]) -> tuple[torch.Tensor, ...]:
        inputs = (self._scaler.features(networks),)
        return inputs if self.kind == "mlp" else (*inputs, *self._scaler.sequences(networks))

    def _train(
        self,
        net: MlpEnsemble | TransformerEnsemble,
        inputs: tuple[torch.Tensor, ...],
        classes: Sequence[int],
        validation: tuple[torch.Tensor, ...],
        validation_classes: Sequence[int],
    ) -> None:
        loss_of = nn.CrossEntropyLoss()
        labels, validation_labels = torch.tensor(classes), torch.tensor(validation_classes)
        optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
        best_loss, best, best_epoch = math.inf, net.state_dict(), 0
        for epoch in range(self.epochs):
            net.train()
            order = torch.randperm(len(labels))
            for start in range(0, len(order), BATCH_SIZE):
                rows = order[start : start + BATCH_SIZE]
                if len(rows) > 1:  # batch norm cannot learn from one
                    optimizer.zero_grad()
                    loss_of(net(*(part[rows] for part in inputs)), labels[rows]).backward()
                    optimizer.step()
            net.eval()
            with torch.inference_mode():
                loss = float(loss_of(net(*validation), validation_labels))
            self.epochs_done = epoch + 1
            if loss < best_loss:
                best_loss, best, best_epoch = loss, copy.deepcopy(net.state_dict()), epoch
            elif epoch - best_epoch >= self.patience:
                break
        net.load_state_dict(best)


class GpuMemNet:
    """The estimator as a baseline of the process peak, with the classes of the training rows.

    Args:
        kind: Kind of the ensemble.
        bin_mib: Width of a class; 1000 or 2000 for MLPs, 8000 for all else in the publication.
        seed: Seed of weights, order, and the rows held back for early stopping.
        epochs: Maximum number of epochs.
    """

    def __init__(self, kind: Kind, bin_mib: int, *, target: Target = "process", seed: int = 0, epochs: int = EPOCHS) -> None:
        self.name = f"GPUMemNet {kind}, {bin_mib} MiB"
        self.target: Target = target
        self.kind, self.bin_mib, self.seed, self.epochs = kind, bin_mib, seed, epochs
        self._fitted: tuple[Classifier, Bins] | None = None

    def fit(self, train: Sequence[Sample]) -> None:
        """Learn from the rows with a known network and a measured peak."""
        self._fitted = None
        pairs = [(s.network, size) for s in train if s.network is not None and (size := s.measured(self.target))]
        order = np.random.default_rng(self.seed).permutation(len(pairs))
        held_back = round(_HELD_BACK * len(pairs))
        if len(pairs) - held_back < 2 or not held_back:
            return
        bins = Bins.of([size for _, size in pairs], self.bin_mib)
        networks = [pairs[i][0] for i in order]
        classes = [bins.index(pairs[i][1]) for i in order]
        classifier = Classifier(self.kind, bins.count, seed=self.seed, epochs=self.epochs)
        classifier.fit(networks[held_back:], classes[held_back:], networks[:held_back], classes[:held_back])
        self._fitted = classifier, bins

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the upper edge of each run's class; None without a network, or with too little training data."""
        found: list[int | None] = [None] * len(test)
        if self._fitted is None:
            return found
        classifier, bins = self._fitted
        known = [(i, sample.network) for i, sample in enumerate(test) if sample.network is not None]
        for (i, _), index in zip(known, classifier.predict([network for _, network in known]), strict=True):
            found[i] = bins.upper_bytes(index)
        return found
