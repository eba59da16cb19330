"""The short time slice leaves the priority and the policy of a process as they are."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = """
import os
from workbench.bench.short_slice import request_own_short_time_slice
os.nice(5)
os.sched_setscheduler(0, os.{policy}, os.sched_param(0))
before = os.getpriority(os.PRIO_PROCESS, 0)
request_own_short_time_slice()
print(os.getpriority(os.PRIO_PROCESS, 0) == before, os.sched_getscheduler(0) == os.{policy})
"""


@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH"])
def test_the_priority_and_the_policy_stay(policy: str) -> None:
    argv = [sys.executable, "-c", ASKS.format(policy=policy)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "True"]
