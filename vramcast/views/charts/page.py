"""Pages from templates: whatever is put into one is escaped and printable, a name which it lacks is an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from vramcast.core.text import printable
from vramcast.views.charts.chart import ink_on

if TYPE_CHECKING:
    from jinja2 import Environment


class Table(NamedTuple):
    """A table as plain text; the first cell of a row is the row's name, the note stands below."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def render(template: str, **values: Any) -> str:
    """Return a file of `templates/` with its places filled; only a `Markup` is not escaped again."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import, and few commands draw

    loader = PackageLoader("vramcast.views.charts")
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["on"] = ink_on
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _printable(value: Any) -> Any:
    """Return what a place of a template shows of a value: of plain text no control codes and no half characters."""
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(printable(line, len(line)) for line in value.split("\n"))
