"""Containers as hosts, entered by stand-ins for the programs. Real containers:
tests/e2e/test_containers.py."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.container_programs import RUNNING, ContainerPrograms
from support.procs import Watched, alive, eventually, with_argument

from workbench.hosts import container as container_module
from workbench.hosts import container_listing, detached_process
from workbench.hosts.base import (
    CommandNotFound,
    CommandTimeout,
    Completed,
    HostUnreachable,
    LinkEvent,
)
from workbench.hosts.container import KINDS, ContainerHost, open_container
from workbench.hosts.container_kinds import ABSENT, ContainerState
from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError, InputError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
PROGRAMS = (
    "docker",
    "podman",
    "pct",
    "lxc-attach",
    "lxc-info",
    "lxc-ls",
    "incus",
    "lxc",
    "srun",
    "squeue",
)
NAMES = {"pct": "101", "slurm": "12"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerPrograms:
    made = ContainerPrograms(tmp_path, *PROGRAMS)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


def container(programs: ContainerPrograms, kind: str) -> ContainerHost:
    """Return a running container of this kind."""
    name = NAMES.get(kind, "box")
    programs.put(name, RUNNING.get(kind, "RUNNING"))
    # its stand-in runs lxc-attach's part itself, and `env -i` gives it a PATH of its own
    if kind == "pct":
        host = open_container(_WithPath(str(programs.bin)), kind, name)
    else:
        host = open_container(LocalHost(), kind, name)
    return host


class _WithPath(LocalHost):
    """A host on which `pct` is in a directory of PATH that `env -i` sets."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    async def run(self, argv, **rest):  # type: ignore[no-untyped-def,override]
        return await super().run(self._placed(argv), **rest)

    async def stream(self, argv, **rest):  # type: ignore[no-untyped-def,override]
        return await super().stream(self._placed(argv), **rest)

    def _placed(self, argv):  # type: ignore[no-untyped-def]
        return [f"PATH={self.place}:{w[5:]}" if w.startswith("PATH=") else w for w in argv]


@pytest.mark.parametrize("kind", KINDS)
def test_words_variables_and_input_arrive_as_they_are(
    programs: ContainerPrograms, kind: str
) -> None:
    host = container(programs, kind)

    @settings(max_examples=12)
    @given(st.lists(TEXT, min_size=1, max_size=3), TEXT, st.binary(max_size=200))
    def check(words: list[str], value: str, given_input: bytes) -> None:
        script = 'printf "%s|" "$A" "$@"; cat; echo to-stderr >&2; exit 7'

        async def main() -> Completed:
            return await host.run(
                ["sh", "-c", script, "sh", *words], input=given_input, env={"A": value}
            )

        done = asyncio.run(main())
        expected = os.fsencode("".join(f"{text}|" for text in (value, *words))) + given_input
        assert (done.returncode, done.stdout, done.stderr) == (7, expected, b"to-stderr\n")

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_command_is_on_a_command_line_of_the_host(
    programs: ContainerPrograms, kind: str
) -> None:
    host = container(programs, kind)
    with Watched() as watched:
        done = asyncio.run(
            host.run(["sh", "-c", "sleep 0.1; echo $KEY", "an-argument"], env={"KEY": "a-secret"})
        )
    assert done.out == "a-secret\n"
    calls = [" ".join(call) for call in programs.calls()]
    assert any("workbench-" in call for call in calls)
    assert not any("a-secret" in call or "an-argument" in call for call in calls)
    assert not [
        one
        for one in watched.of("a-secret")
        if b"\0-c\0" in one and b"a-secret" in one.split(b"\0-c\0")[1]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_talks_both_ways_and_its_exit_code_is_the_commands(
    programs: ContainerPrograms, kind: str
) -> None:
    host = container(programs, kind)

    async def main() -> None:
        stream = await host.stream(
            ["sh", "-c", 'read a; echo "got $a"; echo oops >&2; exit 3'], input=b"one\n"
        )
        assert [line async for line in stream.lines()] == [b"got one"]
        assert (await stream.wait(), await stream.stderr_tail()) == (3, "oops")
        await stream.close()
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "pct" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_closing_a_stream_ends_its_command(programs: ContainerPrograms, kind: str) -> None:
    nap = f"71.{sum(map(ord, kind))}"
    host = container(programs, kind)

    async def main() -> None:
        stream = await host.stream(["sh", "-c", f"trap '' TERM; echo up; sleep {nap}; sleep {nap}"])
        assert await anext(aiter(stream.lines())) == b"up"
        await stream.close()
        await host.close()

    asyncio.run(main())
    eventually(lambda: not with_argument(nap), "the command to end")


@pytest.mark.parametrize("kind", ["pct", pytest.param("docker", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["time limit", "cancelled"])
@pytest.mark.slow
def test_a_command_that_nobody_awaits_any_more_is_ended(
    programs: ContainerPrograms, kind: str, how: str
) -> None:
    nap = f"72.{sum(map(ord, kind + how))}"
    host = container(programs, kind)

    async def main() -> None:
        command = ["sh", "-c", f"trap '' TERM HUP; sleep {nap}; sleep {nap}"]
        if how == "time limit":
            with pytest.raises(CommandTimeout, match=r"did not end within 0\.5 s"):
                await host.run(command, timeout_s=0.5)
        else:
            running = asyncio.ensure_future(host.run(command))
            while not with_argument(nap):
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.wait([running])
        await host.close()

    asyncio.run(main())
    eventually(lambda: not with_argument(nap), "the command to end")


def test_what_is_missing_in_a_container_is_named(
    programs: ContainerPrograms, tmp_path: Path
) -> None:
    host = container(programs, "docker")

    async def main() -> None:
        with pytest.raises(CommandNotFound, match="no-such-program: no such executable"):
            await host.run(["no-such-program"])
        with pytest.raises(CommandNotFound, match="no-such-program: no such executable"):
            await host.stream(["no-such-program"])

    asyncio.run(main())


def test_without_setsid_in_an_lxc_container_the_error_says_so(
    programs: ContainerPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of LXC leave a command in the process group of their caller, so it needs
    setsid."""
    (programs.bin / "lxc-attach").write_text(
        (programs.bin / "lxc-attach")
        .read_text()
        .replace("PATH=/usr/local/sbin", f"PATH={tmp_path}/few:/nothing\n:")
    )
    (tmp_path / "few").mkdir()
    for name in ("sh", "env", "cat"):
        (tmp_path / "few" / name).symlink_to(f"/bin/{name}")
    host = container(programs, "lxc")

    async def main() -> None:
        with pytest.raises(HostUnreachable, match="setsid") as caught:
            await host.stream(["cat"])
        assert "util-linux" in str(caught.value.next_step)

    asyncio.run(main())


@pytest.mark.parametrize(
    "cause",
    [
        "Error: runc: exec failed: error setting rlimit type 7: operation not permitted",
        "env: pct: No such file or directory",
    ],
)
def test_a_container_that_refuses_an_entry_is_not_said_to_lack_a_shell(
    programs: ContainerPrograms, cause: str
) -> None:
    programs.refuse_to_enter("docker", cause)
    host = container(programs, "docker")

    async def main() -> None:
        with pytest.raises(HostUnreachable) as caught:
            await host.run(["true"])
        assert cause in caught.value.message
        assert "POSIX" not in (caught.value.next_step or "")
        assert "docker exec" in (caught.value.next_step or "")
        await host.close()

    asyncio.run(main())


def test_work_that_is_cancelled_before_it_begins_leaves_no_warning(
    programs: ContainerPrograms, recwarn: pytest.WarningsRecorder
) -> None:
    async def main() -> None:
        host = container(programs, "docker")
        stream = await host.stream(["sleep", "30"])
        host.end_streams_and_reconnect(host._link.current, HostUnreachable("gone", host=host.name))
        del stream
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    gc.collect()
    assert not [str(w.message) for w in recwarn if "never awaited" in str(w.message)]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_running_container_in_which_no_command_can_be_run_is_unreachable(
    programs: ContainerPrograms, streamed: bool
) -> None:
    """An image of one program has no sh. Whoever examines the host must not take that for an empty
    machine."""
    programs.refuse_to_enter(
        "docker", "OCI runtime exec failed: exec: sh: executable file not found in $PATH"
    )
    host = container(programs, "docker")

    async def main() -> None:
        with pytest.raises(
            HostUnreachable, match="no command can be run in the container: OCI runtime"
        ) as caught:
            await (host.stream(["true"]) if streamed else host.run(["true"]))
        assert caught.value.next_step == "the container needs a POSIX sh"
        await host.close()

    asyncio.run(main())


def test_home_is_found_where_the_container_is_entered_without_one(
    programs: ContainerPrograms,
) -> None:
    done = asyncio.run(container(programs, "lxc").run(["sh", "-c", 'echo "$HOME"']))
    assert done.out.strip() == os.path.expanduser(f"~{os.environ.get('USER', 'root')}")


@pytest.mark.parametrize(
    ("kind", "state", "message", "step"),
    [
        ("docker", "paused", "the container is paused", "docker unpause box"),
        ("podman", "exited", "the container is exited", "podman start box"),
        ("pct", "stopped", "the container is stopped", "pct start 101"),
        ("lxc", "FROZEN", "the container is frozen", "lxc-unfreeze -n box"),
        ("incus", "STOPPED", "the container is stopped", "incus start box"),
        ("lxd", "STOPPED", "the container is stopped", "lxc start box"),
    ],
)
def test_a_container_that_does_not_run(
    programs: ContainerPrograms, kind: str, state: str, message: str, step: str
) -> None:
    host = container(programs, kind)
    programs.put(host.container, state)

    async def main() -> None:
        with pytest.raises(HostUnreachable, match=message) as caught:
            await host.connect()
        assert caught.value.next_step == f"on local: {step}"
        programs.remove(host.container)
        with pytest.raises(HostUnreachable, match="does not exist"):
            await host.run(["true"])

    asyncio.run(main())


def test_a_program_that_is_missing_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    host = open_container(LocalHost(), "incus", "box")

    async def main() -> None:
        with pytest.raises(HostUnreachable, match="incus: no such executable"):
            await host.connect()
        program = tmp_path / "incus"
        program.write_text("#!/bin/sh\necho 'Error: permission denied on the socket' >&2\nexit 1\n")
        program.chmod(0o755)
        with pytest.raises(HostUnreachable, match="permission denied") as caught:
            await host.connect()
        assert "group incus" in str(caught.value.next_step)

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "program"), [("docker", "docker"), ("pct", "pct")])
def test_a_program_that_hangs_is_named_and_costs_no_other_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, program: str
) -> None:
    hung = tmp_path / program
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(container_module, "LOOK_S", 0.3)
    monkeypatch.setattr(container_listing, "LIST_S", 0.3)
    host = open_container(LocalHost(), kind, NAMES.get(kind, "box"), sudo=False)

    async def main() -> None:
        with pytest.raises(HostUnreachable, match=f"{program} did not answer") as caught:
            await host.connect()
        assert f"restart {program}" in str(caught.value.next_step)
        listed = await container_listing.list_containers(LocalHost())
        assert f"{program} did not answer within 0.3 s on local" in listed.problems

    asyncio.run(main())


def test_a_program_without_its_daemon_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hosts check` said "docker ps … fails" on each machine that has only the command line."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    listed = asyncio.run(container_listing.list_containers(LocalHost()))
    (said,) = [one for one in listed.problems if one.startswith("docker ")]
    assert said.startswith("docker is installed on local, but `docker ps` lists nothing: Cannot")
    assert not [one for one in listed.containers if one.address.startswith("docker:")]


def test_a_container_that_stops_is_a_lost_link_that_comes_back(programs: ContainerPrograms) -> None:
    host = container(programs, "lxc")
    events: list[LinkEvent] = []

    async def main() -> None:
        host.on_link(events.append)
        await host.connect()
        assert host.connected
        programs.put("box", "STOPPED")
        with pytest.raises(HostUnreachable, match="the container is stopped"):
            await host.run(["true"])
        assert not host.connected
        programs.put("box", "RUNNING")
        async with asyncio.timeout(10):
            while not host.connected:
                await asyncio.sleep(0.05)
        assert (await host.run(["echo", "back"])).out == "back\n"
        await host.close()

    asyncio.run(main())
    assert [(e.connected, e.reason) for e in events if e.retries == 0] == [
        (False, "the container is stopped"),
        (True, ""),
    ]


@pytest.mark.slow
def test_a_silent_stream_of_a_paused_container_ends(
    programs: ContainerPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker exec` stays connected to a paused container, so the state is looked at while nothing
    is printed."""
    monkeypatch.setattr("workbench.hosts.container.SILENT_S", 0.0)
    host = open_container(LocalHost(), "lxc", "box")
    host.container_kind = _looked_at_often(host)
    programs.put("box", "RUNNING")

    async def main() -> None:
        stream = await host.stream(["cat"])
        programs.put("box", "FROZEN")
        with pytest.raises(HostUnreachable, match="the container is frozen"):
            async for _ in stream.lines():
                pass
        await stream.close()
        await host.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_stream_that_never_begins_ends_with_its_container(
    programs: ContainerPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`podman exec` may hang for ever when its container is removed while it enters it."""
    monkeypatch.setattr("workbench.hosts.container.SILENT_S", 0.0)
    host = container(programs, "podman")
    host.container_kind = _looked_at_often(host)
    programs.hang_at_entering("podman")

    async def main() -> None:
        starting = asyncio.ensure_future(host.stream(["cat"]))
        await asyncio.to_thread(eventually, lambda: with_argument("76.75"), "podman exec")
        programs.remove("box")
        with pytest.raises(HostUnreachable, match="the container box was removed"):
            async with asyncio.timeout(20):
                await starting
        await host.close()

    asyncio.run(main())
    eventually(lambda: not with_argument("76.75"), "podman exec to end")


def _looked_at_often(host: ContainerHost):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(host.container_kind, look_s=0.0)


def test_a_detached_process_outlives_the_program_that_entered_the_container(
    programs: ContainerPrograms, tmp_path: Path
) -> None:
    host = container(programs, "lxc")

    async def main() -> None:
        run_dir = f"{tmp_path}/run"
        started = await detached_process.start_detached(host, run_dir, ["sleep", "74.25"])
        assert alive(started.pid)
        await host.close()
        again = container(programs, "lxc")
        assert (await detached_process.read_status(again, run_dir)).alive
        assert (await detached_process.stop_run(again, run_dir)).has_ended_all_processes

    asyncio.run(main())
    eventually(lambda: not with_argument("74.25"), "the process to end")


def test_files(programs: ContainerPrograms, tmp_path: Path) -> None:
    host = container(programs, "incus")

    async def main() -> None:
        await host.write_file(f"{tmp_path}/new dir/it's a file", b"0123\0\n", mode=0o640)
        assert await host.read_file(f"{tmp_path}/new dir/it's a file", offset=1, limit=3) == b"123"
        assert (await host.state_dir()) == f"{os.environ['XDG_STATE_HOME']}/workbench"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "-x", "a b", "a;id", "a/b", "$(id)", "a\nb", "../x"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_no_container_has(kind: str, name: str) -> None:
    with pytest.raises(InputError, match="not the name of a"):
        open_container(LocalHost(), kind, name)


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="jail"):
        open_container(LocalHost(), "jail", "x")
    with pytest.raises(InputError, match="not the name"):
        open_container(LocalHost(), "pct", "vllm")


@pytest.mark.parametrize(
    ("kind", "code", "out", "err", "expected"),
    [
        ("docker", 0, b"nonsense", b"", None),
        ("docker", 0, b"[]", b"", None),
        ("docker", 0, b"[" * 100_000, b"", None),
        ("docker", 0, b'[{"State": 1, "Id": [], "Name": null}]', b"", None),
        ("docker", 1, b"[]", b"Cannot connect to the Docker daemon", None),
        (
            "podman",
            125,
            b"[]",
            b"Error: inspecting object: no such container x",
            ContainerState(ABSENT),
        ),
        ("pct", 0, b"status: running\n", b"perl: warning: locale\n", ContainerState("running")),
        ("pct", 0, b"", b"", None),
        ("pct", 13, b"", b"please run as root\n", None),
        ("lxc", 0, b"RUNNING\n", b"", ContainerState("running")),
        ("incus", 0, b"", b"", ContainerState(ABSENT)),
        ("lxd", 0, b"box,FROZEN\n", b"", ContainerState("frozen", name="box")),
    ],
)
def test_states(
    kind: str, code: int, out: bytes, err: bytes, expected: ContainerState | None
) -> None:
    assert KINDS[kind].state(Completed(("look",), code, out, err)) == expected


def test_a_host_error_stays_one(programs: ContainerPrograms) -> None:
    with pytest.raises(HostError, match="NUL"):
        asyncio.run(container(programs, "docker").run(["echo", "a\0b"]))
