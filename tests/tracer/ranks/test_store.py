"""Keys of absent ranks in the store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from vramcast.core.errors import CannotEstimate  # noqa: E402
from vramcast.tracer.protocol.run_options import Tape  # noqa: E402
from vramcast.tracer.ranks.simulated_peers import AbsentStore  # noqa: E402


@pytest.fixture
def answers() -> Counter[str]:
    """Return a counter of answers."""
    return Counter()


def test_returns_keys_that_were_set(answers: Counter[str]) -> None:
    store = AbsentStore(0, Tape(), answers)
    store.set("key", "value")
    store.append("key", b" more")
    assert (store.get("key"), store.check(["key"]), store.check(["other"])) == (b"value more", True, False)
    assert (store.add("count", 2), store.add("count", 3), store.get("count")) == (2, 5, b"5")
    assert store.compare_set("new", "", "first") == b"first"
    assert store.compare_set("new", "second", "third") == b"first"
    assert (store.delete_key("new"), store.delete_key("new"), store.num_keys()) == (True, False, 2)
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]
    store.wait(["never set"])
    assert not answers


def test_own_keys_stand_for_absent_rank(answers: Counter[str]) -> None:
    store = AbsentStore(3, Tape(store={"sent/0": b"by rank 0"}), answers)
    store.set("rank/3/host", "node")
    assert store.get("rank/5/host") == b"node"
    assert store.get("sent/0") == b"by rank 0"
    assert store.get("default_pg/0//cuda//nccl/0") == bytes(128)  # the id of a communicator
    assert answers == {"keys of a store": 1}
    with pytest.raises(CannotEstimate, match=r"'master' of the store .* --ranks"):
        store.get("master")


def test_serves_prefix_store(answers: Counter[str]) -> None:
    store = AbsentStore(0, Tape(), answers)
    prefixed = torch.distributed.PrefixStore("outer", store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert store.said == {"outer/key": b"value"}
