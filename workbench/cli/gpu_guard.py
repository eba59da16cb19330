"""gpu confirm, gpu keep: settings that stay in force, with or without the guard."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.gpu_text import guard_lines
from workbench.cli.open_session import connected
from workbench.cli.output import emit_or_say
from workbench.cli.registry import command

if TYPE_CHECKING:
    from workbench.model.settings import GuardView
    from workbench.session.session import Session


@command(
    "gpu confirm",
    "end a trial and keep its settings in force, under the guard",
    examples=("workbench gpu confirm",),
)
async def confirm_trial(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        text = "confirmed: the settings stay in force"
        return await _print_guard(arguments, text, await session.gpu.guard.confirm(), session)


@command(
    "gpu keep",
    "keep the settings in force without a guard; the journal records the decision",
    examples=("workbench gpu keep",),
)
async def keep(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        text = "kept: the settings stay in force without a guard; `workbench gpu revert` restores the previous values"
        return await _print_guard(arguments, text, await session.gpu.guard.keep(), session)


async def _print_guard(arguments: argparse.Namespace, text: str, view: GuardView, session: Session) -> int:
    warnings = await session.gpu.cautions()
    document = {"guard": asdict(view), "warnings": warnings, "ok": True, "simulated": session.state.simulated}
    return emit_or_say(arguments.json, document, [text, *(f"warning: {w}" for w in warnings), *guard_lines(view)])
