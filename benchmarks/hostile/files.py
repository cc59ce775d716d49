"""Files from any source: snapshots, artifacts, job histories, data sets with nothing to learn from."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile import damage
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.trust import inside

_EACH = 130  # arbitrary: mutated files of each format, about 1,430 in all


def cases(folder: Path) -> Iterable[Case]:
    """Yield all cases."""
    yield from _snapshots(folder)
    yield from _artifacts(folder)
    yield from _histories(folder)
    yield from _sets(folder)


# ------------------------------------------------------------------------------------------------ snapshots
def _contents() -> dict[str, bytes]:
    """Return files that are not snapshots; all begin like a pickle of protocol 4."""
    p, good = b"\x80\x04", pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)
    bombs = {
        "gzip of 16 Mi dicts": gzip.compress(p + b"}(\x8c\x08segments(" + b"}" * 2**24),
        "gzip of 60 Mi dicts": gzip.compress(p + b"}(\x8c\x08segments(" + b"}" * (60 * 2**20)),
        "gzip of 1 GB of zeros": gzip.compress(bytes(10**9), 1),
        "dicts, not packed": p + b"}(\x8c\x08segments(" + b"}" * 2**24,
        "dicts in lists": p + b"]" + b"(}}}}e" * 2**21 + b".",
        "notes": p + b"N" + b"\x94" * 2**24 + b".",
        "marks": p + b"(" * 2**24 + b".",
        "a note of number 2^31": p + b"Nr\xff\xff\xff\x7f.",
        "BINBYTES8 of 2^63 bytes": p + b"\x8e" + b"\xff" * 7 + b"\x7f.",
        "LONG4 of 2 GiB": p + b"\x8b\xff\xff\xff\x7f.",
        "a frame of 2^63 bytes": p + b"\x95" + b"\xff" * 7 + b"\x7f" + b"N.",
        "tuples a million deep": p + b")" + b"\x85" * 10**6 + b".",
        "lists a million deep": p + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
        "keys which collide": p + b"}("
        + b"".join(b"\x8a\x0b" + (i * (2**61 - 1)).to_bytes(11, "little") + b"N" for i in range(1, 2**16)) + b"u.",
    }  # fmt: skip
    return {
        **bombs,
        "os.system": b"cos\nsystem\n(S'touch planted'\ntR.",
        "builtins.eval": b"cbuiltins\neval\n(S'1'\ntR.",
        "INST": b"(S'1'\nios\nsystem\n.",
        "PERSID": b"P1\n.",
        "nothing": b"",
        "text": b"not a pickle",
        "a zip": b"PK\x03\x04",
        "torn": good[:-7],
        "torn gzip": gzip.compress(good)[:-9],
        "segments of lists": pickle.dumps({"segments": [[]]}),
        "a number": pickle.dumps(3),
    }


def _snapshots(folder: Path) -> Iterator[Case]:
    for number, (name, content) in enumerate(_contents().items()):
        path = folder / f"{number}.pickle"
        path.write_bytes(content)
        for verb in ("replay", "plan"):
            arguments = [verb, str(path)]
            yield Case(
                "snapshots for replay and plan", f"{verb} {name}",
                lambda a=arguments: inside(a, codes=[2], says="cannot be read"),  # type: ignore[misc]
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------ artifacts
def _artifacts(folder: Path) -> Iterator[Case]:
    from tests.learner.conftest import make
    from vramcast.core.errors import ArtifactError
    from vramcast.learner import artifact, training
    from vramcast.learner.model import LearnedModel, Subject

    examples = make(120, process=True)
    learned = training.train(examples, {"n_estimators": 3, "max_depth": 2}, folds=2)
    bare = {
        "reserved_head": dataclasses.replace(learned.reserved_head, quantiles=None),
        "process_head": learned.process_head and dataclasses.replace(learned.process_head, quantiles=None),
    }
    artifact.save(learned, folder / "trees")
    artifact.save(dataclasses.replace(learned, **bare), folder / "bare")
    subjects = [Subject.of(one) for one in examples[:4]]

    def bounds(of: LearnedModel) -> list[int]:
        return [one.size_bytes for subject in subjects for one in of.bounds(subject, (0.5, 0.9, 0.99))]

    lowest = {kind: bounds(artifact.load(folder / kind)) for kind in ("trees", "bare")}

    def run(kind: str, name: str, file: str, content: str) -> Verdict:
        try:
            found = artifact.load(damage.damaged(folder / kind, folder / "damaged", file, content))
        except ArtifactError:
            return HANDLED
        if damage.must_refuse(name) and not name.startswith("version"):
            return Verdict(Wrong.NUMBER, "it was accepted")
        if kind == "bare" and any(now < before for now, before in zip(bounds(found), lowest[kind], strict=True)):
            return Verdict(Wrong.NUMBER, "the bound is lower")
        return HANDLED

    for kind, damages in (
        ("bare", damage.numbers(folder / "bare", "artifact.json")),
        ("trees", damage.numbers(folder / "trees", "reserved.json")),
        ("trees", damage.trees(folder / "trees")),
    ):
        for one in damages:
            yield Case("artifacts", f"{one[1]}: {one[0]}", lambda k=kind, o=one: run(k, *o))  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ histories
def _drawn(strategy: Any) -> list[Any]:
    """Return the examples of a test strategy, the same each time."""
    from hypothesis import HealthCheck, Phase, given, settings

    found: list[Any] = []

    @settings(
        max_examples=_EACH, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def draw(one: Any) -> None:
        found.append(one)

    draw()
    return found


def _histories(folder: Path) -> Iterator[Case]:

    from benchmarks.peers.authors.formats import FORMATS as AUTHORS
    from tests.benchmarks.authors.samples import SAMPLES as OF_AUTHORS
    from tests.datasets.histories.malformed import check, contents
    from tests.datasets.histories.samples import SAMPLES
    from vramcast.core.errors import DatasetError, TraceFileError
    from vramcast.datasets.histories.formats import FORMATS

    formats, samples = FORMATS | AUTHORS, SAMPLES | OF_AUTHORS

    def run(name: str, file: str, content: bytes) -> Verdict:
        path = folder / file
        path.write_bytes(content)
        try:
            check(formats[name].read(path))
        except (DatasetError, TraceFileError):
            pass
        finally:
            path.unlink()
        return HANDLED

    for name in formats:
        drawn = _drawn(contents(samples[name]))
        for number, one in enumerate(drawn[:_EACH]):
            yield Case("importers, all 11 formats, mutated", f"{name} {number}", lambda n=name, o=one: run(n, *o))  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ sets
def _sets(folder: Path) -> Iterator[Case]:
    row = {
        "schema": 1, "id": "a", "passport": {"measured_by": "vramcast measure", "gpu": "NVIDIA H200"},
        "workload": {"name": "mlp", "target": "vramcast.datasets.workloads.networks:mlp?"
                     '{"inputs":64,"outputs":4,"width":64,"depth":1}', "batch": ["8x64"]},
        "measurement": {"status": "ok", "reserved_bytes": 2**25},
    }  # fmt: skip

    def changed(part: str, **values: Any) -> str:
        return json.dumps({**row, part: {**row[part], **values}})  # type: ignore[dict-item]

    contents = {
        "nothing": "",
        "null": "null\n",
        "no rows but text": "what is this\n",
        "one run": json.dumps(row),
        "one run, ten times": "\n".join([json.dumps(row)] * 10),
        "a peak of one byte": changed("measurement", reserved_bytes=1),
        "a peak of 2^62": changed("measurement", reserved_bytes=2**62),
        "a peak of 10^400": changed("measurement", reserved_bytes=10**400),
        "no such card": changed("passport", gpu="NVIDIA X1"),
        "no target": changed("workload", target=None),
        "no such model": changed("workload", target="torchvision:resnet51"),
        "a batch of another shape": changed("workload", batch=["8x65"]),
        "a batch of nothing": changed("workload", batch=["0x64"]),
        "out of memory alone": changed("measurement", status="oom", censored=True),
        "newer": json.dumps({**row, "schema": 99}),
        "nested": "[" * 10**5,
        "binary": "\x00\x01",
    }
    # One run gives no bound with a guarantee; and a batch of nothing is a job that takes its parameters.
    usable = ("one run", "one run, ten times", "a peak of one byte", "a peak of 2^62", "a batch of nothing")
    for number, (name, content) in enumerate(contents.items()):
        path = folder / f"set{number}.jsonl"
        path.write_text(content + "\n" * (name != "nothing"))
        codes = [0, 2] if name in usable else [2]
        for verb, options in (("train", ["--out", str(folder / "out")]), ("evaluate", [])):
            yield Case(
                "train / evaluate / import on degenerate sets", f"{verb} {name}",
                lambda a=[verb, str(path), *options], c=codes: _learned(folder, a, c),  # type: ignore[misc]
            )  # fmt: skip
    for name, arguments in {
        "a folder with nothing": ["import", "runs", str(folder), "--out", str(folder / "x.jsonl")],
        "an absent file": ["import", "csv", str(folder / "absent"), "--out", str(folder / "x.jsonl")],
        "an absent set": ["train", str(folder / "absent"), "--out", str(folder / "out")],
        "an absent artifact": ["evaluate", str(folder / "set3.jsonl"), "--artifact", str(folder / "absent")],
    }.items():
        yield Case("train / evaluate / import on degenerate sets", name, lambda a=arguments: inside(a, codes=[2]))  # type: ignore[misc]


def _learned(folder: Path, arguments: list[str], codes: list[int]) -> Verdict:
    shutil.rmtree(folder / "out", ignore_errors=True)
    verdict = inside(arguments, codes=codes)
    if 0 not in codes and (folder / "out").exists():
        return Verdict(Wrong.NUMBER, "something was learned from it")
    return verdict
