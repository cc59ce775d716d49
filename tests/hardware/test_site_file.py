"""A site's own contexts and cards, and the rejection of wrong files."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import OutputError, UsageError
from vramcast.core.units import MIB
from vramcast.estimates.bounds.public import PublicBound
from vramcast.hardware import cards
from vramcast.hardware.card_file import ContextRow, Interval
from vramcast.hardware.cards import DEVICES, card_bytes, device
from vramcast.hardware.context import ContextSource, context_bytes
from vramcast.hardware.device import PeakSpeeds
from vramcast.hardware.site_contexts import context_block, write_contexts

CARD = """
[[card]]
key = "a40"
name = "NVIDIA A40"
total_bytes = 47_676_129_280
compute_capability = "8.6"
sm_count = 84
clock_khz = 1_740_000
memory_clock_khz = 7_251_000
memory_bus_bits = 384
l2_bytes = 6_291_456
"""
CONTEXT = """
[[context]]
gpu = "NVIDIA GeForce RTX 4090"
torch = "2.11.0+cu130"
driver = "580.126.09"
libraries = ["cublas", "cudnn"]
size_mib = 478.0
"""
BARE = CONTEXT.replace('"cublas", "cudnn"', "").replace("478.0", "386")
BOTH = ("cublas", "cudnn")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the site file in use, for tests to write."""
    path = tmp_path / "site.toml"
    monkeypatch.setenv(cards.SITE_VARIABLE, str(path))
    return path


# ------------------------------------------------------------------------------------------------ contexts
def test_site_context_precedes_table(site: Path) -> None:
    site.write_text(CONTEXT + BARE)
    found = context_bytes("rtx4090", 13, BOTH, torch="2.11.1")
    assert (found.bytes, found.source, found.assumed) == (478 * MIB, ContextSource.SITE, False)
    assert found.provenance == f"{site} (measured on your site)"
    assert context_bytes("rtx4090", 13, (), torch="2.11.0", kernels=False).bytes == 386 * MIB
    one = context_bytes("rtx4090", 13, ("cublas",), torch="2.11.0")
    assert (one.source, one.assumed) == (ContextSource.SITE, True)
    assert 450 * MIB < one.bytes < 478 * MIB
    assert context_bytes("l4", 13, BOTH, torch="2.11.0").source is ContextSource.INTERPOLATED


def test_site_context_of_other_torch_precedes_table(site: Path) -> None:
    site.write_text(CONTEXT)
    found = context_bytes("rtx4090", 13, BOTH, torch="2.8.0")
    assert (found.bytes, found.source) == (478 * MIB, ContextSource.OTHER_STACK)
    assert context_bytes("rtx4090", 13, BOTH).source is ContextSource.OTHER_STACK


def test_site_context_with_cuda_11(site: Path) -> None:
    site.write_text(CONTEXT.replace("2.11.0+cu130", "2.6.0+cu118").replace("478.0", "1500"))
    found = context_bytes("rtx4090", 11, BOTH, torch="2.6.0")
    assert (found.bytes, found.source, found.assumed) == (1500 * MIB, ContextSource.SITE, False)
    assert context_bytes("rtx4090", 11, BOTH, torch="2.5.0").source is ContextSource.INTERPOLATED


def test_site_may_give_its_own_range(site: Path) -> None:
    site.write_text(CONTEXT + "low_mib = 470\nhigh_mib = 500\n")
    found = context_bytes("rtx4090", 13, BOTH, torch="2.11.0")
    assert (found.low_bytes, found.high_bytes) == (470 * MIB, 500 * MIB)
    assert found.above_bytes(0.5) == 0
    assert found.above_bytes(0.9) == 22 * MIB
    site.write_text(CONTEXT)
    os.utime(site, ns=(0, 0))
    assert context_bytes("rtx4090", 13, BOTH, torch="2.11.0").above_bytes(0.99) > 22 * MIB


def test_rereads_changed_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_text("")
    assert context_bytes("rtx4090", 13, BOTH, torch="2.11.0").source is ContextSource.OTHER_STACK
    site.write_text(CONTEXT)
    assert context_bytes("rtx4090", 13, BOTH, torch="2.11.0").source is ContextSource.SITE
    monkeypatch.setenv(cards.SITE_VARIABLE, "")
    assert context_bytes("rtx4090", 13, BOTH, torch="2.11.0").source is ContextSource.OTHER_STACK


def test_row_of_same_torch_precedes_site_row(site: Path) -> None:
    site.write_text(CONTEXT.replace("GeForce RTX 4090", "H100").replace("2.11.0+cu130", "2.8.0").replace("478.0", "900"))
    assert context_bytes("h100", 12, BOTH, torch="2.8.1").source is ContextSource.SITE
    of_table = context_bytes("h100", 12, BOTH, torch="2.9.1")
    assert of_table.source is ContextSource.MEASURED
    assert of_table.bytes != 900 * MIB
    assert context_bytes("h100", 12, BOTH, torch="2.7.0").bytes == 900 * MIB  # both of another torch: the site's


# ------------------------------------------------------------------------------------------------ cards
def test_site_card_is_a_device(site: Path) -> None:
    site.write_text(CARD + CONTEXT)
    for name in ("a40", "A40", "NVIDIA A40"):
        assert device(name).key == "a40"
    card = device("a40")
    assert (card.total_bytes, card.sm_count, card.compute_capability) == (47_676_129_280, 84, (8, 6))
    assert (card.threads_per_sm, card.shared_per_sm_bytes) == (1536, 102_400)  # from its capability
    assert card_bytes("a40") == 47_676_129_280
    assert DEVICES["a40"].total_bytes != card.total_bytes  # the site's own precedes the table's
    with pytest.raises(UsageError, match=r"Related: a40 \(vramcast devices lists all\)"):
        device("a401")


def test_row_matches_name_in_logs(site: Path) -> None:
    site.write_text(CARD)
    found = context_bytes("a40", 12, (), torch="2.6.0", kernels=False)
    assert (found.bytes, found.source) == (260 * MIB, ContextSource.MEASURED)
    assert context_bytes("a40", 13, BOTH).source is ContextSource.INTERPOLATED


def test_file_with_one_card_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "my-card.toml"
    path.write_text(CARD)
    card = device(str(path))
    assert card.name == "NVIDIA A40"
    assert card_bytes(str(path)) == card.total_bytes
    context = context_bytes(card, 13, BOTH)
    assert PublicBound(1 << 30, frozenset(BOTH)).quantile(0.99, card, context) > context.bytes + (1 << 30)
    path.write_text(CARD.replace("8.6", "9.9"))
    with pytest.raises(UsageError, match=r"shared_per_sm_bytes, .* is missing"):  # the limits of such a capability are unknown
        device(str(path))
    path.write_text(CARD + CARD.replace("a40", "a41"))
    with pytest.raises(UsageError, match="2 cards and 0 contexts"):
        device(str(path))
    path.write_text(CARD + CONTEXT)
    with pytest.raises(UsageError, match="1 cards and 1 contexts"):
        device(str(path))
    with pytest.raises(UsageError, match=r"gone\.toml' cannot be read: No such file"):
        device(str(tmp_path / "gone.toml"))


LIKE = """
[[card]]
key = "rtx3090-48gb"
like = "rtx3090"
total_bytes = 51_000_000_000
"""


def test_like_inherits_fields(site: Path) -> None:
    site.write_text(LIKE)
    card, other = device("rtx3090-48gb"), DEVICES["rtx3090"]
    assert card == dataclasses.replace(other, key="rtx3090-48gb", total_bytes=51_000_000_000)
    assert card.peak == other.peak
    assert device("rtx3090") is device(other.name) is other  # a copied name stays that of the other card


def test_like_prefers_same_file(site: Path) -> None:
    site.write_text(CARD + LIKE.replace("rtx3090-48gb", "a40-b").replace("rtx3090", "a40"))
    assert device("a40-b").clock_khz == 1_740_000
    site.write_text(LIKE.replace("rtx3090-48gb", "rtx3090"))
    assert device("rtx3090") == dataclasses.replace(DEVICES["rtx3090"], total_bytes=51_000_000_000)


def test_like_inherits_assumed_until_overridden(site: Path) -> None:
    site.write_text(LIKE.replace('"rtx3090"', '"rtx5080-laptop"'))
    card = device("rtx3090-48gb")
    assert card.assumed == DEVICES["rtx5080-laptop"].assumed == ("memory_clock_khz", "l2_bytes")
    assert card.peak is not None
    assert card.peak.assumed
    site.write_text(LIKE.replace('"rtx3090"', '"rtx5080-laptop"') + 'l2_bytes = 1\nassumed = ["total_bytes"]\n')
    assert device("rtx3090-48gb").assumed == ("memory_clock_khz", "total_bytes")


def test_other_capability_has_its_own_limits(site: Path) -> None:
    site.write_text(CARD + "threads_per_sm = 1024\n" + LIKE.replace("rtx3090-48gb", "b").replace("rtx3090", "a40"))
    assert device("b").threads_per_sm == 1024
    site.write_text(site.read_text() + 'compute_capability = "8.0"\n')
    assert (device("b").threads_per_sm, device("b").shared_per_sm_bytes) == (2048, 167_936)


@pytest.mark.parametrize(
    "text",
    [
        LIKE.replace('"rtx3090"', '"rtx3091"'),
        LIKE.replace('"rtx3090"', '"rtx3090-48gb"'),  # itself
        LIKE.replace('"rtx3090"', '"b"') + '[[card]]\nkey = "b"\nlike = "rtx3090-48gb"\n',  # each other
        LIKE.replace('"rtx3090"', "3090"),
        LIKE.replace('"rtx3090"', '["rtx3090"]'),
    ],
)
def test_rejects_unknown_like(site: Path, text: str) -> None:
    site.write_text(text)
    with pytest.raises(UsageError, match=r"\[\[card\]\] 1: like is .*the key of a card above this one"):
        device("h200")


def test_accepts_own_alias_and_peak(site: Path) -> None:
    site.write_text(CARD + 'aliases = ["big one"]\npeak_tflops = { fp32 = 1, tf32 = 2, half = 3.5 }\n')
    assert device("Big-One").key == "a40"
    assert device("a40").peak == PeakSpeeds(1, 2, 3.5)
    site.write_text(CARD)
    assert device("a40").peak is None


def test_context_applies_to_one_loading_mode(site: Path) -> None:
    site.write_text(CONTEXT + "cuda = 11\n")
    assert context_bytes("rtx4090", 13, BOTH, torch="2.11.0").source is not ContextSource.SITE
    assert context_bytes("rtx4090", 11, BOTH, torch="2.11.0").source is ContextSource.SITE


# ------------------------------------------------------------------------------------------------ wrong files
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('gpu = "NVIDIA GeForce RTX 4090"\n', "", r"\[\[context\]\] 1: the field gpu is missing"),
        ("478.0", '"478"', "size_mib is '478': a finite number"),
        ("478.0", "-1", "size_mib is -1: it must be between"),
        ("478.0", "0", "size_mib is 0 between"),
        ("478.0", "nan", "size_mib is nan: a finite number"),
        ("478.0", "1e300", "size_mib is 1e"),
        ("478.0", "true", "size_mib is True"),
        ("478.0", "478\nlow_mib = 500", "ascending order"),
        ("478.0", "478\nhigh_mib = 100", "ascending order"),
        ("478.0", "478\nshade = 1", "the field 'shade' is unknown"),
        ('"2.11.0+cu130"', '"eleven"', "torch is 'eleven': a version such as 2.11.0"),
        ('"2.11.0+cu130"', "2.11", "torch is 2.11"),
        ('["cublas", "cudnn"]', '"cublas"', "libraries is 'cublas': a list"),
        ('["cublas", "cudnn"]', '["nccl"]', "libraries is"),
        ('["cublas", "cudnn"]', "[[1]]", "libraries is"),
        ('"580.126.09"', '"' + "5" * 200 + '"', "driver is '555"),
        ('"580.126.09"', "580", "driver is 580"),
        ("[[context]]", "[context]", "only .*context.* and .*card.* are known"),
        ("[[context]]", "[[contexts]]", "'contexts'"),
        ("[[context]]", "[[context", "is not TOML"),
        ("size_mib", "[" * 5000, "is not TOML"),
        ('"NVIDIA A40"', '"A;40"', "name is 'A;40'"),
        ('"a40"', '"A 40"', "key is 'A 40'"),
        ('"a40"', '""', "key is ''"),
        ("47_676_129_280", "48_000", "total_bytes is 48000: at least"),
        ("47_676_129_280", "47.5", "total_bytes is 47.5: a whole number"),
        ("47_676_129_280", str(2**60), "total_bytes is .*at most"),
        ("sm_count = 84", "sm_count = -84", "sm_count is -84"),
        ("sm_count = 84", "", "sm_count is missing"),
        ("sm_count = 84", "sm_count = 84\nthreads_per_sm = 0", "threads_per_sm is 0"),
        ("sm_count = 84", "sm_count = 84\nshared_per_sm_bytes = 1000", "shared_per_block_optin_bytes is more"),
        ("sm_count = 84", "sm_count = 84\naliases = [1]", "aliases is 1"),
        ("sm_count = 84", "sm_count = 84\nassumed = 1", "assumed is 1"),
        ("sm_count = 84", "sm_count = 84\npeak_tflops = 1", "peak_tflops is 1: a table"),
        ("sm_count = 84", "sm_count = 84\npeak_tflops = { fp32 = 1 }", "peak_tflops: the field tf32 is missing"),
        ("sm_count = 84", "sm_count = 84\npeak_tflops = { fp32 = 1, tf32 = 1, half = -1 }", "half is -1"),
        ('"8.6"', "86", "compute_capability is 86"),
        ('"8.6"', '"eight"', "compute_capability is 'eight'"),
        ("sm_count = 84", "sm_count = 84\nassumed = ['key']", "assumed is .*: a list of 'total_bytes'"),
    ],
)  # fmt: skip
def test_rejects_wrong_field_by_name(site: Path, old: str, new: str, says: str) -> None:
    text = CONTEXT + CARD
    assert old in text
    site.write_text(text.replace(old, new))
    for ask in (lambda: device("h200"), lambda: context_bytes(DEVICES["h200"], 13, BOTH)):
        with pytest.raises(UsageError, match=says) as raised:
            ask()
        assert str(site) in str(raised.value)
        assert len(str(raised.value)) < 500


def test_rejects_non_text_file(site: Path) -> None:
    for make in (
        lambda: site.write_bytes(b"\xff\xfe"),
        lambda: site.write_bytes(b"#" * (2**20 + 1)),
        lambda: (site.unlink(), site.mkdir()),
    ):
        make()
        with pytest.raises(UsageError, match=str(site)):
            device("h200")
    site.rmdir()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        device("h200")


def test_rejects_duplicate_key(site: Path) -> None:
    site.write_text(CARD + CARD)
    with pytest.raises(UsageError, match="'a40' occurs twice"):
        device("h200")


# ------------------------------------------------------------------------------------------------ writing
def context(mib: float = 478.25, libraries: tuple[str, ...] = BOTH, gpu: str = "NVIDIA L4") -> ContextRow:
    return ContextRow((gpu,), frozenset(libraries), Interval(mib, mib, mib), "", ("2.11.0+cu130",), "580.1")


def test_written_context_replaces_equal_one(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    write_contexts(path, [context(), context(200, ())])
    write_contexts(path, [context(480)])
    found = cards.read(path).contexts
    assert [(one.libraries, one.size.mib) for one in found] == [(frozenset(), 200), (frozenset(BOTH), 480)]
    assert [one.name for one in tmp_path.iterdir()] == ["site.toml"]


def test_keeps_rest_of_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f"# ours\n{CARD}# measured in May\n{CONTEXT}# about the next\n{context_block(context())}# the end\n{BARE}")
    write_contexts(path, [context(500)])
    text = path.read_text()
    for kept in ("# ours", "# measured in May", "# about the next", "# the end", CARD.strip(), CONTEXT.strip(), BARE.strip()):
        assert kept in text
    assert [one.size.mib for one in cards.read(path).contexts] == [478, 386, 500]


def test_keeps_file_with_unsupported_layout(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    inline = 'context = [{gpu = "NVIDIA L4", torch = "2.11.0+cu130", driver = "580.1", libraries = [], size_mib = 7}]\n'
    path.write_text(inline)
    with pytest.raises(UsageError, match=r"is not TOML|by program"):
        write_contexts(path, [context()])
    assert path.read_text() == inline
    path.write_text("what = 1\n")
    with pytest.raises(UsageError, match="'what'"):
        write_contexts(path, [context()])
    with pytest.raises(OutputError, match="cannot be written"):
        write_contexts(tmp_path / "no" / "site.toml", [context()])


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)
mibs = st.floats(0.01, 60_000)


@given(st.lists(st.tuples(names, mibs, st.sets(st.sampled_from(BOTH))), min_size=1, max_size=5))
def test_any_contexts_round_trip(tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, float, set[str]]]) -> None:
    path = tmp_path_factory.mktemp("site") / "site.toml"
    rows = {(gpu, frozenset(libraries)): context(mib, tuple(libraries), gpu) for gpu, mib, libraries in drawn}
    write_contexts(path, list(rows.values()))
    write_contexts(path, list(rows.values()))
    found = cards.read(path).contexts
    assert {(*one.gpus, one.libraries): one.size.mib for one in found} == {key: one.size.mib for key, one in rows.items()}
    assert len(found) == len(rows)
    assert set(tomllib.loads(path.read_text())) == {"context"}


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_parse_or_raise_usage_error(data: bytes) -> None:
    with suppress(UsageError):
        cards.of_site(data, Path("x"))


def test_related_card_needs_a_name_and_its_memory(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text('[[card]]\nname = "My Card"\nlike = "rtx3090"\nmemory = "12GiB"\n')
    found = device(str(file))
    assert (found.key, found.total_bytes, found.sm_count) == ("mycard", 12 << 30, DEVICES["rtx3090"].sm_count)


def test_all_wrong_fields_of_a_card_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text('[[card]]\nkey = "A 1"\nlike = "nope"\nmemory = "banana"\nsm_count = 0\ncolor = "red"\n')
    with pytest.raises(UsageError) as raised:
        device(str(file))
    found = [
        words for words in ("'A 1'", "'banana'", "'nope'", "sm_count is 0", "'color' is unknown") if words in str(raised.value)
    ]
    assert len(found) == 5
    assert "missing" not in str(raised.value)


def test_all_wrong_cards_of_a_file_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text('[[card]]\nkey = "a"\nmemory = "12GiB"\n[[card]]\nkey = "b"\nlike = "nope"\n')
    with pytest.raises(UsageError, match=r"(?s)name, compute_capability, sm_count.*like is 'nope'"):
        device(str(file))
