"""The screen: on this machine, on a host behind ssh, or on a simulated one."""

from __future__ import annotations

import argparse

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import say, session_of
from workbench.model.errors import InputError


def screen(arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise InputError("the screen has no JSON", next_step="workbench --help lists the commands that do")
    from workbench import tui

    session = session_of(arguments)
    if arguments.interval is not None:
        session.interval_s = arguments.interval
    return tui.run(session, mouse=True if arguments.mouse else None)


def demo(arguments: argparse.Namespace) -> int:
    if arguments.list:
        from workbench.sim.profiles import PROFILES

        if arguments.json:
            return emit({"profiles": {name: profile.title for name, profile in PROFILES.items()}})
        for name, profile in PROFILES.items():
            say(f"{name:<26} {profile.title}")
        return 0
    arguments.simulate = arguments.simulate or arguments.host_profile
    return screen(arguments)


def screenshots(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from workbench.tui.pictures import take_all

    written = take_all(Path(arguments.directory))
    if arguments.json:
        return emit({"written": [str(path) for path in written]})
    for path in written:
        say(str(path))
    return 0


COMMANDS: dict[str, Command] = {"screen": screen, "demo": demo, "screenshots": screenshots}
