"""Answers about published starts of vLLM, next to what was logged."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from benchmarks.accuracy.serving.__main__ import _said


def test_sizes_are_those_of_the_rank_that_logged_them() -> None:
    ranks = [{"rank": 0, "serving": {"activation_bytes": 1, "kv_cache_tokens": 50}}, {"rank": 1, "serving": None}]
    answer = {"serving": {"activation_bytes": 2, "kv_cache_tokens": 40}, "ranks": ranks}
    assert _said(answer) == {"activation_bytes": 1, "kv_cache_tokens": 40}
    assert _said({**answer, "ranks": []}) == answer["serving"]
