"""The house style as checks of proselint, and the rates of patterns that cannot be forbidden."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from proselint.registry.checks import Check, types
from proselint.registry.checks.engine import Fast

from tests.prose.passages import Kind, Passage

_STYLE: Final = tomllib.loads((Path(__file__).parent / "style.toml").read_text(encoding="utf-8"))
OFF: Final = tuple(_STYLE["off"])  # checks of proselint that do not fit technical text
RATES: Final = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _STYLE["rates"].items()}
# A docstring's first line is an imperative (functions) or a noun phrase (classes, modules), not a free relative clause.
_FREE_RELATIVE: Final = re.compile(r"\s*(What|Who|Whose|Whom|How|Which|Where|Whether|When)\b")


def house_checks() -> tuple[Check, ...]:
    """Return the phrases that no passage may have, as proselint checks."""
    return tuple(
        Check(
            check_type=types.PreferredForms(items={phrase: advice}, padding=types.Padding.WORDS_IN_TEXT),
            engine=Fast(),
            path="house.phrases",
            message="'{1}': write {0}.",
        )
        for phrase, advice in _STYLE["phrases"].items()
    )


def is_free_relative(passage: Passage) -> bool:
    """Return whether a docstring begins with What, Who, Whose, How or a word like them."""
    return passage.kind is Kind.DOCSTRING and _FREE_RELATIVE.match(passage.text) is not None
