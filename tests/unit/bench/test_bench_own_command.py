"""Tests of a command of the user as the workload: its end, its last lines, its secrets, and that no
process of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from procs import alive, eventually

from workbench.bench import own_command
from workbench.bench.own_command import CommandOutcome
from workbench.bench.runner import BenchCancelled
from workbench.model.bench import EngineDuring
from workbench.model.errors import BenchError


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def ran(argv: Sequence[str], env: dict[str, str] | None = None) -> tuple[CommandOutcome, list[str]]:
    heard: list[str] = []
    done = asyncio.run(
        own_command.run_command(argv, env or {}, on_line=lambda line, _: heard.append(line))
    )
    return done, heard


def test_exit_code_time_and_output() -> None:
    before = time.time()
    done, heard = ran(
        python(
            "import sys, time; print('one'); time.sleep(0.2); print('two', file=sys.stderr); "
            "sys.exit(3)"
        )
    )
    assert done.exit_code == 3 and sorted(done.output) == sorted(heard) == ["one", "two"]
    assert 0.2 <= done.seconds < 5 and before <= done.t0_unix and done.t1_unix <= time.time() + 0.1


def test_only_the_last_lines_are_kept_and_a_progress_bar_is_lines() -> None:
    done, heard = ran(python("print('\\r'.join(f'{i} %' for i in range(100)))"))
    assert done.output == tuple(f"{i} %" for i in range(80, 100)) and len(heard) == 100


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    done, _ = ran(python("import sys; sys.stdout.write('x' * 3_000_000)"))
    assert len(done.output) == 1 and len(done.output[0]) == 500


def test_control_sequences_are_removed() -> None:
    done, _ = ran(python(r"print('\x1b[31mred\x1b[0m\x1b]0;title\x07 end')"))
    assert done.output == ("red end",)


def test_the_endpoint_is_in_its_environment_and_the_key_in_none_of_its_output() -> None:
    env = own_command.command_environment("http://127.0.0.1:1/v1", "tiny", "sesame-42")
    done, heard = ran(
        python(
            "import os; e = os.environ; print(e['OPENAI_BASE_URL'], e['WORKBENCH_MODEL']);"
            "print('key', e['OPENAI_API_KEY'])"
        ),
        env,
    )
    assert done.output == ("http://127.0.0.1:1/v1 tiny", "key ***")
    assert "sesame" not in repr((done, heard))
    assert own_command.command_environment("u", "m", None)["OPENAI_API_KEY"] == "none"


def test_the_servers_address_and_model_replace_placeholders() -> None:
    words = ["x", "--url={base_url}", "{model}", '{"a": 1}', "$HOME"]
    with own_command.replace_server_placeholders(words, "http://h/v1", "tiny") as argv:
        assert argv == ("x", "--url=http://h/v1", "tiny", '{"a": 1}', "$HOME")


def test_it_reads_nothing_and_is_no_shell() -> None:
    assert ran(python("import sys; print(repr(sys.stdin.read()))"))[0].output == ("''",)
    assert ran((sys.executable, "-c", "import sys; print(sys.argv[1:])", "; echo no", "$(id)"))[
        0
    ].output == ("['; echo no', '$(id)']",)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("no-such-program-42",), "not found on this machine's PATH"),
        (("/",), "did not start"),
        (("a\0b",), "did not start"),
    ],
)
def test_a_command_that_does_not_start_is_an_error(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        asyncio.run(own_command.run_command(argv, {}))


def test_ended_by_a_signal() -> None:
    done, _ = ran(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.exit_code == -signal.SIGKILL
    assert own_command.summary_of_command(done).refused == (
        "the benchmark command was ended by SIGKILL",
    )


def with_child(tmp_path: Path, *, ignores_term: bool) -> tuple[str, ...]:
    """Return a command whose child sleeps for a minute; both write their process ids."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignores_term else ""
    child = (
        f"{ignore} import os, time; open({str(tmp_path / 'child')!r}, "
        "'w').write(str(os.getpid())); time.sleep(60)"
    )
    return python(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child.strip()!r}])"
    )


async def child_of(tmp_path: Path) -> int:
    until = time.monotonic() + 20
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    return int((tmp_path / "child").read_text())


@pytest.mark.parametrize("ignores_term", [False, True])
def test_cancelling_ends_its_whole_group(
    tmp_path: Path, ignores_term: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_command, "_KILL_AFTER_TERM_S", 0.5)

    async def cancelled() -> int:
        cancel = asyncio.Event()
        task = asyncio.ensure_future(
            own_command.run_command(
                with_child(tmp_path, ignores_term=ignores_term), {}, cancel=cancel
            )
        )
        child = await child_of(tmp_path)
        cancel.set()
        with pytest.raises(BenchCancelled, match="cancelled"):
            await task
        return child

    child = asyncio.run(cancelled())
    eventually(lambda: not alive(child), "the child to end")


@pytest.mark.slow
def test_the_deadline_and_a_cancelled_task_end_it_too(tmp_path: Path) -> None:
    async def both() -> tuple[int, int]:
        with pytest.raises(BenchError, match=r"did not end within 0\.5 s"):
            await own_command.run_command(
                with_child(tmp_path, ignores_term=False), {}, deadline_s=0.5
            )
        (tmp_path / "child").unlink(missing_ok=True)
        task = asyncio.ensure_future(
            own_command.run_command(with_child(tmp_path, ignores_term=False), {})
        )
        child = await child_of(tmp_path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return child, os.getpid()

    child, _ = asyncio.run(both())
    eventually(lambda: not alive(child), "the child to end")


@pytest.mark.slow
def test_processes_that_a_command_leaves_are_ended(tmp_path: Path) -> None:
    code = (
        f"import os, time; open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); "
        "time.sleep(60)"
    )
    leaver = f"""import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {code!r}])
while not os.path.exists({str(tmp_path / "child")!r}): time.sleep(0.02)
print('left')"""
    done, _ = ran(python(leaver))
    assert (done.exit_code, done.output) == (0, ("left",)) and done.seconds < 10
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not alive(child), "the child to end")


@pytest.mark.parametrize("end", ["its own end", "cancelled", "Workbench is killed"])
def test_a_child_in_a_session_of_its_own_is_ended_with_it(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon: it called setsid, and its parent has ended."""
    monkeypatch.setattr(own_command, "_KILL_AFTER_TERM_S", 0.5)
    code = (
        f"import os, time; open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); "
        "time.sleep(60)"
    )
    stays = "" if end == "its own end" else "; time.sleep(60)"
    leaver = f"""import os, subprocess, sys, time
subprocess.Popen(['sh', '-c', 'setsid "$@" &', 'sh', sys.executable, '-c', {code!r}])
while not os.path.exists({str(tmp_path / "child")!r}): time.sleep(0.02)
time.sleep(0.05){stays}"""

    async def cancelled() -> None:
        cancel = asyncio.Event()
        task = asyncio.ensure_future(own_command.run_command(python(leaver), {}, cancel=cancel))
        await child_of(tmp_path)
        cancel.set()
        with pytest.raises(BenchCancelled):
            await task

    if end == "its own end":
        ran(python(leaver))
    elif end == "cancelled":
        asyncio.run(cancelled())
    else:
        with subprocess.Popen([sys.executable, "-c", RUNS_IT, *python(leaver)]) as process:
            eventually(
                lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(),
                "the child",
            )
            process.kill()
    eventually(lambda: not alive(int((tmp_path / "child").read_text())), "the child's end", 20)


# -- ended with Workbench --------------------------------------------------------------------------

RUNS_IT = """
import asyncio, sys
from workbench.bench import own_command
asyncio.run(own_command.run_command(sys.argv[1:], {}))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("whom", ["workbench", "the process between"])
def test_the_command_ends_however_workbench_ends(
    tmp_path: Path, number: signal.Signals, whom: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS_IT, *with_child(tmp_path, ignores_term=False)]
    )
    with process:
        eventually(
            lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(),
            "the command's child",
        )
        child = int((tmp_path / "child").read_text())
        (between,) = psutil.Process(process.pid).children()
        (command,) = between.children()
        if whom == "workbench":
            process.send_signal(number)
        elif number == signal.SIGKILL:
            between.send_signal(number)
        else:  # it is not ours alone to end: the pipe decides
            between.send_signal(number)
            assert between.is_running() and alive(command.pid)
            process.kill()
        process.wait(20)
        eventually(
            lambda: not alive(command.pid) and not alive(between.pid), "the command's end", 20
        )
        if whom == "workbench" or number != signal.SIGKILL:
            eventually(lambda: not alive(child), "the end of its child", 20)
        else:  # the kernel knows of the command alone
            os.kill(child, signal.SIGKILL)


# -- its figures -----------------------------------------------------------------------------------


def test_tokens_and_requests_are_the_engines_counts() -> None:
    done = CommandOutcome(0, 100.0, 110.0, ("fine",))
    engine = EngineDuring(
        requests_finished=20, prompt_tokens=100, generation_tokens=500, prefix_hit_tokens=4
    )
    s = own_command.add_engine_counts(own_command.summary_of_command(done), engine)
    assert (s.requests_ok, s.output_tokens, s.output_tok_s, s.request_s, s.cached_tokens) == (
        20,
        500,
        50.0,
        2.0,
        4,
    )
    assert s.refused == () and s.command_exit == 0 and s.command_output == ("fine",)
    assert "which reports latencies itself" in s.absent["ttft_ms"]


def test_without_counters_only_time_and_exit_are_known() -> None:
    why = dict.fromkeys(
        ("requests_finished", "prompt_tokens", "generation_tokens", "prefix_hit_tokens"),
        "no metrics",
    )
    s = own_command.add_engine_counts(
        own_command.summary_of_command(CommandOutcome(2, 0.0, 4.0, ())), EngineDuring(absent=why)
    )
    assert (
        s.output_tok_s is None and "no metrics" in s.absent["output_tok_s"] and s.duration_s == 4.0
    )
    assert s.refused == ("the benchmark command exited with 2",)


def test_a_command_that_is_cancelled_while_it_starts_leaves_nothing_open() -> None:
    async def cancelled(turns: int) -> None:
        task = asyncio.ensure_future(own_command.run_command(["sleep", "600"], {}))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def watched() -> None:
        await cancelled(50)  # the threads and pipes of asyncio itself
        before = os.listdir("/proc/self/fd")
        for turns in range(0, 30, 6):
            await cancelled(turns)
        async with asyncio.timeout(30):
            while len(os.listdir("/proc/self/fd")) > len(before):
                await asyncio.sleep(0.02)

    asyncio.run(watched())
