"""Tests of the pytest plugin in sessions of their own (pytest's `pytester`), most with an estimator of fixed answers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
PLUGIN = "vramcast.integrations.pytest_plugin"
MIB = 1 << 20
FAKE = """  # a model is its process peak and its bound in MiB; a card has 24 GiB
import sys
from types import SimpleNamespace
import pytest

def estimate(model, batch=None, *, memory=None, on=None, doubt=False):
    process, bound = (size << 20 for size in model)
    card_bytes = memory or 24 << 30
    value = "does not fit" if process > card_bytes else "uncertain" if doubt or bound > card_bytes else "fits"
    class Answer(SimpleNamespace):
        def __str__(self):
            return f"{value}: the seven lines for {on}"
    verdict = SimpleNamespace(value=value)
    return Answer(process=process, upper_bound=bound, card_bytes=card_bytes, verdict=verdict)

@pytest.fixture(autouse=True)
def fixed_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "vramcast.estimates.estimator", SimpleNamespace(estimate=estimate))
"""
Session = Callable[..., pytest.RunResult]


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return a function that runs pytest with the plugin on the text of a test file."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(FAKE)

    def run(text: str | None = None, *words: str) -> pytest.RunResult:
        if text is not None:
            pytester.makepyfile(test_model=text)
        return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", *words)

    return run


@pytest.fixture
def records(pytester: pytest.Pytester) -> Callable[[], dict[str, int]]:
    """Return a function that reads the records of the test file, in their order."""
    return lambda: json.loads((pytester.path / "__vram__" / "test_model.json").read_text())


def calls(*arguments: str, mark: str = "") -> str:
    """Return a test file whose only test makes these calls of assert_fits."""
    lines = "".join(f"\n    assert_fits({one})" for one in arguments)
    return f"import pytest\n{mark}\ndef test_it(assert_fits):{lines}\n"


def test_shows_what_fits_in_a_table_and_writes_nothing(session: Session, pytester: pytest.Pytester) -> None:
    result = session(calls("(1000, 1200), on='rtx4090'"))
    result.assert_outcomes(passed=1)
    row = "test_model.py::test_it *1000.0 MiB *1.17 GiB *none *24.00 GiB"
    heads = ["*GPU memory, by vramcast*", "test *estimate *bound *recorded *limit"]
    result.stdout.fnmatch_lines([*heads, row, "1 without a record: pytest --vram-update writes it*"])
    assert not (pytester.path / "__vram__").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("(30000, 31000), on='t4'", "does not fit: the seven lines for t4"),
        ("(24000, 25000), on='t4'", "uncertain: the seven lines for t4"),
        ("(1, 2), on='t4', doubt=True", "uncertain: the seven lines for t4"),
        ("(1, 300), on='t4', max='200MiB'", "The upper bound is 300.0 MiB, and the limit 200.0 MiB."),
        ("(1, 300), max=200 << 20", "uncertain: the seven lines for None"),
    ],
)
def test_fails_with_the_answer(session: Session, call: str, said: str) -> None:
    result = session(calls(call))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Failed: " + said, "*", "*GPU memory, by vramcast*"])
    assert "the seven lines for" in result.stdout.str()
    result.stdout.no_fnmatch_line("*pytest_plugin.py:*")  # the traceback ends in the user's test


def test_mark_gives_defaults_that_a_call_overrides(session: Session) -> None:
    mark = "@pytest.mark.vram(on='t4', max='1GiB')"
    session(calls("(1, 1000)", "(1, 2000), max='2GiB'", mark=mark)).assert_outcomes(passed=1)
    result = session(calls("(1, 2000)", mark=mark))
    result.stdout.fnmatch_lines(["*The upper bound is 1.95 GiB, and the limit 1.00 GiB.", "*fits: the seven lines for t4"])


def test_mark_of_a_test_needs_the_fixture_and_that_of_a_file_does_not(session: Session) -> None:
    unread = "def test_other(): pass\n"
    session(calls("(1, 2)", mark="pytestmark = pytest.mark.vram(on='t4')") + unread).assert_outcomes(passed=2)
    result = session(f"import pytest\n@pytest.mark.vram(on='t4')\n{unread}")
    result.stdout.fnmatch_lines(["*The mark vram is for a test with the fixture assert_fits*"])
    result.stdout.no_fnmatch_line("*GPU memory, by vramcast*")


@pytest.mark.parametrize(
    ("mark", "call", "words", "said"),
    [
        ("@pytest.mark.vram(card='t4')", "(1, 2)", (), "*The mark is *card*write @pytest.mark.vram(max='20GiB'*"),
        ("@pytest.mark.vram('t4')", "(1, 2)", (), "*The mark is *t4*write @pytest.mark.vram(max='20GiB'*"),
        ("", "(1, 2)", (), "*assert_fits has no limit: give on='rtx4090'*"),
        ("", "(1, 2), max='20 apples'", (), "*Size '20 apples' is not understood*"),
        ("", "(1, 2), on='t4', max=0", (), "*Size '0' is not positive*"),
        ("", "(1, 2), on='t4'", ("--vram-tolerance", "nan"), "*--vram-tolerance is nan: a finite number is expected*"),
    ],
)
def test_wrong_use_is_named(session: Session, mark: str, call: str, words: tuple[str, ...], said: str) -> None:
    result = session(calls(call, mark=mark), *words)
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines([said])


def test_update_records_peaks_sorted_by_test(session: Session, records: Callable[[], dict[str, int]]) -> None:
    text = "import pytest\n@pytest.mark.parametrize('size', [9, 2])\n" + calls("(size, 10), on='t4'", "(5, 10), on='t4'")
    session(text.replace("(assert_fits)", "(assert_fits, size)").replace("import pytest\n\n", ""), "--vram-update")
    wanted = [("test_it[2]", 2), ("test_it[2] #2", 5), ("test_it[9]", 9), ("test_it[9] #2", 5)]
    assert list(records().items()) == [(name, size * MIB) for name, size in wanted]


@pytest.mark.parametrize(
    ("peak", "words", "change"),
    [(1020, (), ""), (980, (), ""), (1021, (), "+2.1%"), (979, (), "-2.1%"),
     (1021, ("--vram-tolerance", "3"), ""), (1021, ("--vram-update",), "")],
)  # fmt: skip
def test_peak_is_compared_with_its_record(session: Session, peak: int, words: tuple[str, ...], change: str) -> None:
    session(calls("(1000, 1200), on='t4'"), "--vram-update").assert_outcomes(passed=1)
    result = session(calls(f"({peak}, 1200), on='t4'"), *words)
    result.assert_outcomes(failed=1 if change else 0, passed=0 if change else 1)
    result.stdout.no_fnmatch_line("*without a record*")
    if change:
        result.stdout.fnmatch_lines(
            [f"*The peak is {peak}.0 MiB, {change} from the recorded 1000.0 MiB*--vram-update.", "*fits: *"]
        )


def test_update_keeps_other_records_and_records_only_what_fits(session: Session, records: Callable[[], dict[str, int]]) -> None:
    session(calls("(1, 2), on='t4'"), "--vram-update")
    more = "".join(f"def test_{size}(assert_fits): assert_fits(({size}, {size}), on='t4')\n" for size in (3, 30000))
    session(more, "--vram-update").assert_outcomes(passed=1, failed=1)
    assert records() == {"test_it": MIB, "test_3": 3 * MIB}


@pytest.mark.parametrize("damaged", ["{", "[]", '{"test_it": -5}', '{"test_it": "1GiB"}', '{"test_it": NaN}'])
def test_damaged_record_is_named_and_kept(session: Session, pytester: pytest.Pytester, damaged: str) -> None:
    file = pytester.mkdir("__vram__") / "test_model.json"
    file.write_text(damaged)
    result = session(calls("(1, 2), on='t4'"), "--vram-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: *test_model.json', a record of pytest --vram-update*"])
    assert file.read_text() == damaged


def test_record_that_cannot_be_written_is_an_error_after_the_summary(session: Session, pytester: pytest.Pytester) -> None:
    (pytester.path / "__vram__").touch()
    result = session(calls("(1, 2), on='t4'"), "--vram-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*GPU memory, by vramcast*"])
    result.stderr.fnmatch_lines(["ERROR: No record can be written: *__vram__*"])


@pytest.mark.release
@pytest.mark.integration
def test_workers_of_xdist_report_to_one_writer(
    session: Session, pytester: pytest.Pytester, records: Callable[[], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        test_model="import pytest\n@pytest.mark.parametrize('size', range(1, 21))\n"
        "def test_it(assert_fits, size): assert_fits((size, 30), on='t4')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "xdist", "-n", "2", "--vram-update")
    result.assert_outcomes(passed=20)
    assert records() == {f"test_it[{size}]": size * MIB for size in range(1, 21)}
    result.stdout.fnmatch_lines(["test_model.py::test_it?20? *20.0 MiB *30.0 MiB *20.0 MiB *24.00 GiB"])


@pytest.mark.integration
def test_plugin_costs_other_sessions_no_import(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_model="def test_it(): assert 1 == 2")  # pytest looks for the source in all modules
    code = f"import pytest, sys; pytest.main(['-p', '{PLUGIN}']); print(*sys.modules)"
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "1 failed" in done.stdout
    found = {name for name in done.stdout.splitlines()[-1].split() if name.startswith(("torch", "numpy", "vramcast.core."))}
    assert found == {"vramcast.core.errors", "vramcast.core.text", "vramcast.core.units"}


def test_package_declares_the_plugin() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert [importlib.import_module(name).__name__ for name in entries.values()] == [PLUGIN]


@pytest.mark.release
def test_real_estimate(pytester: pytest.Pytester, auto_tracer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import pytest, torch

@pytest.mark.vram(on="t4")
def test_linear(assert_fits):
    est = assert_fits(torch.nn.Linear(16, 4), torch.empty(8, 16), optimizer="sgd")
    assert_fits(torch.nn.Linear(16, 4), torch.empty(8, 16), max=est.upper_bound - 1, optimizer="sgd")
"""
    pytester.makepyfile(test_model=text)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", PLUGIN, "--vram-update")  # pytester removes what a session imports: torch
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Failed: The upper bound is *", "*fits: at most *of Tesla T4*", "*bound *for *jobs like it*"])
    assert list(json.loads((pytester.path / "__vram__" / "test_model.json").read_text())) == ["test_linear"]
