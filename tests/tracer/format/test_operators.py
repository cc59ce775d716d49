"""Operators are classified by their names, in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from vramcast.tracer.format.operators import Kind, Library, Operator, takes_workspace

ROOT = Path(__file__).parents[3]
PRODUCT = ("vramcast", "tracer", "simulator", "learner", "datasets")
# Words of operators' names: who looks for one of them in a text decides what an operator is.
WORDS = re.compile(r"aten::|conv(?!ert)|Backward0|cudnn_|batch_norm|layer_norm|matmul|addmm|softmax|lstm|::mm|_foreach_")
LOOKS = ("startswith", "endswith", "find", "compile", "search", "match", "fullmatch", "count")
# What these read is no operator's name: cuDNN's and NVIDIA's own calls, a snapshot's frames, a function of torch's.
ELSEWHERE = {
    "tracer/nullgpu/library/entry_points.py",
    "tracer/nullgpu/cudnn/graph.py",
    "tracer/format/operators.py",
    "tracer/fake/autocast.py",
    "tracer/rules/autocast.py",
    "tracer/fake/recurrent.py",
}


@pytest.mark.parametrize(
    ("name", "kind", "library"),
    [
        ("aten::cudnn_convolution", Kind.CONVOLUTION, Library.CUDNN),
        ("aten::_conv_depthwise2d", Kind.CONVOLUTION, Library.CUDNN),
        ("aten::convolution_backward", Kind.CONVOLUTION_BACKWARD, Library.CUDNN),
        ("ConvolutionBackward0", Kind.CONVOLUTION_BACKWARD, Library.CUDNN),  # where autograd's node asks itself
        ("aten::_convert_indices_from_coo_to_csr", Kind.OTHER, Library.NONE),
        ("aten::addmm", Kind.MATMUL, Library.CUBLAS),
        ("aten::cudnn_batch_norm", Kind.BATCH_NORM, Library.CUDNN_NORMALIZATION),
        ("aten::_cudnn_rnn", Kind.RECURRENT, Library.CUDNN_RECURRENT),
        ("aten::_cudnn_attention_forward", Kind.ATTENTION, Library.CUDNN_ATTENTION),
        ("aten::_efficient_attention_forward", Kind.ATTENTION, Library.NONE),
        ("Optimizer.step", Kind.OPTIMIZER, Library.NONE),
        ("aten::_softmax", Kind.SOFTMAX, Library.NONE),
        ("", Kind.OTHER, Library.NONE),
    ],
)
def test_an_operator_is_known_by_its_name_in_any_case(name: str, kind: Kind, library: Library) -> None:
    assert (Operator.of(name).kind, Operator.of(name).library) == (kind, library)


def test_what_is_handed_a_workspace() -> None:
    assert takes_workspace("aten::cudnn_convolution")
    assert takes_workspace("AddmmBackward0")
    assert not takes_workspace("aten::relu")


def test_an_activation_is_the_first_that_fits() -> None:
    relu, prelu = (Operator.of(f"aten::{name}").activation for name in ("relu", "prelu"))
    assert Operator.of("aten::clamp_min").activation == relu != prelu
    assert Operator.of("aten::add").activation is None


def _looked_for(tree: ast.AST) -> list[str]:
    """Return the texts which code looks for in another one: by `in`, by ==, by a pattern or by a method of strings."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found += [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            found += node.args
    constants = [inner for one in found for inner in ast.walk(one) if isinstance(inner, ast.Constant)]
    return [one.value for one in constants if isinstance(one.value, str)]


def test_nobody_else_reads_the_names_of_operators() -> None:
    files = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py")) if not path.parent.is_symlink()]
    readers = {
        str(path.relative_to(ROOT)): texts
        for path in files
        if (texts := [text for text in _looked_for(ast.parse(path.read_text())) if WORDS.search(text)])
    }
    assert {name: texts for name, texts in readers.items() if name not in ELSEWHERE} == {}
    assert "tracer/format/operators.py" in {str(path.relative_to(ROOT)) for path in files}  # the test sees what it should
