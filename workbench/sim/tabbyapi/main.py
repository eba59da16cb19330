"""Stand-in for TabbyAPI on a simulated host: `python main.py` in this directory."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from workbench.sim.engine_server import main

sys.exit(main(["--engine", "tabbyapi", *sys.argv[1:]]))
