"""The text form of an operation graph, sent by the null cuDNN to the cuDNN oracle.

    desc   := type '{' attr* '}'
    attr   := name '=' ctype ':' values ';'
    values := integers, or for ctype 15 '[' desc (',' desc)* ']', comma-separated

There are no blanks and no newlines; type, name and ctype are the decimal values of cuDNN's enumerations. Floating point values
are sent as their raw bits, a fraction as two integers. Handles and pointers are not sent. Tensors are linked by their unique
id.

The text comes from another process and is untrusted: sizes and nesting are bounded, anything else raises GraphError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

# spec: cuDNN 9 backend API, cudnnBackendDescriptorType_t
TENSOR = 17  # spec: CUDNN_BACKEND_TENSOR_DESCRIPTOR
CONVOLUTION = 1  # spec: CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
OPERATION_GRAPH = 15  # spec: CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR

# spec: cuDNN 9 backend API, cudnnBackendAttributeType_t
TYPE_DATA_TYPE, TYPE_BOOLEAN, TYPE_INT64, TYPE_FLOAT, TYPE_DOUBLE = 1, 2, 3, 4, 5
TYPE_CONVOLUTION_MODE, TYPE_DESCRIPTOR, TYPE_CHAR, TYPE_FRACTION = 7, 15, 24, 26
_UNSENDABLE = {0: "HANDLE", 6: "VOID_PTR"}

# spec: cuDNN 9 backend API, cudnnBackendAttributeName_t
TENSOR_BYTE_ALIGNMENT, TENSOR_DATA_TYPE, TENSOR_DIMENSIONS, TENSOR_STRIDES, TENSOR_UNIQUE_ID = 900, 901, 902, 903, 906
TENSOR_IS_VIRTUAL = 907
OPERATION_GRAPH_OPS = 801

MAX_DEPTH = 16  # arbitrary; graph > operation > tensor > ragged offset is 4
MAX_VALUES = 4096  # arbitrary; an attribute of a real graph has at most some dozens
T = TypeVar("T")
_TOKEN = re.compile(r"-?[0-9]{1,20}|[{}=:;,\[\]]")


class GraphError(ValueError):
    """A graph text does not follow the grammar; the message gives the place."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One cudnnBackendSetAttribute call; `children` is used for descriptors, `values` for everything else."""

    name: int
    ctype: int
    values: tuple[int, ...] = ()
    children: tuple[Descriptor, ...] = ()


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One backend descriptor, with its attributes in the order of their set calls."""

    type: int
    attributes: tuple[Attribute, ...]


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        if sum(map(len, self._tokens)) != len(text):
            raise GraphError("Graph text has a character or number outside the grammar.")
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else "the end"

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise GraphError(f"Graph text has {self.peek()} as token {self._at}, expected {sign}.")
        self._at += 1

    def accept(self, sign: str) -> bool:
        found = self.peek() == sign
        self._at += found
        return found

    def integer(self) -> int:
        token = self.peek()
        if not token.lstrip("-").isdigit():
            raise GraphError(f"Graph text has {token} as token {self._at}, expected an integer.")
        self._at += 1
        return int(token)

    def descriptor(self, depth: int = 0) -> Descriptor:
        if depth > MAX_DEPTH:
            raise GraphError(f"Graph text nests deeper than {MAX_DEPTH} descriptors.")
        kind = self.integer()
        self.expect("{")
        attributes = []
        while not self.accept("}"):
            attributes.append(self.attribute(depth))
        return Descriptor(kind, tuple(attributes))

    def attribute(self, depth: int) -> Attribute:
        name = self.integer()
        self.expect("=")
        ctype = self.integer()
        if ctype in _UNSENDABLE:
            raise GraphError(f"Attribute {name} is a {_UNSENDABLE[ctype]}, which has no meaning in another process.")
        self.expect(":")
        if ctype != TYPE_DESCRIPTOR:
            return Attribute(name, ctype, self.listed(self.integer, ";"))
        self.expect("[")
        children = self.listed(lambda: self.descriptor(depth + 1), "]")
        self.expect(";")
        return Attribute(name, ctype, (), children)

    def listed(self, read: Callable[[], T], end: str) -> tuple[T, ...]:
        items: list[T] = []
        while not self.accept(end):
            if items:
                self.expect(",")
            items.append(read())
            if len(items) > MAX_VALUES:
                raise GraphError(f"An attribute has more than {MAX_VALUES} values.")
        return tuple(items)

    def end(self) -> None:
        if self._at != len(self._tokens):
            raise GraphError(f"Graph text continues after its end with {self.peek()} as token {self._at}.")


def parse(text: str) -> Descriptor:
    """Return the descriptor tree of a graph text.

    Raises:
        GraphError: The text does not follow the grammar, or is deeper or longer than the bounds above.
    """
    reader = _Reader(text)
    root = reader.descriptor()
    reader.end()
    return root


def write(root: Descriptor) -> str:
    """Return the text of a descriptor tree; `parse` is its inverse."""
    return f"{root.type}{{{''.join(map(_write_attribute, root.attributes))}}}"


def _write_attribute(attribute: Attribute) -> str:
    if attribute.ctype == TYPE_DESCRIPTOR:
        values = f"[{','.join(map(write, attribute.children))}]"
    else:
        values = ",".join(map(str, attribute.values))
    return f"{attribute.name}={attribute.ctype}:{values};"


def renumber(root: Descriptor) -> Descriptor:
    """Return the same graph with its tensor ids replaced by 1, 2, ... in the order of first appearance.

    Callers number tensors freely (PyTorch uses letters for convolutions and counters for attention), so equal graphs have equal
    texts only after renumbering.
    """
    ids: dict[int, int] = {}

    def visit(node: Descriptor) -> Descriptor:
        attributes = []
        for a in node.attributes:
            values = a.values
            if a.name == TENSOR_UNIQUE_ID and a.ctype == TYPE_INT64:
                values = tuple(ids.setdefault(value, len(ids) + 1) for value in values)
            attributes.append(Attribute(a.name, a.ctype, values, tuple(map(visit, a.children))))
        return Descriptor(node.type, tuple(attributes))

    return visit(root)


def tensor(
    uid: int, dtype: int, sizes: Sequence[int], strides: Sequence[int], *, alignment: int = 16, virtual: bool = False
) -> Descriptor:
    """Return a tensor descriptor; `dtype` is a cudnnDataType_t, `alignment` is in bytes, strides count elements."""
    attributes = (
        Attribute(TENSOR_DATA_TYPE, TYPE_DATA_TYPE, (dtype,)),
        Attribute(TENSOR_DIMENSIONS, TYPE_INT64, tuple(sizes)),
        Attribute(TENSOR_STRIDES, TYPE_INT64, tuple(strides)),
        Attribute(TENSOR_UNIQUE_ID, TYPE_INT64, (uid,)),
        Attribute(TENSOR_BYTE_ALIGNMENT, TYPE_INT64, (alignment,)),
    )
    # As in PyTorch, which sets it only for virtual tensors: equal graphs have equal texts, and share their answers.
    return Descriptor(TENSOR, attributes + (Attribute(TENSOR_IS_VIRTUAL, TYPE_BOOLEAN, (1,)),) * virtual)


def graph(*operations: Descriptor) -> Descriptor:
    """Return the operation graph of the given operations."""
    return Descriptor(OPERATION_GRAPH, (Attribute(OPERATION_GRAPH_OPS, TYPE_DESCRIPTOR, (), operations),))


def strides_of(sizes: Sequence[int], *, channels_last: bool) -> tuple[int, ...]:
    """Return the element strides of a dense tensor (batch, channels, *space) in one of PyTorch's memory formats."""
    order = [0, *range(2, len(sizes)), 1] if channels_last else list(range(len(sizes)))
    strides = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
    return tuple(strides)


# Attribute names of the three convolutions. spec: cuDNN 9 backend API
# operation: (descriptor type, the first of six names: alpha, beta, convolution, w, x, y)
_CONVOLUTIONS = {"forward": (10, 700), "backward_data": (12, 706), "backward_filter": (11, 712)}


def convolution_graph(
    operation: str,
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int] | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    dtype: int = 0,
    channels_last: bool = False,
    alignments: tuple[int, int, int] = (32, 32, 32),
) -> str:
    """Return the graph text of one convolution in PyTorch's form.

    Args:
        operation: "forward", "backward_data" or "backward_filter".
        x: Sizes of the input, (batch, channels, *space).
        w: Sizes of the weight, (out channels, in channels / groups, *space); groups follow from x.
        y: Sizes of the output; by default they follow from x, w and the numbers. Only a transposed convolution may have others.
        stride: One number for all spatial dimensions, or one for each; padding and dilation have the same form.
        padding: Zeros added on both sides.
        dilation: Distance between the filter's taps.
        dtype: cudnnDataType_t of all tensors: 0 float, 1 double, 2 half, 9 bfloat16. Computation is in float or double.
        channels_last: Memory format of all tensors.
        alignments: Alignments of x, w and y as PyTorch reports them: twice the true one, at most 32.

    Source: torch 2.11 aten/src/ATen/native/cudnn/Conv_v8.cpp, build_opgraph; uids are the letters x, w, y.
    """
    space = len(x) - 2
    strides, paddings, dilations = (
        (value,) * space if isinstance(value, int) else tuple(value) for value in (stride, padding, dilation)
    )
    if y is None:
        taps = [dilation * (n - 1) + 1 for dilation, n in zip(dilations, w[2:], strict=True)]
        out = [(n + 2 * p - t) // s + 1 for n, p, t, s in zip(x[2:], paddings, taps, strides, strict=True)]
        y = (x[0], w[0], *out)
    kind, alpha = _CONVOLUTIONS[operation]
    beta, conv_name, w_name, x_name, y_name = range(alpha + 1, alpha + 6)
    convolution = Descriptor(
        CONVOLUTION,
        (
            Attribute(100, TYPE_DATA_TYPE, (int(dtype == 1),)),  # computation type: float; double for doubles
            Attribute(101, TYPE_CONVOLUTION_MODE, (1,)),  # spec: CUDNN_CROSS_CORRELATION
            Attribute(106, TYPE_INT64, (space,)),
            Attribute(105, TYPE_INT64, paddings),
            Attribute(104, TYPE_INT64, paddings),
            Attribute(102, TYPE_INT64, dilations),
            Attribute(103, TYPE_INT64, strides),
        ),
    )

    def one(letter: str, sizes: Sequence[int], alignment: int) -> Descriptor:
        return tensor(ord(letter), dtype, sizes, strides_of(sizes, channels_last=channels_last), alignment=alignment)

    attributes = (
        Attribute(x_name, TYPE_DESCRIPTOR, (), (one("x", x, alignments[0]),)),
        Attribute(w_name, TYPE_DESCRIPTOR, (), (one("w", w, alignments[1]),)),
        Attribute(y_name, TYPE_DESCRIPTOR, (), (one("y", y, alignments[2]),)),
        Attribute(conv_name, TYPE_DESCRIPTOR, (), (convolution,)),
        Attribute(alpha, TYPE_FLOAT, (0x3F800000,)),  # 1.0
        Attribute(beta, TYPE_FLOAT, (0,)),
    )
    return write(graph(Descriptor(kind, attributes)))
