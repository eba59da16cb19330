"""Run nvitop on a simulated host, with the NVML library object that Workbench's agent reads there.

WORKBENCH_SIM_PROFILE=four-pcie WORKBENCH_SIM_STATE=DIR python tests/benchmarks/nvitop_simulated.py
[nvitop's options]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import eight_gpus
import pynvml
from nvitop.cli import main

if __name__ == "__main__":
    pynvml.nvmlLib = eight_gpus.library()
    sys.exit(main())
