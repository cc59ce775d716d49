"""One adoption, from the files of a history to the deployed artifact.

Results are stored at once (runs, estimates), and a repeated step finds them: a process killed at any moment can be started
again and ends with the same artifact. `adopted.json` is written before the artifact is deployed, and a later run that finds
a difference completes the deployment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

import joblib

from vramcast.adoption import gaps, ingest, next_step, sample, shipped_artifact, verdict
from vramcast.adoption import report as findings
from vramcast.adoption.artifact_store import Folder, as_json
from vramcast.adoption.shipped_artifact import ArtifactComparison
from vramcast.adoption.verdict import Candidate
from vramcast.core.errors import ArtifactError, DatasetError
from vramcast.core.files import digest, sha256_of
from vramcast.core.location import FOLDER
from vramcast.core.plain import to_plain
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import Run
from vramcast.estimates import run_examples
from vramcast.learner import artifact, cross_validation, dask_engine, model_cards, training
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel

Keep: TypeAlias = Literal["better", "new", "old"]
SCHEMA: Final = 1
_FOLDS: Final = 3  # arbitrary: folds of the models for the evaluation; each takes a whole training
# measured: `benchmarks.speed.adoption --engine dask`: 4,000 rows take 20 minutes and more on two workers, and half a minute
# here
_FEW_ROWS: Final = 20_000
_EVERY_S: Final = 5.0  # arbitrary: interval between two lines of progress


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """The options of an adoption; see `vramcast learn --help`.

    Attributes:
        calibrate_only: Whether to keep the trees of the shipped artifact, or of `against`.
        keep: Which artifact to keep: the new one unless another is better on the jobs held out, or the new, or the old one.
    """

    files: tuple[str, ...]
    out: str
    format_name: str | None = None
    rules: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1
    engine: str = "local"
    scheduler: str | None = None
    trust: bool = False
    seed: int = 0
    folds: int = training.FOLDS
    most: int = sample.MOST
    against: str | None = None
    calibrate_only: bool = False
    keep: Keep = "better"
    dry_run: bool = False

    def parameters(self, rows: int) -> dict[str, Any]:
        """Return the learner's parameters for this many rows: trees for few rows are grown here, faster than on workers."""
        return {"n_jobs": self.jobs, "engine": self.engine if rows > _FEW_ROWS else "local"}

    def settings(self) -> str:
        """Return a digest of the settings that decide the artifact: if it changes, the same history is adopted again."""
        chosen = (
            self.engine,
            self.trust,
            self.seed,
            self.folds,
            self.most,
            self.against,
            self.keep,
            self.jobs,
            self.calibrate_only,
        )
        return digest(json.dumps(chosen), *run_examples.decides_all(), _learners_code(), digits=64)


def _learners_code() -> str:
    """Return a digest of the code that makes an artifact from examples."""
    packages = (FOLDER / "learner", Path(__file__).parent)
    return digest(*(sha256_of(path) for package in packages for path in sorted(package.glob("*.py"))), digits=64)


@contextmanager
def _workers(wanted: AdoptOptions) -> Iterator[None]:
    """Use the engine's processes for estimates and trees while the block runs."""
    if wanted.engine == "local":
        yield
        return
    with dask_engine.cluster(wanted.jobs, wanted.scheduler), joblib.parallel_config(backend="dask"):
        yield


class _Clock:
    """Seconds by phase; each phase is reported when it begins."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._name, self._since = "", monotonic()

    def begin(self, name: str, detail: str = "") -> None:
        """End the phase before, and begin this one; "" ends the last."""
        now = monotonic()
        if self._name:
            self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + now - self._since, 1)
        self._name, self._since = name, now
        if name:
            self.progress(f"{name}{f': {detail}' if detail else ''}")


def adopt(
    wanted: AdoptOptions,
    progress: Callable[[str], None] = lambda line: None,
    ask: Callable[[ArtifactComparison, list[str]], bool] | None = None,
) -> dict[str, Any]:
    """Return the facts of this adoption, which are those of `adopted.json`.

    Args:
        wanted: The options.
        progress: Called with lines of progress.
        ask: Called before an artifact is deployed that is worse than another one, or has wider bounds than the shipped one:
            with the comparison and the reasons why it is worse; returns whether to deploy it.
    Returns:
        The facts, among them `promoted`, `nothing_new`, and the `reasons` to reject a new artifact.
    Raises:
        DatasetError, TraceFileError: A history cannot be read, or none of its runs can be used.
        ArtifactError: --out holds something else, or --against cannot be read.
        OutputError: --out cannot be written, or another process adopts into it.
    """
    folder = Folder(wanted.out)
    older = artifact.load(wanted.against) if wanted.against else None  # reported before hours of tracing
    with nullcontext() if wanted.dry_run else folder.locked():
        return _Adoption(wanted, folder, older, _Clock(progress), ask).done()


class _Adoption:
    """An adoption in progress."""

    def __init__(
        self,
        wanted: AdoptOptions,
        folder: Folder,
        older: LearnedModel | None,
        clock: _Clock,
        ask: Callable[[ArtifactComparison, list[str]], bool] | None,
    ) -> None:
        self.wanted, self.folder, self.older, self.clock, self.ask = wanted, folder, older, clock, ask
        self.last = folder.last()
        # Whether the store is unchanged since the last adoption.
        self.is_stored = bool(self.last.get("store")) and self.last["store"] == sha256_of(folder.store)
        self.seen = ingest.contents(wanted.files, wanted.format_name, wanted.rules, wanted.columns)
        self.settings = wanted.settings()

    def done(self) -> dict[str, Any]:
        """Run the adoption."""
        if not self.wanted.dry_run:
            self._finish_the_last()
        is_known = self._is_known()
        if is_known and all(content in self._inputs() for content in self.seen.values()):
            return self._nothing_new()
        self.clock.begin("reading", f"{len(self.wanted.files)} files")
        taken = ingest.read_files(
            self.wanted.files,
            self.wanted.format_name,
            self.wanted.rules,
            self.wanted.columns,
            seen=self.seen,
            known=self._inputs(),
            progress=self.clock.progress,
        )
        runs, changed = ingest.merged(ingest.stored(self.folder.store), taken.runs)
        if not runs:
            raise DatasetError(
                f"The {len(self.wanted.files)} files contain no run: {'; '.join(taken.notes) or 'they are empty'}."
            )
        if is_known and not changed:
            return self._nothing_new([*taken.accounts.values()])
        if not self.wanted.dry_run:
            if changed:
                with Journal(self.folder.store) as journal:
                    journal.append_all(run.to_dict() for run in changed)
            if taken.rejected:
                rows = [json.dumps(to_plain(one)) for one in taken.rejected]
                self.folder.write(self.folder.rejected, "".join(f"{row}\n" for row in rows).encode())
        with _workers(self.wanted):
            return self._learn(list(runs.values()), taken, len(changed))

    # -------------------------------------------------------------------------------------------- earlier adoptions
    def _inputs(self) -> dict[str, dict[str, Any]]:
        """Return the accounts of the files whose runs are in the store, by the digest of their content."""
        found = self.last.get("inputs") if self.is_stored else None
        accounts = found if isinstance(found, list) else []
        return {one["content"]: one for one in accounts if isinstance(one, dict) and one.get("content")}

    def _is_known(self) -> bool:
        """Return whether the last adoption saw this store with these settings, and the artifact it deployed is in place."""
        if not self.is_stored or self.last.get("settings") != self.settings or self.wanted.dry_run:
            return False
        try:
            is_there = self.folder.present() is not None
        except ArtifactError:
            is_there = False
        return is_there if self.last.get("promoted") else True

    def _finish_the_last(self) -> None:
        """Deploy the artifact that the last adoption was about to deploy."""
        digest = self.last.get("artifact")
        if not self.last.get("promoted") or not isinstance(digest, str):
            return
        if self.folder.is_whole(digest) and self.folder.last_placed() != digest:
            self.folder.put_in_place(digest)

    def _nothing_new(self, accounts: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Return the last facts; files of other bytes with the same runs are not read again either."""
        if any(account["content"] not in self._inputs() for account in accounts):
            self.last["inputs"] = self._with_inputs(accounts)
            self.folder.write(self.folder.facts, as_json(self.last))
        return {**self.last, "nothing_new": True}

    def _with_inputs(self, accounts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the accounts of all files in the store."""
        return [*{**self._inputs(), **{one["content"]: one for one in accounts if one["content"]}}.values()]

    # -------------------------------------------------------------------------------------------- new runs
    def _learn(self, runs: Sequence[Run], taken: ingest.Intake, n_new: int) -> dict[str, Any]:
        wanted, clock = self.wanted, self.clock
        clock.begin("estimating", f"{len(runs):,} runs")
        found = run_examples.examples_of_runs(
            runs,
            n_jobs=-1 if wanted.scheduler else wanted.jobs,  # -1: all workers
            trust=wanted.trust,
            store_path=self.folder.examples if self.folder.adopted.is_dir() else None,  # a dry run creates no folder
            progress=self._estimated(),
        )
        why = ", ".join(f"{count} {reason}" for reason, count in found.left_out.items())
        if why and found.examples:
            clock.progress(f"not learned from: {why}")
        if not found.examples:
            raise DatasetError(
                f"None of {len(runs)} runs can be learned from: {why}. Runs need a target, a batch and a peak: "
                f"{next_step.for_left_out(found.left_out) or 'see docs/histories.md'}."
            )
        chosen = sample.chosen(found.examples, wanted.most)
        clock.begin("training", f"{len(chosen):,} of {len(found.examples):,} runs, {len({e.group for e in chosen}):,} models")
        learned = self._learner(len(chosen), wanted.folds)(chosen)
        clock.begin("judging", f"{_FOLDS} trainings, each without some of the models")
        learn = self._learner(len(chosen), _FOLDS)
        scored = cross_validation.cross_validated(chosen, folds=_FOLDS, seed=wanted.seed, learn=learn)
        clock.begin("comparing")
        judged = Candidate(learned, runs, found.examples, chosen, scored)
        decided, shipped = verdict.verdict(judged, self.folder, self.older), verdict.against_shipped(judged)
        worse = [*decided.worse, *shipped.reasons]
        keep = self._keep(decided.reasons, worse, shipped)
        facts: dict[str, Any] = {
            "schema": SCHEMA,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "out": wanted.out,
            "dry_run": wanted.dry_run,
            "nothing_new": False,
            "runs": len(runs),
            "new_runs": n_new,
            "files": {file: account["format"] for file, account in taken.accounts.items()},
            "rejected_by_reason": taken.rejected_by_reason,
            "rejected_places": taken.rejected_places,
            "left_out": found.left_out,
            "examples": len(found.examples),
            "learned_from": len(chosen),
            "judged": len(judged.everything),
            "gate": {**decided.figures, **({"replaced_though": worse} if worse and keep == "new" else {})},
            "shipped": shipped.to_dict(),
            "keep": keep,
            "worse": worse,
            "requests": findings.cost_facts(judged.everything, judged.seconds),
            "gaps": gaps.gaps(learned, chosen),
            "notes": taken.notes,
            "next": next_step.next_step(judged, found.left_out, shipped.models_like or len(judged.models)),
            "reasons": [*decided.reasons, *(worse if keep == "better" else [])],
            "promoted": False,
            "artifact": "",
        }
        if wanted.dry_run:
            clock.begin("")
            return {**facts, "seconds": clock.seconds}
        return self._kept(judged, taken, facts)

    def _learner(self, rows: int, folds: int) -> Callable[[Sequence[Example]], LearnedModel]:
        """Return the function that makes an artifact from examples."""
        wanted = self.wanted
        if not wanted.calibrate_only:
            return partial(training.train, parameters=wanted.parameters(rows), folds=folds, seed=wanted.seed)
        return partial(training.recalibrated, self.older or shipped_artifact.load())

    def _keep(self, reasons: list[str], worse: list[str], shipped: ArtifactComparison) -> Keep:
        """Return the artifact to keep: as wanted, or as a person answers if another one is better or narrower."""
        if self.wanted.keep != "better" or self.ask is None or reasons or self.wanted.dry_run:
            return self.wanted.keep
        return self.wanted.keep if not (worse or shipped.wider) else "new" if self.ask(shipped, worse) else "old"

    def _kept(self, judged: Candidate, taken: ingest.Intake, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the artifact, the report and the facts, in this order; then deploy it if the gate permits."""
        self.clock.begin("writing")
        made_of = {"sources": f"{len(judged.runs)} runs, {len(judged.chosen)} of them learned from"}
        digest = self.folder.keep(judged.learned, model_cards.card_text(judged.learned, Path(self.wanted.out).name, made_of))
        facts["reasons"] += verdict.damaged(self.folder, digest, judged)
        facts |= {"promoted": not facts["reasons"] and facts["keep"] != "old", "artifact": digest}
        if facts["promoted"]:
            self.folder.write(self.folder.judged(digest), as_json(judged.to_dict()))
        else:
            self.folder.drop(digest)
        page = findings.page(facts, judged.scored, judged.everything, judged.seconds)
        self.folder.write(self.folder.report, page.encode())
        self.clock.begin("")
        facts |= {
            "seconds": self.clock.seconds,
            "settings": self.settings,
            "store": sha256_of(self.folder.store),
            "inputs": self._with_inputs(taken.accounts.values()),
        }
        self.folder.write(self.folder.facts, as_json(facts))
        if facts["promoted"]:
            self.folder.put_in_place(digest)
        return facts

    def _estimated(self) -> Callable[[int, int], None]:
        """Return a function that reports from time to time how many jobs are estimated, and the time left."""
        since = last_shown = monotonic()

        def tell(done: int, of: int) -> None:
            nonlocal last_shown
            now = monotonic()
            if now - last_shown >= _EVERY_S or done == of:
                last_shown = now
                self.clock.progress(f"estimated {done:,} of {of:,} jobs, {(now - since) / done * (of - done):.0f} s left")

        return tell
