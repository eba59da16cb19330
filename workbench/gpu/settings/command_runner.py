"""Runs the commands that change settings, and decides from their output whether they succeeded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from workbench.gpu.settings.rights import Rights, run_with_rights
from workbench.gpu.settings.standstill import StandstillWatch
from workbench.hosts.base import CommandNotFound, CommandTimeout, Host
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import SettingCommand

GPU_IS_LOST_STATUS = 15  # nvidia-smi's exit status: NVML_ERROR_GPU_IS_LOST
NO_PERMISSION_ANSWER = re.compile(
    "insufficient permissions|does not have permission", re.IGNORECASE
)
REFUSED_ROOT_TEXT = (
    "NO_PERMISSION: the driver does not accept this root, as in an unprivileged container or one "
    "without "
    "CAP_SYS_ADMIN: change settings on the machine that runs it"
)
COMMAND_TIMEOUT_S = 60.0  # with persistence off each call initialises the GPU first: seconds


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The result of a command. `failure` is the reason why it failed, None if it succeeded.
    `unsure` means that the command failed but may have changed the setting. `hung` means that the
    command did not end in time."""

    failure: str | None = None
    unsure: bool = False
    hung: bool = False


def program_of_command(one: SettingCommand) -> str:
    """Return the name of the command's program: nvidia-smi or tee."""
    words = [w for w in one.argv if not w.startswith("-")]
    return PurePosixPath(words[1] if words[0] == "sudo" else words[0]).name


async def run_setting_command(host: Host, one: SettingCommand, rights: Rights) -> CommandRun:
    """Run one command and return its result. A failure is part of the result and is not raised."""
    name = program_of_command(one)
    if one.stdin is not None and PurePosixPath(one.argv[-1]).name == name:
        return CommandRun("no CPU core has this setting now")
    try:
        done = await run_with_rights(
            host, one.argv, rights, stdin=one.stdin, timeout_s=COMMAND_TIMEOUT_S
        )
    except CommandTimeout:
        return CommandRun(
            f"{name} did not end within {COMMAND_TIMEOUT_S:.0f} s", unsure=True, hung=True
        )
    except CommandNotFound as error:
        return CommandRun(error.message)
    except HostError as error:
        return CommandRun(error.message, unsure=True)
    # tee repeats its input, so only its error output counts, and it may have written to some of the
    # cores. A lost GPU may have been lost after the change.
    said = done.err if one.stdin is not None else f"{done.out} {done.err}"
    why = setting_commands.why_command_failed(done.returncode, said, name)
    if why is None:
        return CommandRun()
    if name == "nvidia-smi" and NO_PERMISSION_ANSWER.search(why):
        why = f"{why.rstrip('.')}; {REFUSED_ROOT_TEXT}"
    unsure = one.stdin is not None or done.returncode == GPU_IS_LOST_STATUS
    return CommandRun(why, unsure=unsure)


async def run_commands_until_failure(
    host: Host,
    commands: Sequence[SettingCommand],
    rights: Rights,
    stop: asyncio.Event,
    standstill: StandstillWatch,
) -> dict[SettingCommand, CommandRun]:
    """Run the commands up to the first failure, and return the result of each command that was run.
    Once `stop` is set, the next command is not run and counts as failed. Raises SettingsError if
    this process stood still for so long that the guard may have reverted the commands before."""
    ran: dict[SettingCommand, CommandRun] = {}
    for one in commands:
        if standstill.was_paused_too_long():
            raise SettingsError(
                f"this Workbench stood still for {standstill.longest_s:.0f} s while it changed GPU "
                "settings, and the guard reverts a change without a heartbeat; nothing more was "
                "changed",
                host=host.name,
                next_step="`workbench gpu status` shows what is set now; then run the command again",
            )
        if stop.is_set():
            ran[one] = CommandRun("the change was interrupted before this command")
            break
        ran[one] = await run_setting_command(host, one, rights)
        if ran[one].failure:
            break
    return ran


async def run_commands_despite_failures(
    host: Host, commands: Sequence[SettingCommand], rights: Rights
) -> dict[SettingCommand, CommandRun]:
    """Run every command, even after a failure, and return the result of each. A command is skipped
    if the user may not run it, or if its program hung before. The `failure` of its result then says
    so."""
    ran: dict[SettingCommand, CommandRun] = {}
    hung: set[str] = set()
    for one in commands:
        name = program_of_command(one)
        if one.right:
            ran[one] = CommandRun(one.right)
        elif name in hung:
            ran[one] = CommandRun(f"not tried: {name} does not answer")
        else:
            ran[one] = await run_setting_command(host, one, rights)
            if ran[one].hung:
                hung.add(name)
    return ran
