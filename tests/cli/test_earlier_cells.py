"""Names that a notebook's cell gets from earlier cells."""

from __future__ import annotations

import pytest

from vramcast.cli.earlier_cells import EarlierCells


@pytest.mark.parametrize(
    ("earlier", "cell", "before"),
    [
        (["import torch"], "torch.zeros(1)", "import torch"),
        (["import torch"], "x = 1", ""),
        (["import torch"], "import torch\ntorch.zeros(1)", ""),
        (["import torch as t, json"], "t.zeros(1)", "import torch as t"),
        (["import torch", "import torch.nn.functional"], "torch.nn", "import torch; import torch.nn.functional"),
        (["from torch import nn, optim"], "nn.Linear(1, 1)", "from torch import nn"),
        (["from a import f", "from b import f"], "f()", "from b import f"),
        (["from a import f", "def f(): pass"], "f()", ""),
        (["f = 1", "from a import f"], "f()", "from a import f"),
        (["from a import *", "from b import *"], "x", "from a import *; from b import *"),
        (
            ["import os", "from __future__ import annotations"],
            "os, annotations",
            "from __future__ import annotations; import os",
        ),
        (["import os\nfrom __future__ import division"], "os, division", "from __future__ import division; import os"),
        (["import torch", "%%bash\nls -l"], "torch", "import torch"),
        (["import torch"], "%time torch", ""),
        (["import torch"], "def f(torch): return torch", ""),
        (["import torch"], "def f(x): return torch.sin(x)", "import torch"),
        (["def g():\n    import torch"], "torch", ""),
        (["import torch"], "", ""),
    ],
)
def test_cell_gets_imports_it_uses(earlier: list[str], cell: str, before: str) -> None:
    assert EarlierCells.read(["", *earlier]).completed(cell) == f"{before}\n{cell}"


@pytest.mark.parametrize(
    ("earlier", "cell", "missing"),
    [
        (["width = 8"], "f(width)", {"width": 1}),
        (["width = 8", "width = 9"], "width", {"width": 2}),
        (["class Net: pass", "def loss(a): b = a", "for i in range(3): k = i"], "Net(loss(k), i, a, b)",
         {"Net": 1, "i": 3, "k": 3, "loss": 2}),
        (["width = 8"], "width = 9\nwidth", {}),
        (["a, (b, *c) = x\nwith f() as d: e: int = 1"], "a, b, c, d, e", {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}),
        (["import torch"], "torch", {}),
        (["print = 1"], "print(2)", {}),
        (["width = 8"], "%time width", {}),
    ],
)  # fmt: skip
def test_names_missing_values_with_cell(earlier: list[str], cell: str, missing: dict[str, int]) -> None:
    assert EarlierCells.read(["", *earlier]).missing(cell) == missing
