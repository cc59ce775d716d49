"""Readers of option values for argparse; a wrong value fails before any work begins."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError

_MOST = 2**31 - 1  # spec: a C int, as libraries count seeds, threads and trees
_LEAST_SECONDS = 1e-3  # arbitrary: nothing finishes sooner
_LEAST_LEVEL = 1e-6  # arbitrary: no data set supports a level beyond it
_MOST_SECONDS = 1e9  # arbitrary: 31 years


def text(given: str) -> str:
    """Return a text, which must not be empty: most often an unset variable was expanded."""
    if not given:
        raise argparse.ArgumentTypeError("the value is empty: leave the option out, or check whether a variable is unset")
    return given


def checked(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Return `parse` with its UsageError as argparse's, so that the message starts with the option's name."""

    def read(given: str) -> object:
        try:
            return parse(text(given))
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def valid(check: Callable[[str], object]) -> Callable[[str], object]:
    """Return a reader of a text that `check` accepts; the value is the text itself, and `check` raises a UsageError."""

    def read(given: str) -> str:
        check(given)
        return given

    return checked(read)


def count(least: int, most: int = _MOST) -> Callable[[str], object]:
    """Return a reader for a whole number between two limits."""
    return checked(lambda given: whole("it", as_number(int, given), least=least, most=most))


def positive(given: str) -> object:
    """Return a number of seconds or milliseconds above 0."""
    return checked(lambda given: number("it", as_number(float, given), least=_LEAST_SECONDS, most=_MOST_SECONDS))(given)


def level(given: str) -> object:
    """Return the level of a bound, a number between 0 and 1."""
    return checked(lambda given: number("it", as_number(float, given), least=_LEAST_LEVEL, most=1 - _LEAST_LEVEL))(given)


def as_number(kind: type[int] | type[float], given: str) -> object:
    """Return the number in a text; the text itself if there is none, which a check of the number rejects by its type."""
    try:
        return kind(given) if given.isascii() else given  # digits of other scripts are a slip
    except ValueError:
        return given
