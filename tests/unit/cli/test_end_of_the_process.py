"""The end of the process of a command, after its last output."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 1000))  # the last one to run
from workbench.__main__ import main
sys.argv = ["workbench", "--version"]
sys.exit(main())
"""


def test_no_garbage_is_searched_for_at_the_end() -> None:
    """After a run of a million tokens, the search took 0.2 s."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split()[-2:] == ["frozen", "True"]


# Kills its own process when the import of the given number begins, and says how many there were.
KILLED = """
import os, sys

class KillAt:
    seen, at, number = 0, int(sys.argv[1]), int(sys.argv[2])

    def find_spec(self, name, path=None, target=None):
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), self.number)

from workbench.__main__ import main
# main() imports it first of all
from workbench.cli.end_signals import install_termination_signal_handlers
killer = KillAt()
sys.meta_path.insert(0, killer)
sys.argv[1:] = sys.argv[3:]
code = main()
sys.stderr.write(f"imports: {killer.seen}")
sys.exit(code)
"""
BENCH = ("--simulate", "rtx-pro-6000", "bench", "no-such-run")


def killed(at: int, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", KILLED, str(at), str(int(number)), *BENCH]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_modules_load_ends_a_command_with_words(number: signal.Signals) -> None:
    """SIGTERM ended a starved `bench` without a word, and Ctrl-C with a traceback."""
    whole = killed(0, number)
    assert whole.returncode == 2, whole
    count = int(whole.stderr.rpartition("imports: ")[2])
    words = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    for at in (1, 2, *range(count // 6, count, count // 6)):
        ended = killed(at, number)
        assert ended.returncode == 128 + number, (at, ended)
        assert ended.stderr.startswith(f"workbench: {words}\n"), (at, ended)
        assert "Traceback" not in ended.stderr, at


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from workbench.cli.end_signals import install_termination_signal_handlers as install;"
        "install();"
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "True\n"
