"""Passages of prose in Markdown, notebooks, Python, C and configuration files."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_WORDS_OF_A_MESSAGE: Final = 4  # arbitrary: a string with fewer words is a key or a name
_FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_LINK: Final = re.compile(r"\]\([^)\s]*\)|<https?://[^>]*>|https?://\S+")
_C_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_HASH_COMMENT: Final = re.compile(r"^[ \t]*#(?!!)[^\n]*", re.MULTILINE)
_LUA_COMMENT: Final = re.compile(r"--[^\n]*")
_EXAMPLE: Final = re.compile(r"^\s*(>>>|\.\.\.) .*$|^\s+(python -m|vramcast|make) .*$", re.MULTILINE)  # commands in a docstring


class Kind(StrEnum):
    """The part of a file that a passage comes from."""

    PAGE = "page"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Passage:
    """Text that people read.

    Attributes:
        path: The file, relative to the repository.
        line: Line of the first character, from 1.
        kind: The part of the file.
        text: The prose; code in it is blank, so that line numbers hold.
    """

    path: str
    line: int
    kind: Kind
    text: str

    @property
    def words(self) -> int:
        """Return the number of words."""
        return len(re.findall(r"[A-Za-z][\w'-]*", self.text))


def passages_of(root: Path, path: str) -> Iterator[Passage]:
    """Yield the passages of a file; none for a file type without prose.

    Args:
        root: The repository.
        path: The file, relative to it.
    """
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    match Path(path).suffix:
        case ".md":
            yield Passage(path, 1, Kind.PAGE, _prose_of_markdown(text))
        case ".ipynb":
            for cell in json.loads(text)["cells"]:
                if cell["cell_type"] == "markdown":
                    yield Passage(path, 1, Kind.PAGE, _prose_of_markdown("".join(cell["source"])))
        case ".py":
            yield from _of_python(path, text)
        case ".c" | ".h" | ".js":
            yield from _comments(path, text, _C_COMMENT)
        case ".lua":
            yield from _comments(path, text, _LUA_COMMENT)
        case ".sh" | ".toml" | ".yaml" | ".yml":
            yield from _comments(path, text, _HASH_COMMENT)


def _blank(text: str, pattern: re.Pattern[str]) -> str:
    """Replace each match by one word of code per line, so that the lines keep their numbers."""
    return pattern.sub(lambda found: "CODE" + "\n" * found.group().count("\n"), text)


def _plain(text: str) -> str:
    """Return a text with its code and addresses blanked."""
    return _blank(_blank(text, _CODE), _LINK)


def _prose_of_markdown(text: str) -> str:
    return _plain(_blank(text, _FENCE))


def _comments(path: str, text: str, pattern: re.Pattern[str]) -> Iterator[Passage]:
    for found in pattern.finditer(text):
        prose = re.sub(r"^[ \t]*(/\*+|\*+/?|//+|#+|--+)|\*+/$", "", found.group(), flags=re.MULTILINE)
        yield Passage(path, text.count("\n", 0, found.start()) + 1, Kind.COMMENT, _plain(prose))


def _of_python(path: str, text: str) -> Iterator[Passage]:
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                docstrings.add(first.value)
                prose = _plain(_EXAMPLE.sub("", first.value.value))
                yield Passage(path, first.lineno, Kind.DOCSTRING, prose)
    yield from _messages(path, tree, docstrings)
    yield from _python_comments(path, text)


def _messages(path: str, tree: ast.AST, docstrings: Iterable[ast.Constant]) -> Iterator[Passage]:
    """Yield string literals that are sentences: help, errors and warnings."""
    skipped = set(map(id, docstrings))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(re.findall(r"(?<!\S)[a-z][a-z'-]*(?=[\s,.:;]|$)", text)) >= _WORDS_OF_A_MESSAGE and "\n    " not in text:
            yield Passage(path, node.lineno, Kind.MESSAGE, _plain(text))


def _python_comments(path: str, text: str) -> Iterator[Passage]:
    """Yield comments; the lines of a block are one passage."""
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|pragma|fmt:|!)", token.string):
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield Passage(path, start, Kind.COMMENT, _plain("\n".join(block)))
            block = []
        if not block:
            start = line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield Passage(path, start, Kind.COMMENT, _plain("\n".join(block)))
