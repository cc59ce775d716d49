"""What an estimate is worth to a scheduler: request policies on a simulated cluster, with the errors of real runs.

    python -m benchmarks.scheduling [--device a100-80gb] [--cards 8] [--jobs 400] [--seeds 5] [--gap-s 240]
                                    [--interference 0.2] [--oom-share 0.1]

One table a job mix: xMem's published runs, with the estimates which its authors published for four tools; GPUMemNet's CNNs; and
a mix that is made up. The first two need build/accuracy/examples-SET.jsonl (`python -m benchmarks.accuracy.examples SET`), the
tools' estimates $VRAMCAST_SHARED/data/xmem_runs.csv; what is missing is left out and said.

A job is a measured run: its peak is what was measured, its estimates are those of that run. Bounds are quantiles of the other
models' errors, so that no model has a part in its own. A job that died on its last number requests 1.5 times as much, then the
whole card; one row shows what it costs to request the whole card at once.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.accuracy.figures import table
from benchmarks.accuracy.runner import BUILD, data_folder
from benchmarks.cluster.mix import LEVELS, draw_mix, synthetic_runs, with_bounds
from benchmarks.cluster.outcome import Outcome, compare
from benchmarks.cluster.policies import WHOLE_CARD, from_level, from_point, with_margin, with_retry
from vramcast.context import context_bytes
from vramcast.devices import device
from vramcast.learner import examples, stacks
from vramcast.learner.evaluation.metrics import evaluate
from vramcast.learner.evaluation.scored import Scored
from vramcast.units import gib

TOOLS: Final = {"xMem": "xmem", "DNNMem": "dnnmem", "SchedTune": "schedtune", "LLMem": "llmem"}
MARGIN: Final = 0.2  # arbitrary: what people add to a number they do not trust; accelerate's documentation says up to 20 %
CUDA_MAJOR: Final = 12  # arbitrary: of the simulated cluster
COLUMNS: Final = (
    "request",
    "OOMs",
    "jobs a card",
    "makespan h",
    "mean wait h",
    "GPU h",
    "wasted GPU h",
    "over-reserved GiB h",
    "unused",
)

Policy: TypeAlias = Callable[[Scored], tuple[int, ...]]


def measured_runs(path: Path) -> tuple[list[Scored], int]:
    """Return the examples of a file as runs with our point estimate, and how many were left out.

    Where the process was measured, the estimate is of the process too: with the context that was learned for the run's stack.
    Left out are runs whose peak on the simulated cards nobody knows: those which died, and those which ran although they
    should not have fitted, since on a card so full cuDNN gets less workspace and the allocator retries.
    """
    found = examples.read(path)[0]
    known = [example for example in found if not example.censored and example.reserved < device(example.gpu).total_bytes]
    contexts = stacks.learn(known)
    runs = []
    for example in known:
        measured, context_size = example.measured_reserved, 0
        context = stacks.context_of(example, contexts)
        if measured is None and context is not None:
            measured, context_size = example.measured_process, context
        if measured:
            values = (example.id, example.group, example.family, example.gpu, example.optimizer)
            runs.append(Scored(*values, measured_bytes=measured, estimated_bytes=example.reserved + context_size))
    return runs, len(found) - len(runs)


def tool_run(row: Mapping[str, str], number: int, tool: str) -> Scored | None:
    """Return what a tool said of a row of xMem's runs, None where it said nothing."""
    estimated = float(row[f"{tool}_bytes"] or 0)
    if estimated <= 0:
        return None
    survived = row.get(f"{tool}_round2_oom", "")
    return Scored(
        id=f"xmem {number}",
        group=row["model"],
        family=row["family"],
        gpu=row["gpu"],
        optimizer=row["optimizer"],
        measured_bytes=int(row["ground_bytes"]),
        estimated_bytes=round(estimated),
        card_bytes=int(row["total_gpu_memory"]),
        ran_out_of_memory=row["real_oom"] == "True",
        said_out_of_memory=row[f"{tool}_pred_oom"] == "True",
        ran_at=round(estimated) if survived == "False" else None,
        died_at=round(estimated) if survived == "True" else None,
        batch_size=int(row["batch"]),
    )


def tool_runs(tool: str) -> list[Scored]:
    """Return all that a tool said of xMem's runs; nothing where they are not here."""
    path = data_folder() / "xmem_runs.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        found = (tool_run(row, number, tool) for number, row in enumerate(csv.DictReader(file)))
        return [run for run in found if run is not None]


def on_card(run: Scored, offset_bytes: int) -> Scored:
    """Return the run with the context, which takes its part of a card that jobs share."""
    return replace(
        run,
        measured_bytes=run.measured_bytes + offset_bytes,
        estimated_bytes=run.estimated_bytes + offset_bytes,
        bounds={level: bound + offset_bytes for level, bound in run.bounds.items()},
    )


def our_policies() -> dict[str, Policy]:
    """Return the policies which need no other tool."""

    def bound(level: float) -> Policy:
        return lambda run: with_retry(from_level(run.bounds, level))

    return {
        "the whole card": lambda run: WHOLE_CARD,
        "the true peak, known beforehand": lambda run: (run.measured_bytes,),
        "our point": lambda run: with_retry(from_point(run.estimated_bytes, run.bounds)),
        f"our point + {100 * MARGIN:g} %": lambda run: with_retry(with_margin(run.estimated_bytes, MARGIN)),
        **{f"our bound at {level:g}": bound(level) for level in LEVELS},
        f"our bound at {LEVELS[-1]:g}, then the whole card": lambda run: from_level(run.bounds, LEVELS[-1]),
    }


def tool_policies(name: str, runs: Sequence[Scored]) -> dict[str, Policy]:
    """Return the policies of another tool; of a job on which it says nothing the whole card is requested."""
    known = {run.id: run for run in runs}

    def policy(ladder: Policy) -> Policy:
        return lambda run: with_retry(ladder(known[_number(run)])) if _number(run) in known else WHOLE_CARD

    return {
        f"{name}'s estimate": policy(lambda run: with_margin(run.estimated_bytes)),
        f"{name}'s estimate + {100 * MARGIN:g} %": policy(lambda run: with_margin(run.estimated_bytes, MARGIN)),
        f"{name} with a bound at {LEVELS[-1]:g} from its errors": policy(lambda run: from_level(run.bounds, LEVELS[-1])),
    }


def _number(run: Scored) -> str:
    """Return `xmem 17` of an example's id, which begins with it."""
    return " ".join(run.id.split()[:2])


def outcomes(
    runs: Sequence[Scored], policies: Mapping[str, Policy], cards: Sequence[int], options: argparse.Namespace
) -> dict[str, list[Outcome]]:
    """Return the outcomes of each policy, one a seed."""
    found: dict[str, list[Outcome]] = {name: [] for name in policies}
    for seed in range(options.seeds):
        mix = draw_mix(runs, options.jobs, mean_gap_s=options.gap_s, seed=seed)
        requests = {name: [policy(run) for run in mix.runs] for name, policy in policies.items()}
        compared = compare(mix.jobs, requests, cards, oom_share=options.oom_share, interference=options.interference)
        for name, outcome in compared.items():
            found[name].append(outcome)
    return found


def _line(name: str, found: Sequence[Outcome]) -> list[str]:
    """Return a row of the table: means over the seeds."""

    def mean(value: Callable[[Outcome], float]) -> float:
        return statistics.fmean(map(value, found))

    return [
        name,
        f"{mean(lambda one: one.ooms):.1f}",
        f"{mean(lambda one: one.jobs_per_card):.2f}",
        f"{mean(lambda one: one.makespan_s) / 3600:.1f}",
        f"{mean(lambda one: one.mean_wait_s) / 3600:.2f}",
        f"{mean(lambda one: one.gpu_hours):.0f}",
        f"{mean(lambda one: one.wasted_gpu_hours):.2f}",
        f"{mean(lambda one: one.over_reserved_gib_hours):.0f}",
        f"{100 * mean(lambda one: one.unused_share):.1f} %",
    ]


def report(
    title: str, runs: Sequence[Scored], policies: Mapping[str, Policy], options: argparse.Namespace, n_left_out: int = 0
) -> str:
    """Return one mix as markdown."""
    card = device(options.device)
    figures = evaluate(runs)
    held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in figures["coverage"].items())
    text = (
        f"## {title}\n\n{len(runs)} runs of {len({run.group for run in runs})} models, {n_left_out} left out; our median error "
        f"{100 * figures['mre']:.2f} %; the bounds hold for {held}.\n{options.jobs} jobs on {options.cards} x "
        f"{gib(card.total_bytes)}, one each {options.gap_s:g} s on average, interference {options.interference:g}, death after "
        f"{options.oom_share:g} of a job; means of {options.seeds} seeds.\n\n"
    )
    found = outcomes(runs, policies, [card.total_bytes] * options.cards, options)
    return text + table(COLUMNS, [_line(name, of_policy) for name, of_policy in found.items()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="a100-80gb")
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gap-s", type=float, default=240.0)
    parser.add_argument("--interference", type=float, default=0.2)
    parser.add_argument("--oom-share", type=float, default=0.1)
    options = parser.parse_args(arguments)
    offset = context_bytes(options.device, CUDA_MAJOR, ("cublas", "cudnn")).bytes
    for name, title in (("xmem", "xMem's published runs"), ("cnn", "GPUMemNet's CNNs")):
        path = BUILD / f"examples-{name}.jsonl"
        if not path.exists():
            print(f"'{path}' is not here: run `python -m benchmarks.accuracy.examples {name}`.", file=sys.stderr)
            continue
        measured, n_left_out = measured_runs(path)
        runs, policies = with_bounds(measured), our_policies()
        if name == "xmem":
            runs = [on_card(run, offset) for run in runs]
            for tool, column in TOOLS.items():
                said = [on_card(run, offset) for run in with_bounds(tool_runs(column))]
                policies |= tool_policies(tool, said) if said else {}
        print(report(title, runs, policies, options, n_left_out), end="\n\n")
    print(report("Made up", with_bounds(synthetic_runs()), our_policies(), options))


if __name__ == "__main__":
    main()
