"""Commands through `vramcast largest` and `vramcast run --advise`, each answer compared with the program edited by hand.

    python -m benchmarks.surveys.commands largest [--only TEXT]    # the largest batch, length or rank of 43 programs
    python -m benchmarks.surveys.commands advice [--only TEXT]     # the rows that fit, and the peaks of edited copies
    python -m benchmarks.surveys.commands largest|advice --summary

Needs accelerate, Lightning, transformers, peft, TRL, timm, bitsandbytes and Ultralytics; a program without its library is a row
that says so. Results are appended to build/commands/VERB.jsonl, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.runner import ROOT
from benchmarks.surveys.command_programs import PROGRAMS, Program
from benchmarks.tables import table

RESULTS: Final = ROOT / "build" / "commands"
_NEAR: Final = 0.01  # spec: the aim
_MOST_TRACES: Final = 5  # spec: the aim
_SHARE: Final = 0.9  # arbitrary: of what a command takes; so it does not fit, and some changes do
_ALLOCATOR, _SHARDED = "expandable segments", "FSDP2"


def answered(program: Program, verb: str, *options: str, edits: tuple[tuple[str, str], ...] = (), **environment: str) -> Any:
    """Return a verb's JSON for a program, or a dict with the `message` of its error.

    Args:
        program: The program.
        verb: The verb.
        options: Its options.
        edits: The (old, new) texts of an edited copy.
        environment: More variables of its shell; `launcher` holds words before train.py.
    """
    launcher = environment.pop("launcher", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in program.files.items():
            for old, new in edits:
                assert old in text, f"{program.name}: no {old}"
                text = text.replace(old, new)
            Path(folder, name).write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "vramcast", verb, "--json", "-q", "--on", program.card, *options]
        command = [*words, "--", *launcher.split(), "train.py", *program.words.split()]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **program.environment, **environment}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return found if found and "message" not in found else {"message": found.get("message") or done.stderr.strip()[-300:]}


def largest(program: Program) -> dict[str, Any]:
    """Return the answer of `vramcast largest`, and what is wrong with it: "" if both sides of its edge are traced and right."""
    found = answered(program, "largest", *program.options)
    if "message" in found:
        return {"problem": found["message"]}
    verdicts = {row["value"]: row.get("verdict", row.get("error")) for row in found["traced"]}
    problems = [
        "more than five traces" * (len(verdicts) > _MOST_TRACES),
        "its value was not traced" * (not found["search"] and verdicts.get(found["value"]) != "fits"),
        "the next value was not traced" * (not found["search"] and not found["limit"] and found["next"] not in verdicts),
        "the next value fits" * (verdicts.get(found["next"]) == "fits"),
    ]
    return {**found, "problem": "; ".join(filter(None, problems))}


def advice(program: Program) -> dict[str, Any]:
    """Return, for a card that is a tenth too small, each row of advice that fits with the peak of the edited program."""
    own = answered(program, "run", "--no-bracket")
    if "message" in own:
        return {"problem": own["message"], "rows": []}
    memory = ("--memory", str(int(own["peaks"]["process"] * _SHARE)))
    found = answered(program, "run", "--advise", *memory)
    if "message" in found:
        return {"problem": found["message"], "rows": []}
    rows = []
    for row in found["advice"]:
        if row["verdict"] != "fits":
            continue
        name = row["change"].partition(" over ")[0]
        if name == _ALLOCATOR:
            edited = answered(program, "run", *memory, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        elif name in program.edits:
            launcher = {"launcher": f"torchrun --nproc-per-node={row['change'].split()[2]}"} if name == _SHARDED else {}
            edited = answered(program, "run", *memory, edits=program.edits[name], **launcher)
        else:
            edited = {"message": "no edit is written for it"}
        peak = edited.get("peaks", {}).get("reserved")
        rows.append({"change": row["change"], "said": row["reserved"], "edited": peak, "message": edited.get("message", "")})
    reasons = {row["change"]: row["reason"] for row in found["advice"] if row["reason"]}
    return {"problem": "", "rows": rows, "reasons": reasons}


def kept(verb: str) -> Iterator[dict[str, Any]]:
    """Yield a verb's results so far."""
    path = RESULTS / f"{verb}.jsonl"
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def summary_of_largest(lines: list[dict[str, Any]]) -> str:
    """Return a table with a row for each program."""
    rows, right, exact = [], 0, 0
    for line in lines:
        right += not line["problem"]
        exact += bool(line.get("is_edge"))
        numbers = line.get("value", ""), line.get("next") or line.get("limit") or "", len(line.get("traced", ()))
        way = line["problem"] or line["search"] or (line["way"] or "as it is").partition(" in ")[0]
        named = line["kind"], line["name"], line.get("axis", "")
        rows.append([*named, *numbers, line["seconds"], way.replace("\n", " ")])
    said = (
        f"{right} of {len(lines)} programs: both sides of the edge traced in at most {_MOST_TRACES} traces; {exact} exact edges"
    )
    return f"{table(['kind', 'program', 'axis', 'largest', 'next', 'traces', 's', 'way'], rows)}\n\n{said}"


def summary_of_advice(lines: list[dict[str, Any]]) -> str:
    """Return a table with a row for each change that fits."""
    rows, near, count = [], 0, 0
    for line in lines:
        if line["problem"]:
            rows.append([line["kind"], line["name"], "", "", "", line["problem"].replace("\n", " ")])
        for row in line["rows"]:
            off = row["edited"] / row["said"] - 1 if row["edited"] else None
            near, count = near + (off is not None and abs(off) <= _NEAR), count + 1
            shown = f"{100 * off:+.2f} %" if off is not None else row["message"]
            rows.append([line["kind"], line["name"], row["change"], row["said"] >> 20, (row["edited"] or 0) >> 20, shown])
    programs = sum(not line["problem"] for line in lines)
    said = f"{near} of {count} rows of {programs} programs within 1 % of the edited program's reserved peak"
    return f"{table(['kind', 'program', 'change', 'row MiB', 'edited MiB', 'off'], rows)}\n\n{said}"


def missing(program: Program) -> str:
    """Return the modules that a program needs and this Python does not have."""
    return ", ".join(name for name in program.needs if importlib.util.find_spec(name) is None)


def main() -> None:
    """Run the programs that have no result yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("largest", "advice"))
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose kind or name contains it")
    parser.add_argument("--summary", action="store_true", help="only print the table")
    options = parser.parse_args()
    done = {(line["kind"], line["name"]) for line in kept(options.verb)}
    run = {"largest": largest, "advice": advice}[options.verb]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for program in () if options.summary else PROGRAMS:
        is_wanted = options.only in f"{program.kind} {program.name}" and (program.edits or options.verb == "largest")
        if not is_wanted or (program.kind, program.name) in done:
            continue
        started = time.perf_counter()
        absent = missing(program)
        found: Mapping[str, Any] = {"problem": f"{absent} is not installed", "rows": []} if absent else run(program)
        line = {"kind": program.kind, "name": program.name, **found, "seconds": round(time.perf_counter() - started)}
        with open(RESULTS / f"{options.verb}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(program.kind, program.name, line["problem"] or "done", file=sys.stderr, flush=True)
    print({"largest": summary_of_largest, "advice": summary_of_advice}[options.verb](list(kept(options.verb))))


if __name__ == "__main__":
    main()
