"""Import of authors' tables of measured runs into a data set, like `vramcast import` for job histories.

    python -m benchmarks.peers.authors FORMAT FILE... [--out STORE] [--join RULES.json] [--json]

FORMAT is one of: gpumemnet, xmem, collect (docs/histories.md). The targets of rebuilt networks are code in benchmarks/:
`vramcast train`, `calibrate`, and `evaluate` run them with --trust-targets, in the root of a checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.peers.authors.formats import FORMATS
from vramcast.cli.verbs import import_
from vramcast.core.errors import VramcastError


def main(arguments: Sequence[str] | None = None) -> int:
    """Import the files; return the exit code of `vramcast import`."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers.authors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    import_.add_arguments(parser, FORMATS)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    try:
        return import_.main(parser.parse_args(arguments), FORMATS)
    except VramcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
