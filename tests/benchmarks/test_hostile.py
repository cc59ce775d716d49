"""Tests that the benchmark of hostile inputs detects faults."""

from __future__ import annotations

import json

import pytest

from benchmarks.hostile.__main__ import table
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.cluster.page import Page, faults
from benchmarks.hostile.command import judge


@pytest.mark.parametrize(
    ("code", "out", "err", "wrong"),
    [
        (0, json.dumps({"peaks": 1}), "", None),
        (3, json.dumps({"error": "JobError"}), "vramcast: it raised", None),
        (2, "", "vramcast: --steps is 0", None),
        (0, "", "", Wrong.UNCLEAR),  # no JSON object
        (2, "", "", Wrong.UNCLEAR),  # no message
        (3, json.dumps({"message": "it raised"}), "vramcast: it raised", Wrong.UNCLEAR),
        (1, "", "Traceback (most recent call last)\n  ...\nValueError: x", Wrong.TRACEBACK),
        (1, json.dumps({}), "vramcast: no", Wrong.EXIT_CODE),
    ],
)
def test_returns_verdict_on_finished_command(code: int, out: str, err: str, wrong: Wrong | None) -> None:
    assert judge(code, out, err, codes=(0, 2, 3), is_json=True).wrong is wrong


def test_reports_number_that_fails_check() -> None:
    verdict = judge(0, "{}", "", codes=(0,), is_json=True, check=lambda _: "reserved is 0")
    assert verdict == Verdict(Wrong.NUMBER, "reserved is 0")


def test_reports_escaped_exception_as_traceback() -> None:
    def raises() -> Verdict:
        raise ValueError("no")

    assert Case("kind", "name", raises).verdict() == Verdict(Wrong.TRACEBACK, "ValueError: no")


def test_counts_cases_by_kind() -> None:
    good, bad = Case("a", "1", lambda: HANDLED), Case("b", "2", lambda: HANDLED)
    lines = table([(good, HANDLED), (bad, Verdict(Wrong.HANG))]).splitlines()
    assert lines[2].startswith("| a | 1 | 1 |")
    assert lines[3].startswith("| b | 1 | 0 |")
    assert lines[4].startswith("| all | 2 | 1 |")


SAFE = {"content-security-policy": "", "cache-control": "", "referrer-policy": "", "x-content-type-options": ""}


@pytest.mark.parametrize(
    ("text", "headers", "found"),
    [
        ("<a href='/?x=1'>a</a>", {}, ""),
        ("<script>alert(1)</script>", {}, "<script>"),
        ("<p onclick='x'>", {}, "onclick=x"),
        ("<a href='//example.org'>", {}, "href=//example.org"),
        ("<form action='javascript:x'>", {}, "action=javascript:x"),
        ("a\x00b", {}, "control characters"),
        ("\u202e", {}, "control characters"),
        ('<p role="alert">no model 49</p>', {}, "an evaluated template"),
        ("", {"set-cookie": "a=b"}, "set-cookie"),
    ],
)
def test_finds_what_an_address_added_to_page(text: str, headers: dict[str, str], found: str) -> None:
    assert faults(Page(200, {**SAFE, **headers}, f"{text}</html>\n")) == found


def test_finds_cut_page_and_missing_header() -> None:
    assert faults(Page(200, SAFE, "<p>")) == "the page is not complete"
    assert faults(Page(200, {}, "</html>\n")).count("no ") == len(SAFE)
