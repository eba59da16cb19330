"""Servers as containers of real podman, and of Docker's own command line in front of it: from start
until nothing is left, with everything that can go wrong on the way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from support import container_runs, fake_engine, llama_server, tiny_gguf
from support.container_servers import (
    ENDED,
    ENDS,
    READY_S,
    engine,
    failed,
    fake_plan,
    keeper_of,
    on_path,
    ready,
    seen,
    started,
    write,
)
from support.podman import IMAGE, Podman
from support.serving import eventually, free_port, stream, supervised

from workbench.hosts.local import LocalHost
from workbench.model.errors import PlanError
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server import external_servers
from workbench.server.log_lines import HEAD_BYTES, READ_BYTES
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.session.servers.adoption import find_adoptable_server

__all__ = ["engine", "on_path"]
pytestmark = pytest.mark.slow


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("word", ["podman", "docker"])
def test_from_start_until_nothing_is_left(word: str, engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan = fake_plan(tmp_path, word, NASTY="a b\n\"$HOME\" 'ä'")
        status = await ready(supervisor, plan)
        assert (status.run_as, status.handle) == (word, f"workbench-{status.run_id}")
        assert status.image is not None and status.image.startswith(f"{IMAGE}@sha256:")
        assert status.pid is not None and status.url is not None
        environ = Path(f"/proc/{status.pid}/environ").read_bytes().split(b"\0")
        assert "NASTY=a b\n\"$HOME\" 'ä'".encode() in environ
        assert not any(pair.startswith(b"WORKBENCH_RUN=") for pair in environ)
        labels = engine(
            "inspect", "--format", '{{index .Config.Labels "workbench.run"}}', status.handle or ""
        )
        assert labels == status.run_id

        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
@pytest.mark.parametrize(("behaviour", "code"), [("exit=3", 3), ("exit=0", 0)])
def test_the_exit_code_and_the_whole_log_are_kept(
    word: str, behaviour: str, code: int, tmp_path: Path
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await started(supervisor, fake_plan(tmp_path, word, behaviour))
        ended = await supervisor.wait(
            status.run_id, lambda s: s.state is ServerState.FAILED, READY_S
        )
        assert ended.exit_code == code
        log = await supervisor.load_log(status.run_id)
        assert log.lines(), "the output of the server"

    supervised(scenario)


@pytest.mark.long
def test_a_long_log_arrives_whole_and_in_order(tmp_path: Path) -> None:
    """A reader skips nothing of a log of this size, however far behind it is."""
    count = 15_000

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, "podman", f"flood={count}"))
        await supervisor.stop(status.run_id)
        log = Path(status.run_dir or "", "log")
        assert log.stat().st_size < HEAD_BYTES + 2 * READ_BYTES
        lines = [line for e in events if isinstance(e, LogBatch) for line in e.lines]
        assert lines == log.read_text().splitlines()
        flood = [line.partition("flood.py:1] ")[2] for line in lines if "flood.py" in line]
        assert flood == [f"line {number} of a flood of them" for number in range(count)]

    supervised(scenario)


def test_another_workbench_adopts_it_and_stops_it(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        second = Supervisor(LocalHost())
        (adopted,) = await second.runs()
        assert (adopted.state, adopted.adopted, adopted.handle) == (
            ServerState.READY,
            True,
            status.handle,
        )
        assert adopted.pid == status.pid
        assert (await second.stop(status.run_id)).state is ServerState.STOPPED
        await second.close()
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.STOPPED, 20)
        assert ended.state is ServerState.STOPPED

    supervised(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_killed_keeper_does_not_end_the_server(word: str, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        assert status.pid is not None
        before = keeper_of(status)
        os.killpg(os.getpgid(before), signal.SIGKILL)
        await eventually(lambda: keeper_of(status) not in (0, before), what="another keeper")
        again = await supervisor.wait(
            status.run_id, lambda s: s.state is ServerState.READY, READY_S
        )
        assert (again.state, again.pid) == (ServerState.READY, status.pid)
        assert not any(
            s.state in (ServerState.FAILED, ServerState.CRASHED)
            for s in events
            if isinstance(s, ServerStatus)
        )
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_with_the_label_of_a_run_is_never_touched(
    word: str, engine: Podman, tmp_path: Path
) -> None:
    """A clone of a container has its labels, and anybody can write them."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        others = [f"{status.handle}-clone", "hostile8-label"]
        for name in others:
            engine.start(name, "--label", f"workbench.run={status.run_id}")
        try:
            before = keeper_of(status)
            os.killpg(os.getpgid(before), signal.SIGKILL)
            await eventually(lambda: keeper_of(status) not in (0, before), what="another keeper")
            again = await supervisor.wait(
                status.run_id, lambda s: s.state is ServerState.READY, READY_S
            )
            assert (again.handle, again.pid) == (status.handle, status.pid)
            assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
            assert sorted(engine("ps", "--format", "{{.Names}}").split()) == sorted(others)
        finally:
            engine("rm", "--force", "--time", "0", *others)

    supervised(scenario)


def test_a_server_that_ends_while_its_keeper_is_lost_keeps_its_log_and_code(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await supervisor.close()
        os.killpg(os.getpgid(keeper_of(status)), signal.SIGKILL)
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        second = Supervisor(LocalHost())
        await second.runs()
        ended = await second.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert (ended.state, ended.exit_code, ended.exit_signal) == (
            ServerState.CRASHED,
            137,
            "SIGKILL",
        )
        assert Path(status.run_dir or "", "log").read_text().strip()
        await second.close()

    supervised(scenario)


@pytest.mark.long
def test_a_container_that_is_removed_from_outside_is_named(engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        engine("rm", "--force", "--time", "0", status.handle or "")
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert "removed from outside" in (ended.reason or "") or ended.exit_code == 137, ended
        assert ended.state is ServerState.CRASHED

    supervised(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_of_others_is_found_followed_and_left_running(
    word: str, engine: Podman, tmp_path: Path
) -> None:
    port = free_port()
    name = f"theirs-{word}"
    words = fake_engine.by_hand(tmp_path, "org/model", "--port", str(port))
    engine.start(
        name, "-v", f"{tmp_path}:{tmp_path}:ro", "-e", "FAKE_ENGINE=", command=tuple(words)
    )
    try:

        async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
            found = []
            async with asyncio.timeout(30):
                while not found:
                    found = [
                        one
                        for one in await external_servers.find_external_servers(supervisor.host)
                        if one.port == port
                    ]
            container = engine("inspect", "--format", "{{.Id}}", name)
            assert found[0].adopt_command == f"workbench adopt podman:{container[:12]}"

            plan, command, its_engine, handle = await find_adoptable_server(
                supervisor.host, word, container[:12], ()
            )
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


# ---- what keeps a container from starting


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
def test_a_registry_that_refuses(
    http: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with container_runs.registry(tmp_path) as (registry, conf):
        registry.status = http
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
        status, lines = failed(fake_plan(tmp_path, "podman", "", f"image={registry.address}/a/b:1"))
    assert f"log.{code}" in {f.code for f in status.findings}, lines


@pytest.mark.long
def test_a_registry_that_is_not_there(tmp_path: Path) -> None:
    status, lines = failed(
        fake_plan(tmp_path, "podman", "", f"image=127.0.0.1:{free_port()}/a/b:1")
    )
    codes = {f.code for f in status.findings}
    assert "log.registry-unreachable" in codes and "run.orphans" not in codes, lines


def test_a_program_that_is_not_installed_and_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        with pytest.raises(PlanError, match="podman is not installed"):
            monkeypatch.setenv("PATH", "/nowhere:/bin")
            await started(supervisor, fake_plan(tmp_path))

    if os.path.exists("/bin/podman"):
        pytest.skip("podman is beside sh")
    supervised(scenario)


@pytest.mark.long
@pytest.mark.parametrize("listed", [False, True])
def test_a_pull_shows_its_progress_and_pins_the_digest(
    listed: bool, engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry sends half of a layer of 8 MB and waits until the screen has shown it."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    with container_runs.registry(tmp_path) as (registry, conf):
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
        content = os.urandom(8_000_000)
        digest = registry.add(
            "engine", f"v{listed:d}", [container_runs.usr_image(big=content)], machine, index=listed
        )
        registry.gate.clear()
        name = f"{registry.address}/engine:v{listed:d}"

        async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
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

            registry.add(
                "engine",
                f"v{listed:d}",
                [container_runs.usr_image(big=b"other")],
                machine,
                index=listed,
            )
            changed = await ready(
                supervisor, fake_plan(tmp_path, "podman", "", f"image={name}", "pull=always")
            )
            assert changed.image != up.image
            assert "log.image-changed" in {f.code for f in changed.findings}, changed.findings

        supervised(scenario)
    assert not list(Path("/var/tmp").glob("workbench-pull-*"))


# ---- a real engine


@pytest.mark.long
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
    plan = LaunchPlan(
        "llamacpp", str(model), flags=flags, executable=(str(program),), executable_from="given"
    )
    plan = with_launcher_and_options(plan, "podman", seen(tmp_path / "bin"))

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
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
    """Whenever the keeper and all that it started is killed: the server is kept again, or the run
    has failed; nothing is left, and no server runs twice."""
    import random

    rng = random.Random(8)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        for turn in range(50):
            plan = fake_plan(tmp_path, ("podman", "docker")[turn % 2])
            status = await started(supervisor, plan)
            await asyncio.sleep(rng.uniform(0, 3))
            before, began = keeper_of(status), time.monotonic()
            os.killpg(os.getpgid(before), signal.SIGKILL)

            def noticed(
                run_id: str = status.run_id, status: ServerStatus = status, before: int = before
            ) -> bool:
                return supervisor.status(run_id).state in ENDED or keeper_of(status) not in (
                    0,
                    before,
                )

            await eventually(noticed, what="the loss of the keeper")
            after = await supervisor.wait(status.run_id, lambda s: s.state in ENDS, READY_S)
            assert after.state in ENDS, after
            names = engine(
                "ps", "--filter", "label=workbench.run", "--format", "{{.Names}}"
            ).split()
            assert names == ([after.handle] if after.state is ServerState.READY else []), (
                turn,
                after,
                names,
            )
            print(
                f"{turn}: {after.state} {time.monotonic() - began:.1f} s {after.reason or ''}",
                flush=True,
            )
            await supervisor.stop(status.run_id)
            assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    supervised(scenario)
