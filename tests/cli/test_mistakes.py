"""Typical mistakes, each with the suggestion that helps (mistakes.toml), and the tables behind them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cli.main import VERBS, parser
from vramcast.cli.suggestions import OTHER_NAMES, OTHER_VERBS
from vramcast.jobs.job import CHOICES, DTYPE_BYTES, SYNONYMS, TensorSpec, Training
from vramcast.jobs.registry_names import installed_names

Call = Callable[..., tuple[int, str, str]]
MISTAKES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())["mistake"]


def require_help(call: Call, mistake: dict[str, Any]) -> None:
    code, out, err = call(*shlex.split(mistake["words"]))
    assert code in (2, 3), err
    assert out == ""
    assert "Traceback" not in err
    assert [text for text in mistake["says"] if text not in err] == [], err
    assert [text for text in mistake.get("never", ()) if text in err] == [], err


@pytest.mark.parametrize("mistake", [one for one in MISTAKES if "loads" not in one], ids=lambda one: str(one["words"]))
def test_message_suggests_what_is_meant(call: Call, mistake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.cli.main._start_ahead", lambda given: None)
    require_help(call, mistake)


@pytest.mark.integration
@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize("mistake", [one for one in MISTAKES if "loads" in one], ids=lambda one: str(one["words"]))
def test_message_suggests_model_of_library(call: Call, mistake: dict[str, Any]) -> None:
    require_help(call, mistake)


def test_there_are_forty_mistakes() -> None:
    assert len(MISTAKES) >= 40


def test_suggested_options_exist() -> None:
    options = set(parser(VERBS).options)
    meant = {found.split()[0] for found in OTHER_NAMES.values() if found.startswith("--")}
    assert meant <= options
    assert set(parser(["estimate"]).options).isdisjoint(OTHER_NAMES)
    assert {verb for verb in OTHER_VERBS.values() if not verb.startswith("--")} <= VERBS.keys()


def test_all_wrong_values_are_reported_at_once(call: Call) -> None:
    given = {"--on": "rtx4091", "--memory": "banana", "--stack": "foo", "--lr": "-1", "--steps": "0", "--level": "7"}
    given |= {"--batch-size": "x", "--lora": "q=3", "--labels": "9,9", "--precision": "bf61", "--colour": "red"}
    code, out, err = call("estimate", "hf:gpt2", *(word for pair in given.items() for word in pair))
    lines = err.splitlines()
    assert (code, out) == (2, "")
    assert len(lines) == len(given)
    assert all(line.startswith("vramcast: ") for line in lines)
    assert [option for option, line in zip(given, lines, strict=True) if option not in line] == []
    assert lines[-1].endswith("(see vramcast estimate --help)")


@given(st.lists(st.sampled_from(["estimate", "check", "--on", "t4", "--memory", "1", "x:y", "run", "--", "-1", "--steps"])))
def test_any_words_are_parsed_or_wrong_usage(words: list[str]) -> None:
    with suppress(SystemExit):
        assert parser(VERBS).parse_args(words).verb in VERBS


def test_synonyms_lead_to_known_values() -> None:
    for name, known in SYNONYMS.items():
        assert set(known.values()) <= set(CHOICES[name])
        for synonym, value in known.items():
            assert getattr(Training(**{name: synonym}), name) == value


@pytest.mark.parametrize(
    ("text", "dtype", "high"),
    [
        ("8:int64:1000", "int64", 1000),
        ("8:int64<1000", "int64", 1000),
        ("8:long:10", "int64", 10),
        ("8:torch.float32", "float32", None),
        ("8:bf16", "bfloat16", None),
        ("8:i64", "int64", None),
        ("8:bool", "bool", None),
    ],
)
def test_spec_takes_dtype_names_and_a_limit_without_quotes(text: str, dtype: str, high: int | None) -> None:
    spec = TensorSpec.parse(text)
    assert (spec.dtype, spec.high) == (dtype, high)
    assert dtype in DTYPE_BYTES


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_option_is_written_and_narrow(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    sub: Any = next(one for one in parser([verb])._actions if one.dest == "verb").choices[verb]  # type: ignore[union-attr,index]
    assert [one.option_strings for one in sub._actions if not one.help] == []
    assert [
        line
        for line in sub.format_help().splitlines()
        if len(line) > 100 and not line.lstrip().startswith(("vramcast ", "curl "))
    ] == []


@pytest.mark.integration
def test_read_names_are_those_of_the_libraries() -> None:
    torchvision, timm = pytest.importorskip("torchvision"), pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")
    assert set(installed_names("torchvision")) == set(torchvision.models.list_models())
    assert set(installed_names("timm")) == set(timm.list_models())
    assert set(installed_names("hf")) == set(transformers.CONFIG_MAPPING)
