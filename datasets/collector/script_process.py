"""The process of a measured script: runs it as `python script.py` would, and at its end writes torch's counters to a file.

python -m vramcast.datasets.collector.script_process ANSWER.json train.py args     (or: ANSWER.json -m module args)
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from vramcast.datasets.collector.counters import counters, stack


def main(answer: Path, arguments: list[str]) -> None:
    """Run the script; whatever ends it, write the answer first and keep its own exit code."""
    reply: dict[str, Any] = {"status": "ok", "message": ""}
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            reply.update(status="error", message=f"exit code {error.code}"[:500])
        raise
    except BaseException as error:
        out_of_memory = type(error).__name__ == "OutOfMemoryError"
        reply.update(status="oom" if out_of_memory else "error", message=f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        reply["counters"] = counters(reply["message"])
        reply["passport"] = stack()
        answer.write_text(json.dumps(reply))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
