"""SIGKILL and link cuts at random points of tunes and of nights of watches: what was measured is kept, the
GPU has its previous settings, and the series goes on to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import killed_series
from support.procs import eventually
from support.sshd import free_port

# is killed when it starts its first server: "before" or "after" the process of the server begins
_DIES = """
import os, sys
from workbench.cli import main
from workbench.server.supervisor import Supervisor
launch = Supervisor._launch
async def dies(self, prepared):
    if sys.argv[1] == "after":
        await launch(self, prepared)
    os.kill(os.getpid(), 9)
Supervisor._launch = dies
sys.exit(main(sys.argv[2:]))
"""
COUNT = int(os.environ.get("KILLS", "8"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("kind", ["tune", "watch", "link"])
def test_a_series_that_is_killed_anywhere_loses_nothing(tmp_path: Path, kind: str) -> None:
    """KILLS=100 makes it the whole trial; on a quiet machine a kill takes about 10 s."""
    argv = [sys.executable, killed_series.__file__, str(tmp_path / kind), kind, str(COUNT), "1"]
    ran = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    kills = [json.loads(line) for line in ran.stdout.splitlines()]
    print(Counter((kill["doing"], kill["altered"]) for kill in kills))
    assert [kill for kill in kills if kill["problem"]] == []
    assert len(kills) == COUNT


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_tune_that_is_killed_at_a_start_ends_its_own_server(tmp_path: Path, when: str) -> None:
    """It took the server that it had started for one of the user, and started it again at its end."""
    place = killed_series.Place(tmp_path, None)
    plan = ("vllm-any", "--var", "model=Qwen/Qwen3-32B", "--set", f"port={free_port()}")
    load = ("--concurrency", "8", "--requests", "16", "--max-tokens", "16", "--starts", "16")
    words = (*place.host, "tune", *plan, *load, "--no-quality", "--yes")
    argv = [sys.executable, "-c", _DIES, when, *words]
    killed = subprocess.run(argv, env=place.environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed

    def measured() -> bool:
        (tune,) = place.records("sweeps")
        return bool(tune["points"][0]["state"] == "done")

    with place.command("tune", "resume", "1", "--yes") as process:
        eventually(measured, "the start preset", 300)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    (tune,) = place.records("sweeps")
    assert not [note for note in tune["notes"] if "ran before" in note], tune["notes"]
    eventually(lambda: not place.left(), "the end of all processes", 60)
