"""Optimizer steps that DeepSpeed would compile: they change no memory, and the values they change become unknown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vramcast.tracer.libraries.deepspeed import not_compiled


class _Values:
    def __init__(self) -> None:
        self.forgotten: list[Any] = []

    def forget(self, tensor: Any) -> None:
        self.forgotten.append(tensor)


class _Builder:
    """The relevant part of DeepSpeed's `OpBuilder`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def jit_load(self, verbose: bool = True) -> Any:
        return f"{self.name} is compiled"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> type[_Builder]:
    module = ModuleType("builder")
    vars(module)["OpBuilder"] = _Builder
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.builder", module)
    return _Builder


def test_card_step_forgets_changed_values(builder: type[_Builder]) -> None:
    values = _Values()
    with not_compiled(values):
        step = builder("fused_adam").jit_load(verbose=False).multi_tensor_adam
        step(65536, "flag", [["g1", "g2"], ["p1", "p2"], ["m1", "m2"], ["v1", "v2"]], 1e-3, 0.9, 0.999)
    assert values.forgotten == ["p1", "p2", "m1", "m2", "v1", "v2"]


def test_host_steps_do_nothing_and_others_compile(builder: type[_Builder]) -> None:
    with not_compiled(None):
        adam = builder("cpu_adam").jit_load()
        assert adam.create_adam(0, 1e-3) is adam.adam_update(0, 1) is adam.destroy_adam(0) is None
        assert builder("fused_lion").jit_load().multi_tensor_lion(1, "flag", [["g"], ["p"]]) is None
        assert builder("quantizer").jit_load() == "quantizer is compiled"
    assert builder("cpu_adam").jit_load() == "cpu_adam is compiled"


def test_deepspeed_extensions_have_listed_functions() -> None:
    pytest.importorskip("deepspeed")
    import deepspeed

    sources = [path.read_text() for path in (Path(deepspeed.__file__).parent / "ops" / "csrc").glob("*/*.cpp")]
    tables = (deepspeed._ON_CARD, deepspeed._ON_HOST)
    named = {name for table in tables for some in table.values() for name in some}
    assert {name for name in named if not any(f'"{name}"' in source for source in sources)} == set()
