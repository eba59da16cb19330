"""The keeper of a container, with a stand-in for podman whose container the test changes: the log
arrives whole, and the end is noticed, whatever happens to podman. With dash, bash and busybox."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.procs import alive, eventually, with_argument
from support.userland import UserlandHost

from workbench.server.launchers import container_images, container_scripts
from workbench.server.launchers.launcher import LaunchedServer, parse_launched

RUN = "20261122-200000-vllm-abcd"
ID = "cd" * 32
# `logs --follow` is `tail -f`, which does not notice the end of the container. With the file
# `half`, it prints as many bytes as that file says, and a message.
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

    def __init__(
        self, directory: Path, host: UserlandHost, log: str = "", half: int | None = None
    ) -> None:
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
            argv = ["sh", "-c", container_scripts.KEEPER_SCRIPT, "sh", *words]
            env = {"PATH": path, "HOME": str(directory)}
            self.keeper = subprocess.Popen(
                argv, env=env, stdout=output, stderr=output, start_new_session=True
            )

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

    def launched(self) -> LaunchedServer:
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
    """A shell says "Killed", and busybox's head reads further than it prints: no byte may be
    counted wrongly."""
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
def test_what_the_program_says_about_itself_hides_no_line(
    tmp_path: Path, userland: UserlandHost, half: int
) -> None:
    """Its own message stands in the same stream as the log, perhaps in the middle of a line."""
    kept = Kept(tmp_path, userland, "first line\nsecond line\n", half)
    try:
        kept.writes("third line\n")
        eventually(
            lambda: "unexpected EOF" in kept.log and "third line\n" in kept.log, "the log", 20
        )
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
    """docker may be on another machine, and /proc may hide the processes of others: the program is
    asked."""
    (kept.place / "lives").touch()
    kept.follower()
    kept.server.kill()
    kept.server.wait()
    eventually(
        lambda: "start hidden\n" in (kept.run_dir / "launched").read_text(), "the answer", 20
    )
    kept.writes("it lives\n")
    eventually(lambda: "it lives\n" in kept.log, "the log", 20)
    assert kept.keeper.poll() is None and not (kept.place / "removed").exists()


def monitor(directory: Path, name: str, container: str, *more: str) -> subprocess.Popen[bytes]:
    """Start a stand-in for conmon: it holds a process, and ends after it."""
    program, script = directory / name, directory / "script"
    shutil.copy("/bin/sh", program)
    script.write_text("sleep 600\nexit 0\n")
    words = (
        str(program),
        str(script),
        "--api-version",
        "1",
        "-c",
        container,
        "-u",
        container,
        *more,
    )
    process = subprocess.Popen(words)
    eventually(lambda: psutil.Process(process.pid).children(), "what the monitor holds", 20)
    return process


@pytest.mark.parametrize("deletes", [True, False])
def test_a_monitor_that_podman_has_forgotten_is_ended_and_no_other(
    tmp_path: Path, userland: UserlandHost, deletes: bool
) -> None:
    """By the runtime, or if that can do nothing, by signals. Only the whole id of the container
    counts."""
    run_dir, programs, runtime = tmp_path / "run", tmp_path / "programs", tmp_path / "a runtime"
    for path in (run_dir, programs):
        path.mkdir()
    (run_dir / "container").write_text(f"{ID}\n")
    (programs / "podman").write_text("#!/bin/sh\n")
    own = monitor(programs, "conmon", ID, "-r", str(runtime), "-n", f"workbench-{RUN}")
    names = (("conmon", "ef" * 32), ("editor", ID), ("conmons", ID), ("conmon-2", "x", ID))
    others = [monitor(tmp_path, *words) for words in names]
    held = psutil.Process(own.pid).children()
    end = f"kill {held[0].pid}" if deletes else "exit 1"
    runtime.write_text(f'#!/bin/sh\necho "$*" >>{run_dir}/deleted\n{end}\n')
    for program in (programs / "podman", runtime):
        program.chmod(0o755)
    reaper = threading.Thread(target=own.wait)  # a zombie has no words, but its end must be seen
    reaper.start()
    try:
        argv = ["sh", "-c", container_scripts.STOP_SCRIPT, "sh", RUN, "podman", "1", str(run_dir)]
        env = {"PATH": f"{programs}:{userland.path}", "HOME": str(tmp_path)}
        done = subprocess.run(argv, env=env, capture_output=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        reaper.join(10)
        assert own.poll() is not None and not any(alive(process.pid) for process in held)
        assert (run_dir / "deleted").read_text().splitlines()[0] == f"delete --force {ID}"
        assert all(
            other.poll() is None and psutil.Process(other.pid).children() for other in others
        )
    finally:
        for process in (own, *others):
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children():
                    child.kill()
            process.kill()
            process.wait()


_ASKED = """#!/bin/sh
cd PLACE || exit
echo "$1 $2" >>calls
case $1-$2 in
    image-inspect)
        read -r left <left
        echo $((left - 1)) >left
        [ "$left" -le 0 ] || { ANSWER; }
        echo sha256:1234 linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/') repo@sha256:DIGEST ;;
    container-inspect) echo exited 0 false 0 0 ;;
    run-*) echo ID >"$3" ;;
esac
"""


def asked(
    directory: Path, userland: UserlandHost, answer: str, times: int
) -> tuple[str, list[str], str]:
    """Start a container with a podman that answers `times` questions for its image with `answer`.
    Return how the run ended, what podman was called for, and what the check before a start says."""
    place, run_dir = directory / "podman", directory / "run"
    for path in (place, run_dir):
        path.mkdir()
    text = (
        _ASKED.replace("PLACE", str(place))
        .replace("ID", ID)
        .replace("DIGEST", "ab" * 32)
        .replace("ANSWER", answer)
    )
    (place / "podman").write_text(text)
    (place / "podman").chmod(0o755)
    env = {"PATH": f"{place}:{userland.path}", "HOME": str(directory)}
    (place / "left").write_text(f"{times}\n")
    check = [
        "sh",
        "-c",
        container_scripts.CHECK_SCRIPT,
        "sh",
        "podman",
        "repo:1",
        "docker.io/repo:1",
        "none",
        "",
    ]
    found = subprocess.run(check, env=env, capture_output=True, text=True, timeout=30)
    assert (found.returncode, found.stderr) == (0, "")
    (place / "left").write_text(f"{times}\n")
    (place / "calls").unlink()
    words = (
        RUN,
        f"workbench-{RUN}",
        "podman",
        "start",
        str(run_dir),
        "",
        "repo:1",
        "docker.io/repo:1",
        "",
        "",
        "",
        "0",
    )
    subprocess.run(
        ["sh", "-c", container_scripts.KEEPER_SCRIPT, "sh", *words, "0"],
        env=env,
        capture_output=True,
        timeout=30,
    )
    launched = parse_launched((run_dir / "launched").read_bytes())
    assert launched is not None and launched.ended is not None
    return launched.ended, (place / "calls").read_text().splitlines(), found.stdout


KILLED = "kill -s KILL $$"
LOCKED = "echo 'Error: database is locked' >&2; exit 125"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (KILLED, "it was ended by signal 9"),
        (LOCKED, "exit code 125: Error: database is locked"),
        ("exit 124", "exit code 124"),
    ],
)
def test_an_image_of_which_the_program_says_nothing_is_not_taken_for_a_missing_one(
    tmp_path: Path, userland: UserlandHost, answer: str, why: str
) -> None:
    ended, calls, found = asked(tmp_path, userland, answer, 100)
    assert ended == (
        f"podman image inspect does not say whether repo:1 is on this host ({why}), "
        "so nothing was pulled"
    )
    assert set(calls) == {"image inspect"}
    assert f"unsure {why}\n" in found and "\nimage " not in found


@pytest.mark.slow
def test_a_program_that_is_killed_once_is_asked_again(
    tmp_path: Path, userland: UserlandHost
) -> None:
    ended, calls, found = asked(tmp_path, userland, KILLED, 1)
    assert ended == "the container exited with code 0"
    assert calls[:3] == ["image inspect", "image inspect", "run --cidfile"] and not [
        c for c in calls if "pull" in c
    ]
    assert "\nimage sha256:1234 linux/" in found and "unsure" not in found


@pytest.mark.slow
def test_a_missing_image_is_pulled(tmp_path: Path, userland: UserlandHost) -> None:
    answer = "echo 'Error: inspecting object: repo:1: image not known' >&2; exit 125"
    _, calls, found = asked(tmp_path, userland, answer, 100)
    assert "pull docker.io/repo:1" in calls
    assert "unsure" not in found and "\nimage " not in found


@pytest.mark.parametrize(
    "answer",
    [
        "Error: No such image: repo:1",
        "Error response from daemon: No such image: repo:1",
        "Error: inspecting object: repo:1: image not known",
        "Error: no such object: repo:1",
        "Error response from daemon: failed to find image repo:1: docker.io/library/repo:1: image "
        "not known",
        "unable to find 'repo:1' in local storage: unable to find a name and tag match for repo:1 "
        "in repotags",
    ],
)
def test_the_words_for_a_missing_image(answer: str) -> None:
    """Those of docker 20 to 29 and podman 1 to 5."""
    assert re.search(container_images.NO_IMAGE_PATTERN, answer, re.IGNORECASE)
