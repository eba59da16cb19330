"""The command of a foreign process: another user's, one that changes or ends, one with secrets, one
too long."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually

from workbench.hosts.base import Completed
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError
from workbench.recipes.imports import running_process
from workbench.recipes.registry import parse_recipe_text
from workbench.server.process_command import ProcessCommand, read_command

WAITS = (sys.executable, "-c", "import sys; print('on', flush=True); sys.stdin.read()")


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str, **options: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([*WAITS, *argv], stdin=pipe, stdout=pipe, text=True, **options)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "on\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read(pid: int, host: LocalHost | None = None) -> ProcessCommand:
    return asyncio.run(read_command(host or LocalHost(), pid))


def test_words_and_environment_arrive_as_they_are(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    process = spawn(
        "a b", "", "c\nd", "\x1b[2Je", env={**os.environ, "VLLM_X": "1\n2", "ODD": "=x"}, cwd="/"
    )
    found = read(process.pid)
    assert found.argv[-4:] == ("a b", "", "c\nd", "\x1b[2Je") and found.workdir == "/"
    assert (
        found.without_control_characters().argv[-4:] == ("a b", "", "c d", "e")
        and found.without_control_characters().workdir == "/"
    )
    assert found.env is not None and found.env["VLLM_X"] == "1\n2" and found.env["ODD"] == "=x"
    assert (found.without_control_characters().env or {})["VLLM_X"] == "1 2"


def test_a_process_of_another_user_gives_its_words_and_says_what_is_missing(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    """Its environment is not read: here by an unprivileged user, to whom this test's process is
    another's."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    process = spawn("vllm", "serve", "org/model", "--api-key", "s3cret")

    class Nobody(LocalHost):
        async def _run(self, argv: Sequence[str], *given: Any) -> Completed:
            return await super()._run(["setpriv", "--reuid=65534", "--clear-groups", *argv], *given)

    found = read(process.pid, Nobody())
    assert (
        found.argv[-2:] == ("--api-key", "s3cret") and found.env is None and found.workdir is None
    )
    recipe = running_process.recipe_of_process(
        ("vllm", "serve", "org/model"), found.env, found.workdir
    )
    assert any("its environment" in finding.text for finding in recipe.findings)


class Interrupted(LocalHost):
    """A host on which something happens to the process between two looks at it."""

    def __init__(self, pid: int, then: str) -> None:
        super().__init__()
        self.pid, self.then = pid, then

    async def _run(self, argv: Sequence[str], *given: Any) -> Completed:
        script = argv[2].replace('echo "cwd', f'{self.then}\necho "cwd', 1)
        assert script != argv[2]
        return await super()._run([*argv[:2], script, *argv[3:]], *given)


def test_a_process_that_ends_or_becomes_another_program_meanwhile_is_no_server(
    tmp_path: Path,
) -> None:
    wrapper = ["sh", "-c", "read line; exec sleep 600", "vllm", "serve", "m"]
    go = tmp_path / "go"
    os.mkfifo(go)
    with subprocess.Popen(wrapper, stdin=os.open(go, os.O_RDWR)) as process:
        try:
            then = f"echo go >{go}; while grep -q read /proc/{process.pid}/cmdline; do :; done"
            with pytest.raises(InputError, match="became another program"):
                read(process.pid, Interrupted(process.pid, then))
            then = (
                f"kill -9 {process.pid}; while [ -n \"$(tr -d '\\0' "
                f'</proc/{process.pid}/cmdline)" ]; do :; done'
            )
            with pytest.raises(InputError, match=r"ended or became|no process"):
                read(process.pid, Interrupted(process.pid, then))
        finally:
            process.kill()
    with pytest.raises(InputError, match="no process"):
        read(process.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**30])
def test_a_number_that_is_no_process_is_an_error(pid: int) -> None:
    with pytest.raises(InputError, match="no process"):
        read(pid)


def test_a_command_line_that_is_too_long_is_not_cut_in_silence(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    process = spawn("vllm", "serve", "m", *["x" * 1000] * 140)
    with pytest.raises(InputError, match="longer than 128 KiB"):
        read(process.pid)


@pytest.mark.parametrize("at", range(60, 215, 5))
def test_no_part_of_a_secret_is_shown_where_the_command_is_cut(at: int) -> None:
    """A command that is no server's is named in the message, up to a number of characters."""
    argv = ("psql", "x" * at, "postgres://ada:hunter2hunter2@db/x", "--password", "hunter3hunter3")
    recipe = running_process.recipe_of_process(argv, {"PGPASSWORD": "hunter4"}, "/")
    assert "hunter" not in str(recipe.findings)
    second = (
        f"vllm serve a\nvllm serve {'x' * at} --hf-token hf_{'s3cret' * 6} "
        "postgres://ada:hunter2hunter2@db/x"
    )
    found = str(parse_recipe_text(second).findings)
    assert "another server command" in found and "hunter" not in found and "s3cret" not in found


def test_a_process_that_has_ended_is_gone(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn()
    process.kill()
    eventually(lambda: not Path(f"/proc/{process.pid}/cmdline").read_bytes(), "the zombie")
    with pytest.raises(InputError, match="no process"):
        read(process.pid)
