"""The table of cards: complete, plausible, and every number has a source."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from vramcast.core.errors import UsageError
from vramcast.core.units import GIB
from vramcast.hardware import cards
from vramcast.hardware import device as hardware
from vramcast.hardware.cards import DEVICES, device
from vramcast.hardware.device import Device, mps_limit

# By key: nominal memory, GiB; bandwidth of the data sheet, GB/s.
SHEET = {
    "p100-16gb": (16, 732),
    "v100-16gb": (16, 900),
    "v100-32gb": (32, 900),
    "t4": (16, 320),
    "a10": (24, 600),
    "a30": (24, 933),
    "a40": (48, 696),
    "a100-40gb": (40, 1555),
    "a100-pcie-40gb": (40, 1555),
    "a100-80gb": (80, 2039),
    "a100-40gb-1g.5gb": (5, 1555 / 8),
    "a100-40gb-2g.10gb": (10, 1555 / 4),
    "a100-40gb-3g.20gb": (20, 1555 / 2),
    "a100-40gb-4g.20gb": (20, 1555 / 2),
    "a100-40gb-7g.40gb": (40, 1555),
    "a100-80gb-1g.10gb": (10, 2039 / 8),
    "a100-80gb-2g.20gb": (20, 2039 / 4),
    "a100-80gb-3g.40gb": (40, 2039 / 2),
    "a100-80gb-4g.40gb": (40, 2039 / 2),
    "a100-80gb-7g.80gb": (80, 2039),
    "l4": (24, 300),
    "l40s": (48, 864),
    "h100": (80, 3350),
    "h100-pcie": (80, 2039),
    "h100-nvl": (94, 3938),
    "h200": (141, 4800),
    "gh200-120gb": (96, 4000),
    "gh200-480gb": (96, 4000),
    "b200": (180, 7700),
    "gb200": (186, 8000),
    "rtxa6000": (48, 768),
    "rtx6000-ada": (48, 960),
    "rtxpro6000-max-q": (96, 1792),
    "rtx2080ti": (11, 616),
    "rtx3050-laptop": (4, 192),
    "rtx3060": (12, 360),
    "rtx3070": (8, 448),
    "rtx3070ti-laptop": (8, 448),
    "rtx3080": (10, 760),
    "rtx3080ti": (12, 912),
    "rtx3090": (24, 936),
    "rtx4050-laptop": (6, 192),
    "rtx4060": (8, 272),
    "rtx4060-laptop": (8, 256),
    "rtx4060ti": (8, 288),
    "rtx4070": (12, 504),
    "rtx4070-laptop": (8, 256),
    "rtx4070ti": (12, 504),
    "rtx4080": (16, 717),
    "rtx4090": (24, 1008),
    "rtx4090-laptop": (16, 576),
    "rtx5070ti": (16, 896),
    "rtx5080": (16, 960),
    "rtx5080-laptop": (16, 896),
    "rtx5090": (32, 1792),
    "jetson-agx-orin-64gb": (64, 204.8),
}
# From the prototype of the deviceless mode: cuDNN 9.19 rejects a record without one of these.
CUDNN_KEYS = {
    *("maxGridSize", "maxBlockSize", "cudaDeviceId", "deviceVer", "driverVer", "regsPerBlock", "multiProcessorCount"),
    *("smCountOrigin", "warpSize", "maxSharedMemoryPerBlock", "maxSharedMemoryPerBlockOptin", "maxSharedMemoryPerSM"),
    *("oversizedSharedMemoryPerBlock", "reservedSharedMemoryPerBlock", "maxRegistersPerSM", "maxCtasPerSM"),
    *("maxThreadsPerBlock", "maxThreadsPerSM", "pciDeviceId", "isTccDriver", "supportCoopLaunch", "smClockRateKHz"),
    *("memClockRateKHz", "memoryBusWidth", "l2CacheSize", "totalGlobalMem", "deviceName"),
}
each_card = pytest.mark.parametrize("card", DEVICES.values(), ids=lambda card: card.key)


NUMBER = re.compile(r"(\w+) = [^#]*\d[^#]*(?:#\s*(spec|measured|arbitrary)\b.*|#.*)?")
TABLE = Path(str(cards.__file__)).with_name("cards.toml").read_text(encoding="utf-8")
NUMBERS = ("total_bytes", "compute_capability", "sm_count", "clock_khz", "memory_clock_khz", "memory_bus_bits", "l2_bytes")


def marks_of(table: str) -> dict[str, str | None]:
    """Return the provenance mark of each number in a card's table; None if it has no mark."""
    lines = [found for line in table.splitlines() if (found := NUMBER.fullmatch(line))]
    return {line[1]: line[2] for line in lines if line[1] not in ("key", "like", "name", "aliases", "assumed")}


def tables() -> dict[str, str]:
    """Return the text of each card's table."""
    texts = TABLE.partition("[[context]]")[0].split("[[card]]")[1:]
    return {text.partition('key = "')[2].partition('"')[0]: text for text in texts}


def test_table_lists_expected_cards() -> None:
    assert list(DEVICES) == list(SHEET) == list(tables())
    assert all(card.key == key for key, card in DEVICES.items())


def test_every_number_has_a_provenance_mark() -> None:
    for key, table in tables().items():
        marks = marks_of(table)
        assert "like = " in table or set(NUMBERS) <= marks.keys(), key
        assert {name for name, mark in marks.items() if mark is None} == set(), key
    contexts = TABLE.split("[[context]]")[1:]
    assert len(contexts) == len(cards.built_in().contexts)
    assert all(re.search(r"^size_mib = [\d.]+  # measured: ", one, re.MULTILINE) for one in contexts)


def test_every_capability_number_has_a_provenance_mark() -> None:
    lines = Path(str(hardware.__file__)).read_text(encoding="utf-8").splitlines()
    numbers = [line for line in lines if re.match(r"(_?[A-Z_]+ = .*\d|    \(\d+, \d\): ComputeLimits)", line)]
    assert len(numbers) == 9 + len(hardware.LIMITS)
    assert [line for line in numbers if not re.search(r"  # (spec|measured|arbitrary): ", line)] == []


def test_detects_number_without_mark() -> None:
    assert marks_of('key = "a1"\nsm_count = 3\nl2_bytes = 4  # spec: sheet\n# spec: sheet\nclock_khz = 3  # 3\n') == {
        "sm_count": None, "l2_bytes": "spec", "clock_khz": None,
    }  # fmt: skip


def test_assumed_lists_arbitrary_numbers() -> None:
    for key, table in tables().items():
        arbitrary = [name for name, mark in marks_of(table).items() if mark == "arbitrary"]
        assert tomllib.loads(table).get("assumed", []) == arbitrary, key


def test_card_names_are_unique() -> None:
    names = Counter(name for card in DEVICES.values() for name in set(card.names))
    assert [name for name, count in names.items() if count > 1] == []


@each_card
def test_peaks_state_assumptions(card: Device) -> None:
    assert card.peak is not None
    assert 0 < card.peak.fp32 <= card.peak.tf32 <= card.peak.half
    assert card.peak.assumed == ("peak_tflops" in tomllib.loads(tables()[card.key]).get("assumed", []))


@each_card
def test_numbers_are_plausible(card: Device) -> None:
    assert 3 * GIB < card.total_bytes < 192 * GIB
    assert card.total_bytes % 4096 == 0
    assert 14 <= card.sm_count <= 188
    assert 1_000_000 <= card.clock_khz <= 3_000_000
    assert 700_000 <= card.memory_clock_khz <= 16_000_000
    assert 96 <= card.memory_bus_bits <= 8192
    assert 2**21 <= card.l2_bytes <= 1.01 * 2**27
    assert 65_536 <= card.shared_per_sm_bytes <= 233_472
    assert 49_152 <= card.shared_per_block_optin_bytes <= card.shared_per_sm_bytes
    assert card.threads_per_sm in (1024, 1536, 2048)
    assert card.blocks_per_sm in (16, 24, 32)


@each_card
def test_total_is_slightly_below_nominal_size(card: Device) -> None:
    sold_gib, _ = SHEET[card.key]
    assert 0.90 < card.total_bytes / (sold_gib * GIB) < 1  # ECC alone takes 1/16 on GDDR6: 0.9375


@each_card
def test_clock_and_bus_give_datasheet_bandwidth(card: Device) -> None:
    # Two transfers per clock: V100 877 MHz * 4096 bit / 8 * 2 = 898 GB/s.
    _, sheet = SHEET[card.key]
    computed = card.memory_clock_khz * 1e3 * card.memory_bus_bits / 8 * 2 / 1e9
    assert computed == pytest.approx(sheet, rel=0.01)  # data sheets round to two or three digits


@each_card
def test_block_limit_leaves_reserved_shared_memory(card: Device) -> None:
    # Guide: from capability 8.0 on, CUDA reserves 1 KiB of each block's shared memory.
    kept = 1024 if card.compute_capability >= (8, 0) else 0
    assert card.reserved_shared_per_block_bytes == kept
    if card.compute_capability >= (7, 0):  # before, no block could request more
        assert card.shared_per_sm_bytes - card.shared_per_block_optin_bytes == kept


@each_card
def test_configuration_round_trip(card: Device) -> None:
    pairs = dict(pair.split("=") for pair in card.to_config().split(";"))
    name = pairs.pop("name")
    numbers = {key: int(value) for key, value in pairs.items()}
    capability = (numbers.pop("major"), numbers.pop("minor"))
    assert (name, capability) == (card.name, card.compute_capability)
    assert numbers == {key: getattr(card, key) for key in numbers}
    assert set(numbers) == {
        *("total_bytes", "sm_count", "clock_khz", "memory_clock_khz", "memory_bus_bits", "l2_bytes"),
        *("shared_per_sm_bytes", "shared_per_block_optin_bytes", "threads_per_sm", "blocks_per_sm"),
    }


@pytest.mark.parametrize("name", ["H100;total_bytes=1", "a=b"])
def test_rejects_separator_in_name(name: str) -> None:
    with pytest.raises(UsageError, match="separate pairs"):
        dataclasses.replace(DEVICES["t4"], name=name).to_config()


@each_card
def test_cudnn_record_is_complete_json(card: Device) -> None:
    record = json.loads(json.dumps(card.cudnn_record()))
    assert set(record) == CUDNN_KEYS
    assert record["deviceName"] == card.name
    assert record["totalGlobalMem"] == card.total_bytes
    major, minor = card.compute_capability
    assert record["deviceVer"] == major * 100 + minor * 10
    assert record["maxGridSize"] == [2147483647, 65535, 65535]
    assert all(type(v) is int for k, v in record.items() if k not in ("deviceName", "maxGridSize", "maxBlockSize"))


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("RTX4090", "rtx4090"),
        ("rtx 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3060", "rtx3060"),
        ("a100", "a100-40gb"),
        ("A100-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("v100", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla T4", "t4"),
        ("h100-80gb", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("nvidia h200", "h200"),
        ("A6000", "rtxa6000"),
        ("gh200", "gh200-120gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb-3g.20gb"),
    ],
)
def test_finds_card_by_key_alias_or_name(written: str, key: str) -> None:
    assert device(written) is DEVICES[key]


@each_card
def test_every_name_finds_its_card(card: Device) -> None:
    assert device(card.key.upper()) is card
    assert device(card.name) is card


def test_unknown_card_lists_its_family_and_is_not_taken_for_another() -> None:
    with pytest.raises(UsageError) as raised:
        device("rtx4075")
    message = str(raised.value)
    assert "'rtx4075'" in message
    assert "Did you mean" not in message
    assert all(key in message for key in SHEET if key.startswith("rtx40"))
    assert "rtx3090" not in message
    assert "--on rtx4070 --memory" in message


def test_card_with_a_typing_error_is_suggested() -> None:
    with pytest.raises(UsageError, match="Did you mean 'rtx4090'"):
        device("rxt4090")


@pytest.mark.parametrize("nonsense", ["", "quantum computer", "NVIDIA"])
def test_unknown_card_without_suggestion(nonsense: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        device(nonsense)


def test_with_memory_changes_only_total() -> None:
    card = dataclasses.replace(DEVICES["rtx4060"], assumed=("total_bytes", "memory_clock_khz"))
    other = card.with_memory(12_000_000_000)
    assert other == dataclasses.replace(card, total_bytes=12_000_000_000, assumed=("memory_clock_khz",))
    assert DEVICES["rtx4060"].total_bytes == 8_318_222_336


@pytest.mark.parametrize("total_bytes", [0, -1])
def test_rejects_non_positive_memory(total_bytes: int) -> None:
    with pytest.raises(UsageError, match="total_memory"):
        DEVICES["t4"].with_memory(total_bytes)


def test_table_is_immutable() -> None:
    with pytest.raises(TypeError):
        DEVICES["t4"] = DEVICES["l4"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEVICES["t4"].sm_count = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        DEVICES.pop("t4")  # type: ignore[attr-defined]


def test_devices_alias_exports_cards() -> None:
    import vramcast
    import vramcast.devices
    from vramcast.devices import DEVICES as THEIRS

    assert THEIRS is DEVICES is vramcast.devices.DEVICES
    assert vramcast.devices.device is device
    assert vramcast.devices.Device is Device
    with pytest.raises(AttributeError):
        vramcast.devices.nothing  # noqa: B018
    with pytest.raises(ImportError):
        from vramcast.devices import nothing  # noqa: F401


@pytest.mark.integration
def test_import_reads_no_cards_and_no_torch() -> None:
    code = (
        "import sys; import vramcast.devices; assert 'vramcast.hardware.cards' not in sys.modules;"
        "from vramcast.devices import device, DEVICES;"
        "from vramcast.hardware.cards import built_in; assert not built_in.cache_info().currsize;"
        "assert device('t4') is DEVICES['t4']; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("value", "left"),
    [("0=1G", 1 << 30), ("0=1g,1=512M", 512 << 20), ("0=2048M", 2 << 30), ("", None), ("0=", None), ("none", None)],
)
def test_mps_limits_a_card(value: str, left: int | None) -> None:
    assert mps_limit({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": value}) == left
    assert mps_limit({}) is None
