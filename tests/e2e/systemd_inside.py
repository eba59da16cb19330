"""Servers as units of a real systemd. These tests run as root in a box with systemd:
test_systemd.py runs them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support import fake_engine
from support.fake_runs import READY_S, VLLM, Made
from support.procs import alive, with_argument
from support.procs import eventually as soon
from support.serving import eventually, free_port, processes_of, supervised

from workbench.hosts.local import LocalHost
from workbench.model.errors import PlanError, ServerError
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server import external_servers
from workbench.server import supervisor as module
from workbench.server.launchers.systemd_scripts import WRITTEN_BY_LINE
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.session.servers import adoption
from workbench.session.session import Session
from workbench.sim import engine_server

KILLS = int(os.environ.get("KILLS", "8"))
SCOPE = os.environ.get("SCOPE", "system")
UNITS = Path(
    "/etc/systemd/system" if SCOPE == "system" else f"{os.environ['HOME']}/.config/systemd/user"
)
OPTIONS = (f"scope={SCOPE}",)
AWKWARD = (
    "a b",
    "q'u\"o",
    "$HOME",
    "${HOME}",
    "$$",
    "%n",
    "back\\slash",
    "new\nline",
    "ünï🙂",
    ";",
    "*",
    "-x",
    "",
)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "_BUSY_INTERVAL_S",
        "_TALKING_INTERVAL_S",
        "_STARTING_INTERVAL_S",
        "_READY_INTERVAL_S",
        "_LOST_INTERVAL_S",
        "_STARTING_ASK_INTERVAL_S",
    ):
        monkeypatch.setattr(module, name, 0.1)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "st'a \"te $x %n"))


def make(
    directory: Path, behaviour: str = "", options: tuple[str, ...] = OPTIONS, **env: str
) -> Made:
    program = fake_engine.install(directory / "bin")
    settings = tuple(FlagSetting(k, v) for k, v in {"FAKE_ENGINE": behaviour, **env}.items())
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan("vllm", "org/model", flags=flags, env=settings, executable=(str(program),))
    plan = with_launcher_and_options(plan, "systemd", options)
    return plan, VLLM.command(plan)


async def ready(supervisor: Supervisor, made: Made) -> ServerStatus:
    status = await supervisor.start(*made, VLLM, ready_timeout_s=READY_S)
    status = await supervisor.wait_ready(status.run_id, READY_S)
    assert status.state is ServerState.READY, (status.reason, supervisor.log(status.run_id).lines())
    return status


async def until(supervisor: Supervisor, run_id: str, *wanted: ServerState) -> ServerStatus:
    return await supervisor.wait(run_id, lambda status: status.state in wanted, READY_S)


def systemctl(*words: str, check: bool = True) -> str:
    return subprocess.run(
        ["systemctl", f"--{SCOPE}", *words], check=check, capture_output=True, text=True
    ).stdout


def started(supervisor: Supervisor, run_id: str) -> int:
    """Return how often the log says that the server has started."""
    return len([line for line in supervisor.log(run_id).lines() if "startup complete" in line])


def nothing_left(status: ServerStatus) -> None:
    assert "0 loaded units" in systemctl("list-units", "--all", f"workbench-{status.run_id}*")
    soon(lambda: not with_argument(str(status.port)), "the end of every process", 5.0)
    assert not processes_of(status.run_dir or "")
    assert not Path(status.run_dir or "", "environment").exists()


def test_a_unit_serves_keeps_its_secrets_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        made = make(tmp_path, HF_TOKEN="hf-sesame-token", SPACED="two words $HOME")
        status = await ready(supervisor, made)
        unit = f"workbench-{status.run_id}.service"
        assert (status.handle, status.launcher_state, status.restarts) == (
            unit,
            "active (running)",
            0,
        )
        assert systemctl("show", "--property=MainPID", "--value", unit).strip() == str(status.pid)
        shown = systemctl("show", unit) + systemctl("cat", unit) + systemctl("status", unit)
        assert "sesame" not in shown
        assert not with_argument("hf-sesame-token")
        environment = Path(status.run_dir or "", "environment")
        assert stat.S_IMODE(environment.stat().st_mode) == 0o600
        variables = Path(f"/proc/{status.pid}/environ").read_bytes().split(b"\0")
        assert {b"HF_TOKEN=hf-sesame-token", b"SPACED=two words $HOME"} <= set(variables)
        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        log = Path(status.run_dir or "", "log").read_text()
        assert "Application startup complete" in log
        assert "Terminated" not in log
        nothing_left(status)

    supervised(scenario)


def test_every_word_of_a_command_arrives(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan, command = make(tmp_path)
        workdir = tmp_path / "a $HOME 'b' %n \"c\""
        workdir.mkdir()
        command = replace(command, argv=(*command.argv, *AWKWARD), workdir=str(workdir))
        status = await ready(supervisor, (plan, command))
        words = Path(f"/proc/{status.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        assert words[-len(AWKWARD) :] == list(AWKWARD)
        assert os.readlink(f"/proc/{status.pid}/cwd") == str(workdir)
        await supervisor.stop(status.run_id)
        nothing_left(status)

    supervised(scenario)


@pytest.mark.parametrize(
    ("behaviour", "how", "state", "code", "reason"),
    [
        ("exit=3", None, ServerState.FAILED, 3, None),
        ("", "KILL", ServerState.CRASHED, 137, "failed: signal"),
        ("", "TERM", ServerState.CRASHED, 143, None),
    ],
)
def test_the_end_of_a_server_is_told(
    tmp_path: Path,
    behaviour: str,
    how: str | None,
    state: ServerState,
    code: int,
    reason: str | None,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.start(*make(tmp_path, behaviour), VLLM)
        if how is not None:
            status = await supervisor.wait_ready(status.run_id, READY_S)
            os.kill(status.pid or 0, getattr(signal, f"SIG{how}"))
        status = await until(supervisor, status.run_id, state)
        assert (status.exit_code, status.alive) == (code, False)
        assert reason is None or reason in (status.reason or "")
        nothing_left(status)

    supervised(scenario)


def test_a_unit_is_stopped_and_restarted_from_outside(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(tmp_path))
        systemctl("restart", status.handle or "")
        again = await supervisor.wait(status.run_id, lambda s: s.restarts == 1, READY_S)
        again = await until(supervisor, status.run_id, ServerState.READY)
        assert again.pid != status.pid
        assert [f.code for f in again.findings] == ["run.restarted"]
        shown = await supervisor.restart_and_return_command(status.run_id)
        assert shown == f"systemctl --{SCOPE} restart -- {status.handle}"
        await supervisor.wait(status.run_id, lambda s: s.restarts == 2, READY_S)
        await until(supervisor, status.run_id, ServerState.READY)
        await eventually(
            lambda: started(supervisor, status.run_id) == 3, what="the log of all starts"
        )
        systemctl("stop", status.handle or "")
        ended = await until(supervisor, status.run_id, ServerState.CRASHED)
        assert "was stopped from outside" in (ended.reason or "")
        nothing_left(status)

    supervised(scenario)


def test_systemd_restarts_a_server_that_has_crashed(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(tmp_path, options=(*OPTIONS, "restart=on-failure")))
        os.kill(status.pid or 0, signal.SIGKILL)
        await supervisor.wait(status.run_id, lambda s: s.restarts == 1, READY_S)
        again = await until(supervisor, status.run_id, ServerState.READY)
        assert again.pid != status.pid
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        nothing_left(status)

    supervised(scenario)


def test_a_restarted_unit_is_ready_for_the_next_command(tmp_path: Path) -> None:
    """No Workbench watches while systemd restarts the server. A command then lists the servers."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(tmp_path, options=(*OPTIONS, "restart=on-failure")))
        await supervisor.close()
        os.kill(status.pid or 0, signal.SIGKILL)
        await answers_again(status)
        later = Supervisor(LocalHost(), lambda event: None)
        await later.runs()
        (seen,) = await later.check_servers_now()
        assert (seen.state, seen.restarts) == (ServerState.READY, 1), seen.reason
        await later.close()
        # killed for good before anybody asked: the run served all the same
        os.kill(seen.pid or 0, signal.SIGKILL)
        await answers_again(seen)
        systemctl("stop", seen.handle or "")
        last = Supervisor(LocalHost(), lambda event: None)
        await last.runs()
        ended = await until(last, status.run_id, ServerState.CRASHED, ServerState.FAILED)
        assert ended.state is ServerState.CRASHED, ended.reason
        await last.close()
        nothing_left(status)

    supervised(scenario)


async def answers_again(status: ServerStatus) -> None:
    """Wait until another process than that of `status` answers at its port, and the keeper has
    counted the restart, for which it looks at the unit from time to time."""
    unit = status.handle or ""
    counted = f"restarts {(status.restarts or 0) + 1}"
    launched = Path(status.run_dir or "", "launched")

    async def pid_and_health() -> bool:
        pid = systemctl("show", "--property=MainPID", "--value", unit).strip()
        if pid in ("0", str(status.pid)):
            return False
        try:
            async with httpx.AsyncClient() as http:
                reply = await http.get(f"http://127.0.0.1:{status.port}/health")
        except httpx.HTTPError:
            return False
        return reply.status_code == 200 and counted in launched.read_text().splitlines()

    async with asyncio.timeout(READY_S):
        while not await pid_and_health():
            await asyncio.sleep(0.2)


def test_a_killed_follower_of_the_journal_has_a_successor(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(tmp_path))
        log = Path(status.run_dir or "", "log")
        follows = f"--{'user-' if SCOPE == 'user' else ''}unit=workbench-{status.run_id}.service"
        for turn in range(3):
            await eventually(
                lambda: len(with_argument(follows)) == 1, READY_S, "a follower of the journal"
            )
            os.kill(*with_argument(follows), signal.SIGKILL)
            line = f"line {turn} after the kill"
            async with httpx.AsyncClient() as http:
                await http.post(f"http://127.0.0.1:{status.port}/log", content=line)
            await eventually(lambda line=line: log.read_text().count(line) == 1, READY_S, line)  # type: ignore[misc]
        assert log.read_text().count("Application startup complete") == 1
        await supervisor.stop(status.run_id)
        nothing_left(status)

    supervised(scenario)


def test_the_limit_of_open_files_is_set(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan, command = make(tmp_path, options=(*OPTIONS, "property=Nice=5"))
        status = await ready(supervisor, (plan, replace(command, open_files=777)))
        limits = Path(f"/proc/{status.pid}/limits").read_text()
        assert (
            next(
                line.split()[3] for line in limits.splitlines() if line.startswith("Max open files")
            )
            == "777"
        )
        assert os.getpriority(os.PRIO_PROCESS, status.pid or 0) == 5

    supervised(scenario)


def test_a_keeper_that_is_killed_at_random_moments(tmp_path: Path) -> None:
    """A server outlives its keepers. While it starts, no kill may start it twice or lose it."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        chance = random.Random(int(os.environ.get("SEED", "1")))
        status = await ready(supervisor, make(tmp_path))
        run = supervisor._runs[status.run_id]
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0, 0.5))
            keeper = run.facts.pid
            try:
                if chance.random() < 0.5:
                    os.killpg(os.getsid(keeper or 0), signal.SIGKILL)
                else:
                    os.kill(
                        keeper or 0, chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
                    )
            except ProcessLookupError:
                continue
            await eventually(
                lambda old=keeper: run.facts.pid not in (old, None) and run.facts.alive,
                what="a keeper",
            )
            again = await until(supervisor, status.run_id, ServerState.READY)
            assert (again.pid, again.restarts) == (status.pid, 0)
        assert {e.state for e in events if isinstance(e, ServerStatus)} == {
            ServerState.STARTING,
            ServerState.READY,
        }

        def told() -> int:
            lines = Path(run.log_path).read_text().splitlines()
            return len([line for line in lines if "startup complete" in line])

        # the last keeper copies it again
        await eventually(lambda: told() == 1, what="the whole log")
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        nothing_left(status)

    supervised(scenario)


def test_a_keeper_that_is_killed_while_it_starts_the_server(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        chance = random.Random(int(os.environ.get("SEED", "1")))
        for _ in range(max(2, KILLS // 4)):
            status = await supervisor.start(
                *make(tmp_path, "delay=0.2"), VLLM, ready_timeout_s=READY_S
            )
            await asyncio.sleep(chance.uniform(0, 0.3))
            os.killpg(os.getsid(supervisor._runs[status.run_id].facts.pid or 0), signal.SIGKILL)
            over = (ServerState.READY, ServerState.FAILED)
            status = await until(supervisor, status.run_id, *over)
            loaded = systemctl(
                "list-units", "--all", "--no-legend", f"workbench-{status.run_id}*"
            ).strip()
            assert bool(loaded) == (status.state is ServerState.READY), status.reason
            await supervisor.stop(status.run_id)
            nothing_left(status)

    supervised(scenario)


def test_a_stop_while_the_keeper_starts_the_server(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        for wait_s in (0.0, 0.05, 0.1, 0.2):
            status = await supervisor.start(*make(tmp_path, "delay=1"), VLLM)
            await asyncio.sleep(wait_s)
            assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
            nothing_left(status)

    supervised(scenario)


def test_a_service_of_others_is_found_followed_restarted_and_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        words = [
            *fake_engine.by_hand(
                tmp_path, "org/model", "--port", str(port), "--api-key", "sesame-open"
            )
        ]
        unit = UNITS / "vllm.service"
        unit.parent.mkdir(parents=True, exist_ok=True)
        quoted = " ".join(f'"{word}"' for word in words)
        unit.write_text(f"[Service]\nEnvironment=FAKE_ENGINE=key=sesame-open\nExecStart={quoted}\n")
        systemctl("daemon-reload")
        systemctl("start", "vllm.service")
        session = Session(LocalHost())
        try:
            await session.open()
            found: tuple[external_servers.FoundServer, ...] = ()
            while not found:
                found = await external_servers.find_external_servers(session.host)
            assert (found[0].unit, found[0].scope, found[0].port) == ("vllm.service", SCOPE, port)
            assert found[0].adopt_command == (
                f"workbench adopt systemd:vllm.service --run-option scope={SCOPE}"
            )
            run_id = await adoption.adopt_and_return_run_id(session, "systemd", "vllm", OPTIONS)
            status = await session.servers.wait_ready(run_id, READY_S)
            assert (status.state, status.port, status.others) == (ServerState.READY, port, True), (
                status.reason
            )
            assert (
                await adoption.adopt_and_return_run_id(session, "systemd", "vllm.service", OPTIONS)
                == run_id
            )
            assert "sesame" not in repr(session.servers.supervisor.record(run_id))
            assert await adoption.preview_restart_command(session, run_id) == (
                f"systemctl --{SCOPE} restart -- vllm.service"
            )
            await adoption.restart_in_place(session, run_id)
            supervisor = session.servers.supervisor
            await supervisor.wait(run_id, lambda s: s.restarts == 1, READY_S)
            again = await until(supervisor, run_id, ServerState.READY)
            await eventually(
                lambda: started(supervisor, run_id) == 2, what="the log of both starts"
            )
            stopped = await session.servers.stop_run_quietly(run_id)
            assert (stopped.state, again.pid is not None and alive(again.pid)) == (
                ServerState.STOPPED,
                True,
            )
            assert systemctl("is-active", "vllm.service").strip() == "active"
            with pytest.raises(
                ServerError,
                match=r"nothing\.service is not running: it is not "
                r"found",
            ):
                await adoption.adopt_and_return_run_id(session, "systemd", "nothing", OPTIONS)
            if SCOPE == "system":
                with pytest.raises(ServerError, match="runs no engine"):
                    await adoption.adopt_and_return_run_id(
                        session, "systemd", "systemd-journald", OPTIONS
                    )
        finally:
            await session.close()
            systemctl("stop", "vllm.service")
            unit.unlink()
            systemctl("daemon-reload")

    asyncio.run(scenario())


SGLANG = """import runpy, sys
sys.argv[:1] = [{server!r}, "--engine", "sglang"]
runpy.run_path({server!r}, run_name="__main__")
"""


def test_a_found_service_of_sglang_is_benchmarked_as_an_adopted_run(tmp_path: Path) -> None:
    program = tmp_path / "sglang"
    program.write_text(SGLANG.format(server=str(Path(engine_server.__file__))))
    port, unit = free_port(), UNITS / "sglang.service"
    env = {"WORKBENCH_SIM_PROFILE": "rtx-pro-6000", "WORKBENCH_SIM_STATE": tmp_path / "gpu"}
    env |= {"WORKBENCH_SIM_START_S": "0.2", "WORKBENCH_SIM_SPEEDUP": "20"}
    words = [
        sys.executable,
        str(program),
        "serve",
        "--model-path",
        "Qwen/Qwen3-0.6B",
        "--port",
        str(port),
    ]
    unit.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'Environment="{name}={value}"' for name, value in env.items()]
    unit.write_text("\n".join(["[Service]", *lines, f"ExecStart={' '.join(words)}", ""]))
    systemctl("daemon-reload")
    systemctl("start", "sglang.service")

    async def scenario() -> None:
        session = Session(LocalHost())
        try:
            await session.open()
            found: list[external_servers.FoundServer] = []
            until = time.monotonic() + READY_S
            while not found:
                assert time.monotonic() < until, systemctl("status", "sglang.service", check=False)
                found = [
                    one
                    for one in await external_servers.find_external_servers(session.host)
                    if one.port == port
                ]
            assert (found[0].engine, found[0].unit) == ("sglang", "sglang.service")
            _, _, named, *_ = (found[0].adopt_command or "").split()
            run_id = await adoption.adopt_and_return_run_id(
                session, *named.split(":"), found[0].launcher_options_to_adopt
            )
            status = await session.servers.wait_ready(run_id, READY_S)
            assert (status.state, status.engine, status.others) == (
                ServerState.READY,
                "sglang",
                True,
            ), status.reason
            shape = {
                "requests": 8,
                "concurrency": 2,
                "max_tokens": 8,
                "input_tokens": 16,
                "warmup": 0,
            }
            result = await session.results.get(await session.bench.benchmark_run(run_id, **shape))
            assert (result.summary.requests_ok, result.summary.requests_failed) == (8, 0)
            assert result.conditions.engine == "sglang" and result.conditions.run_as == "systemd"
            assert (await session.servers.stop_run_quietly(run_id)).state is ServerState.STOPPED
            assert systemctl("is-active", "sglang.service").strip() == "active"
        finally:
            await session.close()

    try:
        asyncio.run(scenario())
    finally:
        systemctl("stop", "sglang.service")
        unit.unlink()
        systemctl("daemon-reload")


def test_an_installed_unit_stays_and_starts_again(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        options = (*OPTIONS, "installed=boot", "unit=workbench-test")
        plan, command = make(tmp_path, options=options, HF_TOKEN="hf-sesame-token")
        command = replace(
            command, argv=(*command.argv, *(word for word in AWKWARD if "\n" not in word))
        )
        file = UNITS / "workbench-test.service"
        try:
            status = await ready(supervisor, (plan, command))
            assert status.handle == "workbench-test.service"
            assert "sesame" not in file.read_text()
            words = Path(f"/proc/{status.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            assert words[-3:] == ["*", "-x", ""]
            assert systemctl("is-enabled", "workbench-test").strip() == "enabled"
            with pytest.raises(PlanError, match="runs already"):
                other, its = make(tmp_path, options=options)
                await supervisor.start(other, its, VLLM)
            assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
            assert systemctl("is-active", "workbench-test", check=False).strip() == "inactive"
            home = Path(
                os.environ["XDG_STATE_HOME"], "workbench", "units", "workbench-test.service"
            )
            assert (home / "environment").exists()
            assert list(await supervisor.uninstall_and_list_removed(status.run_id)) == [
                str(file),
                str(home),
            ]
            assert (
                not file.exists()
                and not home.exists()
                and "workbench-test" not in systemctl("list-unit-files")
            )
            assert list(await supervisor.uninstall_and_list_removed(status.run_id)) == []
            file.write_text("[Service]\nExecStart=/bin/true\n")
            failed = await supervisor.start(plan, command, VLLM)
            failed = await until(supervisor, failed.run_id, ServerState.FAILED)
            assert "Workbench did not write it" in (failed.reason or "")
            with pytest.raises(ServerError, match="Workbench did not write"):
                await supervisor.uninstall_and_list_removed(failed.run_id)
            assert "ExecStart=/bin/true" in file.read_text()
            file.write_text(
                f"{WRITTEN_BY_LINE}\n[Unit]\n\n[Service]\nUser=mallory\nExecStart=/bin/true\n"
            )
            failed = await supervisor.start(plan, command, VLLM)
            failed = await until(supervisor, failed.run_id, ServerState.FAILED)
            assert "it is the unit of mallory" in (failed.reason or "")
            with pytest.raises(ServerError, match="is the unit of mallory"):
                await supervisor.uninstall_and_list_removed(failed.run_id)
            assert "ExecStart=/bin/true" in file.read_text()
        finally:
            systemctl("disable", "--now", "workbench-test", check=False)
            file.unlink(missing_ok=True)
            systemctl("daemon-reload")

    supervised(scenario)


def test_a_property_that_systemd_refuses(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        began = time.monotonic()
        status = await supervisor.start(
            *make(tmp_path, options=(*OPTIONS, "property=NoSuch=1")), VLLM
        )
        status = await until(supervisor, status.run_id, ServerState.FAILED)
        assert "NoSuch" in (status.reason or "")
        assert time.monotonic() - began < READY_S
        nothing_left(status)

    supervised(scenario)
