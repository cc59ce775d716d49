"""Word expansion of shell scripts: quotes, variables, arrays and arithmetic, but no output of commands."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from vramcast.cluster.shell.grammar import descendants, not_understood, text_of
from vramcast.cluster.shell.state import State, Unknown, Value
from vramcast.core.units import INT64_MOST

if TYPE_CHECKING:
    from tree_sitter import Node

_LONGEST: Final = 100_000  # arbitrary: characters of a value; a script can double one in each line
_GLOB: Final = re.compile(r"(?<!\\)(?:[*?\[]|[+@!]\()")
_BRACES: Final = re.compile(r"(?<!\\)\{[^{}]*(?:,|\.\.)")
_RANGE: Final = re.compile(r"\{(0|-?[1-9]\d{0,8})\.\.(0|-?[1-9]\d{0,8})(?:\.\.-?([1-9]\d{0,8}))?\}")  # a leading zero pads
_MOST_OF_A_RANGE: Final = 1_000  # arbitrary
_ODD_ESCAPE: Final = re.compile(r"\\(?![nrtabfv\\'\"]|x[0-7][0-9a-fA-F])")  # Python may differ from Bash
_ESCAPE: Final = re.compile(r"\\(\n|.)", re.DOTALL)
_QUOTED_ESCAPE: Final = re.compile(r'\\([$`"\\]|\n)')
_NUMBER: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18})")
_CUT: Final = re.compile(
    r"\$\{(?:#(\w+)|([A-Za-z_]\w*)(?::(\d{1,6})(?::(\d{1,6}))?|(##?|%%?)((?:[\w.,=/-]|\*(?!.*\*))+)|/(/?)([\w.,=-]+)/([\w.,=-]*)))\}"
)
_DEFAULTS: Final = frozenset({":-", "-", ":=", "=", ":?", "?", ":+", "+"})
_EXPANSIONS: Final = frozenset({"expansion"})
_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Text:
    """A part of a word, which the shell splits at blanks if `is_split`."""

    text: str
    is_split: bool = False


# The elements of an array, each its own word; adjacent text joins the first and the last.
_Part: TypeAlias = "_Text | tuple[str, ...]"


def fields(node: Node, state: State) -> list[str]:
    """Expand one word of a script into words.

    Raises:
        Unknown: The result is known only when the job runs.
    """
    if found := _RANGE.fullmatch(text_of(node)):
        first, last, by = int(found[1]), int(found[2]), int(found[3] or 1)
        if abs(last - first) < _MOST_OF_A_RANGE:
            return [str(one) for one in (range(first, last + 1, by) if last >= first else range(first, last - 1, -by))]
    if node.type in ("word", "concatenation") and _BRACES.search(text_of(node)) and "${" not in text_of(node):
        raise Unknown(text_of(node))
    done: list[str] = []
    open_: str | None = None
    for part in _parts(node, state, is_quoted=False):
        if isinstance(part, tuple):
            words = list(part)
            if words:
                words[0] = (open_ or "") + words[0]
                open_ = words.pop()
                done += words
        elif not part.is_split:
            open_ = (open_ or "") + part.text
        elif part.text.split():
            if part.text[0].isspace() and open_ is not None:
                done.append(open_)
                open_ = None
            words = part.text.split()
            words[0] = (open_ or "") + words[0]
            open_ = None if part.text[-1].isspace() else words.pop()
            done += words
        elif part.text and open_ is not None:
            done.append(open_)
            open_ = None
    return _bounded([*done, *([open_] if open_ is not None else [])], node)


def text(node: Node, state: State) -> str:
    """Expand the right side of an assignment, or a word in quotes, into one text.

    Raises:
        Unknown: The result is known only when the job runs.
    """
    found = "".join(" ".join(part) if isinstance(part, tuple) else part.text for part in _parts(node, state, is_assigned=True))
    return _bounded([found], node)[0]


def _bounded(words: list[str], node: Node) -> list[str]:
    if sum(map(len, words)) > _LONGEST:
        raise not_understood(node, "its value is too long")
    return words


def _parts(
    node: Node, state: State, *, is_quoted: bool = False, is_assigned: bool = False, is_first: bool = True
) -> Iterator[_Part]:
    match node.type:
        case "word" | "number" | "extglob_pattern" | "variable_name":
            yield _Text(_bare(text_of(node), state, is_assigned=is_assigned, is_first=is_first))
        case "raw_string":
            yield _Text(text_of(node)[1:-1])
        case "ansi_c_string" if not _ODD_ESCAPE.search(text_of(node)):
            yield _Text(text_of(node)[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape"))
        case "string":
            yield from _quoted(node, state)
        case "command_name":
            yield from _parts(node.children[0], state)
        case "concatenation":
            for child in node.children:
                yield from _parts(child, state, is_assigned=is_assigned, is_first=child.start_byte == node.start_byte)
        case "simple_expansion" | "expansion":
            yield from _value(node, state, is_quoted=is_quoted or is_assigned)
        case "arithmetic_expansion":
            yield _Text(str(_number(node.named_children[0], state)) if node.named_child_count == 1 else _raise(node))
        case "command_substitution" if text_of(node) in ("$(pwd)", "`pwd`") and "pwd" not in state.functions:
            yield _Text(str(state.value("PWD")), is_split=not (is_quoted or is_assigned))
        case _:  # includes the output of commands
            _raise(node)


def _raise(node: Node) -> str:
    raise Unknown(text_of(node))


def _bare(word: str, state: State, *, is_assigned: bool, is_first: bool) -> str:
    """Expand an unquoted word; a leading `~` stands for the home folder."""
    if _GLOB.search(word) if not is_assigned else ":~" in word:
        raise Unknown(word)
    if word.startswith("~") and is_first:
        name, slash, rest = word.partition("/")
        home = state.value("HOME") if name == "~" else None
        if not isinstance(home, str):
            raise Unknown(word)
        word = home + slash + rest
    return _ESCAPE.sub(lambda found: "" if found[1] == "\n" else found[1], word)


def _quoted(node: Node, state: State) -> Iterator[_Part]:
    """Yield the parts of a text in double quotes; the grammar's own parts omit line ends."""
    source, start = node.text or b"", node.start_byte
    at = 1

    def literal(end: int) -> _Text:
        return _Text(_QUOTED_ESCAPE.sub(lambda one: "" if one[1] == "\n" else one[1], source[at:end].decode(errors="replace")))

    for child in node.named_children:
        if child.type != "string_content":
            # Sometimes the grammar includes blanks before a substitution.
            lead = len(child.text or b"") - len((child.text or b"").lstrip())
            yield literal(child.start_byte - start + lead)
            yield from _parts(child, state, is_quoted=True)
            at = child.end_byte - start
    yield literal(len(source) - 1)


def _value(node: Node, state: State, *, is_quoted: bool) -> Iterator[_Part]:
    """Yield the value of `$NAME` or `${NAME...}`."""
    children = node.children[1:] if node.type == "simple_expansion" else node.children[1:-1]
    name, *rest = children
    if name.type == "subscript":
        if rest:
            raise Unknown(text_of(node))
        yield _element(name, state, is_quoted=is_quoted)
    elif found := _CUT.fullmatch(text_of(node)):
        yield _splittable(_cut(found, state), state, is_quoted=is_quoted)
    elif not name.is_named:  # ${!NAME}
        raise Unknown(text_of(node))
    elif not rest:
        yield from _variable(text_of(name), state, is_quoted=is_quoted)
    elif text_of(rest[0]) in _DEFAULTS and len(rest) <= 2:
        yield from _with_default(text_of(name), text_of(rest[0]), rest[1:], state, is_quoted=is_quoted)
    else:
        raise Unknown(text_of(node))


def _cut(found: re.Match[str], state: State) -> str:
    """Return a part of a variable: `${#NAME}`, `${NAME:1:2}`, `${NAME#*/}`, `${NAME%.yaml}`, `${NAME/a/b}`."""
    length, name, start, count, end, pattern, every, old, new = found.groups()
    value = state.value(length or name)
    if not isinstance(value, str):
        raise Unknown(found[0])
    if end:
        step = 1 if end[0] == "#" else -1  # a suffix is a prefix of the reversed text
        expression = re.escape(pattern[::step]).replace(r"\*", ".*" if len(end) > 1 else ".*?")
        return re.sub(rf"(?s)\A{expression}", "", value[::step], count=1)[::step]
    if old:
        return value.replace(old, new, -1 if every else 1)
    return str(len(value)) if length else value[int(start) :][: int(count) if count else None]


def _with_default(name: str, how: str, word: list[Node], state: State, *, is_quoted: bool) -> Iterator[_Part]:
    position = int(name) if name.isdecimal() and 0 < int(name) < 1_000 else None
    arguments = state.arguments
    if position is not None and arguments is None:
        raise Unknown(name)
    is_unset = len(arguments or ()) < position if position is not None else state.is_unset(name)
    parts = [] if is_unset else list(_variable(name, state, is_quoted=is_quoted))
    is_set = not is_unset and (not how.startswith(":") or any(part if isinstance(part, tuple) else part.text for part in parts))
    if "?" in how and not is_set:
        raise Unknown(name)  # the shell exits here
    if is_set != ("+" in how):
        yield from parts
    elif word:
        for part in _parts(word[0], state, is_quoted=is_quoted):
            yield part if isinstance(part, tuple) or is_quoted or word[0].type == "string" else _Text(part.text, is_split=True)
    else:
        yield _Text("", is_split=not is_quoted)


def _variable(name: str, state: State, *, is_quoted: bool) -> Iterator[_Part]:
    if name in ("@", "*", "#"):
        if state.arguments is None:
            raise Unknown(name)
        if name == "#":
            yield _Text(str(len(state.arguments)))
        elif name == "@" and is_quoted:
            yield state.arguments
        else:
            yield _splittable(" ".join(state.arguments), state, is_quoted=is_quoted, is_joined=True)
    elif name.isdecimal():
        position = int(name) if len(name) < 4 else 0
        if not position or state.arguments is None:
            raise Unknown(name)
        found = state.arguments[position - 1] if position <= len(state.arguments) else ""
        yield _splittable(found, state, is_quoted=is_quoted)
    elif not re.fullmatch(r"\w+", name):  # $?, $!, $$, $-
        raise Unknown(name)
    else:
        value = state.value(name)
        first = value if isinstance(value, str) else value[0] if value else ""
        yield _splittable(first, state, is_quoted=is_quoted)


def _splittable(found: str, state: State, *, is_quoted: bool, is_joined: bool = False) -> _Text:
    if ((is_joined or not is_quoted) and "IFS" in state.variables) or (not is_quoted and _GLOB.search(found)):
        raise Unknown(found)  # file names, or separators other than blanks
    return _Text(found, is_split=not is_quoted)


def _element(node: Node, state: State, *, is_quoted: bool) -> _Part:
    """Return `${NAME[@]}` or `${NAME[1]}`."""
    array = state.value(text_of(node.children[0]))
    values = (array,) if isinstance(array, str) else array
    index = node.children[2]
    if text_of(index) in ("@", "*"):
        if is_quoted and text_of(index) == "@":
            return values
        return _splittable(" ".join(values), state, is_quoted=is_quoted, is_joined=True)
    at = _number(index, state)
    if not -len(values) <= at < len(values):
        raise Unknown(text_of(node))
    return _splittable(values[at], state, is_quoted=is_quoted)


def _number(node: Node, state: State) -> int:
    """Return the value of an arithmetic expression.

    Raises:
        Unknown: The value is known only when the job runs, or is not supported here.
    """
    match node.type:
        case "number" | "word" | "variable_name" | "simple_expansion" | "expansion" | "string":
            value = _literal(node, state)
        case "parenthesized_expression" if node.named_child_count == 1:
            value = _number(node.named_children[0], state)
        case "unary_expression" if node.children[1].type != "binary_expression" and text_of(node.children[0]) in ("-", "+"):
            value = _number(node.children[1], state) * (-1 if text_of(node.children[0]) == "-" else 1)
        case "binary_expression" if node.child_count == 3:
            value = _combined(text_of(node.children[1]), *(_number(node.children[k], state) for k in (0, 2)))
        case _:
            raise Unknown(text_of(node))
    if not -INT64_MOST <= value <= INT64_MOST:
        raise Unknown(text_of(node))
    return value


def _literal(node: Node, state: State) -> int:
    found: Value = text_of(node)
    if node.type not in ("number", "word", "variable_name"):
        found = text(node, state)
    elif of_base := re.fullmatch(r"([2-9]|[12]\d|3[0-6])#([0-9a-z]{1,12})", text_of(node)):
        return int(of_base[2], int(of_base[1]))
    elif not _NUMBER.fullmatch(text_of(node)):
        found = state.value(text_of(node))
    if not isinstance(found, str) or not _NUMBER.fullmatch(found):  # `010` is octal
        raise Unknown(text_of(node))
    return int(found, 0)


def _combined(how: str, left: int, right: int) -> int:
    if how in _OPERATORS:
        return int(_OPERATORS[how](left, right))
    if how in ("<<", ">>", "**") and 0 <= right < 64:
        return left << right if how == "<<" else left >> right if how == ">>" else left**right
    if how in ("/", "%") and right:
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if how == "/" else left - quotient * right
    raise Unknown(how)


def assign_defaults(node: Node, state: State) -> None:
    """Apply the assignments of `${NAME:=word}` below a node."""
    for one in descendants(node, _EXPANSIONS):
        children = one.children[1:-1]
        if len(children) >= 2 and text_of(children[1]) in ("=", ":="):
            try:
                found = text(one, state)
            except Unknown:
                state.set(text_of(children[0]), None)
            else:
                state.set(text_of(children[0]), found)


def array(node: Node, state: State) -> tuple[str, ...]:
    """Return the elements of `(a b c)`.

    Raises:
        Unknown: An element is known only when the job runs.
    """
    if any("[" in text_of(child)[:1] for child in node.named_children):
        raise Unknown(text_of(node))  # ([3]=x)
    return tuple(word for child in node.named_children for word in fields(child, state))
