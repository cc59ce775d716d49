"""Tests of the compiled allocator under address and undefined-behaviour sanitizers: from Python, and without host memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from vramcast.core.compiler import FLAGS, SANITIZERS
from vramcast.simulator.card import AddressPolicy, Card
from vramcast.simulator.compiled import SOURCE
from vramcast.simulator.engine import play
from vramcast.simulator.requests import Requests
from vramcast.simulator.rules import MIB, SERVING
from vramcast.simulator.settings import NO_LIMIT, Settings

from ..simulator.sequences import settings as any_settings
from ..simulator.test_checker import columns, random_requests

HERE = Path(__file__).parent
N_LISTS = 300
CARD_BYTES = 200 * MIB
Case = tuple[Requests, Settings, dict[str, Any]]

# Plays the cases in the file argv[1] with the sanitized library and writes their outcomes to argv[2].
PLAYER = """
import pickle, sys
from vramcast.simulator import compiled
from vramcast.simulator.card import Card
native = compiled.library(sanitize=True)
with open(sys.argv[1], "rb") as file:
    cases = pickle.load(file)
outcomes = [
    compiled.play(requests, settings, Card(**card), stop_at_oom=False, columns=True, native=native)
    for requests, settings, card in cases
]
with open(sys.argv[2], "wb") as file:
    pickle.dump(outcomes, file)
"""


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if the compiler has no sanitizers."""
    probe = tmp_path_factory.mktemp("probe") / "probe"
    command = ["gcc", *SANITIZERS, "-x", "c", "-", "-o", str(probe)]
    try:
        compiled = subprocess.run(command, input="int main(void) { return 0; }", text=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no gcc")
    if compiled.returncode or subprocess.run([str(probe)], capture_output=True).returncode:
        pytest.skip("this compiler has no address sanitizer")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Return random lists under random settings, some of them on a small card."""
    random = np.random.default_rng(20)
    drawn: list[Settings] = []

    @hypothesis_settings(
        max_examples=N_LISTS, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(any_settings())
    def draw(settings: Settings) -> None:
        drawn.append(settings)

    draw()
    made = []
    for number in range(N_LISTS):
        settings = drawn[number % len(drawn)]
        pools = not settings.expandable_segments and number % 2 == 0
        data = random.bytes(3 * int(random.integers(1, 100)))
        requests = random_requests(data, n_streams=1 + number % 3, pools=pools, waits=number % 4 == 1)
        policy = get_args(AddressPolicy)[number % 2]
        made.append((requests, settings, {"total_bytes": CARD_BYTES, "limited": number % 5 != 0, "policy": policy}))
    return made


@pytest.mark.usefixtures("sanitizers")
def test_compiled_allocator_passes_sanitizers(cases: list[Case], tmp_path: Path) -> None:
    given, found = tmp_path / "cases", tmp_path / "outcomes"
    given.write_bytes(pickle.dumps(cases))
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    # Python and numpy keep memory to the end: the next test checks leaks.
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "CC": "gcc"}
    ran = subprocess.run(
        [sys.executable, "-c", PLAYER, str(given), str(found)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = pickle.loads(found.read_bytes())
    assert len(outcomes) == len(cases)
    for (requests, settings, card), outcome in zip(cases, outcomes, strict=True):
        plain = play(requests, settings, Card(**card), stop_at_oom=False, engine="compiled")
        assert columns(outcome) == columns(plain)


@pytest.fixture(scope="module")
def program(sanitizers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program simulator.c."""
    out = tmp_path_factory.mktemp("program") / "simulator"
    command = ["gcc", *FLAGS, *SANITIZERS, f'-DCACHING_C="{SOURCE}"', str(HERE / "simulator.c"), "-o", str(out)]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    return out


def as_text(case: Case) -> str:
    """Return one list in simulator.c's format."""
    requests, settings, card_options = case
    card = Card(**card_options)
    numbers = (
        len(requests),
        requests.n_pools,
        2**63 - 1 if settings.max_split_bytes == NO_LIMIT else settings.max_split_bytes,
        settings.oversize_bytes,
        settings.large_segment_bytes,
        int(settings.memory_fraction * card.total_bytes) if settings.memory_fraction < 1 else -1,
        card.total_bytes,
        card.capacity_bytes,
        card.context_bytes,
        *settings.roundup_divisions,
        round(1000 * settings.garbage_collection_threshold),
        int(settings.expandable_segments),
        get_args(AddressPolicy).index(card.policy),
        int(requests.waits),
        *(int(getattr(requests.rules, name)) for name in SERVING),
        0,
    )
    rows = np.stack([requests.kind, requests.size_bytes, requests.stream, requests.block], axis=1).tolist()
    return "\n".join(" ".join(map(str, row)) for row in [numbers, *rows])


@pytest.mark.usefixtures("sanitizers")
def test_compiled_allocator_survives_exhausted_host_memory(program: Path, cases: list[Case]) -> None:
    lists = "\n".join([str(len(cases)), *map(as_text, cases)])
    ran = subprocess.run(
        [str(program)],
        input=lists,
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [[int(number) for number in line.split()] for line in ran.stdout.splitlines()]
    expected = []
    for requests, settings, card in cases:
        outcome = play(requests, settings, Card(**card), stop_at_oom=False, engine="compiled")
        expected.append([0, len(outcome.events), outcome.statistics.reserved.peak])
    assert lines == expected


@pytest.mark.usefixtures("sanitizers")
def test_leak_checker_finds_leak(tmp_path: Path) -> None:
    out = tmp_path / "leak"
    source = "#include <stdlib.h>\nvoid *volatile kept;\nint main(void) { kept = malloc(4); kept = NULL; return 0; }\n"
    subprocess.run(["gcc", *SANITIZERS, "-x", "c", "-", "-o", str(out)], input=source, text=True, check=True)
    ran = subprocess.run([str(out)], capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"})
    assert ran.returncode != 0
    assert "4 byte(s) leaked" in ran.stderr
