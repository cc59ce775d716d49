"""The gain of trees in bounds by the number of models that they learn from: pinball loss at 0.9 and 0.95.

    python -m benchmarks.accuracy.learning_curve SET [--models 60,120,...] [--seeds 3]

Reads build/accuracy/examples-SET.jsonl. Each line draws models of the set, trains on their runs as `vramcast train` does, and
prints the gain that its gate measures on models held out: the change of the loss against conformal bounds alone (negative is
better), with its bootstrap interval, and whether the gate lets the trees in.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.accuracy.examples import SETS, path_of
from benchmarks.tables import table
from vramcast.learner import examples, gains, training
from vramcast.learner.examples import Example

_MODELS: Final = "60,120,240,480,960"


def drawn(found: Sequence[Example], n_models: int, seed: int) -> list[Example]:
    """Return the runs of a seeded draw of models."""
    models = sorted({one.group for one in found})
    chosen = set(random.Random(seed).sample(models, min(n_models, len(models))))
    return [one for one in found if one.group in chosen]


def lines(found: Sequence[Example], counts: Sequence[int], seeds: int) -> Iterator[list[object]]:
    """Yield the gains of each peak and family by number of models."""
    for n_models in counts:
        for seed in range(seeds):
            learned = training.train(drawn(found, n_models, seed), seed=seed)
            for peak, of_peak in gains.of_card(learned.card).items():
                for family, gain in of_peak.bounds.items():
                    interval = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
                    yield [
                        gain.models,
                        seed,
                        peak,
                        family,
                        f"{100 * gain.change:+.1f} %",
                        interval,
                        "yes" if gain.is_used else "no",
                    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--models", default=_MODELS, help="numbers of models; all of them come last")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found, _ = examples.read(path_of(options.set))
    all_models = len({one.group for one in found})
    counts = [count for count in map(int, options.models.split(",")) if count < all_models]
    columns = ["models", "seed", "peak", "family", "loss", "95 % of samples", "used"]
    print(table(columns, [*lines(found, counts, options.seeds), *lines(found, [all_models], 1)]))


if __name__ == "__main__":
    main()
