"""Arguments of gpu."""

from __future__ import annotations

import argparse

from workbench.cli.arguments import Commands, add, group, turn_option


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
    setter.add_argument("--governor", metavar="NAME", help="CPU frequency governor of all cores: performance, …")
    setter.add_argument("--preset", metavar="ID", help="the settings that a preset carries; loading it applies none")
    setter.add_argument("--trial", type=float, metavar="SECONDS", help="given back then unless `gpu confirm` keeps it")
    setter.add_argument("--dry-run", action="store_true", help="print the commands only")
    setter.add_argument("--yes", action="store_true", help="do not ask")
    revert = add(actions, "revert", "give back what was there before Workbench changed it")
    revert.add_argument("--gpu", default="all", metavar="I|UUID|host|all")
    revert.add_argument("--dry-run", action="store_true", help="print the commands only")
    revert.add_argument(
        "--foreign",
        choices=("keep", "ours", "original"),
        help="a value that someone else has set since: leave it, set ours again, or restore what was before Workbench",
    )
    revert.add_argument("--yes", action="store_true", help="revert never asks: for scripts that give it to both")
    add(actions, "confirm", "end a trial: what was tried stays, and is guarded")
    add(actions, "keep", "leave the settings on deliberately: written down, and no guard watches any more")
    add(actions, "journal", "what Workbench changed here, whose it is, and what was done")
    add(actions, "sudoers", "print the file for sudoers that allows every set and revert without a password")
    verify = add(actions, "verify", "drive the running server for some seconds: do the altered settings hold?")
    _target(verify)
    verify.add_argument("--seconds", type=float, default=8.0, metavar="N", help="under load (8)")
    verify.add_argument("--concurrency", type=int, default=None, metavar="N", help="streams that fill the server (32)")
    verify.add_argument(
        "--probe",
        action="store_true",
        help="where a clock proves nothing: try another lock for 2 s, then yours again",
    )
    _sweep(add(actions, "sweep", "measure the running server at several values of a setting; back to the start after"))
    resume = add(actions, "sweep resume", "go on with a sweep that ended early: the values that are missing, the pairs")
    resume.add_argument("id", type=int, metavar="ID", help="as in sweep list")
    resume.add_argument("--dry-run", action="store_true", help="print the commands only")
    turn_option(resume)
    resume.add_argument("--yes", action="store_true", help="do not ask")


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="default: the newest READY run of this host")
    parser.add_argument("--url", help="base URL of a server that Workbench did not start")
    turn_option(parser)


def _sweep(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--power-limit", metavar="W,W,…")
    which.add_argument("--lock-gpu-clocks", metavar="MHZ|MIN-MAX,…")
    which.add_argument("--lock-memory-clocks", metavar="MHZ|MIN-MAX,…")
    parser.add_argument("--gpu", default=None, metavar="I|UUID", help="default: the GPUs that the server uses")
    parser.add_argument("--settle", type=float, default=None, metavar="S", help="at most, before each value (30)")
    parser.add_argument(
        "--pairs", type=int, default=None, metavar="N", help="of the named value against the start (3; 0: none)"
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each value (1)")
    for name in ("concurrency", "requests", "max-tokens", "input-tokens", "warmup"):
        parser.add_argument(f"--{name}", type=int, default=None, metavar="N")
    parser.add_argument("--seconds", type=float, default=None, metavar="N", help="measured at each value")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    parser.add_argument("--yes", action="store_true", help="do not ask")
