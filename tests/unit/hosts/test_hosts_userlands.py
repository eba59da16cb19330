"""Every script of hosts/shell_scripts.py under dash, bash and busybox, with their own tools."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from support.procs import alive, eventually, with_argument
from support.userland import UserlandHost

from workbench.hosts import detached_process, files_via_shell, shell_scripts
from workbench.hosts.base import CommandNotFound, FileError
from workbench.hosts.host_facts import parse_host_facts


@pytest.mark.slow
def test_guard_passes_exit_codes_on_and_ends_with_stdin(userland: UserlandHost) -> None:
    nap = userland.nap

    async def main() -> None:
        for code in (0, 9):
            stream = await userland.stream(
                ["sh", "-c", f"read x; echo got $x >&2; exit {code}"], input=b"y\n"
            )
            assert (await stream.wait(), await stream.stderr_tail()) == (code, "got y")
            await stream.close()
        stream = await userland.stream(
            ["sh", "-c", f"trap '' TERM; echo up; sleep {nap}; sleep {nap}; :"]
        )
        assert await anext(aiter(stream.lines())) == b"up"
        await stream.close()

    asyncio.run(main())
    eventually(lambda: not with_argument(nap), "the guarded command to end")


def test_files(userland: UserlandHost, tmp_path: Path) -> None:
    path = tmp_path / "new dir" / "it's a file"

    async def main() -> None:
        await files_via_shell.write_file_via_shell(userland, str(path), b"0123456789\0\n", 0o640)
        assert (
            await files_via_shell.read_file_via_shell(userland, str(path), 0, None)
            == b"0123456789\0\n"
        )
        assert await files_via_shell.read_file_via_shell(userland, str(path), 3, 4) == b"3456"
        assert await files_via_shell.read_file_via_shell(userland, str(path), 0, 2) == b"01"
        assert await files_via_shell.read_file_via_shell(userland, str(path), 99, None) == b""
        with pytest.raises(FileError, match="no such file"):
            await files_via_shell.read_file_via_shell(userland, f"{path}.gone", 0, None)
        with pytest.raises(FileError, match="is a directory"):
            await files_via_shell.read_file_via_shell(userland, str(tmp_path), 0, None)

    asyncio.run(main())
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_half_a_write_replaces_nothing(userland: UserlandHost, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    cut_off = shell_scripts.shell_argv(shell_scripts.WRITE_FILE, str(path), "600", "10")
    done = asyncio.run(userland.run(cut_off, input=b"half"))
    assert done.returncode == 1
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".new")] == []


def test_state_dir(userland: UserlandHost, tmp_path: Path) -> None:
    found = asyncio.run(files_via_shell.state_dir_via_shell(userland))
    assert found == f"{os.environ['XDG_STATE_HOME']}/workbench"
    assert stat.S_IMODE(Path(found).stat().st_mode) == 0o700


def test_facts(userland: UserlandHost) -> None:
    said = asyncio.run(
        userland.run(shell_scripts.shell_argv(shell_scripts.FACTS, "ping"), input=b"1\n")
    )
    facts = parse_host_facts(said.out, "name", "ssh", 1.5)
    assert said.out.startswith("ping=1\n")
    assert (facts.uid, facts.hostname, facts.latency_ms) == (os.getuid(), os.uname().nodename, 1.5)
    assert facts.memory_total_bytes is not None


def test_prelude_sets_the_environment_from_stdin_only(userland: UserlandHost) -> None:
    values = {"A": "it's", "B": "two\nlines\n", "C": 'back\\slash $HOME `id` "q" ', "D": ""}
    argv = ["sh", "-c", 'printf "%s|" "$A" "$B" "$C" "$D" "$@"; read x; echo "$x"', "sh", "a b"]
    order = shell_scripts.shell_command_line(argv, values)
    done = asyncio.run(
        userland.run(["sh", "-c", 'IFS= read -r _wb && eval "$_wb"'], input=order + b"rest\n")
    )
    assert (
        done.out
        == f"{shell_scripts.MARK}\n" + "".join(f"{v}|" for v in values.values()) + "a b|rest\n"
    )
    assert shell_scripts.parse_pid_after_mark(done.err) is not None
    assert shell_scripts.remove_text_before_mark(done.err) == ""


@pytest.mark.parametrize("missing", ["no-such-tool", "/no/such/tool", "/etc/passwd"])
def test_prelude_reports_a_missing_command(userland: UserlandHost, missing: str) -> None:
    done = asyncio.run(userland.run(shell_scripts.shell_argv(shell_scripts.PRELUDE, "", missing)))
    assert (done.returncode, done.out, done.err) == (127, "", f"{shell_scripts.MARK} missing\n")


@pytest.mark.slow
def test_detached_life(userland: UserlandHost, tmp_path: Path) -> None:
    """Start, adopt, stop: a server that ignores TERM, with a child in another session and
    orphans."""
    nap = userland.nap
    children = f"sh -c 'setsid sleep {nap} & sleep {nap} & exit 0'"
    server = f"trap '' TERM; echo up; {children}; while :; do sleep {nap}; done"

    async def main() -> None:
        run_dir = str(tmp_path / "run")
        process = await detached_process.start_detached(userland, run_dir, ["sh", "-c", server])
        while len(with_argument(nap)) < 3:
            await asyncio.sleep(0.01)
        seen = await detached_process.read_status(userland, run_dir)
        assert (seen.alive, seen.pid) == (True, process.pid)
        assert set(seen.members) >= {process.pid, *with_argument(nap)}
        report = await detached_process.stop_run(userland, run_dir, grace_s=1)
        assert (report.left, report.has_ended_all_processes) == ((), True)
        assert process.pid in report.killed
        after = await detached_process.read_status(userland, run_dir)
        assert (after.alive, after.exit_code, after.exit_signal, after.members) == (
            False,
            137,
            "SIGKILL",
            (),
        )
        assert await userland.read_file(f"{run_dir}/log") == b"up\n"
        assert not alive(process.pid)

    asyncio.run(main())
    assert not with_argument(nap)


def test_term_to_the_group_leaves_the_exit_code_on_record(
    userland: UserlandHost, tmp_path: Path
) -> None:
    async def main() -> None:
        run_dir = str(tmp_path / "run")
        await detached_process.start_detached(
            userland, run_dir, ["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"]
        )
        report = await detached_process.stop_run(userland, run_dir)
        assert (report.killed, report.status and report.status.exit_code) == ((), 7)

    asyncio.run(main())


def test_start_errors(userland: UserlandHost, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(CommandNotFound):
            await detached_process.start_detached(userland, str(tmp_path / "a"), ["no-such-engine"])
        with pytest.raises(detached_process.WorkdirMissing):
            await detached_process.start_detached(
                userland, str(tmp_path / "a"), ["true"], workdir="/no/such/dir"
            )
        await detached_process.start_detached(userland, str(tmp_path / "a"), ["true"])
        with pytest.raises(detached_process.RunDirUsed):
            await detached_process.start_detached(userland, str(tmp_path / "a"), ["true"])
        (tmp_path / "plain").write_text("")
        with pytest.raises(FileError):
            await detached_process.start_detached(userland, str(tmp_path / "plain" / "b"), ["true"])

    asyncio.run(main())
