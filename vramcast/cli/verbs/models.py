"""List the models that a TARGET can name: those of torchvision, timm, hf or diffusers.

vramcast models torchvision 'res*'
vramcast models timm 'vit_base*224*'
vramcast models hf '*bert*' --json
"""

from __future__ import annotations

import argparse

from vramcast.cli.streams import answer_as
from vramcast.core.errors import UsageError
from vramcast.jobs.targets import REGISTRIES, names_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument(
        "registry", choices=sorted(REGISTRIES), metavar="REGISTRY", help=f"the registry: {', '.join(sorted(REGISTRIES))}"
    )
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="pattern with * and ? (default: all models)")


def main(options: argparse.Namespace) -> int:
    """Run the verb; return 0."""
    found = [f"{options.registry}:{name}" for name in names_of(options.registry, options.pattern)]
    if not found:
        raise UsageError(
            f"{options.registry} has no model that matches '{options.pattern}': try a shorter pattern with a * at both ends."
        )
    answer_as(options.json, {"models": found}, lambda: "\n".join(found))
    return 0
