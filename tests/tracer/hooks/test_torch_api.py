"""Private names: PyTorch's all in one table and all in the installed torch; those of other libraries in one file each."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  # its import takes seconds, which no test should be charged with

import vramcast
from benchmarks.new_torch import FIELDS, missing
from vramcast.core.errors import NullGpuError
from vramcast.core.releases import SEEN
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.torch_api import NAMES, REPLACED, Name

ROOT = Path(vramcast.__file__).resolve().parents[1]
PRODUCT = ("vramcast", "tracer", "simulator", "learner", "datasets", "models")
FILES = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "torch_api.py"]
DOCUMENTED = {"_exit", "_fields", "_getframe", "_replace"}  # documented in Python's own manual
# Private names of other libraries: each is in one file only.
OTHERS = {
    "_ARGCOMPLETE": "argcomplete",
    "_ActionsContainer": "argparse",
    "_ArgumentGroup": "argparse",
    "_action_groups": "argparse",
    "_class_name": "diffusers",
    "_core": "numpy",
    "_frombuffer": "numpy",
    "_model_mapping": "transformers",
    "_name_or_path": "transformers",
    "_actions": "argparse",
    "_option_string_actions": "argparse",
    "_python_exit": "concurrent.futures",
    "_reconstruct": "numpy",
    "_run_exitfuncs": "atexit",
    "_Unpickler": "pickle",
}
ENDINGS = {
    "_bytes",
    "_gib",
    "_mb",
    "_median",
    "_mib",
    "_share",
    "_size",
    "_token",
    "_token_id",
    "_token_index",
}  # endings of our own names
OPERATORS = ("torch.ops.", "aten.", "_aten.")  # ATen's and torchvision's schemas
FIELD_NAMES = {field for fields in FIELDS.values() for field in fields}
KNOWN = DOCUMENTED | OTHERS.keys() | ENDINGS | FIELD_NAMES
IS_NAME = re.compile(r"\w+").fullmatch


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(trees: list[ast.Module]) -> set[str]:
    """Return every name that the product itself defines."""
    names = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def foreign(tree: ast.Module, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each private name of another library in a module's code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "vramcast":
            for name in node.names:
                if any(map(is_private, f"{node.module}.{name.name}".split("."))) and name.name not in OTHERS:
                    yield node.lineno, f"from {node.module} import {name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if any(map(is_private, name.name.split("."))):
                    yield node.lineno, f"import {name.name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            text = ast.unparse(node)
            of_torch = text.startswith("torch.")
            allowed = text.startswith(OPERATORS) or node.attr in FIELD_NAMES or (node.attr in ours and not of_torch)
            if not allowed and node.attr not in DOCUMENTED | OTHERS.keys():
                yield node.lineno, text


def foreign_texts(tree: ast.Module, operators: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each private name of another library in a text; prose is left out.

    Args:
        tree: A module.
        operators: The names of torch's operators, which may be named in whole or in part.
    """
    prose: set[int] = set()  # parts of longer texts, docstrings; a node comes before its children
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            prose.update(map(id, node.values))
        elif isinstance(node, ast.Expr):
            prose.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "_" in node.value and id(node) not in prose:
            names = re.split(r"[.:/]+", node.value)
            is_foreign = any(is_private(name) and name not in KNOWN for name in names) and all(map(IS_NAME, names))
            if is_foreign and (names[0] == "torch" or names[-1] not in operators):
                yield node.lineno, node.value


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    gc.disable()  # a collection visits all existing nodes: two thirds of the time
    try:
        return {path: ast.parse(path.read_text()) for path in FILES}
    finally:
        gc.enable()


def test_only_table_names_private_parts_of_torch(trees: dict[Path, ast.Module]) -> None:
    assert len(FILES) > 100
    ours = defined(list(trees.values()))
    found = [f"{path.relative_to(ROOT)}:{line}: {text}" for path, tree in trees.items() for line, text in foreign(tree, ours)]
    assert not found, "move them to tracer/hooks/torch_api.py:\n" + "\n".join(found)


def test_only_table_has_private_names_as_text(trees: dict[Path, ast.Module]) -> None:
    operators = "\n".join([*torch_api.all_operator_names(), "torchvision::_roi_align_backward"])
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in foreign_texts(tree, operators)
    ]
    assert not found, "move them to tracer/hooks/torch_api.py:\n" + "\n".join(found)


@pytest.mark.parametrize("name", OTHERS)
def test_other_libraries_names_are_in_one_file(name: str) -> None:
    assert len([path for path in FILES if re.search(rf"\b{name}\b", path.read_text())]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo.eval_frame",
        "from torch.utils._pytree import tree_map",
        "from torch.cuda import _lazy_call",
        "torch._C._cuda_emptyCache()",
        "torch._C.DispatchKey.CUDA",
        "setattr(torch._C, name, value)",
        "tensor._something_of_torch()",
    ],
)
def test_rule_finds_private_names(text: str) -> None:
    assert list(foreign(ast.parse(text), set()))


@pytest.mark.parametrize(
    "text", ["'torch._inductor'", "getattr(tensor, '_local_tensor', tensor)", "'torch/_inductor/compile_worker'"]
)
def test_rule_finds_names_in_texts(text: str) -> None:
    assert list(foreign_texts(ast.parse(f"x = {text}"), "aten::_softmax"))


@pytest.mark.parametrize("text", ["'_softmax'", "'aten::_softmax'", "'_size'", "'write torch.cuda.memory._snapshot()'"])
def test_rule_allows_operators_and_prose(text: str) -> None:
    assert not list(foreign_texts(ast.parse(f"x = {text}"), "aten::_softmax"))


@pytest.mark.parametrize("text", ["torch.ops.aten._softmax", "self._mine", "tensor._is_view()", "torch.cuda.init()"])
def test_rule_allows_own_and_public_names(text: str) -> None:
    assert not list(foreign(ast.parse(text), {"_mine"}))


def test_every_name_is_used() -> None:
    text = "\n".join(path.read_text() for path in FILES)
    assert [name for name in (*NAMES, *REPLACED) if name not in text] == []


@pytest.mark.integration  # imports torch's compiler
def test_installed_torch_has_all_names() -> None:
    assert missing() == []


# Their import takes seconds: the compiler, and modules that import it or many others.
SLOW_MODULES = ("torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.distributed.fsdp")


def marked(paths_of: dict[str, tuple[str, ...]]) -> list[Any]:
    """Return the names as parameters of a test; those of slow modules make it an integration test."""
    return [
        pytest.param(ours, marks=pytest.mark.integration if any(path.startswith(SLOW_MODULES) for path in paths) else ())
        for ours, paths in paths_of.items()
    ]


@pytest.mark.parametrize("ours", marked({ours: entry.paths for ours, entry in NAMES.items()}))
def test_each_name_exists_or_explains_absence(ours: str) -> None:
    entry = NAMES[ours]
    assert entry.since in SEEN
    if torch_api.has(ours):
        assert getattr(torch_api, ours) is not None
    else:  # a CPU-only build, or an older torch
        with pytest.raises(NullGpuError, match="which is needed for"):
            getattr(torch_api, ours)


def test_missing_name_reports_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Name(("torch._C:_gone_in_a_newer_torch",), "the color of the sky")
    monkeypatch.setattr(torch_api, "NAMES", {"gone": gone})
    with pytest.raises(NullGpuError, match=r"no torch\._C\._gone_in_a_newer_torch, which is needed for the color of the sky"):
        torch_api.gone  # noqa: B018
    assert any("_gone_in_a_newer_torch" in line for line in missing())


def test_misspelt_name_is_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tree_mapp'"):
        torch_api.tree_mapp  # noqa: B018


@pytest.mark.parametrize("ours", marked(REPLACED))
def test_places_exist_in_this_torch(ours: str) -> None:
    for owner, name in torch_api.places(ours):
        assert hasattr(owner, name)


def test_allocator_settings_have_place_in_every_release() -> None:
    (owner, name), *_ = torch_api.places("set_allocator_settings")
    assert owner.__name__ == "torch._C"
    assert name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")


@pytest.mark.integration
def test_table_does_not_import_torch() -> None:
    code = "import sys, vramcast.tracer.hooks.torch_api, vramcast.tracer.protocol.alloc_conf; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
