"""Published starts of vLLM repeated on the null GPU: what the engine logged, what vramcast says, and the planner's errors.

    python -m benchmarks.accuracy.serving FILE [--only TEXT] [--limit N]

FILE has the columns of the planner's rows (github.com/llm-d-incubation/llm-d-planner, accuracy/results), or those of a list of
public logs (starts.py names them). An answer is kept in build/serving, so a later call goes on where an earlier one ended. The
table says which version of vLLM answered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.serving.starts import Start, starts
from vramcast.core.units import GIB, MIB

_KEPT: Final = Path("build/serving")
_LIMIT_S: Final = 1200  # arbitrary: one start, on a busy machine
# Our account, and the columns of the log and of the planner, in GiB.
_SIZES: Final = {
    "weights_bytes": ("weights_memory_gib", "planner_weights_gib"),
    "activation_bytes": ("activation_memory_gib", "planner_activation_gib"),
    "kv_cache_bytes": ("kv_cache_memory_gib", "planner_kv_cache_gib"),
    "graphs_bytes": ("cuda_graph_actual_gib", ""),
}
# Our account, the column of the log, its unit, and the most that they may differ with the row's own version and with another.
_AIMS: Final = (
    ("weights_bytes", "weights_memory_gib", GIB, 0.02, 0.05), ("activation_bytes", "activation_memory_gib", GIB, 0.02, 0.05),
    ("kv_cache_tokens", "kv_cache_tokens", 0, 0.005, 0.01), ("graphs_bytes", "cuda_graph_actual_gib", GIB, 0.15, 0.3),
)  # fmt: skip
_TITLES: Final = (
    "start", "vLLM logged / here", "weights", "planner", "activation", "planner", "KV cache", "planner", "graphs", "tokens",
    "s", "MiB",
)  # fmt: skip


def _answer(start: Start) -> dict[str, Any]:
    """Return the kept answer for a start, or ask for it; one of an engine that did not get ready is not kept."""
    words = start.command()
    name = sha256(json.dumps([metadata.version("vllm"), words]).encode()).hexdigest()[:16]
    path = _KEPT / f"{name}.json"
    if not path.exists():
        command = [sys.executable, "-m", "vramcast", "check", "--timeout", str(_LIMIT_S), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = json.loads(done.stdout or "{}")
        kept = {key: said.get(key) for key in ("serving", "seconds", "host_peak_bytes", "verdict", "ranks")}
        if (kept["serving"] or {}).get("starts") is None:
            print(f"{start.name}: {done.stderr[-300:]}", file=sys.stderr)
            return kept
        path.write_text(json.dumps(kept), encoding="utf-8")
    answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return answer


def _said(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the accounts as a log shows them: the sizes of the first rank, and the tokens of the one with the least room."""
    said = answer["serving"] or {}
    first = next((one["serving"] or {} for one in answer.get("ranks") or [] if one["rank"] == 0), {})
    return {**said, **{name: first[name] for name in _SIZES if name in first}}


def _cells(start: Start, answer: dict[str, Any]) -> list[str]:
    said = _said(answer)
    cells = [start.name, f"{start.row['vllm']} / {said.get('version', '?')}"]
    for ours, (logged, planned) in _SIZES.items():
        known, size = start.number(logged), said.get(ours)
        cells.append(f"{_shown(known)} / {_shown(size and size / GIB)}" if size != 0 else f"{_shown(known)} / 0.00")
        if planned:
            estimate = start.number(planned)
            cells.append("" if estimate is None or not known else f"{100 * (estimate / known - 1):+.1f} %")
    known, tokens = start.number("kv_cache_tokens"), said.get("kv_cache_tokens")
    cells.append(f"{100 * (tokens / known - 1):+.2f} %" if tokens and known else "?")
    host = answer["host_peak_bytes"]
    return [*cells, f"{(answer['seconds'] or {}).get('total', 0):.0f}", f"{host / MIB:.0f}" if host else "?"]


def _within_aims(answers: list[tuple[Start, dict[str, Any]]]) -> Iterator[str]:
    """Yield how many starts are as near to the log as aimed at: those with the row's own version of vLLM, then the others."""
    for is_own in (True, False):
        alike = [(start, said) for start, said in answers if (start.row["vllm"] == said.get("version")) == is_own]
        for ours, logged, unit, *aims in _AIMS:
            pairs = [(start.number(logged), said.get(ours)) for start, said in alike]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            aim = aims[not is_own]
            # The log has two decimals.
            near = [
                abs(round(other / unit, 2) - one) <= aim + 1e-9 if unit else abs(other / one - 1) <= aim for one, other in known
            ]
            yield f"{'own' if is_own else 'another'} version, {ours} within {aim}: {sum(near)} of {len(near)}"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def main() -> None:
    """Print one row for each start that can be repeated, and count the others by reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="starts with this text in their names")
    parser.add_argument("--limit", type=int, default=1000, help="number of starts")
    options = parser.parse_args()
    _KEPT.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(_TITLES)} |")
    print(f"|{'|'.join('---' if at < 2 else '---:' for at in range(len(_TITLES)))}|")
    found = [start for start in starts(options.file) if options.only in start.name]
    left_out = Counter(start.why_not for start in found if start.why_not)
    answers = []
    for start in [start for start in found if not start.why_not][: options.limit]:
        answer = _answer(start)
        answers.append((start, _said(answer)))
        print(f"| {' | '.join(_cells(start, answer))} |", flush=True)
    print(f"\nLogged / here in GiB. Left out: {'; '.join(f'{count} ({why})' for why, count in left_out.items()) or 'none'}.")
    print("\n".join(_within_aims([(start, said) for start, said in answers if said])))


if __name__ == "__main__":
    main()
