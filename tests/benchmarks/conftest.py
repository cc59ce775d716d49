"""Import path for the tests: benchmarks/ and tests/ are not installed, so the root is last on the path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
