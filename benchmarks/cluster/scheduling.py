"""Value of estimates to a scheduler: request policies on a simulated cluster, with real jobs and measured memory.

    python -m benchmarks.cluster.scheduling [--trace FILE] [--cards 16] [--load 8] [--jobs 2000] [--seeds 5] \
        [--device a100-40gb] [--interference 0] [--oom-share 0.1]

Arrival times, run times, and numbers of cards come from a real cluster: from FILE (see `benchmarks.cluster.arrivals`), else
from Philly's published run times. Arrivals are sped up until one job per card could do 1 / load of the work.

The memory of a job and its prediction come from a measured run, assigned with a seed. There is one table per set of runs:

- xMem's, with the published estimates of four tools. Ours: as in `benchmarks.accuracy.bounds`, by an artifact that learned
  from all permissive runs except those of the job's model.
- GPUMemNet's CNNs and MLPs, half of each. Ours: with the shipped artifact, which has seen none of them, and the built-in rule
  for a class outside the artifact.

The sets need build/accuracy/examples-SET.jsonl (`python -m benchmarks.accuracy.examples SET`); the tools' estimates and
GPUMemNet's classes need $VRAMCAST_SHARED. The report notes missing inputs and leaves them out. Without any of them, a made-up
mix is simulated.

A job that died on its last request requests 1.5 times as much, then the whole card.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.accuracy import bounds
from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.shipped import permissive
from benchmarks.accuracy.tools import TOOLS, tool_runs
from benchmarks.cluster import arrivals, memory_classes
from benchmarks.cluster.mix import deal, synthetic_runs, with_bounds
from benchmarks.cluster.outcome import Outcome, compare
from benchmarks.cluster.policies import WHOLE_CARD, from_level, from_point, with_margin, with_retry
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.core.units import gib
from vramcast.estimates.bounds.learned import SHIPPED, load, named
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.learner import examples
from vramcast.learner.cross_validation import LEVELS
from vramcast.learner.evaluation.metrics import evaluate
from vramcast.learner.evaluation.scored_run import Scored

MARGIN: Final = 0.15  # arbitrary: a common safety margin; accelerate's documentation says up to 20 %
CUDA_MAJOR: Final = 12  # arbitrary: CUDA version of the simulated cluster
COLUMNS: Final = ("request", "deaths", "jobs a card", "makespan h", "mean wait h", "GPU h", "wasted GPU h", "unused")

Policy: TypeAlias = Callable[[Scored], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Mixed:
    """Runs to be assigned to jobs, and the requests that they allow."""

    title: str
    runs: Sequence[Scored]
    policies: Mapping[str, Policy]
    n_left_out: int = 0
    note: str = ""


# Requests ------------------------------------------------------------------------------------------------------------


def our_policies() -> dict[str, Policy]:
    """Return the policies that need no other tool."""

    def bound(level: float) -> Policy:
        return lambda run: with_retry(from_level(run.bounds, level))

    return {
        "the whole card": lambda run: WHOLE_CARD,
        "the true peak, known beforehand": lambda run: (run.measured_bytes,),
        "our point": lambda run: with_retry(from_point(run.estimated_bytes, run.bounds)),
        f"our point + {100 * MARGIN:g} %": lambda run: with_retry(with_margin(run.estimated_bytes, MARGIN)),
        **{f"our bound at {level:g}": bound(level) for level in LEVELS if level > 0.5},
    }


def tool_policies(name: str, runs: Sequence[Scored]) -> dict[str, Policy]:
    """Return the policies of another tool; a job without its prediction requests the whole card."""
    known = {run.id: run.estimated_bytes for run in runs}

    def policy(margin: float) -> Policy:
        return lambda run: with_retry(with_margin(known[run.id], margin)) if run.id in known else WHOLE_CARD

    return {f"{name}'s estimate": policy(0.0), f"{name}'s estimate + {100 * MARGIN:g} %": policy(MARGIN)}


def class_policies(edges: Mapping[str, int], bin_mib: Mapping[str, int]) -> dict[str, Policy]:
    """Return the policies of GPUMemNet's classes: the upper edge of the predicted one, and of the true one.

    Args:
        edges: Upper edge of the predicted class, by run; without one, the run requests the whole card.
        bin_mib: Width of a class by family.
    """
    return {
        "GPUMemNet's class": lambda run: with_retry((edges[run.id],)) if run.id in edges else WHOLE_CARD,
        "GPUMemNet's class, were it always right": lambda run: (
            memory_classes.true_edge(run.measured_bytes, bin_mib[run.family]),
        ),
    }


# Memory of the jobs --------------------------------------------------------------------------------------------------


def usable(runs: Sequence[Scored]) -> list[Scored]:
    """Return the runs whose peak on another card is known.

    Excluded are runs that died, and runs that should not have fitted: on a nearly full card, cuDNN gets less workspace
    and the allocator retries.
    """
    return [run for run in runs if not run.is_lower_bound and not run.said_out_of_memory]


def on_card(run: Scored, context_size_bytes: int) -> Scored:
    """Return the run with the context added, which occupies a part of a card that jobs share."""
    return replace(
        run,
        measured_bytes=run.measured_bytes + context_size_bytes,
        estimated_bytes=run.estimated_bytes + context_size_bytes,
        bounds={level: bound + context_size_bytes for level, bound in run.bounds.items()},
    )


def of_xmem(context_size_bytes: int) -> Mixed:
    """Return xMem's runs; their reserved peaks were measured, so the context of the simulated card is added to all."""
    judged = [run for run in bounds.judged(permissive(), (0.5, 0.9, 0.95, LEVELS[-1])) if run.id.startswith("xmem xmem ")]
    # An id is `xmem xmem 17 ...`, the tools' are `xmem 17`.
    runs = [on_card(replace(run, id=" ".join(run.id.split()[1:3])), context_size_bytes) for run in usable(judged)]
    policies = our_policies()
    for title, tool in TOOLS.items():
        said = [on_card(run, context_size_bytes) for run in tool_runs(tool)]
        policies |= tool_policies(title, said) if said else {}
    return Mixed("xMem's runs", runs, policies, len(judged) - len(runs))


def of_gpumemnet(names: Sequence[str]) -> Mixed:
    """Return GPUMemNet's runs, whose processes were measured, each with the context of its set's runs."""
    learned = load(named(SHIPPED))
    found, edges, n_listed, n_built_in = list[Scored](), dict[str, int](), 0, 0
    for name in names:
        listed = {one.id: one for one in examples.read(path_of(name))[0]}
        runs = usable(bounds.served(name, learned, LEVELS))
        n_built_in += sum(bool(learned.lacks(listed[run.id].traits)) for run in runs)
        found += runs
        edges |= memory_classes.edges_of(name)
        n_listed += len(listed)
    policies = our_policies() | (class_policies(edges, memory_classes.BIN_MIB) if edges else {})
    note = (
        f" The shipped artifact does not cover the class of {n_built_in}: the built-in rule serves them." if n_built_in else ""
    )
    title = f"GPUMemNet's {' and '.join(f'{name.upper()}s' for name in names)}"
    return Mixed(title, found, policies, n_listed - len(found), note)


def mixes(context_size_bytes: int) -> list[Mixed]:
    """Return the available runs; made-up ones if there are none."""
    here = {name: path_of(name).exists() for name in ("cnn", "mlp")}
    for name in (name for name, is_here in here.items() if not is_here):
        print(f"'{path_of(name)}' is missing: run `python -m benchmarks.accuracy.examples {name}`.", file=sys.stderr)
    found = [of_xmem(context_size_bytes)] if any(one.stack == "xmem" for one in permissive()) else []
    names = [name for name, is_here in here.items() if is_here]
    found += [of_gpumemnet(names)] if names else []
    return found or [Mixed("Runs made up", with_bounds(synthetic_runs()), our_policies())]


# Results -------------------------------------------------------------------------------------------------------------


def outcomes(mixed: Mixed, jobs: arrivals.Arrivals, options: argparse.Namespace) -> dict[str, list[Outcome]]:
    """Return the outcomes of each policy, one per seed."""
    cards = [device(options.device).total_bytes] * options.cards
    found: dict[str, list[Outcome]] = {name: [] for name in mixed.policies}
    for seed in range(options.seeds):
        mix = deal(arrivals.scaled(jobs.draw(options.jobs, seed), options.cards, options.load), mixed.runs, seed=seed)
        requests = {name: [policy(run) for run in mix.runs] for name, policy in mixed.policies.items()}
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
        f"{mean(lambda one: one.wasted_gpu_hours):.1f}",
        f"{100 * mean(lambda one: one.unused_share):.1f} %",
    ]


def report(mixed: Mixed, jobs: arrivals.Arrivals, options: argparse.Namespace) -> str:
    """Return one mix as Markdown."""
    figures = evaluate(mixed.runs)
    held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in figures["coverage"].items() if level != "0.5")
    n_models = len({run.group for run in mixed.runs})
    text = (
        f"## {mixed.title}\n\n{len(mixed.runs)} runs of {n_models} models, {mixed.n_left_out} left out; our median error "
        f"{100 * figures['mre']:.2f} %; the bounds hold for {held}.{mixed.note}\n\n"
    )
    return text + table(COLUMNS, [_line(name, of_policy) for name, of_policy in outcomes(mixed, jobs, options).items()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a cluster's job log, see benchmarks.cluster.arrivals")
    parser.add_argument("--device", default="a100-40gb")
    parser.add_argument("--cards", type=int, default=16)
    parser.add_argument("--load", type=float, default=8.0)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--interference", type=float, default=0.0)
    parser.add_argument("--oom-share", type=float, default=0.1)
    options = parser.parse_args(arguments)
    jobs: arrivals.Log | arrivals.RunTimes = arrivals.PHILLY
    if options.trace is not None:
        try:
            jobs = arrivals.read(options.trace, most_cards=options.cards)
        except VramcastError as error:
            print(f"{error}\nUsing Philly's published run times instead.", file=sys.stderr)
    card = device(options.device)
    print(
        f"{options.jobs} jobs of {jobs.source} on {options.cards} x {gib(card.total_bytes)}, {options.load:g} times what one "
        f"job a card could do, interference {options.interference:g}, death after {options.oom_share:g} of a job; means of "
        f"{options.seeds} seeds. Left out of the jobs: {arrivals.said(jobs)}.\n"
    )
    context = context_bytes(options.device, CUDA_MAJOR, ("cublas", "cudnn")).bytes
    print("\n\n".join(report(mixed, jobs, options) for mixed in mixes(context)))


if __name__ == "__main__":
    main()
