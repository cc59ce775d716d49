"""Tests of GPUMemNet's classes of rows, each from an ensemble that did not learn from the row."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.cluster import memory_classes
from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.network import Network
from vramcast.core.units import MIB


def test_puts_edge_into_class_below() -> None:
    edges = [memory_classes.true_edge(size, 1000) for size in (1, 1000 * MIB, 1000 * MIB + 1)]
    assert edges == [1000 * MIB, 1000 * MIB, 2000 * MIB]


def test_gives_every_row_a_class_edge() -> None:
    rows = [(str(i), Network(i, (Layer("linear", i, 10 * i),), 10 * i), (1 + i % 3) * 900 * MIB) for i in range(1, 25)]
    edges = memory_classes.held_out(rows, 1000, epochs=2)
    assert set(edges) == {name for name, *_ in rows}
    assert set(edges.values()) <= {1000 * MIB, 2000 * MIB, 3000 * MIB}


def test_stores_edges_until_table_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_SHARED", str(tmp_path))
    monkeypatch.setattr(memory_classes, "KEPT", tmp_path / "kept")
    calls = []

    def held_out(rows: list[tuple[str, Network, int]], bin_mib: int) -> dict[str, int]:
        calls.append(bin_mib)
        return {name: size for name, _, size in rows}

    monkeypatch.setattr(memory_classes, "held_out", held_out)
    assert memory_classes.edges_of("cnn") == {}
    for peak in (900, 900, 901):
        with open(tmp_path / "gpumemnet_cnn_step1.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["Filename", "Batch Size", "Activations-Params", "Max GPU Memory (MiB)"])
            writer.writerow(["one.out", "4", "[('linear', 3, 5)]", str(peak)])
        assert list(memory_classes.edges_of("cnn").values()) == [peak * MIB]
    assert calls == [8000, 8000]
