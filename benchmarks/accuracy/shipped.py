"""Training of the shipped artifact, models/default.

    python -m benchmarks.accuracy.shipped [--out models/default]    # from the runs in shipped_runs.jsonl
    python -m benchmarks.accuracy.shipped --collect                 # first takes over the sets that were traced since

`--collect` reads what `benchmarks.accuracy.examples SET`, `benchmarks.accuracy.logs.tabled`, `benchmarks.repeats SOURCE` and
`benchmarks.accuracy.timm_edges --half calibration` left in build/accuracy. A set that is not there keeps its runs in the file.
Of parameter-golf's runs the file has only residuals and classes, taken from the artifact of commit 972935cb: their sizes are
nominal. Allocated peaks are no evidence for reserved ones, and stay out: nanoVLM's too.

It learns only from public runs whose licence lets the result be distributed: GPUMemNet's, timm's and CARMA's are used only for
evaluation (`benchmarks.accuracy.bounds`). Three open tables cannot be repeated: SchedTune's names neither torch nor optimizer,
torchbench's names no card, and PEFT's 276 rows are one model, with batches as long as texts that are not published with them.
It learns the error of first principles by the class of a job; it does not correct point estimates. The same runs give the same
files.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.accuracy import timm_edges
from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.runner import BUILD, ROOT
from benchmarks.measured.measured_run import runs_of
from benchmarks.repeats.results import kept
from vramcast.cli.terminal import progress
from vramcast.core.plain import from_plain
from vramcast.learner import artifact, examples, model_cards, training
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel
from vramcast.learner.traits import ALONE
from vramcast.tracer.nullgpu.cudnn.libraries import number_of

RUNS: Final = ROOT / "benchmarks" / "measured" / "shipped_runs.jsonl"
_OF_TREES: Final = """
## What trees could learn from

The change of the loss against no trees, by number of models drawn. *Needed* is the number of models at which a gain would stand
out from chance. *By source*, each source is unseen, not only each model. docs/learner.md has the curve of a larger set.
"""
_OF_LIVE_BLOCKS: Final = "tabled nanovlm"  # spec: its logs print `max_memory_allocated`
CANDIDATES: Final = RUNS.with_name("candidates.md")  # of the trees, by benchmarks.accuracy.learning_curve --write


@dataclass(frozen=True, slots=True)
class Source:
    """A public set: the owner of the runs, their licence, and the measured quantity."""

    name: str
    of: str
    licence: str
    measured: str

    def traced(self) -> list[Example]:
        """Return the runs of the set that were traced here, without those that a screen leaves out."""
        if self.name == "edges":
            return list(timm_edges.evidence())
        if path_of(self.name).exists():
            return examples.read(path_of(self.name))[0]
        results = kept(BUILD / f"repeats-{self.name}.jsonl")
        screened = {run.key for run in runs_of(self.of) if run.quality == "screened"} if results else set()
        return [from_plain(Example, one.example, key) for key, one in results.items() if one.example and key not in screened]


SOURCES: Final = (
    Source("xmem", "Stone-ResearchLife/xMem (Jiabo Shi)", "MIT", "NVML less its first sample: reserved; torch 2.6"),
    Source("further", "Stone-ResearchLife/xMem, further runs", "MIT", "as above"),
    Source("golf", "openai/parameter-golf, logs", "MIT", "PyTorch's reserved peak, as printed; only residuals are kept"),
    Source("modded", "KellerJordan/modded-nanogpt, logs of records", "MIT", "PyTorch's reserved peak, as printed; 8 x H100"),
    Source("titan", "pytorch/torchtitan, logs in commit messages and tables", "BSD-3-Clause", "PyTorch's reserved peak"),
    Source("qlora", "AnswerDotAI/fsdp_qlora, benchmarks of March 2024", "Apache-2.0", "PyTorch's reserved peak"),
    Source(
        "tabled",
        "parameter-golf, modded-nanogpt, torchtitan and fsdp_qlora: benchmarks/accuracy/logs/simulated_runs.csv",
        "MIT, BSD-3-Clause, Apache-2.0",
        "PyTorch's reserved peak; simulated in earlier sessions",
    ),
    Source("milabench", "mila-iqia/milabench, training staircases", "MIT", "the device's peak; torch 2.6"),
    Source(
        "edges",
        "huggingface/pytorch-image-models, largest batches",
        "Apache-2.0",
        "two ends of the process peak; half of the models",
    ),
)


def permissive() -> list[Example]:
    """Return the training examples: only peaks and classes."""
    return examples.read(RUNS)[0] if RUNS.exists() else []


def collect() -> list[Example]:
    """Return the training examples with each set's newest runs, and store them."""
    stored = permissive()
    found = []
    for source in SOURCES:
        traced = [run for one in source.traced() for run in with_alone(of_set(one, source.name))]
        found += traced or [one for one in stored if one.id.split(" ")[0] == source.name]
    found = [one for one in found if not one.id.startswith(_OF_LIVE_BLOCKS)]
    found = [one for one in found if one.measured_process or one.measured_reserved not in (None, one.measured_allocated)]
    RUNS.unlink(missing_ok=True)
    examples.append(found, RUNS)
    return found


def of_set(example: Example, name: str) -> Example:
    """Return an example under the name of its set, which with its card is a stack; one network is one model in all sets."""
    stack = name if example.measured_process is None else f"{name} {example.gpu}"
    group = example.group.rpartition("/")[2].lower()
    features = {name: float(f"{value:.6g}") for name, value in example.features.items()}
    return replace(example, id=f"{name} {example.id}", group=group, stack=stack, features=features)


def with_alone(example: Example) -> list[Example]:
    """Return an example, and if two cuDNNs chose its plans, the same run as answered by the newer of them alone.

    Most machines have only the cuDNN of their torch: then no larger peak is known, and the bound has a class of its own.
    """
    if example.larger is None:
        return [example]
    is_newer = number_of(example.cudnn) > number_of(example.other_cudnn)
    alone = replace(
        example,
        id=f"{example.id} alone",
        reserved=example.reserved if is_newer else example.larger,
        larger=None,
        larger_allocated=None,
        cudnn=example.cudnn if is_newer else example.other_cudnn,
        other_cudnn="",
        traits={**example.traits, "cudnns": ALONE},
    )
    return [example, alone]


def trained(found: Sequence[Example]) -> LearnedModel:
    """Return the artifact of these examples; their contexts, of whole devices, are left out."""
    return replace(training.train(found), contexts={})


def main() -> None:
    """Write the artifact's folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default=str(ROOT / "models" / "default"))
    parser.add_argument("--collect", action="store_true", help="take over the sets that were traced since")
    options = parser.parse_args()
    if options.collect:
        collect()
    found = permissive()
    with progress("training"):
        learned = trained(found)
    runs = Counter(one.id.split(" ")[0] for one in found if one.traits.get("cudnns") != ALONE)
    facts = {
        source.of: f"{runs[source.name]} runs, {source.licence}; {source.measured}" for source in SOURCES if runs[source.name]
    }
    facts["runs with the plans of two cuDNNs"] = "count twice: with both, and with those of the newer one alone"
    facts["each job"] = "run here on the null GPU, without a GPU"
    facts["contexts"] = "none, because devices were measured, with what drivers withhold: they come from vramcast's own table"
    card = model_cards.card_text(learned, "default", facts)
    if CANDIDATES.exists():
        card += f"{_OF_TREES}\n{CANDIDATES.read_text(encoding='utf-8')}"
    artifact.save(learned, options.out, card)
    print(f"{options.out}: {learned.card['runs']} runs of {learned.card['groups']} models")


if __name__ == "__main__":
    main()
