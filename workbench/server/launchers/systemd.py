"""Servers as units of the user's or the system's systemd. By default a unit is transient: no unit
file is installed.

The unit runs the engine's own command with the environment that a process of Workbench would have.
The environment is in the file `environment` of the run directory, which only the user can read.
Every user of the host may call `systemctl show`: it shows the run directory, the command line and
the limits, but no environment variable. The keeper polls the unit, and copies its journal. A unit
whose main process ends stays loaded until the keeper has read how it ended.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence

from workbench.hosts.base import CommandTimeout, Completed, Host
from workbench.hosts.shell_scripts import parse_last_values, shell_argv
from workbench.model.errors import HostError, ServerError
from workbench.model.findings import Finding, Level
from workbench.model.plan import Command
from workbench.model.run_options import launcher_option_value, launcher_option_values
from workbench.model.systemd_text import double_dollars, quote_argument
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.launchers import systemd_scripts as script
from workbench.server.launchers.launcher import (
    AdoptableServer,
    Keeper,
    Launch,
    LaunchedServer,
    ServerExitState,
)
from workbench.server.process_command import read_command

LAUNCHER_NAME = "systemd"
# the first version whose `systemctl show` tells of a unit that is gone instead of failing
MIN_SYSTEMD_VERSION = 236
STOP_GRACE_S = 15  # from SIGTERM to SIGKILL
_LIVING_STATES = frozenset({"active", "activating", "reloading", "deactivating", "refreshing"})


def launcher(name: str) -> Systemd:
    return Systemd(name)


class Systemd:
    """The launcher that runs servers as units of systemd."""

    start_program_name = "systemd-run"
    looks_at = frozenset({"files", "port"})
    stop_s = STOP_GRACE_S + 10.0

    def __init__(self, name: str) -> None:
        self.name = name

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        scope, unit = _scope_option(launch.plan.run_options), _name_of_started_unit(launch)
        done = await host.run(
            shell_argv(
                script.CHECK_SCRIPT,
                _service_manager_argument(launch.plan.run_options, launch.may_sudo),
                unit,
            )
        )
        seen = parse_last_values(done.out.splitlines())
        if unit == launch.replaced:  # it is stopped before the start
            seen.pop("active", None)
        return tuple(_find_unit_problems(scope, unit, seen))

    async def fetch_image(self, host: Host, launch: Launch) -> None:
        """Do nothing: a unit runs a program that is on the host."""

    def command(self, launch: Launch) -> Command:
        scope = _scope_option(launch.plan.run_options)
        if _installation_kind(launch):
            start = ("enable", "--now") if _installation_kind(launch) == "boot" else ("start",)
            files = {_name_of_started_unit(launch): unit_text(launch)}
            argv = ["systemctl", f"--{scope}", *start, _name_of_started_unit(launch)]
            return Command(tuple(argv), launch.env, files, host=launch.address, port=launch.port)
        argv = [
            "systemd-run",
            f"--{scope}",
            f"--unit={transient_unit_name(launch.run_id)}",
            *_property_options(launch),
        ]
        argv += [f"--setenv={name}" for name in launch.env]
        if launch.workdir:
            argv.append(f"--working-directory={launch.workdir}")
        words = (*argv, "--", *map(double_dollars, launch.argv))
        return Command(words, launch.env, host=launch.address, port=launch.port)

    def make_keeper(self, launch: Launch) -> Keeper:
        scope = _service_manager_argument(launch.plan.run_options, launch.may_sudo)
        unit = _name_of_started_unit(launch)
        if kind := _installation_kind(launch):
            argv = shell_argv(
                script.KEEPER_SCRIPT,
                "install",
                launch.run_dir,
                unit,
                scope,
                _environment_directory(launch),
                kind,
            )
            return Keeper(argv, launch.env, {"unit": unit_text(launch)})
        words = (
            *_property_options(launch),
            "--",
            *map(double_dollars, _unit_command_line(launch, launch.run_dir)),
        )
        argv = shell_argv(script.KEEPER_SCRIPT, "start", launch.run_dir, unit, scope, *words)
        return Keeper(argv, launch.env)

    def make_adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        # The journal of a unit of the run is followed from its beginning, that of another unit from
        # its present start.
        since = "all" if handle == transient_unit_name(launch.run_id) else "start"
        scope = _service_manager_argument(launch.plan.run_options, launch.may_sudo)
        return Keeper(
            shell_argv(script.KEEPER_SCRIPT, "follow", launch.run_dir, handle, scope, since)
        )

    async def read_exit_state(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> ServerExitState:
        unit = _unit_name(launch, launched)
        seen = await self._read_unit_properties(host, launch.plan.run_options, unit)
        state, sub = seen.get("ActiveState", ""), seen.get("SubState", "")
        is_active = state in _LIVING_STATES and sub != "exited"
        is_due_at_boot = seen.get("Job", "0") not in ("", "0")
        if is_active or is_due_at_boot:
            return ServerExitState(True, unit)
        # What a keeper that was killed has left: the environment, and the failed unit.
        await host.run(["rm", "-f", "--", f"{launch.run_dir}/environment"])
        if unit == transient_unit_name(launch.run_id) and state == "failed":
            await self._run_systemctl(host, launch.plan.run_options, "reset-failed", "--", unit)
        if seen.get("LoadState") == "not-found":
            return ServerExitState(
                False,
                unit,
                f"{unit} is gone: it was stopped from outside, or the host was restarted",
            )
        if seen.get("ExecMainCode") in (None, "", "0"):
            return ServerExitState(
                False,
                unit,
                f"{unit} is {state}: it was not started again after the host was restarted",
            )
        code = parse_whole_number(seen.get("ExecMainStatus")) or 0
        killed = seen.get("ExecMainCode") in ("2", "3")
        return ServerExitState(
            False,
            unit,
            f"{unit} ended: {seen.get('Result') or state}",
            128 + code if killed else code,
        )

    async def stop(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        unit = _unit_name(launch, launched)
        done = await self._run_systemctl(
            host, launch.plan.run_options, "stop", "--", unit, timeout_s=self.stop_s
        )
        if done.returncode not in (0, 5):  # 5: not loaded
            raise ServerError(
                f"systemd did not stop the unit {unit}: {done.problem}",
                host=host.name,
                command=shlex.join(
                    ("systemctl", f"--{_scope_option(launch.plan.run_options)}", "stop", unit)
                ),
                next_step="run the command `systemctl stop` on the host; it may need root",
            )

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        scope = _scope_option(launch.plan.run_options)
        return ("systemctl", f"--{scope}", "restart", "--", _unit_name(launch, launched))

    async def restart(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        unit, scope = _unit_name(launch, launched), _scope_option(launch.plan.run_options)
        words = ("restart", "--no-block", "--", unit)
        done = await self._run_systemctl(
            host, launch.plan.run_options, *words, timeout_s=self.stop_s
        )
        if done.returncode:
            raise ServerError(
                f"systemd did not restart the unit {unit}: {done.problem}",
                host=host.name,
                command=shlex.join(("systemctl", f"--{scope}", "restart", unit)),
                next_step="run the command `systemctl restart` on the host; it may need root",
            )

    def installed_unit_name(self, launch: Launch) -> str | None:
        if not _installation_kind(launch):
            return None
        return _name_of_started_unit(launch)

    async def uninstall_and_list_removed(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> Sequence[str]:
        options = launch.plan.run_options
        if not _installation_kind(launch):
            return ()
        words = (
            _service_manager_argument(options, host.may_sudo),
            _name_of_started_unit(launch),
            _environment_directory(launch),
        )
        done = await host.run(shell_argv(script.UNINSTALL_SCRIPT, *words), timeout_s=self.stop_s)
        if done.returncode:
            raise ServerError(
                f"the unit {_name_of_started_unit(launch)} was not removed: {done.out.strip() or done.problem}",
                host=host.name,
                command=f"systemctl --{_scope_option(options)} cat {_name_of_started_unit(launch)}",
                next_step="read the unit file with `systemctl cat`, and delete it if the unit is "
                "not needed",
            )
        return done.out.splitlines()

    async def find_adoptable(
        self, host: Host, handle: str, options: Mapping[str, str]
    ) -> AdoptableServer:
        unit = handle if "." in handle else f"{handle}.service"
        if set("*?[") & set(unit):  # systemctl would restart every unit that it matches
            raise ServerError(
                f"{unit} is a pattern, not a unit name",
                host=host.name,
                next_step="name one unit, without *, ? and [",
            )
        seen = await self._read_unit_properties(host, options, unit)
        pid = parse_whole_number(seen.get("MainPID")) or 0
        if not pid:
            state = seen.get("ActiveState") or "unknown"
            if seen.get("LoadState") == "not-found":
                state = "not found"
            other = "system" if _scope_option(options) == "user" else "user"
            raise ServerError(
                f"the unit {unit} is not running: it is {state} in the {_scope_option(options)}'s service "
                "manager",
                host=host.name,
                command=shlex.join(("systemctl", f"--{_scope_option(options)}", "status", unit)),
                next_step=f"start the unit, or use --run-option scope={other} if the {other}'s "
                "manager runs it",
            )
        command = (await read_command(host, pid)).without_control_characters()
        return AdoptableServer(unit, command.argv, command.env or {}, command.workdir)

    async def _read_unit_properties(
        self, host: Host, options: Mapping[str, str], unit: str
    ) -> Mapping[str, str]:
        names = "LoadState,ActiveState,SubState,Job,MainPID,Result,ExecMainCode,ExecMainStatus"
        done = await self._run_systemctl(host, options, "show", f"--property={names}", "--", unit)
        if done.returncode:
            raise HostError(
                f"`systemctl show` failed for the unit {unit}: {done.problem}", host=host.name
            )
        return parse_last_values(done.out.splitlines())

    async def _run_systemctl(
        self, host: Host, options: Mapping[str, str], *words: str, timeout_s: float = 30.0
    ) -> Completed:
        try:
            return await host.run(
                shell_argv(
                    script.SYSTEMCTL_SCRIPT,
                    _service_manager_argument(options, host.may_sudo),
                    *words,
                ),
                timeout_s=timeout_s,
            )
        except CommandTimeout as error:
            raise ServerError(
                error.message,
                host=host.name,
                next_step="run `systemctl status` for the unit on the host: it shows what the unit "
                "is doing",
            ) from None


def unit_text(launch: Launch) -> str:
    """Return the text of the unit file for an installed unit. The environment is not in it, but in
    a file that only the user can read."""
    command = " ".join(
        quote_argument(double_dollars(word))
        for word in _unit_command_line(launch, _environment_directory(launch))
    )
    is_user = _scope_option(launch.plan.run_options) == "user"
    target = "default.target" if is_user else "multi-user.target"
    lines = [script.WRITTEN_BY_LINE, "[Unit]", f"Description=Workbench: {launch.plan.engine}"]
    lines += [
        "After=network-online.target",
        "",
        "[Service]",
        *_property_assignments(launch),
        f"ExecStart={command}",
    ]
    return "\n".join([*lines, "", "[Install]", f"WantedBy={target}", ""])


def _unit_command_line(launch: Launch, home: str) -> tuple[str, ...]:
    """Return the command line of the unit: a shell that reads the server's environment from the
    file `environment` in the directory `home`, then runs the server."""
    return ("/bin/sh", "-c", script.SERVER_SCRIPT, "sh", home, launch.workdir or "", *launch.argv)


def _installation_kind(launch: Launch) -> str:
    """Return how the unit is installed, by the option `installed`: "yes", "boot" if it is also
    started at boot, or "" for a transient unit, which is not installed."""
    kind = launcher_option_value(LAUNCHER_NAME, launch.plan.run_options, "installed")
    return "" if kind == "no" else kind


def _name_of_started_unit(launch: Launch) -> str:
    """Return the name of the unit, installed or transient, that the start of `launch` creates."""
    if not _installation_kind(launch):
        return transient_unit_name(launch.run_id)
    name = (
        launcher_option_value(LAUNCHER_NAME, launch.plan.run_options, "unit")
        or f"workbench-{launch.plan.preset_id or launch.plan.engine}"
    )
    return f"{name.removesuffix('.service')}.service"


def _environment_directory(launch: Launch) -> str:
    """Return the directory for the environment file of an installed unit. It is not the run
    directory, because the unit must work after that is removed."""
    state = posixpath.dirname(posixpath.dirname(launch.run_dir))
    return posixpath.join(state, "units", _name_of_started_unit(launch))


def transient_unit_name(run_id: str) -> str:
    """Return the name of the transient unit in which Workbench starts the server of the run."""
    return f"workbench-{run_id}.service"


def _unit_name(launch: Launch, launched: LaunchedServer) -> str:
    return launched.handle or transient_unit_name(launch.run_id)


def _scope_option(options: Mapping[str, str]) -> str:
    return launcher_option_value(LAUNCHER_NAME, options, "scope")


def _service_manager_argument(options: Mapping[str, str], may_sudo: bool) -> str:
    """Return the word by which the scripts choose the service manager of the unit: "user" for the
    user's, "system" for the system's with sudo, "own" for the system's without sudo."""
    scope = _scope_option(options)
    return scope if scope == "user" or may_sudo else "own"


def _property_options(launch: Launch) -> list[str]:
    """Return the `--property` options for systemd-run that set the properties of the unit."""
    return [f"--property={text}" for text in _property_assignments(launch)]


def _property_assignments(launch: Launch) -> list[str]:
    """Return the properties of the unit, each as NAME=VALUE."""
    options = launch.plan.run_options
    restart = launcher_option_value(LAUNCHER_NAME, options, "restart")
    given = [f"TimeoutStopSec={STOP_GRACE_S}"]
    if restart != "no":
        given.append(f"Restart={restart}")
    # systemd forgets a unit that has succeeded
    if restart != "always" and not _installation_kind(launch):
        given.append("RemainAfterExit=yes")
    if launch.open_files:
        given.append(f"LimitNOFILE={launch.open_files}")
    return [*given, *launcher_option_values(LAUNCHER_NAME, options, "property")]


def _find_unit_problems(scope: str, unit: str, seen: Mapping[str, str]) -> list[Finding]:
    """Return the finding, if any, about what prevents a start of the unit `unit`, or ends its
    server early. `scope` is "user" or "system", and `seen` has the values that CHECK_SCRIPT
    printed."""
    version = parse_whole_number(seen.get("version")) or 0
    user, problem = seen.get("user") or "USER", seen.get("problem", "")
    fix = ""
    if not version:
        text = "the host has no systemd: systemctl or systemd-run is missing"
        fix = "start the server without --as systemd"
    elif version < MIN_SYSTEMD_VERSION:
        text = f"systemd {version} is too old: Workbench needs {MIN_SYSTEMD_VERSION} or later"
        fix = "start the server without --as systemd"
    elif problem and scope == "user":
        text = f"the service manager of {user} cannot be reached: {problem}"
        fix = (
            f"log in as {user}, or run `loginctl enable-linger {user}`, or use --run-option "
            "scope=system"
        )
    elif problem:
        text = f"{user} may not manage units of the system: {problem}"
        fix = (
            "allow it in sudoers without a password (systemctl, systemd-run, journalctl), or "
            "use scope=user"
        )
        if "hosts.toml" in problem:
            fix = "use --run-option scope=user, or remove sudo = false"
    elif seen.get("journal"):
        text = f"{user} may not read the journal of the unit: {seen['journal']}"
        fix = (
            f"add {user} to the group systemd-journal, or make the journal persistent: mkdir "
            "/var/log/journal"
        )
    elif seen.get("active"):
        text = f"{unit} runs already"
        fix = (
            f"stop {unit}, follow its server with `workbench adopt systemd:{unit}`, or use "
            "--run-option unit=NAME"
        )
    elif scope == "user" and seen.get("linger") == "no":
        text = (
            f"lingering is off for {user}: systemd ends the server when {user}'s last session "
            "on the host ends"
        )
        fix = f"run `loginctl enable-linger {user}` on the host"
        return [Finding(Level.WARN, "systemd.linger", text, fix=fix)]
    else:
        return []
    return [Finding(Level.ERROR, "systemd.unusable", text, fix=fix)]
