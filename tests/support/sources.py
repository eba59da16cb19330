"""Where another Python finds Workbench and the packages that it needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_path() -> str:
    """Return a PYTHONPATH with this checkout and the directories of installed packages that this
    Python searches. They can be more than its own one: a `.pth` file may name others, and no Python
    reads such a file in a directory of PYTHONPATH."""
    packages = [place for place in sys.path if Path(place).name.endswith("-packages")]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [str(ROOT), *packages, *given])))
