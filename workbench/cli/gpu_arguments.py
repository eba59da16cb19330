"""Arguments of gpu."""

from __future__ import annotations

from workbench.cli.arguments import Commands, add, group


def gpu(sub: Commands) -> None:
    actions = group(sub, "gpu", "GPU state and settings")
    add(actions, "status", "clocks, power, limits, temperature, processes")
    setter = add(actions, "set", "change settings: shown first, recorded before, read back after")
    setter.add_argument("--gpu", default="all", metavar="I|UUID|all")
    setter.add_argument("--persistence", choices=("on", "off"))
    setter.add_argument("--power-limit", type=float, metavar="W")
    setter.add_argument("--lock-gpu-clocks", metavar="MIN,MAX")
    setter.add_argument("--lock-memory-clocks", metavar="MHZ|MIN,MAX")
    setter.add_argument("--reset-gpu-clocks", action="store_true")
    setter.add_argument("--reset-memory-clocks", action="store_true")
    setter.add_argument("--dry-run", action="store_true", help="print the commands only")
    setter.add_argument("--yes", action="store_true", help="do not ask")
    revert = add(actions, "revert", "give back what was there before Workbench changed it")
    revert.add_argument("--gpu", default="all", metavar="I|UUID|all")
    revert.add_argument("--yes", action="store_true")

