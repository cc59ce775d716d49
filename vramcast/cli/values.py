"""Values of options as argparse reads them: a wrong one is told before anything is done."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError

_MOST = 2**31 - 1  # spec: a C int, in which libraries count seeds, threads and trees
_LEAST_SECONDS = 1e-3  # arbitrary: nothing ends sooner
_LEAST_LEVEL = 1e-6  # arbitrary: no set of runs says anything beyond
_MOST_SECONDS = 1e9  # arbitrary: 31 years


def text(given: str) -> str:
    """Return the text which is given, and is none when it is empty: most often by a variable which is not set."""
    if not given:
        raise argparse.ArgumentTypeError("an empty value was given: leave it out, or is a variable not set?")
    return given


def checked(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Return `parse` with its UsageError as argparse's: the option's name goes before the message."""

    def read(given: str) -> object:
        try:
            return parse(text(given))
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def count(least: int, most: int = _MOST) -> Callable[[str], object]:
    """Return what reads a whole number between two others."""
    return checked(lambda given: whole("it", _read(int, given), least=least, most=most))


def positive(given: str) -> object:
    """Return a number of seconds or milliseconds above 0."""
    return checked(lambda given: number("it", _read(float, given), least=_LEAST_SECONDS, most=_MOST_SECONDS))(given)


def level(given: str) -> object:
    """Return the level of a bound, which lies between 0 and 1."""
    return checked(lambda given: number("it", _read(float, given), least=_LEAST_LEVEL, most=1 - _LEAST_LEVEL))(given)


def _read(kind: type[int] | type[float], given: str) -> object:
    try:
        return kind(given)
    except ValueError:
        return given  # which is then refused for what it is
