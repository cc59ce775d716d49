"""The grammar of shell scripts: a script's syntax tree, limited in size and depth. Nothing is run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vramcast.core.extras import needed
from vramcast.core.text import shorten

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_BYTES: Final = 256 << 10  # arbitrary: Slurm accepts 4 MiB; typical scripts have a few kB
_DEEPEST: Final = 60  # arbitrary: of nested constructs
_MOST_REPAIRS: Final = 100  # arbitrary
_LONGEST_LINE: Final = 60  # arbitrary: characters of a line in a message
# Constructs that end with their line in the shell.
_ON_ONE_LINE: Final = frozenset(
    {"command", "declaration_command", "unset_command", "file_redirect", "herestring_redirect", "variable_assignments"}
)
_BETWEEN: Final = frozenset(b" \t\n;&|<>()")  # spec: bash(1), metacharacters: they separate words
# spec: bash(1), RESERVED WORDS
_RESERVED: Final = frozenset(
    {"!", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then"}
    | {"until", "while", "{", "}", "[[", "]]"}
)


class NotUnderstood(Exception):
    """A line with an unknown effect on the job.

    Attributes:
        line: Number of the line, from 1.
        text: Its text.
        why: The reason.
    """

    def __init__(self, line: int, text: str, why: str) -> None:
        super().__init__(f"line {line} is not understood (`{shorten(' '.join(text.split()), _LONGEST_LINE)}`: {why})")
        self.line, self.text, self.why = line, text, why


def parse(script: str) -> Node:
    """Return a script's syntax tree.

    Raises:
        NotUnderstood: The script is not valid Bash, too large, or nested too deeply.
        UsageError: The parser is not installed.
    """
    with needed("A batch script", "serve"):
        import tree_sitter
        import tree_sitter_bash

    source = script.encode(errors="replace")
    if len(source) > _MOST_BYTES:
        raise NotUnderstood(1, script[:_LONGEST_LINE], f"the script has more than {_MOST_BYTES >> 10} KiB")
    # The grammar ignores a carriage return, which the shell treats as part of a word.
    if odd := next((number for number, line in enumerate(script.split("\n"), 1) if "\r" in line or "\0" in line), 0):
        raise NotUnderstood(odd, script.split("\n")[odd - 1], "it has a control character")
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    for _ in range(_MOST_REPAIRS):
        root = parser.parse(source).root_node
        repaired = _checked(root, source)
        if repaired is None:
            return root
        source = repaired
    raise NotUnderstood(1, script[:_LONGEST_LINE], f"it has more than {_MOST_REPAIRS} lines that continue words")


def _checked(root: Node, source: bytes) -> bytes | None:
    """Check a tree; return None, or the source with one place changed where the grammar differs from the shell.

    It joins a line of assignments to the next command, and splits a word at a continued line: that goes before the word.

    Raises:
        NotUnderstood: The shell would parse the script differently, or the tree is too deep.
    """
    for node, depth in _walk(root):
        if node.is_error or node.is_missing:
            raise not_understood(node, "it is not valid Bash")
        if depth > _DEEPEST:
            raise not_understood(node, "it is nested too deeply")
        for before, after in itertools.pairwise(node.children):
            end, start = before.end_byte, after.start_byte
            gap = source[end:start]
            if gap and not gap.replace(b"\\\n", b"") and not set(source[end - 1 : end] + source[start : start + 1]) & _BETWEEN:
                return source[: before.start_byte] + gap + source[before.start_byte : end] + source[start:]
            if node.type not in _ON_ONE_LINE or b"\n" not in gap.replace(b"\\\n", b""):
                continue
            if before.type == "variable_assignment":
                return source[:end] + b";" + source[end:]
            raise not_understood(node, "its words are on several lines")
        if node.type == "command_name" and text_of(node) in _RESERVED:
            raise not_understood(node, "it is not valid Bash")
    return None


def _walk(root: Node) -> Iterator[tuple[Node, int]]:
    todo = [(root, 0)]
    while todo:
        node, depth = todo.pop()
        yield node, depth
        todo += [(child, depth + 1) for child in reversed(node.children)]


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode(errors="replace")


def not_understood(node: Node, why: str) -> NotUnderstood:
    """Return an error about a node."""
    return NotUnderstood(node.start_point.row + 1, text_of(node).split("\n")[0], why)


def descendants(node: Node, kinds: frozenset[str]) -> Iterator[Node]:
    """Yield the nodes of some kinds at and below a node, in order, without those inside of a yielded one."""
    todo = [node]
    while todo:
        one = todo.pop()
        if one.type in kinds:
            yield one
        else:
            todo += reversed(one.children)
