"""Public docstrings: each names its arguments, results and errors, and its example runs."""

from __future__ import annotations

import doctest
import inspect
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import vramcast

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
SECTIONS: Final = ("Args", "Attributes", "Returns", "Raises", "Example")
RAISE_NOTHING: Final = ("gib", "evaluate", "models_needed")
NEED_NULL_GPU: Final = ("estimate_command", "Estimator.command", "plan_swap")  # commands, and traces with accesses
OPTIONS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SCRIPT: Final = """
import torch

model = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 16, device="cuda")).sum().backward()
    optimizer.step()
"""


def public() -> dict[str, Any]:
    """Return the public functions and classes by name: those of the reference page first, in its order."""
    page = re.findall(r"\.\. auto(?:function|class):: (\w+)", PAGE.read_text(encoding="utf-8"))
    found = {name: getattr(vramcast, name) for name in dict.fromkeys((*page, *vramcast.__all__)) if hasattr(vramcast, name)}
    return {name: one for name, one in found.items() if inspect.isfunction(one) or inspect.isclass(one)}


def is_error(one: Any) -> bool:
    """Return whether a public object is an error."""
    return inspect.isclass(one) and issubclass(one, Exception)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and properties of a class and its bases, in the order of the source."""
    seen = set()
    for base in kind.__mro__:
        if base.__module__ in ("builtins", "typing"):
            continue
        for name, one in vars(base).items():
            one = getattr(one, "__func__", one)
            is_shown = not name.startswith("_") and (inspect.isfunction(one) or hasattr(one, "fget") or hasattr(one, "func"))
            if is_shown and name not in seen:
                seen.add(name)
                yield name, one


def sections(doc: str | None) -> dict[str, list[str]]:
    """Return the names that each section of a docstring lists; a section without names lists its first words."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in inspect.cleandoc(doc or "").splitlines():
        if (heading := re.fullmatch(r"(\w+):", line)) and heading[1] in SECTIONS:
            current = heading[1]
            found[current] = []
        elif current and (named := re.match(r" {4}(\S[\w, *]*):? ", line)):
            found[current] += named[1].replace("*", "").split(", ")
    return found


def gaps_of_function(function: Any, required: Iterable[str] = ()) -> list[str]:
    """Return the parts that the docstring of a function lacks."""
    found = sections(function.__doc__)
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    gaps = [f"Args: {name}" for name in names if name not in found.get("Args", [])]
    if signature.return_annotation not in (None, "None") and "Returns" not in found:
        gaps.append("Returns")
    return gaps + [name for name in required if name not in found and name not in gaps]


def gaps_of_class(kind: type) -> list[str]:
    """Return the parts that the docstrings of a class and its public members lack."""
    found = sections(kind.__doc__)
    named = [*found.get("Attributes", []), *found.get("Args", [])]
    own = [one.name for one in fields(kind)] if is_dataclass(kind) else list(inspect.signature(kind).parameters)
    gaps = [f"Attributes: {name}" for name in own if name not in named and not name.startswith("_")]
    if "Example" not in found:
        gaps.append("Example")
    for name, one in members(kind):
        if inspect.isfunction(one):
            gaps += [f"{name}: {gap}" for gap in gaps_of_function(one)]
        elif not (getattr(one, "fget", None) or one.func).__doc__:
            gaps.append(f"{name}: docstring")
    return gaps


def gaps_of(one: Any) -> list[str]:
    """Return the parts that the docstring of a public function or class lacks."""
    if inspect.isclass(one):
        return gaps_of_class(one)
    return gaps_of_function(one, ("Example",) if one.__name__ in RAISE_NOTHING else ("Raises", "Example"))


def examples(objects: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the docstrings that hold examples, by name: of each object, then of its members."""
    for name, one in objects.items():
        if ">>>" in (one.__doc__ or ""):
            yield name, one.__doc__
        for part, member in members(one) if inspect.isclass(one) else ():
            if ">>>" in (member.__doc__ or ""):
                yield f"{name}.{part}", member.__doc__


# ------------------------------------------------------------------------------------------------ sections
def test_public_parts_are_documented() -> None:
    shown = {name: one for name, one in public().items() if not is_error(one)}
    assert {"estimate", "Estimator", "TensorSpec", "Trace", "simulate", "evaluate", "gib"} <= set(shown)
    assert {name: gaps for name, one in shown.items() if (gaps := gaps_of(one))} == {}


def test_errors_document_their_attributes() -> None:
    kinds = {name: one for name, one in public().items() if is_error(one)}
    assert len(kinds) > 20
    for name, one in kinds.items():
        own = set(re.findall(r"self\.(\w+) =", inspect.getsource(vars(one)["__init__"]) if "__init__" in vars(one) else ""))
        assert own <= set(sections(one.__doc__).get("Attributes", [])), name


@dataclass
class Half:
    """A class with one documented field of two.

    Attributes:
        known: Bytes.
    """

    known: int
    missing: int

    def size(self, unit: int) -> int:
        """Return the size."""
        return self.known // unit


def test_finds_missing_field_argument_and_section() -> None:
    assert gaps_of(Half) == ["Attributes: missing", "Example", "size: Args: unit", "size: Returns"]
    assert gaps_of(Half.size) == ["Args: unit", "Returns", "Raises", "Example"]


# ------------------------------------------------------------------------------------------------ examples
def test_examples_run(auto_tracer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"vramcast": vramcast}  # shared: later examples use the names of earlier ones
    parser, runner, said = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=OPTIONS), io.StringIO()
    ran = []
    for name, text in examples(public()):
        if name in NEED_NULL_GPU and auto_tracer != "nullgpu":
            continue
        test = parser.get_doctest(inspect.cleandoc(text), names, name, name, 0)
        runner.run(test, out=said.write, clear_globs=False)
        names = test.globs
        ran.append(name)
    assert not said.getvalue(), said.getvalue()
    assert len(ran) > 20
