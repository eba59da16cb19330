"""A launcher for tests: its servers are processes that outlive their keepers, like units,
containers or jobs.

The files of the "scheduler" are in a directory: `queued` while servers must wait; `NAME.pid`,
`NAME.code`, `NAME.log` of each server. The launcher and its options are registered for one test by
`registered`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from support.procs import alive

from workbench.hosts.base import Host
from workbench.hosts.shell_scripts import shell_argv
from workbench.model import run_options
from workbench.model.findings import Finding, Level
from workbench.model.plan import Command
from workbench.model.run_options.option import RunOption
from workbench.server import launchers
from workbench.server.launchers.launcher import (
    AdoptableServer,
    Keeper,
    Launch,
    LaunchedServer,
    ServerExitState,
)

WORD = "standin"
OPTIONS = (
    RunOption("queue", "the queue", choices=("short", "long"), default="short"),
    RunOption(
        "mount",
        "a directory for the server",
        repeatable=True,
        foreign="lets the server read a directory",
    ),
)
# $1 directory, $2 name, then the server's command. Its parent records its exit code and ignores
# signals for the keeper.
_SERVER = r"""
dir=$1 name=$2
shift 2
"$@" >>"$dir/$name.log" 2>&1 &
child=$!
echo "$child" >"$dir/$name.pid"
wait "$child"
code=$?
[ "$(cat "$dir/$name.pid")" != "$child" ] || echo "$code" >"$dir/$name.code"
"""
# $1 a script, then its arguments: it has ended its parent's wait at once, and outlives the test's
# process.
_DETACHED = 'server=$1; shift; setsid sh -c "$server" sh "$@" </dev/null >/dev/null 2>&1 &'
_KEEPER = r"""
what=$1 run=$2 dir=$3 name=$4 server=$5
shift 5
ended=
trap 'ended=1' TERM
report() { printf '%s\n' "handle $name" "$@" >"$run/launched.new"; mv "$run/launched.new" "$run/launched"; }
if [ "$what" = start ]; then
    while [ -e "$dir/queued" ]; do report "state PENDING (Resources)"; sleep 0.05; [ -z "$ended" ] || exit 143; done
    setsid sh -c "$server" sh "$dir" "$name" "$@" </dev/null >/dev/null 2>&1 &
    until [ -s "$dir/$name.pid" ]; do sleep 0.02; done
fi
tail -n +1 -f "$dir/$name.log" &
tail=$!
began=$(date +%s) before=
while :; do
    read -r pid <"$dir/$name.pid"
    report "state RUNNING" "pid $pid" "began_unix_s $began" "restarts 0" "ends_unix_s $((began + 7200))"
    [ ! -e "$dir/$name.code" ] || break
    [ -z "$ended" ] || { kill "$tail"; exit 143; }
    sleep 0.05
done
read -r code <"$dir/$name.code"
report "exit_code $code" "ended COMPLETED with $code"
sleep 0.2
kill "$tail"
exit "$code"
"""


class Standin:
    name = WORD
    start_program_name = "standin"
    stop_s = 10.0
    looks_at = frozenset({"files", "port"})

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.against: list[Finding] = [
            Finding(Level.WARN, "standin.note", "the stand-in is no scheduler")
        ]
        self.stopped: list[str] = []
        self.unit: Path | None = None  # what a start installs

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        return self.against

    async def fetch_image(self, host: Host, launch: Launch) -> None:
        pass

    def command(self, launch: Launch) -> Command:
        return Command(
            ("standin", "run", launch.run_id, *launch.argv),
            launch.env,
            {"job.sh": " ".join(launch.argv)},
        )

    def make_keeper(self, launch: Launch) -> Keeper:
        return self._keeper("start", launch, launch.run_id, launch.argv, launch.env)

    def make_adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        return self._keeper("follow", launch, handle)

    def _keeper(
        self,
        what: str,
        launch: Launch,
        name: str,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Keeper:
        return Keeper(
            shell_argv(_KEEPER, what, launch.run_dir, str(self.directory), name, _SERVER, *argv),
            env or {},
        )

    async def read_exit_state(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> ServerExitState:
        name = launched.handle or launch.run_id
        pid, code = self.pid(name), self._read(f"{name}.code")
        if code is None and pid is not None:
            return ServerExitState(True, name)
        return (
            ServerExitState(False, name, f"standin: {name} has ended", code)
            if code is not None
            else ServerExitState(False)
        )

    async def stop(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        self.stopped.append(launch.run_id)
        pid = self.pid(launched.handle or launch.run_id)
        if pid is not None and self._read(f"{launched.handle or launch.run_id}.code") is None:
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(pid, signal.SIGTERM)

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        return ("standin", "restart", launch.run_id)

    async def restart(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        pid, name = self.pid(launch.run_id), launch.run_id
        assert pid is not None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        env = dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
        place = self.directory / f"{name}.pid"
        place.write_text("0")
        os.kill(pid, signal.SIGTERM)
        while alive(pid):
            await asyncio.sleep(0.05)
        again = shell_argv(_DETACHED, _SERVER, str(self.directory), name, *words)
        subprocess.run(again, env=env, check=True)

    def installed_unit_name(self, launch: Launch) -> str | None:
        return "standin.service" if self.unit is not None else None

    async def uninstall_and_list_removed(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> Sequence[str]:
        if self.unit is None or not self.unit.exists():
            return ()
        self.unit.unlink()
        return (str(self.unit),)

    async def find_adoptable(
        self, host: Host, handle: str, options: Mapping[str, str]
    ) -> AdoptableServer:
        pid = self.pid(handle)
        assert pid is not None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return AdoptableServer(handle, tuple(words[:-1]))

    def pid(self, name: str) -> int | None:
        return self._read(f"{name}.pid")

    def _read(self, name: str) -> int | None:
        try:
            return int((self.directory / name).read_text())
        except (FileNotFoundError, ValueError):
            return None


def registered(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Standin:
    """Register the launcher until the end of the test, and return it. Its servers are in
    `directory`."""
    directory.mkdir()
    made = Standin(directory)
    module = ModuleType("standin")
    module.launcher = lambda word: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workbench.server.launchers.standin", module)
    monkeypatch.setitem(launchers.MODULE_OF_LAUNCHER, WORD, "standin")
    monkeypatch.setitem(run_options.OPTIONS, WORD, OPTIONS)
    return made
