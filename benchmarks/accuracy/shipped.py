"""Train the artifact which is shipped: models/default.

    python -m benchmarks.accuracy.examples xmem && python -m benchmarks.accuracy.shipped [--out models/default]

It learns from xMem's public rows alone: their licence (MIT) lets the result be given away, that of GPUMemNet's does not. The
same examples give the same files.
"""

from __future__ import annotations

import argparse

from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.runner import ROOT
from vramcast.learner import artifact, examples, model_cards, training

FACTS = {
    "source": "published results of Stone-ResearchLife/xMem (Jiabo Shi), each job traced with torch 2.11 on the null GPU",
    "licence of the rows": "MIT",
    "measured": "RTX 3060, RTX 4060 and A100-40GB, torch 2.6; NVML less its first sample, which is the reserved peak",
    "process peaks": "none: contexts come from vramcast's own table",
}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default=str(ROOT / "models" / "default"))
    options = parser.parse_args()
    learned = training.train(examples.read(path_of("xmem"))[0])
    artifact.save(learned, options.out, model_cards.card_text(learned, "default", FACTS))
    print(f"{options.out}: {learned.card['runs']} runs of {learned.card['groups']} models")


if __name__ == "__main__":
    main()
