"""The names of cards, as nvidia-smi, Slurm and people write them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.hardware.card_names import CardName
from vramcast.hardware.cards import DEVICES, device


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),  # nvidia-smi
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090-laptop"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA GH200 96GB HBM3", "gh200-120gb"),
        ("nvidia_a100-sxm4-80gb", "a100-80gb"),  # Slurm with AutoDetect=nvml
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("gpu:a100_80gb:2", "a100-80gb"),  # Slurm's gres
        ("gres:gpu:h100", "h100"),
        ("gpu:a100_3g.20gb:1", "a100-40gb-3g.20gb"),
        ("A100-80G", "a100-80gb"),  # people
        ("a100-80", "a100-80gb"),
        ("a100 80 gb", "a100-80gb"),
        ("a100-sxm", "a100-40gb"),
        ("A100 PCIe", "a100-pcie-40gb"),
        ("v100-32", "v100-32gb"),
        ("H100 SXM5 80GB", "h100"),
        ("rtx 3060 12GB", "rtx3060"),
        ("4090", "rtx4090"),
        ("4070 Ti", "rtx4070ti"),
        ("a6000 48gb", "rtxa6000"),
        ("L40S 48GB", "l40s"),
    ],
)
def test_finds_card_by_the_parts_of_its_name(written: str, key: str) -> None:
    assert device(written) is DEVICES[key]


@pytest.mark.parametrize(
    ("written", "suggested", "like"),
    [
        ("Tesla V100-PCIE-32GB", "v100-32gb", "v100-32gb --memory 32GiB"),
        ("NVIDIA H200 NVL", "h200", "h200"),
        ("rxt4090", "rtx4090", "rtx4090"),
        ("rtx 3060 8gb", "rtx3060", "rtx3060 --memory 8GiB"),
        ("rtx5060ti", None, "rtx5070ti"),
        ("NVIDIA GeForce RTX 5060 Ti", None, "rtx5070ti"),
        ("rtx 4060 ti 16gb", "rtx4060ti", "rtx4060ti --memory 16GiB"),
        ("NVIDIA GeForce RTX 4090 D", None, "rtx4090"),
        ("rtx4091", None, "rtx4090"),
        ("3090ti", None, "rtx3090"),
        ("NVIDIA A10G", None, "a10"),
        ("L40", None, "l40s"),
        ("rtx a5000", None, "rtxa6000"),
        ("h100_1g.10gb", None, "rtx3090"),
        ("Quadro RTX 6000", None, "rtx3090"),
    ],
)
def test_another_card_is_not_taken_but_named(written: str, suggested: str | None, like: str) -> None:
    with pytest.raises(UsageError) as raised:
        device(written)
    message = str(raised.value)
    assert f"(--on {like}" in message
    assert ("Did you mean" in message) is (suggested is not None)
    assert suggested is None or f"Did you mean '{suggested}'" in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("written", "says"),
    [("cuda:0", "is no model of a card"), ("gpu", "is no model of a card"), ("24GiB", "give it with --memory")],
)
def test_word_that_names_no_card_is_answered_with_what_does(written: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        device(written)


@given(st.sampled_from(sorted(DEVICES)), st.sampled_from(["", "NVIDIA ", "gpu:"]), st.sampled_from(["", ":4"]))
def test_each_part_of_a_key_leads_back_to_its_card(key: str, before: str, after: str) -> None:
    card = DEVICES[key]
    if not before.startswith("gpu"):
        after = ""
    assert device(f"{before}{key.replace('-', '_').upper()}{after}") is card
    assert CardName.of(card.name).means(card)


@given(st.text(max_size=40))
def test_any_text_is_a_card_or_wrong_usage(text: str) -> None:
    with suppress(UsageError):
        assert device(text).key in DEVICES
