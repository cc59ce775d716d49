"""Classification of operators by their names, in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from vramcast.tracer.format.operators import Operator, OperatorKind, OperatorLibrary, takes_workspace

ROOT = Path(__file__).parents[3]
PRODUCT = ("vramcast", "tracer", "simulator", "learner", "datasets")
# Words in names of operators: code that searches a text for one of them classifies an operator.
WORDS = re.compile(r"aten::|conv(?!ert)|Backward0|cudnn_|batch_norm|layer_norm|matmul|addmm|softmax|lstm|::mm|_foreach_")
LOOKS = ("startswith", "endswith", "find", "compile", "search", "match", "fullmatch", "count")
# These names are not operators': cuDNN's and NVIDIA's own calls, a snapshot's frames, a function of torch's.
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
        ("aten::cudnn_convolution", OperatorKind.CONVOLUTION, OperatorLibrary.CUDNN),
        ("aten::_conv_depthwise2d", OperatorKind.CONVOLUTION, OperatorLibrary.CUDNN),
        ("aten::convolution_backward", OperatorKind.CONVOLUTION_BACKWARD, OperatorLibrary.CUDNN),
        ("ConvolutionBackward0", OperatorKind.CONVOLUTION_BACKWARD, OperatorLibrary.CUDNN),  # autograd's node itself allocates
        ("aten::_convert_indices_from_coo_to_csr", OperatorKind.OTHER, OperatorLibrary.NONE),
        ("aten::addmm", OperatorKind.MATMUL, OperatorLibrary.CUBLAS),
        ("aten::cudnn_batch_norm", OperatorKind.BATCH_NORM, OperatorLibrary.CUDNN_NORMALIZATION),
        ("aten::_cudnn_rnn", OperatorKind.RECURRENT, OperatorLibrary.CUDNN_RECURRENT),
        ("aten::_cudnn_attention_forward", OperatorKind.ATTENTION, OperatorLibrary.CUDNN_ATTENTION),
        ("aten::_efficient_attention_forward", OperatorKind.ATTENTION, OperatorLibrary.NONE),
        ("Optimizer.step", OperatorKind.OPTIMIZER, OperatorLibrary.NONE),
        ("aten::_softmax", OperatorKind.SOFTMAX, OperatorLibrary.NONE),
        ("", OperatorKind.OTHER, OperatorLibrary.NONE),
    ],
)
def test_classifies_names_in_any_case(name: str, kind: OperatorKind, library: OperatorLibrary) -> None:
    assert (Operator.of(name).kind, Operator.of(name).library) == (kind, library)


def test_operators_with_workspaces() -> None:
    assert takes_workspace("aten::cudnn_convolution")
    assert takes_workspace("AddmmBackward0")
    assert not takes_workspace("aten::relu")


def test_first_matching_activation_wins() -> None:
    relu, prelu = (Operator.of(f"aten::{name}").activation for name in ("relu", "prelu"))
    assert Operator.of("aten::clamp_min").activation == relu != prelu
    assert Operator.of("aten::add").activation is None


def _looked_for(tree: ast.AST) -> list[str]:
    """Return the texts that code searches for in another text: by `in`, by ==, by a pattern or by a method of strings."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found += [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            found += node.args
    constants = [inner for one in found for inner in ast.walk(one) if isinstance(inner, ast.Constant)]
    return [one.value for one in constants if isinstance(one.value, str)]


def test_only_one_module_reads_operator_names() -> None:
    files = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py")) if not path.parent.is_symlink()]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    readers = {
        name: texts
        for name, source in sources.items()
        if WORDS.search(source) and (texts := [text for text in _looked_for(ast.parse(source)) if WORDS.search(text)])
    }
    assert {name: texts for name, texts in readers.items() if name not in ELSEWHERE} == {}
    assert "tracer/format/operators.py" in sources  # the test finds what it should
