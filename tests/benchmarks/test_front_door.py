"""The benchmark of a new user's first questions: what counts as an answer that can be read out, and as help."""

from __future__ import annotations

from benchmarks.front_door.__main__ import misled, report, summary
from benchmarks.front_door.asked import Asked
from benchmarks.front_door.names import PROMISED, groups, shuffled

ANSWER = "fits: at most 1.00 GiB of the 8.00 GiB of a card\n" + "a line\n" * 6


def asked(code: int = 0, out: str = ANSWER, err: str = "", seconds: float = 1.0) -> Asked:
    return Asked(code, out, err, seconds, 2**30)


def test_long_answers_are_faults() -> None:
    assert asked().fault == ""
    assert asked(out=ANSWER + "an eighth line\n").fault == "8 lines"
    assert asked(out="x" * 101).fault == "101 columns"


def test_refusals_and_silence_are_no_answers() -> None:
    assert [asked(code).is_answer for code in (0, 1, 4)] == [True] * 3
    assert not asked(3, "", "vramcast: torchvision has no such model").is_answer
    assert not asked(out="").is_answer
    assert asked(-9, "").reason == "no answer in time"


def test_help_needs_all_words_and_no_wrong_card() -> None:
    mistake = {"words": "estimate x:y --on rtx4071", "says": ["rtx4070"], "never": ["rtx4090"]}
    assert misled(mistake, asked(2, "", "Related: rtx4070")) == ""
    assert "lacks ['rtx4070']" in misled(mistake, asked(2, "", "no such card"))
    assert "has ['rtx4090']" in misled(mistake, asked(2, "", "Related: rtx4070, rtx4090"))
    assert misled(mistake, asked(0)).startswith("exit code 0")
    assert misled(mistake, asked(2, "", "Traceback: rtx4070"))


def test_report_names_what_has_no_answer() -> None:
    wanted = {"timm": ["timm:a", "timm:b", "timm:c"]}
    said = report(wanted, {"timm:a": asked(seconds=4), "timm:b": asked(3, "", "vramcast: no shapes for 'b'")})
    assert "| timm | 2 | 1 | 50.0 % | 1 | 4.0 | 4.0 | 1.00 | 1.00 |" in said
    assert "Not asked yet: 1." in said
    assert "| `timm:b` | vramcast: no shapes for 'b' |" in said
    assert summary("timm", [])[2] == "0"


def test_asks_for_the_promised_names() -> None:
    wanted = groups()
    assert {group: len(set(wanted[group])) for group in PROMISED} == PROMISED
    assert len(wanted["hf"]) >= 60
    assert sorted(shuffled(wanted)) == sorted((group, one) for group, targets in wanted.items() for one in targets)
