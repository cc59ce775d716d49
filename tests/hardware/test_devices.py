"""The table of cards: complete, plausible, and every number says where it comes from."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
import tokenize
from pathlib import Path

import pytest

from vramcast.core.errors import UsageError
from vramcast.core.units import GIB
from vramcast.hardware import devices
from vramcast.hardware.devices import DEVICES, Device, device

# Key: memory it is sold with, GiB; bandwidth of the data sheet, GB/s.
SHEET = {
    "v100-16gb": (16, 900),
    "v100-32gb": (32, 900),
    "t4": (16, 320),
    "a10": (24, 600),
    "a100-40gb": (40, 1555),
    "a100-pcie-40gb": (40, 1555),
    "a100-80gb": (80, 2039),
    "l4": (24, 300),
    "l40s": (48, 864),
    "h100": (80, 3350),
    "h100-pcie": (80, 2039),
    "h100-nvl": (94, 3938),
    "h200": (141, 4800),
    "b200": (180, 7700),
    "rtx3060": (12, 360),
    "rtx3090": (24, 936),
    "rtx4060": (8, 272),
    "rtx4080": (16, 717),
    "rtx4090": (24, 1008),
    "rtx5080-laptop": (16, 896),
    "rtx5090": (32, 1792),
}
MARK = re.compile(r"#\s*(spec|measured|arbitrary)\b")
# From the prototype of the deviceless mode: cuDNN 9.19 refuses a record which lacks one of these.
CUDNN_KEYS = {
    *("maxGridSize", "maxBlockSize", "cudaDeviceId", "deviceVer", "driverVer", "regsPerBlock", "multiProcessorCount"),
    *("smCountOrigin", "warpSize", "maxSharedMemoryPerBlock", "maxSharedMemoryPerBlockOptin", "maxSharedMemoryPerSM"),
    *("oversizedSharedMemoryPerBlock", "reservedSharedMemoryPerBlock", "maxRegistersPerSM", "maxCtasPerSM"),
    *("maxThreadsPerBlock", "maxThreadsPerSM", "pciDeviceId", "isTccDriver", "supportCoopLaunch", "smClockRateKHz"),
    *("memClockRateKHz", "memoryBusWidth", "l2CacheSize", "totalGlobalMem", "deviceName"),
}
each_card = pytest.mark.parametrize("card", DEVICES.values(), ids=lambda card: card.key)


def marked_lines(source: str) -> dict[int, str]:
    """Return the provenance mark of each line which has one."""
    comments = (t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)
    return {t.start[0]: m[1] for t in comments if (m := MARK.match(t.string))}


def table_lines(source: str) -> dict[int, str]:
    """Return the lines of the tables which hold a number: keywords of `_device(...)`, `LIMITS`, capital constants."""
    lines: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_device", "Limits"):
            values = [(k.value, k.arg or "") for k in node.keywords] + [(a, node.func.id) for a in node.args]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            values = [(node.value, node.targets[0].id)]
        else:
            continue
        for value, label in values:
            parts = list(ast.walk(value))
            has_number = any(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in parts)
            # A table which holds calls (`_ALL`) has each of them walked on its own.
            if has_number and not any(isinstance(part, ast.Call) for part in parts):
                lines[value.lineno] = label
    return lines


SOURCE = Path(devices.__file__).read_text(encoding="utf-8")


def test_the_table_has_the_cards_of_the_issue_and_no_others() -> None:
    assert list(DEVICES) == list(SHEET)
    assert all(card.key == key for key, card in DEVICES.items())


def test_every_number_of_the_tables_says_its_provenance() -> None:
    lines, marks = table_lines(SOURCE), marked_lines(SOURCE)
    # 7 numbers a card, 8 rows of limits, 8 common constants, the smallest card and the driver version.
    assert len(lines) == 7 * len(SHEET) + 8 + 10
    assert {line: label for line, label in lines.items() if line not in marks} == {}


def test_a_number_without_a_mark_is_found() -> None:
    source = "_device('x', sm_count=3,\n    l2_bytes=4,  # spec: sheet\n)\nWARP = 32  # 32 threads\n"
    assert table_lines(source) == {1: "sm_count", 2: "l2_bytes", 4: "WARP"}
    assert marked_lines(source) == {2: "spec"}


def test_arbitrary_numbers_of_a_card_are_named_in_assumed() -> None:
    marks = marked_lines(SOURCE)
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_device":
            key = ast.literal_eval(node.args[0])
            arbitrary = tuple(k.arg for k in node.keywords if marks.get(k.value.lineno) == "arbitrary")
            assert DEVICES[key].assumed == arbitrary, key


@each_card
def test_every_number_is_in_a_plausible_range(card: Device) -> None:
    assert 7 * GIB < card.total_bytes < 192 * GIB
    assert card.total_bytes % 4096 == 0
    assert 20 <= card.sm_count <= 170
    assert 1_000_000 <= card.clock_khz <= 3_000_000
    assert 800_000 <= card.memory_clock_khz <= 15_000_000
    assert 128 <= card.memory_bus_bits <= 8192
    assert 2**21 <= card.l2_bytes <= 2**27
    assert 65_536 <= card.shared_per_sm_bytes <= 233_472
    assert 49_152 < card.shared_per_block_optin_bytes <= card.shared_per_sm_bytes
    assert card.threads_per_sm in (1024, 1536, 2048)
    assert card.blocks_per_sm in (16, 24, 32)


@each_card
def test_a_card_sees_less_than_it_is_sold_with_but_not_much_less(card: Device) -> None:
    sold_gib, _ = SHEET[card.key]
    assert 0.90 < card.total_bytes / (sold_gib * GIB) < 1  # ECC alone takes 1/16 on GDDR6: 0.9375


@each_card
def test_clock_and_bus_give_the_bandwidth_of_the_data_sheet(card: Device) -> None:
    # Two transfers a clock: V100 877 MHz * 4096 bit / 8 * 2 = 898 GB/s.
    _, sheet = SHEET[card.key]
    computed = card.memory_clock_khz * 1e3 * card.memory_bus_bits / 8 * 2 / 1e9
    assert computed == pytest.approx(sheet, rel=0.01)  # data sheets round to two or three digits


@each_card
def test_the_limits_of_a_block_leave_what_cuda_keeps_of_the_shared_memory(card: Device) -> None:
    # Guide: from capability 8.0 on CUDA keeps 1 KiB of each block's shared memory.
    kept = 1024 if card.compute_capability >= (8, 0) else 0
    assert card.reserved_shared_per_block_bytes == kept
    assert card.shared_per_sm_bytes - card.shared_per_block_optin_bytes == kept


@each_card
def test_the_configuration_reads_back_as_the_card(card: Device) -> None:
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
def test_a_name_with_a_separator_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="separate pairs"):
        dataclasses.replace(DEVICES["t4"], name=name).to_config()


@each_card
def test_the_record_for_cudnn_is_complete_json(card: Device) -> None:
    record = json.loads(json.dumps(card.cudnn_record()))
    assert set(record) == CUDNN_KEYS
    assert record["deviceName"] == card.name
    assert record["totalGlobalMem"] == card.total_bytes
    major, minor = card.compute_capability
    assert record["deviceVer"] == major * 100 + minor * 10
    assert record["maxGridSize"] == [2147483647, 65535, 65535]
    assert all(type(v) is int for k, v in record.items() if k not in ("deviceName", "maxGridSize", "maxBlockSize"))


def test_attributes_are_integers_and_agree_with_the_fields() -> None:
    card = DEVICES["rtx4090"]
    attributes = card.attributes()
    assert all(type(value) is int for value in attributes.values())
    assert (attributes["compute_major"], attributes["compute_minor"]) == (8, 9)
    integers = {f.name for f in dataclasses.fields(card) if f.type == "int"}
    assert {name: attributes[name] for name in integers} == {name: getattr(card, name) for name in integers}


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
    ],
)
def test_cards_are_found_by_key_alias_and_the_name_torch_prints(written: str, key: str) -> None:
    assert device(written) is DEVICES[key]


@each_card
def test_every_key_and_every_name_finds_its_card(card: Device) -> None:
    assert device(card.key.upper()) is card
    assert device(card.name) is card


def test_an_unknown_card_names_the_closest_the_known_and_the_next_step() -> None:
    with pytest.raises(UsageError) as raised:
        device("rtx4070")
    message = str(raised.value)
    assert "'rtx4070'" in message
    assert "Did you mean 'rtx4080'?" in message or "Did you mean 'rtx4090'?" in message or "Did you mean 'rtx4060'?" in message
    assert all(key in message for key in SHEET)
    assert "--memory" in message


@pytest.mark.parametrize("nonsense", ["", "quantum computer", "NVIDIA"])
def test_a_card_without_a_close_name_is_still_a_usage_error(nonsense: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        device(nonsense)


def test_another_memory_changes_only_the_total() -> None:
    card = dataclasses.replace(DEVICES["rtx4060"], assumed=("total_bytes", "memory_clock_khz"))
    other = card.with_memory(12_000_000_000)
    assert other == dataclasses.replace(card, total_bytes=12_000_000_000, assumed=("memory_clock_khz",))
    assert DEVICES["rtx4060"].total_bytes == 8_318_222_336


@pytest.mark.parametrize("total_bytes", [0, -1])
def test_a_memory_which_is_not_positive_is_refused(total_bytes: int) -> None:
    with pytest.raises(UsageError, match="total_memory"):
        DEVICES["t4"].with_memory(total_bytes)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DEVICES["t4"] = DEVICES["l4"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEVICES["t4"].sm_count = 1  # type: ignore[misc]
