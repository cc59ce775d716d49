"""The software of the card's machine, from the command line and from a run's record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.datasets.run import Passport
from vramcast.hardware.stack import GIVEN, PASSPORT, RELEASES, WHEEL, Stack, cudnn_version, of_passport, parse, same_minor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch==2.8.0", Stack("2.8.0", "12.8", "9.10.2.21", WHEEL)),
        ("torch==2.0.1", Stack("2.0.1", "11.7", "8.5.0.96", WHEEL)),
        ("torch==2.6.0+cu124", Stack("2.6.0+cu124", "12.4", "9.1.0.70", WHEEL)),
        ("cudnn==9.10.2", Stack(None, None, "9.10.2", GIVEN)),
        ("cudnn==91002", Stack(None, None, "9.10.2", GIVEN)),
        ("cuda==12", Stack(None, "12", None, GIVEN)),
        ("transformers==4.51.3", Stack(None, None, None, GIVEN, transformers="4.51.3")),
        ("torch==2.8.0,transformers==4.51.3", Stack("2.8.0", "12.8", "9.10.2.21", WHEEL, transformers="4.51.3")),
        (" torch==2.8.0 , cudnn==9.11.0 , cuda==12 ", Stack("2.8.0", "12", "9.11.0", GIVEN)),
        ("torch==2.8.0,cudnn==9.11.0", Stack("2.8.0", "12.8", "9.11.0", WHEEL)),
        ("torch==2.99.0,cudnn==9.30.0,cuda==14", Stack("2.99.0", "14", "9.30.0", GIVEN)),
    ],
)
def test_torch_release_fills_in_missing_versions(text: str, expected: Stack) -> None:
    assert parse(text) == expected


def test_notes_cudnn_of_default_wheel() -> None:
    found = parse("torch==2.8.0+cu126")
    assert (found.cuda, found.cudnn, found.source) == ("12.6", "9.10.2.21", WHEEL)
    (note,) = found.notes
    assert "that of torch 2.8.0's default wheel, for CUDA 12.8" in note
    assert parse("torch==2.8.0+cu128").notes == parse("torch==2.8.0,cuda==12").notes == ()
    assert parse("torch==2.8.0,cuda==13").notes != ()
    assert parse("torch==2.8.0+cu126,cudnn==9.10.2").notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch=2.8.0", "'torch=2.8.0' is not understood: torch, cudnn, cuda, transformers are known"),
        ("", "'' is not understood"),
        ("python==3.12", "'python==3.12' is not understood"),
        ("torch==2.8", "torch==2.8: a CUDA build such as 2.8.0"),
        ("torch==2.8.0+cpu", "torch==2.8.0.cpu: a CUDA build"),
        ("torch==2.8.0+rocm6.4", "a CUDA build"),
        ("torch==1.13.1", "are unknown here .* add them"),
        ("torch==1.13.1,cudnn==8.5.0", "are unknown here"),
        ("cudnn==9", "cudnn==9: a version such as 9.10.2 or 91002"),
        ("cudnn==7.6.5", "cudnn==7.6.5: a version such as"),
        ("cuda==128", "cuda==128: a version such as 12"),
        ("cuda==", "cuda==: a version"),
        ("cuda==12,cuda==13", "has cuda twice"),
        ("torch==2.8.0+cu126,cuda==12.8", "has CUDA twice"),
    ],
)
def test_rejects_malformed_stack(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)


@given(st.sampled_from(sorted(RELEASES)), st.sampled_from(["", "torch==", "cudnn==", "cuda=="]), st.text(max_size=12))
def test_any_text_is_a_stack_or_usage_error(release: str, name: str, text: str) -> None:
    for said in (f"torch=={release}", f"torch=={release},{name}{text}", f"{name}{text}"):
        try:
            found = parse(said)
        except UsageError:
            continue
        assert found != Stack()


@given(st.integers(0, 99), st.integers(0, 99))
def test_parses_cudnn_number(minor: int, patch: int) -> None:
    assert cudnn_version(str(90000 + 100 * minor + patch)) == f"9.{minor}.{patch}"
    if minor < 10:
        assert cudnn_version(str(8000 + 100 * minor + patch)) == f"8.{minor}.{patch}"


def test_other_cudnn_versions_are_unknown() -> None:
    assert [cudnn_version(text) for text in ("8902", "9.10.2.21", " 9.1.0 ")] == ["8.9.2", "9.10.2.21", "9.1.0"]
    assert [cudnn_version(text) for text in ("", "9", "9.10", "7605", "910021", "v9.1.0", "9.1.0rc1")] == [None] * 7


@pytest.mark.parametrize(
    ("passport", "expected"),
    [
        (("2.6.0+cu124", "12.4", "90100"), Stack("2.6.0+cu124", "12.4", "9.1.0", PASSPORT)),
        (("2.8.0", None, None), Stack("2.8.0", "12.8", "9.10.2.21", PASSPORT)),
        ((None, None, "91900"), Stack(None, None, "9.19.0", PASSPORT)),
        (("2.8.0a0+5228986c39.nv25.06", "12.9", None), Stack(None, "12.9", None, PASSPORT)),
        (("2.99.0", None, None), Stack("2.99.0", None, None, PASSPORT)),
        (("2.11.0+cpu", None, None), None),
        (("?", "none", "unknown"), None),
        ((None, None, None), None),
    ],
)
def test_passport_never_guesses(passport: tuple[str | None, str | None, str | None], expected: Stack | None) -> None:
    torch, cuda, cudnn = passport
    assert of_passport(torch, cuda, cudnn) == expected
    assert Passport("sacct", torch=torch, cuda=cuda, cudnn=cudnn).stack == expected


def test_machine_fills_in_missing_versions() -> None:
    here = Stack("2.11.0", "13.0", "9.19.0.56")
    found = parse("cudnn==9.10.2").over(here)
    assert found.to_dict() == {"torch": "2.11.0", "cuda": "13.0", "cudnn": "9.10.2", "source": "given; the rest installed"}
    whole = parse("torch==2.8.0")
    assert whole.over(here) is whole
    assert parse("cuda==12").over(Stack()) == parse("cuda==12")


@pytest.mark.parametrize(
    ("stack", "avoids"),
    [
        ("torch==2.8.0", False),
        ("torch==2.9.0", True),
        ("torch==2.9.0,cudnn==9.20.0", True),  # compares the version that it was built with
        ("torch==2.9.1", True),
        ("torch==2.9.1+cu130,cudnn==9.13.0", True),
        ("torch==2.9.1,cudnn==9.7.1", False),
        ("torch==2.9.1,cudnn==9.14.0", True),
        ("torch==2.9.1,cudnn==9.15.0", False),
        ("torch==2.10.0", False),
        ("cudnn==9.10.2", False),
    ],
)
def test_torch_2_9_avoids_cudnn_in_3d(stack: str, avoids: bool) -> None:
    assert parse(stack).avoids_cudnn_in_3d is avoids


def test_torch_avoids_engines_on_sm_120_since_2_14() -> None:
    assert parse("torch==2.14.1").avoids_engines_on_sm_120
    assert not parse("torch==2.11.0").avoids_engines_on_sm_120


@pytest.mark.parametrize(
    ("stack", "prefers"),
    [
        (Stack(), True),
        (parse("torch==2.9.1,cudnn==9.19.0"), False),
        (parse("torch==2.10.0"), False),
        (parse("torch==2.10.0,cudnn==9.15.1"), True),
        (parse("torch==2.11.0"), True),
    ],
)
def test_torch_prefers_cudnn_attention_since_cudnn_9_15_1(stack: Stack, *, prefers: bool) -> None:
    assert stack.prefers_cudnn_attention is prefers


def test_an_unknown_torch_counts_as_the_reference() -> None:
    unknown = Stack()
    assert unknown.prefers_cudnn_attention
    assert unknown.avoids_engines_on_sm_120
    assert not unknown.keeps_casts_in_inference_mode
    assert not unknown.keeps_attention_narrow
    assert not unknown.avoids_cudnn_in_3d


def test_torch_before_2_11_keeps_casts_in_inference_mode() -> None:
    assert parse("torch==2.10.0").keeps_casts_in_inference_mode
    assert not parse("torch==2.11.0").keeps_casts_in_inference_mode


def test_torch_before_2_5_computes_attention_in_16_bits() -> None:
    assert parse("torch==2.4.1").keeps_attention_narrow
    assert not parse("torch==2.5.0").keeps_attention_narrow


def test_torch_since_2_14_fuses_attention_without_a_batch() -> None:
    assert not parse("torch==2.11.0").fuses_unbatched_attention
    assert parse("torch==2.14.1").fuses_unbatched_attention


def test_same_minor_compares_two_numbers() -> None:
    assert same_minor("2.8.0+cu126", "2.8.1")
    assert not same_minor("2.8.0", "2.11.0")
    assert (Stack(cuda="12.8").cuda_major, Stack(cuda="11").cuda_major, Stack().cuda_major) == (12, 11, None)
