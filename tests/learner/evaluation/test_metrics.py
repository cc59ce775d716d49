"""The metrics, compared with cases computed by hand and with invariants."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from vramcast.core.errors import DatasetError
from vramcast.learner.evaluation.metrics import coverage_limits, evaluate, excesses, request_bytes, saved_bytes, verdict, ways
from vramcast.learner.evaluation.scored_run import Scored

from .samples import GB, LEVELS, drawn_runs, run, scored_runs

KEYS = ["runs", "mre", "p90", "max", "signed_median", "under_rate", "pef", "mcp_bytes", "coverage", "overprovision", "pinball"]


def test_errors_are_relative_to_measurement() -> None:
    figures = evaluate([run(100, 90), run(100, 102), run(100, 140), run(200, 200)])
    assert figures["runs"] == 4
    assert figures["mre"] == pytest.approx(0.06)  # sizes 0, 0.02, 0.1, 0.4
    assert figures["p90"] == pytest.approx(0.1 + 0.7 * 0.3)  # between the third and the fourth
    assert figures["max"] == pytest.approx(0.4)
    assert figures["signed_median"] == pytest.approx(0.01)  # -0.1, 0, 0.02, 0.4
    assert figures["under_rate"] == 0.25


def test_median_error_omits_out_of_memory_runs() -> None:
    runs = [
        run(100, 103),
        run(100, 200, said_out_of_memory=True),
        run(100, 50, ran_out_of_memory=True),
        run(100, 50, censored=True),
    ]
    assert evaluate(runs)["max"] == pytest.approx(0.03)


# T = 12 GB. M is the measured peak, E the estimate; then the outcome of both rounds and the run's contribution to the MCP.
TWO_ROUNDS = {
    "it ran and survived its cap": (run(6 * GB, 5 * GB, survives=True), False, "second run", 7 * GB),
    "it ran and died at its cap": (run(6 * GB, 5 * GB, survives=False), True, "second run", -5 * GB),
    "a cap above the peak can be too little too": (run(6 * GB, 7 * GB, survives=False), True, "second run", -7 * GB),
    "out of memory was predicted": (
        run(11 * GB, 14 * GB, ran_out_of_memory=True, said_out_of_memory=True),
        False,
        "first round",
        12 * GB,
    ),
    "out of memory was not predicted": (run(11 * GB, 9 * GB, ran_out_of_memory=True), True, "first round", -9 * GB),
    "it ran although it was predicted not to": (run(10 * GB, 13 * GB, said_out_of_memory=True), True, "first round", -13 * GB),
    "no round 2, the estimate is above": (run(6 * GB, 7 * GB), False, "inferred", 5 * GB),
    "no round 2, the estimate is below": (run(6 * GB, 5 * GB), True, "inferred", -5 * GB),
    "no round 2, below a lower bound": (run(6 * GB, 5 * GB, censored=True), True, "inferred", -5 * GB),
    "no round 2, above a lower bound": (run(6 * GB, 7 * GB, censored=True), None, "not judged", None),
}


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_two_rounds(name: str) -> None:
    plain, failed, way, saved = TWO_ROUNDS[name]
    one = run(
        plain.measured_bytes,
        plain.estimated_bytes,
        card_bytes=12 * GB,
        ran_out_of_memory=plain.ran_out_of_memory,
        said_out_of_memory=plain.said_out_of_memory,
        ran_at=plain.ran_at,
        died_at=plain.died_at,
        censored=plain.censored,
    )
    assert (verdict(one).failed, verdict(one).way, saved_bytes(one)) == (failed, way, saved)
    assert evaluate([one])["pef"] == (None if failed is None else float(failed))


def test_conserved_memory_is_mean_of_contributions() -> None:
    runs = [
        run(6 * GB, 5 * GB, survives=True, card_bytes=12 * GB),
        run(6 * GB, 5 * GB, survives=False, card_bytes=12 * GB),
        run(11 * GB, 14 * GB, ran_out_of_memory=True, said_out_of_memory=True, card_bytes=12 * GB),
        run(11 * GB, 9 * GB, ran_out_of_memory=True, card_bytes=12 * GB),
        run(10 * GB, 13 * GB, said_out_of_memory=True, card_bytes=12 * GB),
        run(1 * GB, 1 * GB),  # its card is unknown: it counts only for the PEF
    ]
    figures = evaluate(runs)
    assert figures["mcp_bytes"] == -1_600_000_000  # (7 - 5 + 12 - 9 - 13) / 5
    assert figures["pef"] == 0.5
    assert ways(runs) == {"first round": 3, "second run": 2, "emulated": 0, "inferred": 1, "not judged": 0}


def test_evaluates_requested_bound() -> None:
    one = run(6 * GB, 5 * GB, bounds={0.99: 7 * GB}, survives=False, card_bytes=12 * GB)
    assert (request_bytes(one, None), request_bytes(one, 0.99), request_bytes(one, 0.5)) == (5 * GB, 7 * GB, 5 * GB)
    assert verdict(one, 0.99).failed is False
    assert evaluate([one], level=0.99)["mcp_bytes"] == 5 * GB


def test_success_at_estimate_implies_larger_bound() -> None:
    one = run(8 * GB, 5 * GB, bounds={0.5: 4 * GB, 0.99: 7 * GB}, survives=True)
    assert (verdict(one, 0.99).way, verdict(one, 0.99).failed) == ("second run", False)
    assert (verdict(one, 0.5).way, verdict(one, 0.5).failed) == ("inferred", True)


def test_distinguishes_simulated_second_round() -> None:
    one = run(8 * GB, 5 * GB, bounds={0.5: 4 * GB, 0.99: 7 * GB}, ran_at=4 * GB + 1, died_at=4 * GB, is_emulated=True)
    assert [(verdict(one, level).failed, verdict(one, level).way) for level in (None, 0.5, 0.99)] == [
        (False, "emulated"),
        (True, "emulated"),
        (False, "emulated"),
    ]


def test_bound_above_card_requests_card() -> None:
    one = run(10 * GB, 9 * GB, bounds={0.99: 13 * GB}, card_bytes=12 * GB)
    assert request_bytes(one, 0.99) == 12 * GB
    assert (verdict(one, 0.99).failed, saved_bytes(one, 0.99)) == (False, 0)
    dead = run(10 * GB, 9 * GB, bounds={0.99: 13 * GB}, card_bytes=12 * GB, ran_out_of_memory=True)
    assert verdict(dead, 0.99).failed is True  # the estimate did not predict it
    assert verdict(dead).failed is True


def test_reports_coverage_and_overprovision_by_level() -> None:
    runs = [
        run(100, 95, bounds={0.5: 95, 0.9: 110}),
        run(100, 95, bounds={0.5: 100, 0.9: 120}),
        run(100, 95, bounds={0.5: 105, 0.9: 99}),
        run(100, 95, bounds={0.9: 150}),
    ]
    figures = evaluate(runs)
    assert figures["coverage"] == {"0.5": pytest.approx(2 / 3), "0.9": 0.75}
    assert figures["overprovision"] == {"0.5": 0.0, "0.9": pytest.approx(0.15)}


def test_censored_run_shows_only_failures() -> None:
    runs = [
        run(100, 100, bounds={0.9: 110}),
        run(100, 100, bounds={0.9: 110}, censored=True),
        run(100, 90, bounds={0.9: 90}, ran_out_of_memory=True),
    ]
    figures = evaluate(runs)
    assert figures["coverage"]["0.9"] == 0.5
    assert figures["overprovision"]["0.9"] == pytest.approx(0.1)
    assert figures["under_rate"] == 0.5
    assert coverage_limits(runs, 0.9) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert coverage_limits(runs, 0.99) is None
    assert excesses(runs, 0.9) == [pytest.approx(0.1)]


def test_pinball_weighs_shortfall_by_level() -> None:
    assert evaluate([run(100, 100, bounds={0.9: 80})])["pinball"] == pytest.approx(0.9 * 0.2)
    assert evaluate([run(100, 100, bounds={0.9: 120})])["pinball"] == pytest.approx(0.1 * 0.2)
    both = evaluate([run(100, 100, bounds={0.9: 80, 0.5: 120})])
    assert both["pinball"] == pytest.approx((0.18 + 0.1) / 2)


def test_pinball_is_smallest_at_true_quantile() -> None:
    measured = range(1000, 2000)
    losses = {
        bound: evaluate([run(size, size, bounds={0.9: round(size * bound / 1500)}) for size in measured])["pinball"]
        for bound in (1500, 3000)
    }
    assert losses[1500] < losses[3000]


def test_no_runs_give_null_and_valid_json() -> None:
    for runs in ([], [run(100, 120, censored=True, bounds={0.9: 130})]):
        figures = evaluate(runs)
        text = json.dumps(figures, allow_nan=False)
        assert all(json.loads(text)[name] is None for name in KEYS[1:8])
    assert evaluate([]) == {
        **dict.fromkeys(KEYS),
        "runs": 0,
        "coverage": {},
        "overprovision": {},
        "by": {"family": {}, "gpu": {}, "optimizer": {}},
    }


@pytest.mark.parametrize(
    "values", [{"measured_bytes": 0}, {"estimated_bytes": -1}, {"bounds": {1.0: 10}}, {"bounds": {0.0: 10}}]
)
def test_rejects_wrong_sizes_and_levels(values: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=r"must be above|between"):
        run(**{"measured_bytes": 1, "estimated_bytes": 1, **values})


@settings(deadline=None)
@given(scored_runs())
def test_metrics_are_consistent(runs: list[Scored]) -> None:
    figures = evaluate(runs)
    json.dumps(figures, allow_nan=False)
    assert list(figures) == [*KEYS, "by"]
    shares = [figures["under_rate"], figures["pef"], *figures["coverage"].values()]
    assert all(share is None or 0 <= share <= 1 for share in shares)
    if figures["mre"] is not None:
        assert 0 <= figures["mre"] <= figures["p90"] <= figures["max"]
        assert abs(figures["signed_median"]) <= figures["max"]
    assert sum(ways(runs).values()) == len(runs)
    for level in LEVELS:
        limits, share = coverage_limits(runs, level), figures["coverage"].get(f"{level:g}")
        if limits is not None and share is not None:
            assert limits[0] - 1e-9 <= share <= limits[1] + 1e-9
    for groups in figures["by"].values():
        assert sum(one["runs"] for one in groups.values()) == len(runs)
        assert all(list(one) == KEYS for one in groups.values())


@settings(deadline=None)
@given(scored_runs(min_size=1))
def test_higher_bound_covers_no_less(runs: list[Scored]) -> None:
    figures = evaluate(runs)
    for values in (figures["coverage"], figures["overprovision"]):
        known = [values[f"{level:g}"] for level in LEVELS if values[f"{level:g}"] is not None]
        assert known == sorted(known)


def test_order_and_grouping_change_nothing() -> None:
    runs = drawn_runs(60)
    figures = evaluate(runs)
    assert evaluate(runs[::-1]) == figures
    families = figures["by"]["family"]
    assert sum(one["runs"] * one["pef"] for one in families.values()) / 60 == pytest.approx(figures["pef"])
    cnns = evaluate([one for one in runs if one.family == "cnn"])
    assert families["cnn"] == {name: cnns[name] for name in KEYS}
