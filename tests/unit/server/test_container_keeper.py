"""The keeper of a container, with a stand-in for podman whose container the test changes: the log arrives whole, and
the end is noticed, whatever happens to podman. With dash, bash and busybox."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.procs import eventually, with_argument
from support.userland import UserlandHost

from workbench.server.launchers import container_scripts
from workbench.server.launchers.launcher import Launched, parse_launched

RUN = "20261122-200000-vllm-abcd"
ID = "cd" * 32
# `logs --follow` is `tail -f`, which does not notice the end of the container. With the file `half`, it prints as many
# bytes as that file says, and a message.
_PODMAN = """#!/bin/sh
cd PLACE || exit
case $1-$2 in
    container-inspect) case $4 in *.Id*) echo ID ;; *) cat state ;; esac ;;
    logs---follow)
        [ -e half ] || exec tail -c +1 -f log
        head -c "$(cat half)" log
        rm half
        echo 'error from daemon in stream: unexpected EOF' >&2
        exit 1 ;;
    logs-*) cat log ;;
    kill-*) [ -e lives ] ;;
    rm-*) echo "$*" >>removed ;;
esac
"""


class Kept:
    """A container, its process, and its keeper, whose output is the run's log."""

    def __init__(self, directory: Path, host: UserlandHost, log: str = "", half: int | None = None) -> None:
        self.place, self.run_dir = directory / "container", directory / "run"
        for path in (self.place, self.run_dir, directory / "programs"):
            path.mkdir()
        program = directory / "programs" / "podman"
        program.write_text(_PODMAN.replace("PLACE", str(self.place)).replace("ID", ID))
        program.chmod(0o755)
        self.server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.own = self.place / "log"
        self.own.write_text(log)
        if half is not None:
            (self.place / "half").write_text(str(half))
        self.says("running")
        (self.run_dir / "container").write_text(ID)
        words = (RUN, f"workbench-{RUN}", "podman", "keep", str(self.run_dir), "")
        path = f"{program.parent}:{host.path}"
        with (self.run_dir / "log").open("ab") as output:
            argv = ["sh", "-c", container_scripts.KEEPER, "sh", *words]
            env = {"PATH": path, "HOME": str(directory)}
            self.keeper = subprocess.Popen(argv, env=env, stdout=output, stderr=output, start_new_session=True)

    def says(self, status: str, code: int = 0) -> None:
        """Make podman say this about the container."""
        new = self.place / "new"
        new.write_text(f"{status} {code} false {self.server.pid} 0\n")
        new.replace(self.place / "state")

    def writes(self, text: str) -> None:
        with self.own.open("a") as file:
            file.write(text)

    @property
    def log(self) -> str:
        return (self.run_dir / "log").read_text()

    def follower(self) -> int:
        """Return the process that follows the log."""
        found: list[int] = []
        eventually(lambda: found.extend(self._followers()) or found, "a follower of the log", 20)
        return found[0]

    def _followers(self) -> list[int]:
        found = []
        for pid in with_argument("+1"):
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).cwd() == str(self.place):
                    found.append(pid)
        return found

    def launched(self) -> Launched:
        found = parse_launched((self.run_dir / "launched").read_bytes())
        assert found is not None
        return found

    def ended(self) -> int | None:
        """Return the exit code of the keeper, after its end."""
        eventually(lambda: self.keeper.poll() is not None, "the end of the keeper", 20)
        return self.keeper.returncode

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.keeper.pid, signal.SIGKILL)
        for process in (self.keeper, self.server):
            process.kill()
            process.wait()


@pytest.fixture
def kept(tmp_path: Path, userland: UserlandHost) -> Iterator[Kept]:
    one = Kept(tmp_path, userland)
    yield one
    one.close()


@pytest.mark.slow
def test_the_log_is_whole_however_often_its_follower_is_killed(kept: Kept) -> None:
    """A shell says "Killed", and busybox's head reads further than it prints: no byte may be counted wrongly."""
    for number in range(3):
        kept.writes("".join(f"line {number}.{n} {'x' * 97}\n" for n in range(60)) + "half of ")
        eventually(lambda: kept.log == kept.own.read_text(), "the log", 20)
        os.kill(kept.follower(), signal.SIGKILL)
        kept.writes("a line\n")
    eventually(lambda: kept.log == kept.own.read_text(), "the log", 20)
    kept.writes("the last line, without an end")
    kept.says("exited", 3)
    os.kill(kept.follower(), signal.SIGKILL)
    assert kept.ended() == 3
    assert kept.log == kept.own.read_text()
    assert (kept.place / "removed").read_text() == f"rm --force --volumes {ID}\n"
    assert not (kept.run_dir / "spare").exists() and not (kept.run_dir / "following").exists()


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 4, 11, 17])
def test_what_the_program_says_about_itself_hides_no_line(tmp_path: Path, userland: UserlandHost, half: int) -> None:
    """Its own message stands in the same stream as the log, perhaps in the middle of a line."""
    kept = Kept(tmp_path, userland, "first line\nsecond line\n", half)
    try:
        kept.writes("third line\n")
        eventually(lambda: "unexpected EOF" in kept.log and "third line\n" in kept.log, "the log", 20)
        own = kept.own.read_text().splitlines()
        assert [line for line in kept.log.splitlines() if line in own] == own
    finally:
        kept.close()


@pytest.mark.slow
def test_a_process_that_ended_unseen_ends_the_run(kept: Kept) -> None:
    """conmon was killed: podman calls the container running for ever, and follows its log for ever."""
    kept.writes("the last words\n")
    kept.follower()
    kept.server.kill()
    kept.server.wait()
    assert kept.ended() == 125
    launched = kept.launched()
    assert launched.ended is not None and "conmon" in launched.ended and launched.exit_code is None
    assert kept.log == f"the last words\nworkbench: {launched.ended}\n"
    assert (kept.place / "removed").exists() and not kept._followers()


@pytest.mark.slow
def test_the_exit_code_is_noted_where_no_new_file_can_be_written(kept: Kept) -> None:
    """The log has filled the disk: the last report goes where the first one has made room for it."""
    eventually(lambda: (kept.run_dir / "launched").exists(), "the first report", 20)
    (kept.run_dir / "launched.new").mkdir()
    kept.says("exited", 7)
    os.kill(kept.follower(), signal.SIGKILL)
    assert kept.ended() == 7
    launched = kept.launched()
    assert (launched.exit_code, launched.ended) == (7, "the container exited with code 7")
    assert not (kept.run_dir / "spare").exists()


@pytest.mark.slow
def test_a_process_that_cannot_be_seen_is_not_taken_for_ended(kept: Kept) -> None:
    """docker may be on another machine, and /proc may hide the processes of others: the program is asked."""
    (kept.place / "lives").touch()
    kept.follower()
    kept.server.kill()
    kept.server.wait()
    eventually(lambda: "start hidden\n" in (kept.run_dir / "launched").read_text(), "the answer", 20)
    kept.writes("it lives\n")
    eventually(lambda: "it lives\n" in kept.log, "the log", 20)
    assert kept.keeper.poll() is None and not (kept.place / "removed").exists()
