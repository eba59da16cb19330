"""The commands and the screen on a host behind a real sshd, as a person runs them: processes, a
HOME, a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from support.serving import processes_of
from support.ssh_box import PRESET, PROFILE, SOON_S, settings_in
from support.sshd import Sshd, free_port, sshd, wait_for

WORKBENCH = [sys.executable, "-m", "workbench"]
SIMULATED = ["--host", "box", "--simulate", PROFILE]
ROWS, COLUMNS = 40, 120


def sized() -> None:
    termios.tcsetwinsize(0, (ROWS, COLUMNS))


class Person:
    """A HOME whose ssh configuration leads to the sshd, and the commands run there."""

    def __init__(self, directory: Path, server: Sshd) -> None:
        self.server = server
        self.home = directory / "person"
        (self.home / ".ssh").mkdir(parents=True)
        self.known_hosts = self.home / ".ssh" / "known_hosts"
        self.known_hosts.write_bytes(server.known_hosts_path.read_bytes())
        config = self.home / ".ssh" / "config"
        config.write_text(server.stanza(UserKnownHostsFile=str(self.known_hosts)))
        state_home = directory / "xdg-state"
        self.env = {
            **os.environ,
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(state_home),
            "TERM": "xterm-256color",
            "PYTHONWARNINGS": "default",
        }
        self.far = state_home / "workbench" / "sim" / PROFILE
        self._stderr: dict[int, Path] = {}  # of each process that was begun, by its pid

    def begins(self, *words: str) -> subprocess.Popen[str]:
        path = self.home / f"stderr-{len(self._stderr)}"
        with path.open("w") as stderr:
            process = subprocess.Popen(
                [*WORKBENCH, *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._stderr[process.pid] = path
        return process

    def stderr(self, process: subprocess.Popen[str]) -> str:
        """Return what the process has written to stderr so far."""
        return self._stderr[process.pid].read_text()

    def loses_the_link(self, process: subprocess.Popen[str]) -> None:
        """Cut the link until the process says that the connection is lost."""
        self.server.cut()
        wait_for(
            lambda: "connection lost" in self.stderr(process),
            "the message about the lost connection",
            SOON_S,
        )
        self.server.restore()

    def runs(self, *words: str, code: int = 0) -> tuple[str, str]:
        """stdout and stderr; nothing of ssh's or Python's own talk may be in them."""
        return self.ended(self.begins(*words), code)

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
        out, _ = process.communicate(timeout=60)
        err = self.stderr(process)
        assert process.returncode == code, (out, err)
        for noise in ("Traceback", "asyncssh", "Warning", "never retrieved", "Task was destroyed"):
            assert noise not in out + err, err
        return out, err

    def json(self, *words: str) -> Any:
        return json.loads(self.runs("--json", *SIMULATED, *words)[0])

    def measures(self, *words: str) -> Any:
        """A benchmark's result. A busy machine may make the client late, or the streams of so short a
        run idle: such a result is rejected (exit 3) for that reason alone, which is not what these
        tests are about."""
        measuring = self.begins("--json", *SIMULATED, "bench", *words)
        out, _ = measuring.communicate(timeout=60)
        result, err = json.loads(out), self.stderr(measuring)
        for reason in result["refused"]:
            assert "client" in reason or "streams were in flight" in reason, (reason, err)
        return result

    def at_terminal(self, *words: str) -> pexpect.spawn:
        # The size stands before the program begins, as in any real terminal: pexpect alone sets it
        # a moment later.
        return pexpect.spawn(
            WORKBENCH[0],
            [*WORKBENCH[1:], *words],
            env=self.env,
            timeout=SOON_S,
            dimensions=(ROWS, COLUMNS),
            preexec_fn=sized,
        )

    def log(self, run_id: str) -> Path:
        return self.far / "runs" / run_id / "log"


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with sshd(
        tmp_path / "ssh", environment={"WORKBENCH_SIM_START_S": "2", "WORKBENCH_SIM_SEED": "1"}
    ) as server:
        one = Person(tmp_path, server)
        try:
            yield one
        finally:
            server.restore()
            for run in one.far.glob("runs/*"):
                if processes_of(str(run)):
                    subprocess.run(
                        [*WORKBENCH, "--simulate", PROFILE, "stop", run.name],
                        env=one.env,
                        check=False,
                        capture_output=True,
                    )


@pytest.mark.long
@pytest.mark.slow
def test_the_loop_with_commands(person: Person) -> None:
    starting = person.begins(
        "--json", *SIMULATED, "start", PRESET, "--set", f"port={free_port()}", "--wait"
    )
    wait_for(
        lambda: any(p.stat().st_size for p in person.far.glob("runs/*/log")),
        "the first log line",
        SOON_S,
    )
    person.loses_the_link(starting)
    out, err = person.ended(starting)
    run = json.loads(out)
    assert (run["state"], run["host"], run["simulated"]) == ("ready", f"box/sim:{PROFILE}", True)
    assert "connection lost" in err and "connection restored" in err

    (listed,) = person.json("servers")["servers"]
    assert (listed["run_id"], listed["adopted"], listed["state"]) == (run["run_id"], True, "ready")

    following = person.begins(*SIMULATED, "logs", run["run_id"], "--follow")
    result = person.measures(
        run["run_id"], "--requests", "8", "--concurrency", "2", "--max-tokens", "16"
    )
    assert (result["requests_ok"], result["conditions"]["client"], result["simulated"]) == (
        8,
        "host",
        True,
    )

    changed = person.json(
        "gpu", "set", "--power-limit", "450", "--lock-gpu-clocks", "1000,2000", "--yes"
    )
    assert changed["ok"] and changed["journal"] == f"{person.far}/gpu/journal.json"
    assert settings_in(person.far) == (450.0, (1000, 2000))
    status = person.json("gpu", "status")
    assert (
        status["simulated"]
        and len(status["altered"]) == 2
        and status["gpus"][0]["power_limit_w"] == 450.0
    )
    person.server.cut()
    reverting = person.begins("--json", *SIMULATED, "gpu", "revert")
    _, err = person.ended(reverting, 1)  # a host that cannot be reached at all: said at once
    assert "box" in err and "Connection refused" in err
    person.server.restore()
    assert person.json("gpu", "revert")["ok"]
    assert settings_in(person.far) == (600.0, None)

    person.loses_the_link(following)
    assert person.json("stop", run["run_id"])["state"] == "stopped"
    followed, _ = person.ended(following)
    assert followed.splitlines() == person.log(run["run_id"]).read_text().splitlines()
    assert processes_of(str(person.log(run["run_id"]).parent)) == []


def metric(port: int, name: str) -> float:
    """Return the sum of a metric's samples on the simulated server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return sum(float(n) for n in re.findall(rf"^{name}\S* (\S+)", page.read().decode(), re.M))


def answered(port: int) -> float:
    return metric(port, "vllm:request_success_total")


def running(port: int) -> float:
    return metric(port, "vllm:num_requests_running")


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_whose_link_is_cut_keeps_what_was_measured(person: Person) -> None:
    port = free_port()
    run_id = person.json("start", PRESET, "--set", f"port={port}", "--wait")["run_id"]
    measuring = person.begins(
        "--json",
        *SIMULATED,
        "bench",
        run_id,
        "--concurrency",
        "4",
        "--requests",
        "5000",
        "--client",
        "here",
    )
    wait_for(lambda: answered(port) > 30, "thirty answers", SOON_S)
    person.server.cut()
    out, _ = person.ended(measuring, 3)
    result = json.loads(out)
    assert 10 < result["requests_ok"] < 5000 and result["e2e_ms"]["p50"] > 0
    (why,) = [reason for reason in result["refused"] if reason.startswith("partial result")]
    assert "the connection to the host was lost" in why
    (stored,) = json.loads(person.runs("--json", "results", "list")[0])["results"]
    assert stored["id"] == result["id"]
    person.server.restore()


@pytest.mark.long
@pytest.mark.slow
def test_a_client_on_the_host_keeps_its_result_over_a_cut(person: Person) -> None:
    port = free_port()
    run_id = person.json("start", PRESET, "--set", f"port={port}", "--wait")["run_id"]
    measuring = person.begins(
        "--json", *SIMULATED, "bench", run_id, "--concurrency", "4", "--requests", "5000"
    )
    wait_for(lambda: answered(port) > 30, "thirty answers", SOON_S)
    person.loses_the_link(measuring)
    out, _ = person.ended(measuring, 3)
    result = json.loads(out)
    assert 10 < result["requests_ok"] < 5000 and result["conditions"]["client"] == "host"
    assert any(
        "its Workbench ended, or the link to it was lost" in reason for reason in result["refused"]
    )
    assert list((person.server.state_home / "workbench" / "bench").iterdir()) == []
    wait_for(lambda: running(port) == 0, "the end of the requests in flight", SOON_S)


@pytest.mark.slow
def test_an_unknown_key_is_asked_about_and_a_changed_one_refused(person: Person) -> None:
    person.known_hosts.unlink()
    fingerprint = person.server.fingerprint()
    _, err = person.runs("--host", "box", "servers", code=1)
    assert fingerprint in err and "is not known" in err
    out, _ = person.runs("--json", "--host", "box", "servers", code=1)
    assert fingerprint in json.loads(out)["error"]
    assert not person.known_hosts.exists()

    for answer, words in (("n", ["--host", "box", "servers"]), ("y", [*SIMULATED, "servers"])):
        terminal = person.at_terminal(*words)
        terminal.expect_exact(fingerprint)
        terminal.expect_exact("[y/N]")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == (0 if answer == "y" else 1), terminal.before
        assert ("you did not answer yes" in str(terminal.before)) == (answer == "n")
        assert person.known_hosts.exists() == (answer == "y")
    listed = person.json("servers")
    assert listed["servers"] == []
    # a machine of tests may serve others, which come and go between two commands
    others, said = person.runs("--host", "box", "servers")
    assert said == ("" if others else "no runs on this host\n")

    person.server.new_host_key()
    terminal = person.at_terminal("--host", "box", "servers")
    terminal.expect_exact("differs from the one in known_hosts")
    terminal.expect_exact("ssh-keygen -f")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 1
    assert "[y/N]" not in str(terminal.before)


def test_a_host_that_is_not_there_is_said(person: Person) -> None:
    person.server.cut()
    _, err = person.runs("--host", "box", "doctor", code=1)
    assert err.startswith("workbench: ") and "ssh box true" in err and len(err.splitlines()) <= 3


class Screen:
    """The program in a terminal of 120x40, and what stands on it."""

    def __init__(self, terminal: pexpect.spawn) -> None:
        self.terminal = terminal
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)

    def text(self) -> str:
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            self.stream.feed(self.terminal.read_nonblocking(65536, timeout=0.05))
        return "\n".join(self.screen.display)

    def until(self, holds: Callable[[str], object], what: str, seconds: float = SOON_S) -> float:
        began = time.monotonic()
        while not holds(text := self.text()):
            assert time.monotonic() - began < seconds, f"no {what} in\n{text}"
        return time.monotonic() - began


@pytest.mark.long
@pytest.mark.slow
def test_the_screen_over_a_link_that_is_cut(person: Person) -> None:
    run_id = person.json("start", PRESET, "--set", f"port={free_port()}", "--wait")["run_id"]
    terminal = person.at_terminal("--simulate", PROFILE, "box")
    try:
        screen = Screen(terminal)
        screen.until(
            lambda t: "SIMULATED" in t and "READY" in t and "box/sim:" in t, "the adopted server"
        )
        screen.until(lambda t: " ssh " in t and "ms" in t, "the latency")
        screen.until(lambda t: "4 x A100" in t and "MHz" in t, "readings")
        person.server.cut()
        noticed_s = screen.until(lambda t: "LINK LOST" in t, "LINK LOST")
        assert noticed_s < 5
        screen.until(lambda t: "LINK LOST 3s" in t or "LINK LOST 4s" in t, "its age")
        screen.until(lambda t: "STALE" in t, "the age of the readings")
        terminal.send("\x1bOP")  # it answers meanwhile
        assert screen.until(lambda t: "pick a preset" in t, "the page of keys") < 2
        terminal.send("\x1b")
        screen.until(lambda t: "LINK LOST" in t, "the screen below")
        person.server.restore()
        screen.until(
            lambda t: "LINK LOST" not in t and "STALE" not in t and "READY" in t, "all as before"
        )
        terminal.send("q")
        screen.until(lambda t: "eave" in t or "uit" in t, "the question")
        for _ in range(3):
            terminal.send("\r")
            screen.text()
        wait_for(lambda: not screen.text() or not terminal.isalive(), "its end", SOON_S)
        wait_for(lambda: not terminal.isalive(), "its end", SOON_S)
    finally:
        terminal.close(force=True)
    assert processes_of(str(person.log(run_id).parent)) != []  # the server lives on
    person.json("stop", run_id)


@pytest.mark.slow
def test_the_screen_asks_about_an_unknown_key(person: Person) -> None:
    person.known_hosts.unlink()
    terminal = person.at_terminal("--simulate", PROFILE, "box")
    try:
        screen = Screen(terminal)
        screen.until(
            lambda t: (
                person.server.fingerprint() in t.replace("\n", "").replace(" ", "")
                or person.server.fingerprint()[:30] in t
            ),
            "the fingerprint",
        )
        terminal.send("y")
        screen.until(lambda t: "SIMULATED" in t and "RTX PRO 6000" in t, "the GPU")
        assert person.known_hosts.exists()
    finally:
        terminal.close(force=True)
