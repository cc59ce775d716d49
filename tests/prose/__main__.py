"""Prose linter: `python -m tests.prose [PATH ...]`, part of `make lint`.

Without paths it reads every file of the repository and compares the rates with `rates.toml`. With paths it lists each
occurrence in those files and folders instead. The exit code is 1 for a finding.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from proselint.checks import __register__ as PROSELINT
from proselint.config import DEFAULT
from proselint.registry.checks import Check

from tests.prose.passages import Kind, Passage, passages_of
from tests.prose.style import RATES, house_checks, is_free_relative

ROOT: Final = Path(__file__).parents[2]
_RATES: Final = ROOT / "tests" / "prose" / "rates.toml"
# The linter's own lists hold what they forbid; seeded faults and recorded answers are data.
_SKIPPED: Final = ("tests/prose/", "tests/golden/", "tests/seeded_faults/", "constraints/")


def tracked(paths: Iterable[str] = ()) -> list[str]:
    """Return the files of the repository below some paths (default: all), relative to its root."""
    done = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path and not path.startswith(_SKIPPED) and (ROOT / path).is_file()]


def flattened(text: str) -> tuple[str, list[int]]:
    """Return a text as one line a paragraph, and where each line of the original begins in it."""
    starts, parts, length = [], [], 0
    for line in text.split("\n"):
        starts.append(length)
        stripped = line.strip()
        part = f"{stripped} " if stripped else "\n"
        parts.append(part)
        length += len(part)
    return "".join(parts), starts


def findings(passage: Passage, checks: Iterable[Check], rates: Iterable[str] = ()) -> Iterator[str]:
    """Yield `path:line: message` for each finding in a passage, and for each occurrence of the named rates."""
    text, starts = flattened(passage.text)
    found = [(result.span[0], result.message) for check in checks for result in check.check_with_flags(text)]
    found += [(match.start(), f"rate {name}: {match.group()!r}") for name in rates for match in RATES[name].finditer(text)]
    if is_free_relative(passage):
        found.append((0, f"a docstring begins with {passage.text.split()[0]!r}: write an imperative or a noun phrase."))
    for position, message in sorted(found):
        yield f"{passage.path}:{passage.line + bisect_right(starts, position) - 1}: {message}"


def enabled_checks() -> list[Check]:
    """Return proselint's checks, those that `style.toml` switches off left out, and the house's."""
    off = tuple(tomllib.loads((Path(__file__).parent / "style.toml").read_text(encoding="utf-8"))["off"])
    default = DEFAULT["checks"]
    own = [check for check in PROSELINT if default.get(check.path.partition(".")[0], False) and not check.path.startswith(off)]
    return [*own, *house_checks()]


def rates_of(passages: Iterable[Passage]) -> dict[str, float]:
    """Return the occurrences of each rate's pattern per 1,000 words."""
    counts: Counter[str] = Counter()
    words = 0
    for passage in passages:
        text, _ = flattened(passage.text)
        words += passage.words
        for name, pattern in RATES.items():
            counts[name] += sum(1 for _ in pattern.finditer(text))
    return {name: round(1000 * counts[name] / max(words, 1), 2) for name in RATES}


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    passages = [passage for path in tracked(arguments) for passage in passages_of(ROOT, path)]
    checks = enabled_checks()
    said = [line for passage in passages for line in findings(passage, checks, RATES if arguments else ())]
    if not arguments:
        limits = tomllib.loads(_RATES.read_text(encoding="utf-8"))
        by_kind: dict[Kind, list[Passage]] = defaultdict(list)
        for passage in passages:
            by_kind[passage.kind].append(passage)
        for kind, of_kind in by_kind.items():
            for name, rate in rates_of(of_kind).items():
                if rate > limits[kind][name]:
                    said.append(f"{kind}: {name} occurs {rate} times per 1,000 words, at most {limits[kind][name]} are allowed")
    print("\n".join(said), end="\n" if said else "")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
