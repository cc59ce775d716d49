"""Programs that hooks start: by absolute path, so that no folder of a job's is looked into."""

from __future__ import annotations

import os
import shutil
from typing import Final

_SYSTEM: Final = ("/usr/local/bin", "/usr/bin", "/bin")  # spec: the Filesystem Hierarchy Standard
# Runs none of the current folder's modules, of PYTHONPATH's or of the user's. # spec: python --help
ISOLATED: Final = ("-I", "-P")


def absolute(name: str) -> str:
    """Return the path of a program in a folder of PATH that is absolute, or in the system's; the name, where it is in none."""
    folders = [folder for folder in (*os.environ.get("PATH", "").split(os.pathsep), *_SYSTEM) if os.path.isabs(folder)]
    return shutil.which(name, path=os.pathsep.join(folders)) or f"/usr/bin/{name}"
