"""SshHost against a real OpenSSH sshd on loopback: commands, files, streams, sessions, ports."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.procs import eventually, with_argument
from support.sshd import Sshd, sshd

from workbench.hosts import shell_scripts
from workbench.hosts.base import CommandNotFound, CommandTimeout, FileError, Host, HostUnreachable
from workbench.hosts.line_splitter import CommandOutput
from workbench.hosts.ssh import SESSIONS_MAX, STREAMS_MAX, SshHost
from workbench.model.errors import HostError, InputError

ARGUMENT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.binary(
    max_size=20
).map(lambda b: os.fsdecode(b.replace(b"\0", b"")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def on(server: Sshd, work: Callable[[SshHost], Awaitable[None]]) -> None:
    """Run `work` on a fresh connection."""

    async def main() -> None:
        host = SshHost(server.host_alias, ssh_config=server.ssh_config_path)
        try:
            await work(host)
        finally:
            await host.close()

    asyncio.run(main())


def test_commands_answer_as_they_do_locally(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        assert isinstance(host, Host)
        done = await host.run(["sh", "-c", "cat; echo bad >&2; exit 7"], input=b"in")
        assert (done.returncode, done.stdout, done.stderr) == (7, b"in", b"bad\n")
        assert (await host.run(["sh", "-c", "kill -s TERM $$"])).returncode == -15
        assert (await host.run(["cat"], timeout_s=10)).stdout == b""
        assert host.connected

    on(server, work)


def test_comments_in_the_configuration_do_not_hide_the_host(server: Sshd, tmp_path: Path) -> None:
    """asyncssh refused the whole file, which ssh reads: "Extra data at end"."""
    config = tmp_path / "config"
    port = f"{server.port} # of the box"
    identity = f'"{server.client_key_path}" # "mine" and my colleague\'s'
    config.write_text(server.stanza("noted # under the desk", Port=port, IdentityFile=identity))

    async def main() -> None:
        host = SshHost("noted", ssh_config=config)
        try:
            assert (await host.run(["echo", "here"])).stdout == b"here\n"
        finally:
            await host.close()

    asyncio.run(main())


def test_a_missing_model_is_not_found(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        for argv in (
            ["no-such-thing"],
            ["/no/such/thing"],
            [str(server.known_hosts_path)],
            [""],
            ["-x"],
        ):
            with pytest.raises(CommandNotFound):
                await host.run(argv)
            with pytest.raises(CommandNotFound):
                await host.stream(argv)

    on(server, work)


def test_arguments_and_environment_arrive_byte_for_byte(server: Sshd) -> None:
    with asyncio.Runner() as runner:
        host = SshHost(server.host_alias, ssh_config=server.ssh_config_path)

        @settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
        @given(arguments=st.lists(ARGUMENT, min_size=1, max_size=4), value=ARGUMENT)
        def check(arguments: list[str], value: str) -> None:
            script = 'printf "%s\\0" "$V" "$@"'
            done = runner.run(host.run(["sh", "-c", script, "sh", *arguments], env={"V": value}))
            assert done.stdout == b"".join(os.fsencode(a) + b"\0" for a in (value, *arguments))

        check()
        runner.run(host.close())


def test_much_output_on_both_sides_and_much_input_do_not_block(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        script = "head -c 3000000 /dev/zero >&2 & cat; wait"
        done = await host.run(["sh", "-c", script], input=b"x" * 3_000_000)
        assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)

    on(server, work)


def test_timeout_ends_the_remote_command(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        with pytest.raises(CommandTimeout):
            await host.run(
                ["sh", "-c", "trap '' TERM; sleep 71.001 & sleep 71.001; :"], timeout_s=0.5
            )
        eventually(lambda: not with_argument("71.001"), "both remote sleeps to end")
        assert (await host.run(["true"])).returncode == 0

    on(server, work)


def test_a_cancelled_command_does_not_stay_on_the_host(server: Sshd) -> None:
    """A doctor that waits no longer for nvidia-smi would leave one there each time."""

    async def work(host: SshHost) -> None:
        command = asyncio.create_task(host.run(["sleep", "72.001"]))
        await asyncio.to_thread(eventually, lambda: with_argument("72.001"), "the command")
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        await asyncio.to_thread(eventually, lambda: not with_argument("72.001"), "its end", 30)

    on(server, work)


def test_a_command_that_is_cancelled_before_its_process_id_is_read_ends_too(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed on the host, because nobody knew its process id."""

    async def read_nothing_yet(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(CommandOutput, "read_both_streams", read_nothing_yet)

    async def work(host: SshHost) -> None:
        command = asyncio.create_task(host.run(["sleep", "73.001"]))
        await asyncio.to_thread(eventually, lambda: with_argument("73.001"), "the command")
        command.cancel()
        monkeypatch.undo()
        with pytest.raises(asyncio.CancelledError):
            await command
        await asyncio.to_thread(eventually, lambda: not with_argument("73.001"), "its end", 30)

    on(server, work)


@pytest.mark.parametrize(
    ("stderr_text", "pid"),
    [
        (f"{shell_scripts.MARK} 1234\nrest", 1234),
        (f"{shell_scripts.MARK} 12", None),  # 34 may follow, and 12 is another process
        (f"{shell_scripts.MARK} missing\n", None),
        ("a login shell", None),
    ],
)
def test_a_part_of_a_process_id_is_no_process_id(stderr_text: str, pid: int | None) -> None:
    assert shell_scripts.parse_pid_after_mark(stderr_text) == pid


def test_a_remote_command_that_prints_without_end_is_killed(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.hosts.line_splitter.OUTPUT_MAX_BYTES", 1 << 20)

    async def work(host: SshHost) -> None:
        with pytest.raises(HostError, match="printed more than"):
            await host.run(["yes", "a-remote-word-of-no-end"])
        assert (await host.run(["echo", "on"])).out == "on\n"

    on(server, work)
    eventually(lambda: not with_argument("a-remote-word-of-no-end"), "its end")


@pytest.mark.long
@pytest.mark.slow
def test_doctor_ends_on_a_host_whose_python3_prints_without_end(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec yes not-a-version\n")
    fake.chmod(0o755)
    with sshd(
        tmp_path / "ssh", environment={"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    ) as server:
        home = tmp_path / "home"
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh" / "config").write_text(server.stanza())
        done = subprocess.run(
            [sys.executable, "-m", "workbench", "--host", server.host_alias, "doctor"],
            env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert done.returncode == 0 and (f"{fake} does not print its version") in done.stdout, (
        done.stdout,
        done.stderr,
    )


def test_no_environment_value_on_a_command_line(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        stream = await host.stream(
            ["sh", "-c", "echo up; read x"], env={"API_KEY": "hf_very_secret"}
        )
        assert await anext(aiter(stream.lines())) == b"up"
        lines = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(process.read_bytes())
            except OSError:
                continue
        await stream.close()
        assert not any(b"hf_very_secret" in line for line in lines)

    on(server, work)
    assert b"hf_very_secret" not in (server.directory / "sshd.log").read_bytes()


def login_runs(server: Sshd, script: str) -> None:
    """Have every login run `script` first, by ~/.bashrc."""
    (server.home / ".bashrc").write_text(script)
    plain = subprocess.run(
        ["ssh", "-F", str(server.ssh_config_path), server.host_alias, "true"],
        capture_output=True,
        text=True,
    )
    if not plain.stderr:
        pytest.skip("the login shell here reads no .bashrc for a command")


def test_what_a_login_prints_is_not_taken_for_output(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as server:
        login_runs(server, "echo 'Welcome!'; echo 'news' >&2\n")

        async def work(host: SshHost) -> None:
            done = await host.run(["sh", "-c", "echo out; echo err >&2"])
            assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
            stream = await host.stream(["sh", "-c", "echo out; echo err >&2"])
            assert [line async for line in stream.lines()] == [b"out"]
            assert (await stream.wait(), await stream.stderr_tail()) == (0, "err")
            await stream.close()

        on(server, work)


def test_files(server: Sshd, tmp_path: Path) -> None:
    path = str(tmp_path / "made" / "it's a file")
    data = os.urandom(1_000_000)

    async def work(host: SshHost) -> None:
        await host.write_file(path, data)
        assert await host.read_file(path) == data
        assert await host.read_file(path, offset=999_990) == data[-10:]
        assert await host.read_file(path, offset=5, limit=7) == data[5:12]
        with pytest.raises(FileError, match="no such file"):
            await host.read_file(f"{path}.gone")
        with pytest.raises(FileError, match="cannot write"):
            await host.write_file("/proc/nope/file", b"")

    on(server, work)


def test_facts_and_state_directory(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        began = time.monotonic()
        facts = await host.facts()
        took_ms = 1000 * (time.monotonic() - began)
        assert (facts.name, facts.kind, facts.uid) == ("box", "ssh", os.getuid())
        assert facts.latency_ms is not None
        assert 0 < facts.latency_ms < took_ms
        assert await host.state_dir() == f"{server.state_home}/workbench"

    on(server, work)


@pytest.mark.slow
def test_stream_takes_input_and_ends_with_its_reader(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        stream = await host.stream(
            ["sh", "-c", "trap '' TERM; cat; sleep 601.002; :"], input=b"a\nb"
        )
        lines = stream.lines()
        assert await anext(lines) == b"a"
        await stream.write(b"c\n")
        assert await anext(lines) == b"bc"
        await stream.close()
        stream = await host.stream(["sh", "-c", "echo why >&2; exit 9"])
        assert [line async for line in stream.lines()] == []
        assert (await stream.wait(), await stream.stderr_tail()) == (9, "why")
        await stream.close()

    on(server, work)
    eventually(lambda: not with_argument("601.002"), "the remote command to end")


def test_streams_and_many_commands_share_the_sessions_of_one_connection(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        streams = [await host.stream(["sh", "-c", "echo up; read x"]) for _ in range(STREAMS_MAX)]
        done = await asyncio.gather(*(host.run(["echo", str(i)]) for i in range(30)))
        assert [d.out for d in done] == [f"{i}\n" for i in range(30)]
        waiting = asyncio.create_task(host.stream(["sh", "-c", "echo up; read x"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        for stream in streams:
            await stream.close()
        await (await waiting).close()

    before = server.cutter.accepted
    on(server, work)
    assert server.cutter.accepted == before + 1
    assert STREAMS_MAX < SESSIONS_MAX < 10


def test_closed_streams_give_their_sessions_back(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        for _ in range(25):
            stream = await host.stream(["sh", "-c", "echo up; sleep 71.003"])
            assert await anext(aiter(stream.lines())) == b"up"
            await stream.close()

    on(server, work)
    eventually(lambda: not with_argument("71.003"), "the remote commands to end")


def test_a_server_with_few_sessions_makes_commands_wait_then_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.hosts.ssh.MORE_MAX", 1)
    with sshd(tmp_path / "sshd", max_sessions=2) as server:

        async def work(host: SshHost) -> None:
            assert len(await asyncio.gather(*(host.run(["true"]) for _ in range(8)))) == 8
            # on two connections
            streams = [await host.stream(["sh", "-c", "read x"]) for _ in range(4)]
            monkeypatch.setattr("workbench.hosts.ssh.PATIENCE_S", 0.5)
            with pytest.raises(HostError, match="cannot open an SSH session") as refused:
                await host.run(["true"])
            assert "MaxSessions" in str(refused.value.next_step)
            for stream in streams:
                await stream.close()
            assert (await host.run(["true"])).returncode == 0
            assert server.cutter.accepted == 2

        on(server, work)


async def echo_port() -> tuple[asyncio.Server, int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            writer.close()  # also if the test ends first

    listening = await asyncio.start_server(echo, "127.0.0.1", 0)
    return listening, listening.sockets[0].getsockname()[1]


async def through(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


def test_forward_carries_connections_side_by_side(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        listening, port = await echo_port()
        forward = await host.forward(port)
        assert forward.local_port != port
        answers = await asyncio.gather(
            *(through(forward.local_port, bytes([i]) * 100_000) for i in range(20))
        )
        assert answers == [bytes([i]) * 100_000 for i in range(20)]
        listening.close()
        await listening.wait_closed()
        with pytest.raises(ConnectionResetError):
            await through(forward.local_port, b"nobody there")
        await forward.close()
        with pytest.raises(ConnectionRefusedError):
            await through(forward.local_port, b"closed")

    on(server, work)


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "", "a b", "a;b", "me@-x", "a/b", "$(id)"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid host name"):
        SshHost(name)


def test_nobody_listens(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host box\n    HostName 127.0.0.1\n    Port 1\n")
    with pytest.raises(HostUnreachable, match="no connection") as told:
        asyncio.run(SshHost("box", ssh_config=config).connect())
    assert re.search("ssh box", str(told.value.next_step))


def test_a_login_shell_that_runs_nothing_is_said(tmp_path: Path) -> None:
    """As with /sbin/nologin: the connection works, no command does."""
    with sshd(tmp_path / "sshd") as server:
        login_runs(server, "echo 'This account is not available' >&2; exit 1\n")

        async def work(host: SshHost) -> None:
            with pytest.raises(HostError, match="This account is not available"):
                await host.run(["true"])
            with pytest.raises(HostError, match="This account is not available"):
                await host.stream(["true"])

        on(server, work)


def test_ssh_itself_can_use_the_configuration(server: Sshd) -> None:
    """The fixture is what it says: OpenSSH's own client gets in the same way."""
    done = subprocess.run(
        ["ssh", "-F", str(server.ssh_config_path), server.host_alias, "echo hello"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "hello\n", done.stderr
