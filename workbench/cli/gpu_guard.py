"""gpu confirm, gpu keep, and the guard in words."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, say

if TYPE_CHECKING:
    from workbench.model.settings import GuardView
    from workbench.session.session import Session

STAY = "no heartbeat holds them: the settings stay until `workbench gpu revert`; a GPU too hot keeps what cools it only"


async def confirm(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        text = "confirmed: the settings stay"
        return await _ordered(arguments, text, await session.confirm_gpu(), session)


async def keep(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        text = "kept: left on deliberately, and written down; `workbench gpu revert` still gives back what was before"
        return await _ordered(arguments, text, await session.keep_gpu(), session)


async def _ordered(arguments: argparse.Namespace, text: str, view: GuardView, session: Session) -> int:
    warnings = await session.cautions()
    if arguments.json:
        simulated = session.state.simulated
        return emit({"guard": asdict(view), "warnings": warnings, "ok": True, "simulated": simulated})
    say(text)
    for warning in warnings:
        say(f"warning: {warning}")
    for line in guard_lines(view):
        say(line)
    return 0


def guard_lines(view: GuardView | None, did: bool = False) -> Iterator[str]:
    """How the guard is, for a person, and what it `did` last; nothing where none was ever started."""
    if view is None:
        return
    if view.running:
        yield f"guard: process {view.pid} watches over the settings; its log is {view.log}"
        if view.trial_left_s is not None:
            yield f"  given back in {view.trial_left_s:.0f} s unless `workbench gpu confirm` keeps them"
        if view.heartbeat_s is not None:
            age = f", last seen {view.heartbeat_age_s:.0f} s ago" if view.heartbeat_age_s is not None else ""
            yield f"  given back when their Workbench is silent for {view.heartbeat_s:g} s{age}"
        elif view.trial_left_s is None:
            yield f"  {STAY}"
        for uuid, limit in view.temperature_limits_c.items():
            yield f"  {uuid}: what heats it is reverted at {limit:g} °C"
    if view.note:
        yield f"  {view.note}"
    if view.problem:
        yield f"guard: NO GUARD WATCHES: {view.problem}" if not view.running else f"  ! {view.problem}"
    if did and view.did and view.did_unix_s:
        yield f"guard: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(view.did_unix_s))} {view.did}"


COMMANDS: dict[str, Command] = {"gpu confirm": confirm, "gpu keep": keep}
