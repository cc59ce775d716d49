"""Training of the shipped artifact, models/default.

    for set in xmem golf modded titan qlora nanovlm; do python -m benchmarks.accuracy.examples $set; done
    python -m benchmarks.accuracy.tabled
    python -m benchmarks.accuracy.shipped [--out models/default]

It learns only from public runs whose licence lets the result be distributed: GPUMemNet's, timm's and CARMA's are used only for
evaluation (`benchmarks.accuracy.bounds`). It learns the error of first principles by the class of a job; it does not correct
point estimates. The same examples give the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.runner import ROOT
from vramcast.core.units import GIB
from vramcast.learner import artifact, examples, model_cards, training
from vramcast.learner.examples import Example
from vramcast.learner.model import Learned


@dataclass(frozen=True, slots=True)
class Source:
    """A public set: the owner of the runs, their licence, and the measured quantity."""

    name: str
    of: str
    licence: str
    measured: str


SOURCES: Final = (
    Source("xmem", "Stone-ResearchLife/xMem (Jiabo Shi)", "MIT", "NVML less its first sample: reserved; torch 2.6"),
    Source("golf", "openai/parameter-golf, logs", "MIT", "PyTorch's reserved peak, as printed"),
    Source("modded", "KellerJordan/modded-nanogpt, logs of records", "MIT", "PyTorch's reserved peak, as printed; 8 x H100"),
    Source("titan", "pytorch/torchtitan, logs in commit messages and tables", "BSD-3-Clause", "PyTorch's reserved peak"),
    Source("qlora", "AnswerDotAI/fsdp_qlora, benchmarks of March 2024", "Apache-2.0", "PyTorch's reserved peak"),
    Source(
        "tabled",
        "parameter-golf, torchtitan and fsdp_qlora, listed in benchmarks/accuracy/logs/simulated_runs.csv",
        "MIT, BSD-3-Clause, Apache-2.0",
        "PyTorch's reserved peak, simulated in earlier sessions",
    ),
    Source("nanovlm", "huggingface/nanoVLM, table of its README", "Apache-2.0", "PyTorch's allocated peak"),
)


def permissive() -> list[Example]:
    """Return the training examples of the available sets: only peaks and classes; a model's name contains its set."""
    found = []
    for source in SOURCES:
        if path_of(source.name).exists():
            found += [bare(one, source.name) for one in examples.read(path_of(source.name))[0]]
    return found


def _of_reserved(example: Example) -> Example:
    """Return an example with only a measured allocated peak as one of that peak: the allocator's part errs alike."""
    if example.measured_reserved is not None or example.measured_allocated is None:
        return example
    larger = example.larger_allocated
    return replace(
        example,
        reserved=example.allocated,
        measured_reserved=example.measured_allocated,
        larger=None if larger is None else max(larger, example.allocated),
    )


def bare(example: Example, name: str) -> Example:
    """Return an example of a set without features: with so few models, trees would memorize them."""
    example = _of_reserved(example)
    card_bytes = example.card_bytes or round(example.features.get("card_gib", 0) * GIB)
    group = example.group.rpartition("/")[2].lower() if name == "xmem" else example.group
    return replace(
        example,
        id=f"{name} {example.id}",
        group=group,
        stack=name,
        features={},
        unknown=int(example.features.get("unknown", 0)),
        card_bytes=card_bytes,
    )


def trained(found: Sequence[Example]) -> Learned:
    """Return the artifact of these examples."""
    return training.train(found)


def main() -> None:
    """Write the artifact's folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default=str(ROOT / "models" / "default"))
    options = parser.parse_args()
    found = permissive()
    learned = trained(found)
    facts = {
        source.of: f"{sum(one.stack == source.name for one in found)} runs, {source.licence}; {source.measured}"
        for source in SOURCES
        if any(one.stack == source.name for one in found)
    }
    facts["each job"] = "run here on the null GPU, without a GPU"
    facts["process peaks"] = "none: contexts come from vramcast's own table"
    artifact.save(learned, options.out, model_cards.card_text(learned, "default", facts))
    print(f"{options.out}: {learned.card['runs']} runs of {learned.card['groups']} models")


if __name__ == "__main__":
    main()
