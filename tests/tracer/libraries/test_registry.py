"""The registry of foreign libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from vramcast.tracer.libraries import registry
from vramcast.tracer.libraries.library import Library, TracedProcess


def test_each_library_has_a_name_of_its_own_and_a_repair() -> None:
    found = registry.libraries()
    assert len({library.name for library in found}) == len(found) >= 7
    assert all(library.in_program or library.on_card for library in found)
    assert {"vllm", "deepspeed", "huggingface_hub"} <= {library.name for library in found}
    files = {path.stem for path in Path(registry.__file__).parent.glob("*.py")}
    assert len(files - {"compiled_cache", "inductor", "library", "registry", "triton"}) == len(found) - 1  # vLLM is an engine


def test_repairs_hold_inside_and_end_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def noting(name: str) -> Any:
        @contextmanager
        def installed(process: TracedProcess) -> Iterator[None]:
            said.append(f"{name} of {process.folder}")
            yield
            said.append(f"end {name}")

        return installed

    libraries = (Library("a", noting("a")), Library("b", noting("b"), noting("b's card")))
    monkeypatch.setattr(registry, "libraries", lambda: libraries)
    process = cast(TracedProcess, type("Process", (), {"folder": "x"})())
    with registry.in_program(process), registry.on_card(process):
        said.append("job")
    assert said == ["a of x", "b of x", "b's card of x", "job", "end b's card", "end b", "end a"]
