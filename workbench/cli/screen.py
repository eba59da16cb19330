"""The commands that open the screen, on this machine, on a host behind ssh or on a simulated host
(`demo`)."""

from __future__ import annotations

import argparse

from workbench.cli.open_session import create_session
from workbench.cli.output import print_json_or_lines
from workbench.cli.registry import command, option
from workbench.cli.shared_options import make_seconds_parser
from workbench.model.errors import InputError

SCREEN_OPTIONS = (
    option("--mouse", "let the mouse select panes and rows"),
    option(
        "--interval S", "seconds between two readings of the GPUs (1)", make_seconds_parser(0.2, 60)
    ),
)


def open_screen(arguments: argparse.Namespace) -> int:
    """Open the screen and return its exit code when it ends. Raises InputError for --json."""
    if arguments.json:
        raise InputError(
            "the screen has no JSON output",
            next_step="`workbench --help` lists the commands, many of which have --json",
        )
    from workbench import tui

    session = create_session(arguments)
    if arguments.interval is not None:
        session.telemetry.interval_s = arguments.interval
    return tui.run_screen(session, mouse=True if arguments.mouse else None)


@command(
    "demo",
    "open the screen on a simulated host; no GPU is needed",
    option(
        "--host-profile NAME",
        "simulated host, one of those that --list prints (rtx-pro-6000)",
        default="rtx-pro-6000",
    ),
    option("--list", "list the simulated hosts"),
    *SCREEN_OPTIONS,
    examples=("workbench demo", "workbench demo --host-profile four-pcie", "workbench demo --list"),
)
def open_demo(arguments: argparse.Namespace) -> int:
    if arguments.list:
        from workbench.sim.profiles import PROFILES

        document = {"profiles": {name: profile.title for name, profile in PROFILES.items()}}
        return print_json_or_lines(
            arguments.json, document, (f"{name:<26} {p.title}" for name, p in PROFILES.items())
        )
    arguments.simulate = arguments.simulate or arguments.host_profile
    return open_screen(arguments)
