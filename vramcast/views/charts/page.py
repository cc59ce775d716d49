"""Pages from templates: values are escaped and made printable, and a missing value is an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from vramcast.core.text import printable
from vramcast.views.charts.chart import ink_on

if TYPE_CHECKING:
    from jinja2 import Environment


class ChartTable(NamedTuple):
    """A table as plain text; the first cell of a row is its name, and the note goes below the table."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def render(template: str, **values: Any) -> str:
    """Return a template of `templates/` filled with values; only a `Markup` is not escaped again."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import, and rarely used

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
    """Return a value for a template; plain text loses control codes and lone surrogates."""
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(printable(line, len(line)) for line in value.split("\n"))
