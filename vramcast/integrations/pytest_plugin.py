"""The pytest plugin: tests that fail if a model does not fit on a card, or if its peak differs from the recorded one.

    @pytest.mark.vram(on="rtx4090", max="20GiB")
    def test_model_fits(assert_fits):
        assert_fits(build_model(), torch.empty(32, 3, 224, 224), optimizer="adamw")

With pytest-xdist, the controller alone writes records. pytest loads this file always: an estimate imports what it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from vramcast.core.errors import UsageError
from vramcast.core.units import gib, parse_bytes

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("vramcast")
    group.addoption("--vram-update", action="store_true", help="record the peaks that fit, in __vram__/ next to the tests")
    words = "how much a peak may differ from its record (default: 2)"  # arbitrary
    group.addoption("--vram-tolerance", type=float, default=2.0, metavar="PERCENT", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and collect the peaks in the process that writes the session's report."""
    config.addinivalue_line("markers", "vram(max=SIZE, on=CARD): the limits of what assert_fits asserts (vramcast)")
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.pluginmanager.register(_Ledger(), "vramcast-ledger")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test with a mark of its own that nothing reads."""
    if any(mark.name == "vram" for mark in item.own_markers) and "assert_fits" not in getattr(item, "fixturenames", ()):
        pytest.fail("The mark vram is for a test with the fixture assert_fits: add it, or leave out the mark.", pytrace=False)


@pytest.fixture
def assert_fits(request: pytest.FixtureRequest) -> Callable[..., Estimate]:
    """Return assert_fits(model, batch, on=CARD, max=SIZE, **options), which fails the test unless the model fits.

    The options are those of `vramcast.estimate`; `on` and `max` are by default those of @pytest.mark.vram. The verdict must be
    *fits*, the upper bound at most `max`, and the peak that of the record (see --vram-update). The estimate is returned.
    """
    mark = request.node.get_closest_marker("vram")
    limits = {} if mark is None else mark.kwargs
    if mark is not None and (mark.args or limits.keys() - {"max", "on"}):
        raise UsageError(f"The mark is {mark}: write @pytest.mark.vram(max='20GiB', on='rtx4090'), or one of the two.")
    numbers = count(1)

    def check(model: Any, batch: Any = None, **options: Any) -> Estimate:
        __tracebackhide__ = True
        from vramcast.estimates.estimator import estimate as estimated

        options = {**limits, **options}
        most = options.pop("max", None)
        most_bytes = None if most is None else parse_bytes(str(most))
        if not options.keys() & {"on", "device", "memory"}:
            if most_bytes is None:
                raise UsageError("assert_fits has no limit: give on='rtx4090' or max='20GiB', or mark the test.")
            options["memory"] = most_bytes
        estimate = estimated(model, batch, **options)
        _judge(estimate, most_bytes or estimate.card_bytes, request, next(numbers))
        return estimate

    return check


def _judge(estimate: Estimate, most_bytes: int, request: pytest.FixtureRequest, number_in_test: int) -> None:
    """Fail the test if the estimate does not fit or differs from its record; report its peak in any case."""
    __tracebackhide__ = True
    from vramcast.core.checks import number

    peak, bound, limit, problems = estimate.process, estimate.upper_bound, min(most_bytes, estimate.card_bytes), []
    if bound > limit:
        problems.append(f"The upper bound is {gib(bound)}, and the limit {gib(limit)}.")
    is_fit, is_update = estimate.verdict.value == "fits", request.config.getoption("vram_update")
    test = request.node.nodeid + (f" #{number_in_test}" if number_in_test > 1 else "")
    file, key = request.path.parent / "__vram__" / f"{request.path.stem}.json", test.partition("::")[2]
    was = _records(file).get(key)
    new = {key: peak} if is_update and is_fit and not problems else {}
    cells = ["none" if size is None else gib(size) for size in (peak, bound, new.get(key, was), limit)]
    request.node.user_properties.append(("vramcast", {"test": test, "cells": cells, "file": str(file), "new": new}))
    percent = number("--vram-tolerance", request.config.getoption("vram_tolerance"), least=0)
    if was is not None and not is_update and abs(peak - was) * 100 > percent * was:
        change = f"{peak / was - 1:+.1%} from the recorded {gib(was)}"
        problems.append(f"The peak is {gib(peak)}, {change}: if that is intended, record it with pytest --vram-update.")
    if problems or not is_fit:
        pytest.fail("\n".join([*problems, str(estimate)] if is_fit else [str(estimate), *problems]))


def _records(file: Path) -> dict[str, int]:
    """Return the recorded peaks in bytes, by test; none if there is no file. Raises a UsageError if it is damaged."""
    from vramcast.core.plain import Between, from_plain, json_value

    where = f"'{file}', a record of pytest --vram-update,"
    found = json_value(file.read_bytes(), where, raises=UsageError) if file.exists() else {}
    return from_plain(dict[str, Annotated[int, Between(1, 2**63)]], found, where, raises=UsageError)


class _Ledger:
    """The asserted peaks of the session, by test: one that is run again counts once."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the peaks of a test that has ended."""
        if report.when == "teardown" and report.user_properties:
            peaks: list[Any] = [value for name, value in report.user_properties if name == "vramcast"]
            self._found |= {peak["test"]: peak for peak in peaks}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show all peaks as a table."""
        if not self._found:
            return
        terminalreporter.section("GPU memory, by vramcast")
        width = max(map(len, self._found))
        heads = {"test": {"cells": ["estimate", "bound", "recorded", "limit"]}}
        for test, peak in (heads | dict(sorted(self._found.items()))).items():
            terminalreporter.write_line(f"{test:<{width}}" + "".join(f"{cell:>13}" for cell in peak["cells"]))
        if missing := sum("none" in peak["cells"] for peak in self._found.values()):
            terminalreporter.write_line(f"{missing} without a record: pytest --vram-update writes it if the model fits")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Write the new records after the summary."""
        yield
        for file, new in [(Path(peak["file"]), peak["new"]) for peak in self._found.values() if peak["new"]]:
            from vramcast.core.files import atomic_write

            try:
                file.parent.mkdir(exist_ok=True)
                with atomic_write(file) as out:
                    out.write(f"{json.dumps(_records(file) | new, indent=1, sort_keys=True)}\n".encode())
            except OSError as error:
                raise pytest.UsageError(f"No record can be written: {error}") from None
