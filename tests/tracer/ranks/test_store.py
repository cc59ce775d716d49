"""What absent ranks would have put into the store."""

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
    """Counts answers."""
    return Counter()


def test_what_was_set_is_there(answers: Counter[str]) -> None:
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
    store.wait(["nobody sets this"])
    assert not answers


def test_an_absent_rank_has_set_what_this_one_did(answers: Counter[str]) -> None:
    store = AbsentStore(3, Tape(store={"told/0": b"by rank 0"}), answers)
    store.set("rank/3/host", "node")
    assert store.get("rank/5/host") == b"node"
    assert store.get("told/0") == b"by rank 0"
    assert store.get("default_pg/0//cuda//nccl/0") == bytes(128)  # the id of a communicator
    assert answers == {"keys of a store": 1}
    with pytest.raises(CannotEstimate, match=r"'master' of the store .* --ranks"):
        store.get("master")


def test_prefixes_and_threads_of_torch_ask_it_too(answers: Counter[str]) -> None:
    store = AbsentStore(0, Tape(), answers)
    prefixed = torch.distributed.PrefixStore("outer", store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert store.said == {"outer/key": b"value"}
