"""Tests of detached processes: which survive, which are ended, and which are never touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.procs import alive, eventually, with_argument

from workbench.hosts import detached_process, shell_scripts
from workbench.hosts.detached_process import DetachedProcess, ProcessStatus, RunDirUsed
from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError

HOST = LocalHost()


def start(run_dir: Path, *argv: str, **env: str) -> DetachedProcess:
    return asyncio.run(detached_process.start_detached(HOST, str(run_dir), argv, env))


def status(run_dir: Path) -> ProcessStatus:
    return asyncio.run(detached_process.read_status(HOST, str(run_dir)))


def stop(run_dir: Path, grace_s: float = 5.0) -> detached_process.StopReport:
    return asyncio.run(detached_process.stop_run(HOST, str(run_dir), grace_s=grace_s))


@pytest.fixture
def bystander() -> Iterator[int]:
    """A living session leader that belongs to no server, and that started in an earlier clock tick
    than any run of the test. A process id is reused seconds later at the earliest, and start times
    do not tell processes of one tick apart.
    """
    with subprocess.Popen(["sleep", "63.9"], start_new_session=True) as process:
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        started = int(start_time(process.pid))
        eventually(
            lambda: int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks_per_s) > started,
            "the next clock tick",
        )
        yield process.pid
        assert process.poll() is None, "a process that is not ours was ended"
        process.kill()


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def test_files_on_disk_are_private(tmp_path: Path) -> None:
    start(tmp_path / "run", "sleep", "63.001")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in (tmp_path / "run").iterdir()} == {0o600}
    stop(tmp_path / "run")


def test_the_server_gets_its_arguments_environment_directory_umask_and_signals_as_they_are(
    tmp_path: Path,
) -> None:
    code = (
        "import os, signal, sys\n"
        "print(sys.argv[1:], os.environ['SECRET'], os.getcwd(), oct(os.umask(0)), "
        "sys.stdin.read())\n"
        "print([signal.getsignal(s).name for s in (signal.SIGQUIT, signal.SIGTERM, "
        "signal.SIGHUP)])\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    arguments = ["it's", "two\nlines", "$HOME", ""]

    async def main() -> None:
        mask = os.umask(0o027)
        try:
            argv = [sys.executable, "-c", code, *arguments]
            await detached_process.start_detached(
                HOST, str(tmp_path / "run"), argv, {"SECRET": "k'1"}, str(tmp_path)
            )
        finally:
            os.umask(mask)

    asyncio.run(main())
    eventually(lambda: (tmp_path / "run" / "exit").exists(), "its end")
    assert (tmp_path / "run" / "log").read_text().splitlines() == [
        f"{arguments} k'1 {tmp_path} 0o27 ",
        "['SIG_DFL', 'SIG_DFL', 'SIG_DFL']",
        "True",
    ]


def test_no_secret_on_any_command_line(tmp_path: Path) -> None:
    start(tmp_path / "run", "sleep", "63.002", API_KEY="hf_very_secret")
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        # a process that has ended since
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert b"hf_very_secret" not in cmdline.read_bytes()
    assert not any(b"hf_very_secret" in f.read_bytes() for f in (tmp_path / "run").iterdir())
    stop(tmp_path / "run")


@pytest.mark.parametrize("seen", ["None-None", "{pid}-None", "1-1"])
def test_a_caller_that_looked_too_early_does_not_replace_a_process_just_started_again(
    seen: str, tmp_path: Path
) -> None:
    """Another caller reads the files of the run while they are moved, and finds none or half of
    them. By the time it starts a process itself, the new one already runs."""
    run = tmp_path / "run"
    process = start(run, "sleep", "63.003")
    ended = seen.format(pid=process.pid)
    late = asyncio.run(
        HOST.run(shell_scripts.restart_script_argv(str(run), ended, ["sleep", "63.004"]))
    )
    assert late.out.split() == ["error", "used"]
    assert status(run).pid == process.pid
    assert not list(run.glob("before-*"))
    stop(run)


def test_survives_the_terminal_and_the_starter(tmp_path: Path) -> None:
    """The starter gets SIGHUP and then SIGKILL, each for its whole process group."""
    code = (
        "import asyncio, sys, time\nfrom workbench.hosts import detached_process\n"
        "from workbench.hosts.local import LocalHost\n"
        "asyncio.run(detached_process.start_detached(LocalHost(), sys.argv[1], ['sleep', '63.003']))\n"
        "print('up', flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        for number in (signal.SIGHUP, signal.SIGKILL):
            os.killpg(starter.pid, number)
        starter.wait()
    seen = status(tmp_path / "run")
    assert seen.alive
    assert seen.pid is not None
    assert alive(seen.pid)
    assert stop(tmp_path / "run").has_ended_all_processes


def test_exit_codes_and_signals_are_distinguished(tmp_path: Path) -> None:
    for name, script, expected in (
        ("zero", "exit 0", (0, None)),
        ("seven", "exit 7", (7, None)),
        ("killed", "kill -s KILL $$", (137, "SIGKILL")),
        ("segv", "kill -s SEGV $$", (139, "SIGSEGV")),
    ):
        start(tmp_path / name, "sh", "-c", script)
        eventually(lambda: not status(tmp_path / name).alive, f"the end of {name}")  # noqa: B023
        seen = status(tmp_path / name)
        assert (seen.exit_code, seen.exit_signal) == expected
        assert seen.lost is None
        assert seen.ended_unix_s is not None
        assert abs(seen.ended_unix_s - time.time()) < 5


def test_all_runs_in_one_round_trip_with_the_requested_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(f'{{"name":\n"{name}"}}\n')
    start(tmp_path / "b", "sleep", "63.004")
    start(tmp_path / "a", "true")
    eventually(lambda: (tmp_path / "a" / "exit").exists(), "the end of a")

    runs, older = asyncio.run(
        detached_process.read_runs_and_unread_names(
            HOST, str(tmp_path), files=["plan.json", "none.json"]
        )
    )
    shown = [(Path(r.run_dir).name, r.alive, r.files) for r in runs]
    assert shown == [
        ("a", False, {"plan.json": b'{"name":\n"a"}\n'}),
        ("b", True, {"plan.json": b'{"name":\n"b"}\n'}),
    ]
    assert older == () and asyncio.run(
        detached_process.read_runs_and_unread_names(HOST, str(tmp_path / "none"))
    ) == ((), ())
    stop(tmp_path / "b")


def test_a_named_pipe_in_a_run_directory_is_not_waited_for(tmp_path: Path) -> None:
    start(tmp_path / "a", "true")
    eventually(lambda: (tmp_path / "a" / "exit").exists(), "the end of a")
    for name in ("ended", "members", "plan.json"):
        os.mkfifo(tmp_path / "a" / name)
    runs, _ = asyncio.run(
        detached_process.read_runs_and_unread_names(HOST, str(tmp_path), files=["plan.json"])
    )
    assert [(run.exit_code, run.files) for run in runs] == [(0, {})]


def test_a_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    assert status(tmp_path).lost == "the server was never started"
    with pytest.raises(HostError, match="no run directory"):
        status(tmp_path / "none")


def test_orphans_are_found_when_server_and_leader_are_killed(tmp_path: Path) -> None:
    """The worst case: both recorded processes are killed at once, before any look."""
    process = start(
        tmp_path / "run", "sh", "-c", "sleep 63.005 & sh -c 'sleep 63.005 & exit' ; wait"
    )
    eventually(lambda: len(with_argument("63.005")) == 2, "both children")
    for pid in (process.sid, process.pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(process.sid) and not alive(process.pid), "their end")
    seen = status(tmp_path / "run")
    assert (seen.alive, set(seen.members)) == (False, set(with_argument("63.005")))
    assert "killed" in (seen.lost or "")
    report = stop(tmp_path / "run")
    assert report.left == ()
    assert not with_argument("63.005")


def test_orphans_that_hide_their_environment_are_found_once_seen(tmp_path: Path) -> None:
    """As with setproctitle: /proc/PID/environ is empty, they have left the session, and every
    parent has ended."""
    script = "env -i setsid sleep 63.006 & sleep 63.0061"
    process = start(tmp_path / "run", "sh", "-c", script)
    eventually(lambda: with_argument("63.006"), "the child")
    assert set(status(tmp_path / "run").members) > set(with_argument("63.006"))
    for pid in (process.sid, process.pid, *with_argument("63.0061")):
        os.kill(pid, signal.SIGKILL)
    assert status(tmp_path / "run").members == tuple(with_argument("63.006"))
    assert stop(tmp_path / "run").left == ()
    assert not with_argument("63.006")


@pytest.mark.slow
def test_the_exit_is_recorded_also_when_everything_had_to_be_killed(tmp_path: Path) -> None:
    start(tmp_path / "run", "sh", "-c", "trap '' TERM; while :; do sleep 63.007; done")
    eventually(lambda: with_argument("63.007"), "the server")
    report = stop(tmp_path / "run", grace_s=0.5)
    assert report.killed
    assert report.status is not None
    assert report.status.exit_signal == "SIGKILL"


def test_a_run_that_starts_after_the_process_table_was_read_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, hold, held = tmp_path / "run", tmp_path / "hold", tmp_path / "held"
    run.mkdir()
    hold.touch()
    wait = f"if [ -e {hold} ]; then : >{held}; while [ -e {hold} ]; do sleep 0.02; done; fi"
    table, files = shell_scripts.SURVEY.split("print() {")
    monkeypatch.setattr(shell_scripts, "SURVEY", f"{table}{wait}\nprint() {{{files}")

    async def main() -> ProcessStatus:
        reading = asyncio.create_task(detached_process.read_status(HOST, str(run)))
        while not held.exists():
            await asyncio.sleep(0.01)
        await detached_process.start_detached(HOST, str(run), ("sleep", "63.012"), {})
        hold.unlink()
        return await reading

    seen = asyncio.run(main())
    stop(run)
    assert seen.alive, seen.lost


def test_a_start_that_another_caller_has_half_recorded_is_not_ended(tmp_path: Path) -> None:
    """A look that reads the files while they are written sees a session without its start."""
    run = tmp_path / "run"
    started = start(run, "sleep", "63.011")
    for name in ("sid_starttime", "starttime", "pid"):
        (run / name).rename(run / f"{name}.later")
    asyncio.run(detached_process.kill_remaining_session_processes(HOST, str(run)))
    for name in ("sid_starttime", "starttime", "pid"):
        (run / f"{name}.later").rename(run / name)
    assert status(run).alive
    assert alive(started.pid)
    stop(run)


@pytest.mark.slow
def test_nobody_gets_term_twice(tmp_path: Path) -> None:
    """Some servers treat a second TERM as "exit at once"."""
    count = (
        "import signal, time\nsignal.signal(15, lambda *a: print('term', "
        "flush=True))\nprint('up', flush=True)\n"
    )
    code = f"{count}\nend = time.time() + 1.5\nwhile time.time() < end: time.sleep(.1)"
    start(tmp_path / "run", sys.executable, "-c", code)
    eventually(lambda: (tmp_path / "run" / "log").read_text() == "up\n", "the server")
    assert stop(tmp_path / "run").killed == ()
    assert (tmp_path / "run" / "log").read_text() == "up\nterm\n"


def test_stop_again_does_nothing(tmp_path: Path) -> None:
    start(tmp_path / "run", "sleep", "63.008")
    assert stop(tmp_path / "run").pids_signalled
    again = stop(tmp_path / "run")
    assert (again.pids_signalled, again.left) == ((), ())


@pytest.mark.parametrize("names", [("pid",), ("sid",), ("pid", "sid")])
def test_a_reused_process_id_never_belongs_to_the_run(
    tmp_path: Path, bystander: int, names: tuple[str, ...]
) -> None:
    """The run has ended; its numbers now belong to another process or session."""
    start(tmp_path / "run", "true")
    eventually(lambda: (tmp_path / "run" / "exit").exists(), "its end")
    for name in names:
        (tmp_path / "run" / name).write_text(f"{bystander}\n")
    assert status(tmp_path / "run").members == ()
    assert stop(tmp_path / "run").pids_signalled == ()
    (tmp_path / "run" / "exit").unlink()  # nor when nothing is known of its end
    assert not status(tmp_path / "run").alive
    assert stop(tmp_path / "run").pids_signalled == ()


def test_after_a_reboot_no_process_belongs_to_the_run(tmp_path: Path, bystander: int) -> None:
    start(tmp_path / "run", "sleep", "63.011")
    assert stop(tmp_path / "run").has_ended_all_processes
    for name, value in (
        ("pid", bystander),
        ("starttime", start_time(bystander)),
        ("boot_id", "another"),
    ):
        (tmp_path / "run" / name).write_text(f"{value}\n")
    (tmp_path / "run" / "exit").unlink()
    seen = status(tmp_path / "run")
    assert (seen.alive, seen.members) == (False, ())
    assert "restarted" in (seen.lost or "")
    assert stop(tmp_path / "run").pids_signalled == ()


def test_alive_compares_the_start_time(bystander: int) -> None:
    right = DetachedProcess(bystander, bystander, int(start_time(bystander)))
    assert asyncio.run(detached_process.is_process_alive(HOST, right))
    assert not asyncio.run(
        detached_process.is_process_alive(
            HOST, DetachedProcess(bystander, bystander, right.start_time + 1)
        )
    )
    assert not asyncio.run(
        detached_process.is_process_alive(HOST, DetachedProcess(2**22 + 1, 1, 1))
    )


@pytest.mark.long
@pytest.mark.slow
def test_twenty_starters_killed_twenty_stops_nothing_left(tmp_path: Path) -> None:
    """SIGKILL ends the starter as soon as the server runs; another process stops the server."""
    child = (
        "import asyncio, os, sys\nfrom workbench.hosts import detached_process\n"
        "from workbench.hosts.local import LocalHost\n"
        'server = \'sleep 63.012 & sh -c "setsid sleep 63.012 & exit"; while :; do sleep 63.012; '
        "done'\n"
        "asyncio.run(detached_process.start_detached(LocalHost(), sys.argv[1], ['sh', '-c', server]))\n"
        "os.kill(os.getpid(), 9)"
    )
    for i in range(20):
        ended = subprocess.run([sys.executable, "-c", child, str(tmp_path / str(i))])
        assert ended.returncode == -signal.SIGKILL
        assert status(tmp_path / str(i)).alive
        report = stop(tmp_path / str(i))
        assert report.left == ()
    assert not with_argument("63.012")


MAKES_SHARED_MEMORY = """
import mmap, os, sys, time
shared, weights = sys.argv[1:]
with open(shared, "w+b") as f:
    f.truncate(4096)
    m = mmap.mmap(f.fileno(), 4096)
w = open(weights, "r+b"); n = mmap.mmap(w.fileno(), 0)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def shared_names(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a name that the server creates in /dev/shm, and a file that existed there before."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    made, before = (
        Path(f"/dev/shm/workbench-test-{os.getpid()}-{kind}") for kind in ("made", "before")
    )
    before.write_bytes(b"model weights")
    yield made, before
    made.unlink(missing_ok=True)
    before.unlink()


def test_shared_memory_of_a_killed_server_is_removed_and_no_other(
    tmp_path: Path, shared_names: tuple[Path, Path]
) -> None:
    made, before = shared_names
    process = start(
        tmp_path / "run", sys.executable, "-c", MAKES_SHARED_MEMORY, str(made), str(before)
    )
    eventually(lambda: (tmp_path / "run" / "log").read_text() == "up\n", "the server")
    asyncio.run(
        detached_process.record_shared_memory_files(HOST, str(tmp_path / "run"), [process.pid])
    )
    # still in use
    assert (
        asyncio.run(detached_process.remove_unused_shared_memory_files(HOST, str(tmp_path / "run")))
        == ()
    )
    assert made.exists()
    os.killpg(process.sid, signal.SIGKILL)
    eventually(lambda: not alive(process.pid), "its end")
    assert stop(tmp_path / "run").shared_memory_removed == (str(made),)
    assert before.exists()
    assert not made.exists()


def test_shared_memory_made_anew_under_the_same_name_stays(
    tmp_path: Path, shared_names: tuple[Path, Path]
) -> None:
    made, before = shared_names
    process = start(
        tmp_path / "run", sys.executable, "-c", MAKES_SHARED_MEMORY, str(made), str(before)
    )
    eventually(lambda: (tmp_path / "run" / "log").read_text() == "up\n", "the server")
    asyncio.run(
        detached_process.record_shared_memory_files(HOST, str(tmp_path / "run"), [process.pid])
    )
    stand_in = made.with_name(f"{made.name}-2")
    stand_in.write_bytes(b"somebody else's")
    stand_in.rename(made)
    assert stop(tmp_path / "run").shared_memory_removed == ()
    assert made.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_reported_at_the_start_and_keeps_the_exit_code(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        start(disk / "run", "sh", "-c", "yes 2>/dev/null; exit 5")
        eventually(lambda: (disk / "run" / "exit").exists(), "its end")
        assert status(disk / "run").exit_code == 5
        with pytest.raises(HostError, match="cannot write"):
            start(disk / "second", "true")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_limit_of_open_files_is_raised_to_what_is_asked_and_never_lowered(
    tmp_path: Path,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        soft = []
        for asked in (2048, 300, None, 2**30):
            run_dir = tmp_path / str(asked)
            script = "ulimit -Sn; ulimit -Hn"
            asyncio.run(
                detached_process.start_detached(
                    HOST, str(run_dir), ["sh", "-c", script], open_files=asked
                )
            )
            eventually(lambda: (run_dir / "exit").exists(), "its end")  # noqa: B023
            soft.append([int(word) for word in (run_dir / "log").read_text().split()])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [limits[0] for limits in soft] == [2048, 1024, 1024, soft[3][1]] and soft[3][
        1
    ] >= before[1]


def test_a_run_that_another_caller_starts_again_is_in_use(tmp_path: Path) -> None:
    """The other caller has moved the process id away, and now writes the token."""
    (tmp_path / "token").touch()
    with pytest.raises(RunDirUsed):
        asyncio.run(detached_process.restart_in_run_dir(HOST, str(tmp_path), ["sleep", "63.3"]))
