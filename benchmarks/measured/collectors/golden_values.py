"""Training by Megatron-LM's functional tests: the last rank's allocated peak by step in bytes, and the test's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml  # type: ignore[import-untyped,unused-ignore]

from benchmarks.measured.cells import traits
from benchmarks.measured.collectors.checkout import Checkout
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.files import digest

REPOSITORY = "NVIDIA/Megatron-LM"
_TESTS: Final = "tests/functional_tests/test_cases"
_RECIPES: Final = "tests/test_utils/recipes"
_VALUES: Final = re.compile(
    rf"{_TESTS}/(?P<test>[^/]+/[^/]+)/golden_values_(?P<stack>dev|lts)_dgx_(?P<card>a100|h100|gb200)\.json"
)
# These commits took values out that are not numbers, and ran nothing.
_REFORMATTED: Final = ("93ebf8d72f",)
_CONTAINER: Final = re.compile(r"nvcr\.io/nvidia/pytorch:([\d.]+)-py3")
# spec: torch.__version__ and torch.version.cuda in these images. Such a torch names its image: 2.13.0a0+8145d630e8.nv26.06.
# Those of 25.06, 26.02 and 26.04 are in the page releases/software-versions of NVIDIA-NeMo/Megatron-Bridge@067f987d.
_TORCH: Final = {
    "24.01": ("2.2.0a0+81ea7a4", "12.3"),
    "25.03": ("2.7.0a0+7c8ec84dab", "12.8"),
    "25.06": ("2.8.0a0+5228986c39", "12.9"),
    "25.09": ("2.9.0a0+50eac811a6", "13.0"),
    "25.11": ("2.10.0a0+b558c986e8", "13.0"),
    "26.02": ("2.11.0a0+eb65b36914", "13.1"),
    "26.04": ("2.12.0a0+0291f960b6", "13.2"),
    "26.06": ("2.13.0a0+8145d630e8", "13.3"),
}
_FACTS: Final = (
    "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "num-layers-per-virtual-pipeline-stage", "sequence-parallel",
    "use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp", "data-parallel-sharding-strategy", "transformer-impl",
    "recompute-granularity", "recompute-method", "recompute-modules", "cuda-graph-impl", "num-experts", "num-attention-heads",
    "hybrid-override-pattern", "hybrid-layer-pattern", "multi-latent-attention", "train-iters",
)  # fmt: skip

Arguments = Mapping[str, Any]


def runs(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the runs that train, with the values of the last commit that ran them."""
    cards = _cards_of_tests(checkout)
    for path in checkout.paths(_TESTS):
        named = _VALUES.fullmatch(path)
        if named:
            config = checkout.text(f"{_TESTS}/{named['test']}/model_config.yaml")
            container = _container(checkout, path, named["stack"])
            known = cards.get((named["test"], "gb200" if named["card"] == "gb200" else "h100"))
            run = run_of(path, checkout.text(path), config, checkout.commit, known, container)
            if run is not None:
                yield run


def run_of(
    path: str, values: str, config: str, commit: str, cards: tuple[str, int] | None, container: str
) -> MeasuredRun | None:
    """Return the run of a file of golden values, or None if it has no peak or does not train.

    Args:
        path: The file's path.
        values: Its text.
        config: The text of the test's configuration.
        commit: The commit of both.
        cards: The training script and the number of cards by the test's recipe, if a recipe has the test.
        container: The image that the test ran in, if known.
    """
    arguments = _arguments(config)
    peak = _peak(values)
    named = _VALUES.fullmatch(path)
    if named is None or peak is None or "hidden-size" not in arguments or not {"train-iters", "train-samples"} & set(arguments):
        return None
    test_type = str((yaml.safe_load(config) or {}).get("TEST_TYPE", "regular"))
    script, count = cards or ("", 0)
    is_known = bool(cards and container and test_type == "regular")
    image = _CONTAINER.fullmatch(container)
    torch, cuda = _TORCH.get(image[1], ("", "")) if image else ("", "")
    return MeasuredRun(
        repository=REPOSITORY,
        commit=commit,
        path=path,
        licence="BSD-3-Clause",
        job=f"{script or 'training script'} with {_TESTS}/{named['test']}/model_config.yaml",
        script=digest(config, digits=12),
        model=_model(named["test"].partition("/")[0], arguments),
        figure="allocated peak",
        value_bytes=peak,
        unit_rule="bytes",
        quality="repeatable" if is_known else "partly",
        batch=int(arguments["micro-batch-size"]) if "micro-batch-size" in arguments else None,
        sizes=str(arguments.get("seq-length", arguments.get("encoder-seq-length", ""))),
        precision=_precision(arguments),
        optimizer=str(arguments.get("optimizer", "adam")),
        options={
            **{name: arguments[name] for name in _FACTS if name in arguments},
            **({"container": container} if container else {}),
            "test_type": test_type,
        },
        traits=traits(ranks=count),
        cards=count or None,
        card={"a100": "A100", "h100": "H100 80GB", "gb200": "GB200"}[named["card"]],
        torch=torch,
        cuda=cuda,
        os="Linux",
    )


def _arguments(config: str) -> Arguments:
    # A test of two jobs has arguments for each: the file does not say which one the values are of.
    found = (yaml.safe_load(config) or {}).get("MODEL_ARGS", {}) if config else {}
    return {name.removeprefix("--"): value for name, value in found.items()} if isinstance(found, dict) else {}


def _peak(values: str) -> int | None:
    try:
        recorded = json.loads(values).get("mem-max-allocated-bytes")
    except json.JSONDecodeError:
        return None
    if not isinstance(recorded, dict) or not isinstance(recorded.get("values"), dict):
        return None
    numbers = [int(value) for value in recorded["values"].values() if isinstance(value, int | float)]
    return max(numbers, default=None)


def _precision(arguments: Arguments) -> str:
    base = "bf16" if arguments.get("bf16") else "fp16" if arguments.get("fp16") else "fp32"
    return f"{base}, {arguments['fp8-format']} fp8" if "fp8-format" in arguments else base


def _model(family: str, arguments: Arguments) -> str:
    layers = arguments.get("num-layers", arguments.get("encoder-num-layers", "?"))
    experts = f", {arguments['num-experts']} experts" if "num-experts" in arguments else ""
    return f"{family} {layers} layers of {arguments['hidden-size']}{experts}"


def _container(checkout: Checkout, path: str, stack: str) -> str:
    """Return the image of the last commit that ran the test."""
    ran = [commit for commit in checkout.changes(path) if not commit.startswith(_REFORMATTED)]
    if not ran:
        return ""
    pinned = _CONTAINER.search(checkout.text(f"docker/.ngc_version.{stack}", ran[0]))
    if pinned:
        return pinned[0]
    # Before November 2025, the pipeline names the image of the older stack first.
    images = list(_CONTAINER.finditer(checkout.text(".gitlab/stages/01.build.yml", ran[0])))
    return images[0 if stack == "lts" else 1][0] if len(images) > 1 else ""


def _cards_of_tests(checkout: Checkout) -> dict[tuple[str, str], tuple[str, int]]:
    """Return the training script and the number of cards by test and group of machines."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for path in checkout.paths(_RECIPES):
        recipe = yaml.safe_load(checkout.text(path))
        spec = recipe.get("spec", {})
        script = re.search(r"TRAINING_SCRIPT_PATH=(\S+?)\"", str(spec.get("script", "")))
        for product in recipe.get("products") or []:
            for test in product.get("test_case", []):
                count = int(spec["nodes"]) * int(spec["gpus"])
                found[f"{spec['model']}/{test}", path.split("/")[-2]] = (script[1] if script else "", count)
    return found
