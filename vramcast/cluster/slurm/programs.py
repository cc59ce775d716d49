"""Programs started by hooks, by absolute path, so that no folder of a job is searched."""

from __future__ import annotations

import os
import shutil
from typing import Final

_SYSTEM: Final = ("/usr/local/bin", "/usr/bin", "/bin")  # spec: the Filesystem Hierarchy Standard
# Imports no module of the current folder, of PYTHONPATH or of the user. # spec: python --help
ISOLATED: Final = ("-I", "-P")


def absolute(name: str) -> str:
    """Return the path of a program in an absolute folder of PATH, or in the system's folders; else its name."""
    folders = [folder for folder in (*os.environ.get("PATH", "").split(os.pathsep), *_SYSTEM) if os.path.isabs(folder)]
    return shutil.which(name, path=os.pathsep.join(folders)) or f"/usr/bin/{name}"
