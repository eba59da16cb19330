"""Servers as containers of real podman, and of Docker's own command line in front of it: from start until nothing is
left, with everything that can go wrong on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support import container_runs, fake_engine, llama_server, tiny_gguf
from support.podman import IMAGE, TESTS, Podman, podman
from support.serving import eventually, free_port, stream, supervised

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError, PlanError
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_assignments
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server import external_servers
from workbench.server.log_lines import HEAD_BYTES, READ_BYTES
from workbench.server.supervisor import Event, Supervisor
from workbench.session.adoption import plan_of_server

pytestmark = pytest.mark.slow
VLLM = engines.get("vllm")
READY_S = 90.0
ENDED = frozenset({ServerState.FAILED, ServerState.CRASHED})
ENDS = ENDED | {ServerState.READY}


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    # Podman takes no path of more than 50 characters for its state.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, podman(Path(directory)) as box:
        box.docker()
        yield box


@pytest.fixture(autouse=True)
def on_path(engine: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", engine.path)
    yield
    assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""


def seen(*more: Path) -> list[str]:
    """Return the options with which a container sees this machine's programs, and no GPU."""
    places = dict.fromkeys(("/usr", sys.base_prefix, sys.prefix, str(TESTS.parent), *map(str, more)))
    return [f"image={IMAGE}", "gpus=none", "grace=1", *(f"mount={place}:{place}:ro" for place in places)]


def fake_plan(tmp_path: Path, word: str = "podman", behaviour: str = "", *options: str, **env: str) -> LaunchPlan:
    program = fake_engine.install(tmp_path / "bin")
    settings = tuple(FlagSetting(name, value) for name, value in {"FAKE_ENGINE": behaviour, **env}.items())
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan(
        "vllm", "org/model", flags=flags, env=settings, executable=(str(program),), executable_from="given"
    )
    named = {option.partition("=")[0] for option in options}
    usual = (option for option in [*seen(tmp_path), "hub-cache=none"] if option.partition("=")[0] not in named)
    return with_assignments(plan, word, [*usual, *options])


async def started(supervisor: Supervisor, plan: LaunchPlan) -> ServerStatus:
    engine = engines.get(plan.engine)
    return await supervisor.start(plan, engine.command(plan), engine)


async def ready(supervisor: Supervisor, plan: LaunchPlan) -> ServerStatus:
    status = await supervisor.wait_ready((await started(supervisor, plan)).run_id, READY_S)
    assert status.state is ServerState.READY, (status.reason, supervisor.log(status.run_id).lines())
    return status


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_from_start_until_nothing_is_left(word: str, engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        plan = fake_plan(tmp_path, word, NASTY="a b\n\"$HOME\" 'ä'")
        status = await ready(supervisor, plan)
        assert (status.run_as, status.handle) == (word, f"workbench-{status.run_id}")
        assert status.image is not None and status.image.startswith(f"{IMAGE}@sha256:")
        assert status.pid is not None and status.url is not None
        environ = Path(f"/proc/{status.pid}/environ").read_bytes().split(b"\0")
        assert "NASTY=a b\n\"$HOME\" 'ä'".encode() in environ
        assert not any(pair.startswith(b"WORKBENCH_RUN=") for pair in environ)
        labels = engine("inspect", "--format", '{{index .Config.Labels "workbench.run"}}', status.handle or "")
        assert labels == status.run_id

        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
@pytest.mark.parametrize(("behaviour", "code"), [("exit=3", 3), ("exit=0", 0)])
def test_the_exit_code_and_the_whole_log_are_kept(word: str, behaviour: str, code: int, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await started(supervisor, fake_plan(tmp_path, word, behaviour))
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.FAILED, READY_S)
        assert ended.exit_code == code
        log = await supervisor.load_log(status.run_id)
        assert log.lines(), "the output of the server"

    supervised(scenario)


def test_a_long_log_arrives_whole_and_in_order(tmp_path: Path) -> None:
    """A reader skips nothing of a log of this size, however far behind it is."""
    count = 15_000

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, "podman", f"flood={count}"))
        await supervisor.stop(status.run_id)
        log = Path(status.run_dir or "", "log")
        assert log.stat().st_size < HEAD_BYTES + 2 * READ_BYTES
        lines = [line for e in events if isinstance(e, LogBatch) for line in e.lines]
        assert lines == log.read_text().splitlines()
        flood = [line.partition("flood.py:1] ")[2] for line in lines if "flood.py" in line]
        assert flood == [f"line {number} of a flood of them" for number in range(count)]

    supervised(scenario)


def keeper_of(status: ServerStatus) -> int:
    """Return the process id of a run's keeper; 0 while another keeper replaces it."""
    try:
        return int(Path(status.run_dir or "", "pid").read_text())
    except (OSError, ValueError):
        return 0


def test_another_workbench_adopts_it_and_stops_it(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        second = Supervisor(LocalHost())
        (adopted,) = await second.runs()
        assert (adopted.state, adopted.adopted, adopted.handle) == (ServerState.READY, True, status.handle)
        assert adopted.pid == status.pid
        assert (await second.stop(status.run_id)).state is ServerState.STOPPED
        await second.close()
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.STOPPED, 20)
        assert ended.state is ServerState.STOPPED

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_killed_keeper_does_not_end_the_server(word: str, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        assert status.pid is not None
        before = keeper_of(status)
        os.killpg(os.getpgid(before), signal.SIGKILL)
        await eventually(lambda: keeper_of(status) not in (0, before), what="another keeper")
        again = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.READY, READY_S)
        assert (again.state, again.pid) == (ServerState.READY, status.pid)
        assert not any(
            s.state in (ServerState.FAILED, ServerState.CRASHED) for s in events if isinstance(s, ServerStatus)
        )
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_with_the_label_of_a_run_is_never_touched(word: str, engine: Podman, tmp_path: Path) -> None:
    """A clone of a container has its labels, and anybody can write them."""

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        others = [f"{status.handle}-clone", "hostile8-label"]
        for name in others:
            engine.start(name, "--label", f"workbench.run={status.run_id}")
        try:
            before = keeper_of(status)
            os.killpg(os.getpgid(before), signal.SIGKILL)
            await eventually(lambda: keeper_of(status) not in (0, before), what="another keeper")
            again = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.READY, READY_S)
            assert (again.handle, again.pid) == (status.handle, status.pid)
            assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
            assert sorted(engine("ps", "--format", "{{.Names}}").split()) == sorted(others)
        finally:
            engine("rm", "--force", "--time", "0", *others)

    supervised(scenario)


def test_a_server_that_ends_while_its_keeper_is_lost_keeps_its_log_and_code(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await supervisor.close()
        os.killpg(os.getpgid(keeper_of(status)), signal.SIGKILL)
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        second = Supervisor(LocalHost())
        await second.runs()
        ended = await second.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert (ended.state, ended.exit_code, ended.exit_signal) == (ServerState.CRASHED, 137, "SIGKILL")
        assert Path(status.run_dir or "", "log").read_text().strip()
        await second.close()

    supervised(scenario)


def test_a_container_that_is_removed_from_outside_is_named(engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        engine("rm", "--force", "--time", "0", status.handle or "")
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert "removed from outside" in (ended.reason or "") or ended.exit_code == 137, ended
        assert ended.state is ServerState.CRASHED

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_of_others_is_found_followed_and_left_running(word: str, engine: Podman, tmp_path: Path) -> None:
    port = free_port()
    name = f"theirs-{word}"
    words = fake_engine.by_hand(tmp_path, "org/model", "--port", str(port))
    engine.start(name, "-v", f"{tmp_path}:{tmp_path}:ro", "-e", "FAKE_ENGINE=", command=tuple(words))
    try:

        async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
            found = []
            async with asyncio.timeout(30):
                while not found:
                    found = [one for one in await external_servers.find(supervisor.host) if one.port == port]
            container = engine("inspect", "--format", "{{.Id}}", name)
            assert found[0].adopt == f"workbench adopt podman:{container[:12]}"

            plan, command, its_engine, handle = await plan_of_server(supervisor.host, word, container[:12], ())
            assert handle == name
            status = await supervisor.start(plan, command, its_engine, adopts=handle)
            up = await supervisor.wait_ready(status.run_id, READY_S)
            assert (up.state, up.handle, up.others) == (ServerState.READY, name, True), up
            await write(up, "a new line\n")
            log = supervisor.log(status.run_id)
            await eventually(lambda: "a new line" in log.lines(), what="a line of its log")
            assert "non-default args" in log.lines()[0], "the log from its beginning"
            await supervisor.stop(status.run_id)
            assert engine("inspect", "--format", "{{.State.Running}}", name) == "true"

        supervised(scenario)
    finally:
        engine("rm", "--force", "--time", "0", name)


async def write(status: ServerStatus, text: str) -> None:
    """Make the server write to its log."""
    async with httpx.AsyncClient() as http:
        assert (await http.post(f"{status.url}/log", content=text.encode())).status_code == 200


def test_no_line_is_lost_when_what_copies_the_log_is_killed(engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        log = Path(status.run_dir or "", "log")
        for number in range(3):
            for word in ("logs", "cat")[: 1 + number]:
                for pid in [p.pid for p in psutil.Process(keeper_of(status)).children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        if word in psutil.Process(pid).cmdline():
                            os.kill(pid, signal.SIGKILL)
            await write(status, f"line {number} after a kill")
            await eventually(lambda number=number: f"line {number} after a kill" in log.read_text(), 30, "the line")
        own = engine("logs", status.handle or "").splitlines()
        assert len(own) > 5 and log.read_text().splitlines() == own
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED

    supervised(scenario)


# ---- the monitor of a container is killed


def kill_monitor(engine: Podman, status: ServerStatus) -> None:
    os.kill(int(engine("inspect", "--format", "{{.State.ConmonPid}}", status.handle or "")), signal.SIGKILL)


@pytest.mark.parametrize(("behaviour", "state"), [("never", ServerState.FAILED), ("", ServerState.CRASHED)])
def test_a_server_that_ends_after_its_monitor_was_killed(
    behaviour: str, state: ServerState, engine: Podman, tmp_path: Path
) -> None:
    """podman calls such a container running for ever."""

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await started(supervisor, fake_plan(tmp_path, "podman", behaviour))
        wanted = ServerState.READY if not behaviour else ServerState.STARTING
        status = await supervisor.wait(status.run_id, lambda s: s.pid is not None and s.state is wanted, READY_S)
        assert status.pid is not None
        await asyncio.to_thread(kill_monitor, engine, status)
        os.kill(status.pid, signal.SIGKILL)
        ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
        assert (ended.state, ended.exit_code) == (state, None)
        assert "the monitor of the container was killed" in (ended.reason or "")
        assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    supervised(scenario)


def test_a_server_that_outlives_its_monitor_serves_and_is_stopped(engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await asyncio.to_thread(kill_monitor, engine, status)
        assert status.pid is not None
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


# ---- another container has the name of the run's


@contextlib.contextmanager
def forged(engine: Podman, name: str) -> Iterator[str]:
    """Run another container with a run's name and label. It must be there at the end. Yields its id."""
    engine.start(name, "--label", f"workbench.run={name.removeprefix('workbench-')}")
    try:
        yield engine("inspect", "--format", "{{.Id}}", name)
        assert engine("inspect", "--format", "{{.State.Running}}", name) == "true"
    finally:
        engine("rm", "--force", "--time", "0", name)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_that_replaces_the_runs_own_is_left_alone(word: str, engine: Podman, tmp_path: Path) -> None:
    """Programs that update containers remove them, and make them again with the same name and labels."""

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        await supervisor.close()
        os.killpg(os.getpgid(keeper_of(status)), signal.SIGKILL)
        name = status.handle or ""
        engine("rm", "--force", "--time", "0", name)
        with forged(engine, name) as other:
            second = Supervisor(LocalHost())
            await second.runs()
            ended = await second.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 30)
            assert f"another container has its name now, which this run did not start: {other[:12]}" in (
                ended.reason or ""
            )
            assert (await second.stop(status.run_id)).state is ServerState.CRASHED
            await second.close()

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_that_is_replaced_while_it_is_kept(word: str, engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        engine("rm", "--force", "--time", "0", status.handle or "")
        with forged(engine, status.handle or ""):
            ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
            assert ended.state is ServerState.CRASHED
            await supervisor.stop(status.run_id)

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_name_that_is_taken_at_the_start(
    word: str, engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = "20261122-200000-vllm-0e0e"
    monkeypatch.setattr("workbench.server.supervisor.new_run_id", lambda engine, unix_s: run_id)
    with forged(engine, f"workbench-{run_id}") as other:
        status, lines = failed(fake_plan(tmp_path, word))
        assert "already in use" in (status.reason or ""), lines
        assert other[:12] in "".join(lines)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 1 MiB for the run directories."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_the_log_fills_the_disk_of_the_host(small_disk: Path, tmp_path: Path) -> None:
    """The server goes on, and its end is known nevertheless."""

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await write(status, f"{'x' * 1023}\n" * 2000)
        await eventually(lambda: os.statvfs(small_disk).f_bfree == 0, 30, "a full disk")
        assert supervisor.status(status.run_id).state is ServerState.READY
        async with httpx.AsyncClient() as http:
            with contextlib.suppress(httpx.HTTPError):
                await http.post(f"{status.url}/exit?3")
        ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
        assert (ended.state, ended.exit_code) == (ServerState.CRASHED, 3), ended
        assert "disk.full" in {finding.code for finding in ended.findings}
        with pytest.raises(HostError, match="No space left") as refused:
            await started(supervisor, fake_plan(tmp_path))
        assert "free some space" in (refused.value.next_step or "")

    supervised(scenario)


# ---- what keeps a container from starting


def failed(plan: LaunchPlan) -> tuple[ServerStatus, list[str]]:
    found: list[tuple[ServerStatus, list[str]]] = []

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await started(supervisor, plan)
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.FAILED, READY_S)
        assert ended.state is ServerState.FAILED
        found.append((ended, list((await supervisor.load_log(status.run_id)).lines())))

    supervised(scenario)
    return found[0]


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_program_that_the_image_lacks(word: str, tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, word)
    plan = LaunchPlan("vllm", "m", flags=plan.flags, run_as=word, run_options=plan.run_options)
    status, lines = failed(plan)
    assert status.exit_code in (126, 127), (status, lines)
    assert "log.container-program" in {f.code for f in status.findings}, lines


def test_an_image_of_another_platform(engine: Podman, tmp_path: Path) -> None:
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    engine("import", "--arch", other, "-", "other-machine:1", input=container_runs.usr_image())
    status, lines = failed(fake_plan(tmp_path, "podman", "", "image=other-machine:1"))
    assert "log.image-platform" in {f.code for f in status.findings}, lines
    assert f"linux/{other}" in (status.reason or "")


@pytest.mark.parametrize(("http", "code"), [(404, "image-not-found"), (401, "image-unauthorized")])
def test_a_registry_that_refuses(http: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with container_runs.registry(tmp_path) as (registry, conf):
        registry.status = http
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
        status, lines = failed(fake_plan(tmp_path, "podman", "", f"image={registry.address}/a/b:1"))
    assert f"log.{code}" in {f.code for f in status.findings}, lines


def test_a_registry_that_is_not_there(tmp_path: Path) -> None:
    status, lines = failed(fake_plan(tmp_path, "podman", "", f"image=127.0.0.1:{free_port()}/a/b:1"))
    codes = {f.code for f in status.findings}
    assert "log.registry-unreachable" in codes and "run.orphans" not in codes, lines


def test_a_program_that_is_not_installed_and_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        with pytest.raises(PlanError, match="podman is not installed"):
            monkeypatch.setenv("PATH", "/nowhere:/bin")
            await started(supervisor, fake_plan(tmp_path))

    if os.path.exists("/bin/podman"):
        pytest.skip("podman is beside sh")
    supervised(scenario)


@pytest.mark.parametrize("listed", [False, True])
def test_a_pull_shows_its_progress_and_pins_the_digest(
    listed: bool, engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry sends half of a layer of 8 MB and waits until the screen has shown it."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    with container_runs.registry(tmp_path) as (registry, conf):
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
        content = os.urandom(8_000_000)
        digest = registry.add("engine", f"v{listed:d}", [container_runs.usr_image(big=content)], machine, index=listed)
        registry.gate.clear()
        name = f"{registry.address}/engine:v{listed:d}"

        async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
            status = await started(supervisor, fake_plan(tmp_path, "podman", "", f"image={name}"))
            phases: list[str] = []

            def half() -> bool:
                phases.append(supervisor.status(status.run_id).phase or "")
                return phases[-1].startswith("pulling 4 of 8")

            try:
                await eventually(half, 30, "half of the layer")
            except AssertionError:
                raise AssertionError(list(dict.fromkeys(phases))) from None
            registry.gate.set()
            up = await supervisor.wait_ready(status.run_id, READY_S)
            assert up.state is ServerState.READY, (up.reason, supervisor.log(status.run_id).lines())
            assert up.image is not None and up.image.startswith(f"{name}@sha256:")
            assert not listed or digest in up.image or "sha256:" in up.image
            await supervisor.stop(status.run_id)

            registry.add("engine", f"v{listed:d}", [container_runs.usr_image(big=b"other")], machine, index=listed)
            changed = await ready(supervisor, fake_plan(tmp_path, "podman", "", f"image={name}", "pull=always"))
            assert changed.image != up.image
            assert "log.image-changed" in {f.code for f in changed.findings}, changed.findings

        supervised(scenario)
    assert not list(Path("/var/tmp").glob("workbench-pull-*"))


# ---- a real engine


def test_llama_cpp_as_a_container(engine: Podman, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model = tiny_gguf.write(tmp_path / "models" / "tiny.gguf")
    program = llama_server.install(tmp_path / "bin")
    flags = tuple(
        FlagSetting(name, value)
        for name, value in {
            "port": free_port(),
            "ctx-size": 4096,
            "parallel": 2,
            "alias": "tiny",
            "metrics": True,
        }.items()
    )
    plan = LaunchPlan("llamacpp", str(model), flags=flags, executable=(str(program),), executable_from="given")
    plan = with_assignments(plan, "podman", seen(tmp_path / "bin"))

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, plan)
        assert status.url is not None
        before = await supervisor.metrics(status.run_id)
        assert (await stream(status.url, "tiny", 9))[1] == 9
        after = await supervisor.metrics(status.run_id)
        assert (after.generation_tokens or 0) - (before.generation_tokens or 0) == 9
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED

    supervised(scenario)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_keeper_killed_at_fifty_moments(engine: Podman, tmp_path: Path) -> None:
    """Whenever the keeper and all that it started is killed: the server is kept again, or the run has failed; nothing
    is left, and no server runs twice."""
    import random

    rng = random.Random(8)

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        for turn in range(50):
            plan = fake_plan(tmp_path, ("podman", "docker")[turn % 2])
            status = await started(supervisor, plan)
            await asyncio.sleep(rng.uniform(0, 3))
            before, began = keeper_of(status), time.monotonic()
            os.killpg(os.getpgid(before), signal.SIGKILL)

            def noticed(run_id: str = status.run_id, status: ServerStatus = status, before: int = before) -> bool:
                return supervisor.status(run_id).state in ENDED or keeper_of(status) not in (0, before)

            await eventually(noticed, what="the loss of the keeper")
            after = await supervisor.wait(status.run_id, lambda s: s.state in ENDS, READY_S)
            assert after.state in ENDS, after
            names = engine("ps", "--filter", "label=workbench.run", "--format", "{{.Names}}").split()
            assert names == ([after.handle] if after.state is ServerState.READY else []), (turn, after, names)
            print(f"{turn}: {after.state} {time.monotonic() - began:.1f} s {after.reason or ''}", flush=True)
            await supervisor.stop(status.run_id)
            assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    supervised(scenario)
