"""The processes of a session, and those below them that have a session of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from workbench.hosts.session_marks import read_session_processes

LEADER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
child.wait()
print("ended", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_left_the_session_counts_and_one_that_ended_does_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdin and leader.stdout
        child = int(leader.stdout.readline())
        both = read_session_processes(leader.pid)
        assert {pid for pid, _ in both} == {leader.pid, child}
        assert read_session_processes(leader.pid) == both
        leader.stdin.write("\n")
        leader.stdin.flush()
        leader.stdout.readline()
        assert {pid for pid, _ in read_session_processes(leader.pid)} == {leader.pid}
        leader.stdin.write("\n")
    assert read_session_processes(leader.pid) == frozenset()
    assert os.getpid() in {pid for pid, _ in read_session_processes(os.getsid(0))}
