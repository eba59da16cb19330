"""LocalHost against real processes and files."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.procs import alive, eventually, with_argument

from workbench.hosts import open_host
from workbench.hosts.base import CommandFailed, CommandNotFound, CommandTimeout, FileError, Host
from workbench.hosts.directory_names import list_directory_names
from workbench.hosts.local import LocalHost, LocalStream
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.model.errors import HostError

ARGUMENT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.binary(
    max_size=20
).map(lambda b: os.fsdecode(b.replace(b"\0", b"")))


def test_local_host_is_opened_by_no_name_and_by_local() -> None:
    assert isinstance(open_host(), LocalHost)
    assert isinstance(open_host("local"), LocalHost)
    assert isinstance(LocalHost(), Host)


def test_opening_the_local_host_does_not_load_asyncssh() -> None:
    code = (
        "import sys; from workbench.hosts import open_host; open_host(); print('asyncssh' "
        "in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "False\n"
    )


def test_output_errors_and_exit_code_are_apart() -> None:
    done = asyncio.run(LocalHost().run(["sh", "-c", "cat; echo bad >&2; exit 7"], input=b"in"))
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in", b"bad\n")


def test_a_signal_is_a_negative_return_code() -> None:
    assert (
        asyncio.run(LocalHost().run(["sh", "-c", "kill -s TERM $$"])).returncode == -signal.SIGTERM
    )


def test_without_input_stdin_is_at_its_end() -> None:
    assert asyncio.run(LocalHost().run(["cat"], timeout_s=5)).stdout == b""


def test_environment_is_added_to_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    done = asyncio.run(LocalHost().run(["sh", "-c", 'echo "$OURS$ADDED"'], env={"ADDED": "2"}))
    assert done.out == "12\n"


def test_the_path_of_the_environment_given_is_searched(tmp_path: Path) -> None:
    tool = tmp_path / "only-here"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert asyncio.run(LocalHost().run(["only-here"], env=env)).out == "found\n"


@pytest.mark.parametrize(
    "argv", [["no-such-thing"], ["/no/such/thing"], [__file__], [], [""], ["-x"]]
)
def test_a_missing_model_is_not_found(argv: list[str]) -> None:
    for attempt in (LocalHost().run(argv), LocalHost().stream(argv)):
        with pytest.raises(CommandNotFound):
            asyncio.run(attempt)


def test_check_raises_with_the_last_line_of_stderr() -> None:
    with pytest.raises(CommandFailed, match="exit code 3: why") as failed:
        asyncio.run(
            LocalHost().run(["sh", "-c", "echo first >&2; echo why >&2; exit 3"], check=True)
        )
    assert failed.value.completed.returncode == 3
    assert failed.value.command is not None


def test_programs_that_are_asked_for_at_once_start_one_in_each_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check of a host starts a dozen programs. Started in one turn of the loop, they kept keys
    waiting for 0.1 s."""
    turns: list[int] = []

    async def main() -> None:
        turn = 0

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        class Counted(subprocess.Popen):  # type: ignore[type-arg]
            def __init__(self, *args: object, **options: object) -> None:
                turns.append(turn)
                super().__init__(*args, **options)  # type: ignore[call-overload]

        monkeypatch.setattr(subprocess, "Popen", Counted)
        loop = asyncio.get_running_loop()
        count()
        host = LocalHost()
        done = await asyncio.gather(*(host.run(["echo", str(n)]) for n in range(8)))
        assert [one.stdout for one in done] == [f"{n}\n".encode() for n in range(8)]

    asyncio.run(main())
    assert len(turns) == 8 == len(set(turns))


def test_timeout_kills_the_whole_group_at_once() -> None:
    script = "trap '' TERM; sleep 601.001 & sleep 601.001; :"
    with pytest.raises(CommandTimeout, match=r"0\.3 s"):
        asyncio.run(LocalHost().run(["sh", "-c", script], timeout_s=0.3))
    eventually(lambda: not with_argument("601.001"), "both sleeps to end")


def test_timeout_kills_a_child_that_outlives_the_command_and_holds_its_pipes() -> None:
    with pytest.raises(CommandTimeout):
        asyncio.run(LocalHost().run(["sh", "-c", "sleep 61.003 &"], timeout_s=0.5))
    eventually(lambda: not with_argument("61.003"), "the sleep to end")


def test_cancelling_kills_too() -> None:
    async def main() -> None:
        task = asyncio.create_task(LocalHost().run(["sleep", "61.002"]))
        while not with_argument("61.002"):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    eventually(lambda: not with_argument("61.002"), "the sleep to end")


def test_much_output_on_both_sides_and_much_input_do_not_block() -> None:
    script = "head -c 3000000 /dev/zero >&2 & cat; wait"
    done = asyncio.run(LocalHost().run(["sh", "-c", script], input=b"x" * 3_000_000))
    assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)


@pytest.mark.slow
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arguments=st.lists(ARGUMENT, min_size=1, max_size=4))
def test_arguments_arrive_byte_for_byte(arguments: list[str]) -> None:
    done = asyncio.run(LocalHost().run(["printf", "%s\\0", *arguments]))
    assert done.stdout == b"".join(os.fsencode(a) + b"\0" for a in arguments)


async def first_line(stream: LocalStream) -> bytes:
    return await anext(aiter(stream.lines()))


def test_stream_gives_lines_and_takes_input() -> None:
    async def main() -> None:
        stream = await LocalHost().stream(["cat"], input=b"a\nb")
        lines = stream.lines()
        assert await anext(lines) == b"a"
        await stream.write(b"c\n")
        assert await anext(lines) == b"bc"
        await stream.close()

    asyncio.run(main())


def test_stream_passes_the_exit_code_on_and_keeps_the_end_of_stderr() -> None:
    async def main() -> None:
        stream = await LocalHost().stream(["sh", "-c", "echo out; echo why >&2; exit 9"])
        assert [line async for line in stream.lines()] == [b"out"]
        assert (await stream.wait(), await stream.stderr_tail()) == (9, "why")
        await stream.close()

    asyncio.run(main())


@pytest.mark.slow
def test_closing_a_stream_ends_a_command_that_never_reads_nor_heeds_term() -> None:
    async def main() -> None:
        stream = await LocalHost().stream(
            ["sh", "-c", "trap '' TERM; echo up; sleep 601.003; sleep 601.003"]
        )
        assert await first_line(stream) == b"up"
        await stream.close()

    asyncio.run(main())
    eventually(lambda: not with_argument("601.003"), "the command to end")


def test_a_close_that_is_cancelled_ends_the_command_and_closes_its_pipes() -> None:
    """The event loop ends while a stream is closed: the pipes were left open, and the command was
    left to its guard."""

    async def main() -> None:
        stream = await LocalHost().stream(
            ["sh", "-c", "trap '' TERM; echo up; sleep 601.005; sleep 601.005"]
        )
        assert await first_line(stream) == b"up"
        closing = asyncio.create_task(stream.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled() and stream._process.returncode is not None

    asyncio.run(main())
    gc.collect()  # an open pipe is an error that fails this test
    eventually(lambda: not with_argument("601.005"), "the command to end")


def test_a_stream_ends_when_its_reader_is_killed() -> None:
    code = (
        "import asyncio\nfrom workbench.hosts.local import LocalHost\n"
        "async def main():\n"
        "    stream = await LocalHost().stream(['sh', '-c', 'echo up; sleep 61.004; :'])\n"
        "    async for line in stream.lines(): print(line, flush=True)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        reader.kill()
    eventually(lambda: not with_argument("61.004"), "the command to end")


def test_files_are_written_whole_with_their_mode_and_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "made" / "too" / "file"

    async def main() -> None:
        host = LocalHost()
        await host.write_file(str(path), b"first", mode=0o640)
        await host.write_file(str(path), b"0123456789")
        assert await host.read_file(str(path)) == b"0123456789"
        assert await host.read_file(str(path), offset=3, limit=4) == b"3456"
        assert await host.read_file(str(path), offset=20) == b""

    asyncio.run(main())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (
        stat.S_IMODE(path.parent.stat().st_mode)
        == stat.S_IMODE(path.parent.parent.stat().st_mode)
        == 0o700
    )
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        asyncio.run(LocalHost().write_file(str(tmp_path / "dir"), b"x"))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".new")] == []


def test_whether_a_process_lives_is_read_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen asks it each second for each server."""

    def no_thread(*_: object) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    read = asyncio.run(LocalHost().read_file(f"/proc/{os.getpid()}/stat", limit=1024))
    assert read.startswith(b"%d (" % os.getpid())


def test_a_log_that_has_not_grown_is_asked_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen asks it each second for each server."""
    log, host = tmp_path / "log", LocalHost()
    monkeypatch.setattr("workbench.hosts.local.is_on_local_disk", lambda folder: True)
    in_threads: list[object] = []
    to_thread = asyncio.to_thread

    async def counted(work: object, *more: object) -> object:
        in_threads.append(work)
        return await to_thread(work, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", counted)

    async def read(offset: int) -> bytes:
        return await host.read_file(str(log), offset=offset, limit=100)

    async def reads() -> None:
        log.write_bytes(b"one\n")
        assert await read(0) == b"one\n"
        assert await read(4) == b""  # the first time, a thread sees where the file is
        assert len(in_threads) == 2
        assert await read(4) == b""
        assert len(in_threads) == 2
        log.write_bytes(b"one\ntwo\n")
        assert await read(4) == b"two\n"
        assert len(in_threads) == 3
        log.unlink()
        with pytest.raises(FileError, match="cannot read"):
            await read(8)

    asyncio.run(reads())


@pytest.mark.parametrize("path", ["/no/such/file", "/proc", f"/proc/{2**31}/stat"])
def test_an_unreadable_file_is_a_file_error(path: str) -> None:
    with pytest.raises(FileError, match="cannot read"):
        asyncio.run(LocalHost().read_file(path))


def test_state_directory_follows_xdg_and_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Path(asyncio.run(LocalHost().state_dir()))
    assert found == tmp_path / "state" / "workbench"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_forward_is_the_port_itself() -> None:
    assert asyncio.run(LocalHost().forward(8000)).local_port == 8000


def test_facts_are_of_this_machine() -> None:
    facts = asyncio.run(LocalHost().facts())
    assert (facts.uid, facts.hostname, facts.kernel) == (
        os.getuid(),
        os.uname().nodename,
        os.uname().release,
    )
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.cpu_count is not None and facts.cpu_count >= 1
    assert facts.memory_total_bytes is not None and facts.memory_total_bytes > 1 << 27
    assert facts.python3 is not None and facts.python3_version is not None


def test_no_process_of_the_benchmark_is_left() -> None:
    eventually(
        lambda: not any(with_argument(f"61.00{i}") for i in range(1, 5)),
        "every sleep of this module to end",
    )
    assert alive(os.getpid())


@pytest.mark.slow
def test_a_command_that_prints_without_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.hosts.line_splitter.OUTPUT_MAX_BYTES", 1 << 20)
    with pytest.raises(HostError, match="printed more than") as caught:
        asyncio.run(LocalHost().run(["yes", "a-word-of-no-end"]))
    assert "yes a-word-of-no-end" in str(caught.value)
    eventually(lambda: not with_argument("a-word-of-no-end"), "its end")


@pytest.mark.parametrize("address", ["a@evil", "a/../b", "x y", "a?b", "", "h#", "a:80@b", "-\n"])
def test_what_is_no_address_is_never_part_of_a_url(address: str) -> None:
    """The node of a job and the address of a container come from other programs, and the API key is
    sent there."""
    with pytest.raises(HostError, match="is not the address of a host"):
        asyncio.run(LocalHost().forward(8000, address))


def test_addresses_become_urls() -> None:
    for address, url in (
        ("10.0.0.2", "http://10.0.0.2:80"),
        ("n_1.x-y", "http://n_1.x-y:80"),
        ("[::1]", "http://[::1]:80"),
    ):
        assert asyncio.run(LocalHost().forward(80, address)).url == url


class NotingHost(LocalHost):
    """This machine, with a note of the last process that it started."""

    process: LocalProcess

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        shown: Sequence[str],
        *,
        stdin: int,
    ) -> LocalProcess:
        self.process = await super()._spawn(argv, env, shown, stdin=stdin)
        return self.process


def test_input_that_nobody_reads_leaves_no_pipe_open() -> None:
    """The pipe stayed open with the input that was left, until the event loop was closed."""

    async def main() -> None:
        process = await start_process(["sleep", "60"], stdin=asyncio.subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"x" * 1_000_000)
        process.close_pipes()
        await asyncio.sleep(0)
        assert process.stdin.get_extra_info("pipe").closed
        process.kill()
        await process.wait()
        process.close_pipes()  # a second time is harmless

    asyncio.run(main())


HOLDS_STDIN = """
exec 3<&0
sleep 61.006 <&3 3<&- >/dev/null 2>&1 &
exec >/dev/null 2>&1
sleep 0.1
"""


def test_a_command_ends_although_its_child_holds_the_input_that_nobody_reads() -> None:
    """asyncio's `wait` of Python 3.11 waited for the pipe, so the command ran into its timeout if
    its output ended before it did."""
    try:
        done = asyncio.run(LocalHost().run(["sh", "-c", HOLDS_STDIN], input=b"x" * 1_000_000))
        assert done.returncode == 0
    finally:
        for pid in with_argument("61.006"):
            os.kill(pid, signal.SIGKILL)


def test_a_command_that_reads_on_after_its_output_ended_gets_its_whole_input(
    tmp_path: Path,
) -> None:
    script = 'exec >/dev/null 2>&1; sleep 0.1; cat > "$1"'
    argv = ["sh", "-c", script, "sh", str(tmp_path / "copy")]
    assert asyncio.run(LocalHost().run(argv, input=b"x" * 1_000_000)).returncode == 0
    assert (tmp_path / "copy").stat().st_size == 1_000_000


@pytest.mark.parametrize("input", [b"", b"x" * 1_000_000])
@pytest.mark.parametrize("cut", ["end of the loop", "cancelled", "cancelled twice"])
def test_a_command_that_is_cut_off_at_any_step_of_its_start_leaves_nothing_open(
    cut: str, input: bytes
) -> None:
    """A screen that ended in the moment in which it started a command could wait for ever: asyncio
    waited for pipes that it had not connected yet. Cancelled twice, it left them open."""

    async def main(steps: int) -> None:
        running = asyncio.create_task(LocalHost().run(["true"], input=input))
        for _ in range(steps):
            await asyncio.sleep(0)
        if cut == "end of the loop":
            return  # asyncio.run cancels all tasks
        running.cancel()
        await asyncio.sleep(0)
        if cut == "cancelled twice":
            running.cancel()
        await asyncio.wait([running])

    before = len(os.listdir("/proc/self/fd"))
    for steps in range(10):
        asyncio.run(main(steps))
        gc.collect()  # an open pipe is an error that fails this test
        assert len(os.listdir("/proc/self/fd")) == before


def test_closing_a_stream_does_not_wait_for_output_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio's `wait` of Python 3.11 waited for the end of the output, which is read no further
    when the buffer is full."""
    monkeypatch.setattr("workbench.hosts.local.CLOSE_S", 60.0)

    async def main() -> None:
        stream = await LocalHost().stream(["yes"])
        assert await first_line(stream) == b"y"
        async with asyncio.timeout(20):
            await stream.close()

    asyncio.run(main())


def test_a_stream_that_is_cancelled_before_its_input_is_read_ends_its_command() -> None:
    async def main() -> None:
        host = NotingHost()
        starting = asyncio.create_task(host.stream(["sleep", "60"], input=b"x" * 1_000_000))

        def blocked() -> bool:
            stdin = getattr(host, "process", None) and host.process.stdin
            return bool(stdin and stdin.transport.get_write_buffer_size())

        async with asyncio.timeout(20):
            while not blocked():
                await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert host.process.returncode is not None

    asyncio.run(main())


class EndedProcess:
    """A process that has ended while a child of it still holds stderr."""

    stdin, returncode = None, 9

    def __init__(self) -> None:
        self.stderr = asyncio.StreamReader()
        self.stderr.feed_data(b"why")

    async def wait_then_kill_process_group(self, seconds: float) -> None:
        return


def test_a_reader_of_errors_is_not_cancelled_by_the_close_of_the_stream() -> None:
    """A stream of a lost container is closed while its reader waits for the last errors."""

    async def main() -> str:
        stream = LocalStream(EndedProcess())  # type: ignore[arg-type]
        reading = asyncio.create_task(stream.stderr_tail())
        while not stream._tail.text():
            await asyncio.sleep(0)
        await stream.close()
        return await reading

    assert asyncio.run(main()) == "why"


def test_names_of_a_directory_of_another_host_have_no_empty_one(tmp_path: Path) -> None:
    class OtherMachine(LocalHost):
        is_local = False

    (tmp_path / "run.log").touch()
    listed = asyncio.run(list_directory_names(OtherMachine(), str(tmp_path)))
    absent = asyncio.run(list_directory_names(OtherMachine(), str(tmp_path / "absent")))
    assert listed == ["run.log"]
    assert absent == []
