"""Prose linter: `python -m tests.prose [PATH ...]`, part of `make lint`.

Without paths it reads every file of the repository and compares the rates with `rates.toml`. With paths it lists each
occurrence in those files and folders instead. The exit code is 1 for a finding.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from proselint.checks import __register__ as PROSELINT
from proselint.config import DEFAULT
from proselint.registry.checks import Check

from tests.prose.passages import Kind, Passage, passages_of
from tests.prose.style import OFF, RATES, house_checks, is_free_relative

ROOT: Final = Path(__file__).parents[2]
_RATES: Final = ROOT / "tests" / "prose" / "rates.toml"
# The linter's own lists hold what they forbid; seeded faults and recorded answers are data.
_SKIPPED: Final = ("tests/prose/", "tests/test_prose.py", "tests/golden/", "tests/seeded_faults/", ".ci/constraints/")


def tracked(paths: Iterable[str] = ()) -> list[str]:
    """Return the files of the repository below some paths (default: all), relative to its root."""
    done = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path and not path.startswith(_SKIPPED) and (ROOT / path).is_file()]


class Text:
    """The passages of one kind in one file as a single text, one line a paragraph."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Join passages; remember where each line of the file begins in the text."""
        self._starts: list[int] = []
        self._lines: list[int] = []
        parts = []
        length = 0
        for passage in passages:
            for number, line in enumerate(f"{passage.text}\n".split("\n"), passage.line):
                self._starts.append(length)
                self._lines.append(number)
                part = f"{line.strip()} " if line.strip() else "\n"
                parts.append(part)
                length += len(part)
        self.text = "".join(parts)

    def line(self, position: int) -> int:
        """Return the line of the file that a position in the text comes from."""
        return self._lines[bisect_right(self._starts, position) - 1]

    def findings(self, checks: Iterable[Check], rates: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield line and message of each finding, and of each occurrence of the named rates."""
        for check in checks:
            yield from ((self.line(found.span[0]), found.message) for found in check.check_with_flags(self.text))
        for name in rates:
            yield from ((self.line(found.start()), f"{name}: {found.group()!r}") for found in RATES[name].finditer(self.text))


def enabled_checks() -> list[Check]:
    """Return proselint's checks, those that `style.toml` switches off left out, and the house's."""
    default = DEFAULT["checks"]
    own = [check for check in PROSELINT if default.get(check.path.partition(".")[0], False) and not check.path.startswith(OFF)]
    return [*own, *house_checks()]


def by_kind(passages: Iterable[Passage]) -> dict[Kind, list[Passage]]:
    """Return passages by the part of the file that they come from."""
    found: dict[Kind, list[Passage]] = defaultdict(list)
    for passage in passages:
        found[passage.kind].append(passage)
    return found


def findings(of_file: Sequence[Passage], checks: Iterable[Check], rates: Iterable[str] = ()) -> Iterator[str]:
    """Yield `path:line: message` for each finding in a file's passages, and for each occurrence of the named rates."""
    found = []
    for passages in by_kind(of_file).values():
        found += Text(passages).findings(checks, rates)
        found += [
            (passage.line, f"a docstring begins with {passage.text.split()[0]!r}: write an imperative or a noun phrase.")
            for passage in passages
            if is_free_relative(passage)
        ]
    return (f"{of_file[0].path}:{line}: {message}" for line, message in sorted(found))


def rates_of(passages: Iterable[Passage]) -> dict[str, float]:
    """Return the occurrences of each rate's pattern per 1,000 words."""
    passages = list(passages)
    text, words = Text(passages).text, sum(passage.words for passage in passages)
    return {name: round(1000 * sum(1 for _ in RATES[name].finditer(text)) / max(words, 1), 2) for name in RATES}


def too_frequent(passages: Iterable[Passage]) -> Iterator[str]:
    """Yield each rate that is above its limit in `rates.toml`."""
    limits = tomllib.loads(_RATES.read_text(encoding="utf-8"))
    for kind, of_kind in by_kind(passages).items():
        for name, rate in rates_of(of_kind).items():
            if rate > limits[kind][name]:
                yield f"{kind}: {name} occurs {rate} times per 1,000 words, at most {limits[kind][name]} are allowed"


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    files, checks = [[*passages_of(ROOT, path)] for path in tracked(arguments)], enabled_checks()
    said = [line for of_file in files for line in findings(of_file, checks, RATES if arguments else ())]
    if not arguments:
        said += too_frequent(passage for of_file in files for passage in of_file)
    print("\n".join(said), end="\n" if said else "")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
