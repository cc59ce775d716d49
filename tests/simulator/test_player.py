"""The choice of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.core.errors import CompilerError
from vramcast.simulator import compiled
from vramcast.simulator.card import BASE, Card
from vramcast.simulator.engine import Engine, play
from vramcast.simulator.requests import RequestKind
from vramcast.simulator.rules import MIB
from vramcast.simulator.settings import Settings

from .test_checker import columns, random_requests, rows

REQUESTS = random_requests(bytes(range(255)), n_streams=2, pools=True, waits=False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the compiler and the compiled libraries."""
    monkeypatch.setenv("CC", "/no/such/compiler")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    compiled.library.cache_clear()


def test_warns_once_without_compiler(no_compiler: None) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        outcome = play(REQUESTS)
    assert [str(warning.message) for warning in warned] == [
        "The allocator is simulated in plain Python, which is slow: No C compiler found (/no/such/compiler): install one "
        "(Debian: apt-get install gcc). vramcast compiles here because this installation carries no compiled libraries (it is "
        "a checkout, or was built without a compiler)."
    ]
    assert columns(outcome) == columns(play(REQUESTS, engine="python"))


def test_compiled_engine_requires_compiler(no_compiler: None) -> None:
    with pytest.raises(CompilerError, match="No C compiler found"):
        play(REQUESTS, engine="compiled")


def test_names_unloadable_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "caching.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(compiled, "shared_library", lambda *_, **__: broken)
    compiled.library.cache_clear()
    with pytest.raises(CompilerError, match=r"caching\.so does not load .* delete it and try again"):
        play(REQUESTS, engine="compiled")


def test_without_columns_reports_peaks_and_events() -> None:
    outcome, whole = play(REQUESTS, columns=False, engine="compiled"), play(REQUESTS, engine="compiled")
    assert (outcome.address, outcome.block_bytes, outcome.allocated_bytes, outcome.reserved_bytes) == (None,) * 4
    assert outcome.statistics == whole.statistics
    assert outcome.events.tolist() == whole.events.tolist()


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_job_ends_at_first_failed_request(engine: Engine) -> None:
    requests = rows(
        (RequestKind.MALLOC, 30 * MIB, 0, -1), (RequestKind.MALLOC, 30 * MIB, 0, -1), (RequestKind.MALLOC, MIB, 0, -1)
    )
    outcome = play(requests, card=Card(50 * MIB), engine=engine)
    assert outcome.stopped_at == 1
    assert columns(outcome)["block_bytes"] == [30 * MIB, 0, -1]
    assert columns(outcome)["reserved_bytes"] == [30 * MIB, -1, -1]
    passed_over = play(requests, card=Card(50 * MIB), engine=engine, stop_at_oom=False)
    assert passed_over.stopped_at == 1
    assert columns(passed_over)["reserved_bytes"] == [30 * MIB, 30 * MIB, 32 * MIB]


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_job_continues_after_failed_try(engine: Engine) -> None:
    requests = rows(
        (RequestKind.MALLOC, 30 * MIB, 0, -1),
        (RequestKind.TRY, 30 * MIB, 0, -1),
        (RequestKind.FREE, 0, 0, 1),
        (RequestKind.TAKE, 20 * MIB, 0, -1),
    )
    outcome = play(requests, card=Card(50 * MIB), engine=engine)
    assert outcome.stopped_at is None
    assert columns(outcome)["block_bytes"] == [30 * MIB, 0, -1, -1]
    assert play(requests, card=Card(50 * MIB - 1), engine=engine).stopped_at == 3


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_emptied_cache_completes_blocks_once(engine: Engine) -> None:
    requests = rows(
        *((RequestKind.MALLOC, 512, 0, -1),) * 3,
        (RequestKind.RETIRE, 0, 0, 1),
        (RequestKind.EMPTY, 0, 0, -1),
        (RequestKind.MALLOC, 512, 0, -1),  # at the place of block 1
        (RequestKind.RETIRE, 0, 0, 5),
        (RequestKind.COMPLETE, 0, 0, 1),
        (RequestKind.MALLOC, 512, 0, -1),  # not at that place: block 5 waits
    )
    outcome = play(requests, card=Card(policy="windows"), engine=engine)
    places = [columns(outcome)["address"][row] - BASE for row in (0, 1, 2, 5, 8)]
    assert places == [0, 512, 1024, 512, 1536]


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_freed_block_waits_for_completion(engine: Engine) -> None:
    requests = rows(
        *((RequestKind.MALLOC, 512, 0, -1),) * 2,
        (RequestKind.RECORD, 0, 1, 0),
        (RequestKind.FREE, 0, 0, 0),
        (RequestKind.MALLOC, 512, 0, -1),
        (RequestKind.COMPLETE, 0, 0, 0),
        (RequestKind.MALLOC, 512, 0, -1),
    )
    outcome = play(requests, card=Card(policy="windows"), engine=engine)
    assert [columns(outcome)["address"][row] - BASE for row in (4, 6)] == [1024, 0]


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_releases_private_pools_in_order(engine: Engine) -> None:
    pool = [(RequestKind.BEGIN_POOL, 1, 0, -1), (RequestKind.MALLOC, 5 * MIB, 0, -1), (RequestKind.END_POOL, 1, 0, -1)]
    second = [(kind, 2 if kind != RequestKind.MALLOC else size, stream, block) for kind, size, stream, block in pool]
    release = [(RequestKind.RELEASE_POOL, 2, 0, -1), (RequestKind.RELEASE_POOL, 1, 0, -1), (RequestKind.EMPTY, 0, 0, -1)]
    requests = rows(*pool, *second, (RequestKind.FREE, 0, 0, 1), (RequestKind.FREE, 0, 0, 4), *release)
    events = columns(play(requests, card=Card(policy="windows"), engine=engine))["events"]
    assert [address - BASE for _, _, address, _, _ in events[2:]] == [0, 20 * MIB]


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_does_not_split_off_one_mebibyte(engine: Engine) -> None:
    # torch's should_split: more than kSmallSize, 1 MiB, of a large block must remain.
    requests = rows(
        (RequestKind.MALLOC, 20 * MIB, 0, -1),
        (RequestKind.FREE, 0, 0, 0),
        (RequestKind.MALLOC, 19 * MIB, 0, -1),
        (RequestKind.FREE, 0, 0, 2),
        (RequestKind.MALLOC, 19 * MIB - 512, 0, -1),
    )
    block_bytes = columns(play(requests, engine=engine))["block_bytes"]
    assert [block_bytes[row] for row in (2, 4)] == [20 * MIB, 19 * MIB - 512]


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_collects_garbage_of_average_age(engine: Engine) -> None:
    # torch's garbage_collect_cached_blocks frees blocks of at least average age, such as a single block.
    requests = rows((RequestKind.MALLOC, 250 * MIB, 0, -1), (RequestKind.FREE, 0, 0, 0), (RequestKind.MALLOC, 300 * MIB, 0, -1))
    settings = Settings(memory_fraction=0.5, garbage_collection_threshold=0.2)  # collects from 200 MiB on
    outcome = play(requests, settings, Card(2000 * MIB), engine=engine)
    assert columns(outcome)["reserved_bytes"][-1] == 300 * MIB
