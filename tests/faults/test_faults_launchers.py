"""Servers that launchers, a container host and a cluster run, cut at random moments
(random_cuts.py): the next Workbench reports the state that they have, its log is whole, and a stop
leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.systemd_box import REPOSITORY, systemd_box

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SCRIPT = str(REPOSITORY / "tests" / "support" / "random_cuts.py")
SEED = os.environ.get("WORKBENCH_SEED", "8")


def judged(lines: Sequence[str], count: int) -> None:
    cuts: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for cut in cuts:
        print(
            f"{cut['number']:>3} "
            f"{cut['what']:<24}{cut['moment']:<7}{cut['state']:<10}{cut['took_s']:.1f} s"
        )
    assert [cut for cut in cuts if cut["problem"]] == []
    assert len(cuts) == count


@pytest.mark.parametrize("place", ["podman", "slurm", "container", "cluster"])
def test_random_cuts(place: str) -> None:
    # Podman takes no path of more than 50 characters for its state.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        words = [sys.executable, SCRIPT, place, directory, "0", "40", SEED]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    judged(done.stdout.splitlines(), 40)


def test_random_cuts_of_units(tmp_path: Path) -> None:
    with systemd_box(tmp_path) as box:
        words = [sys.executable, SCRIPT, "systemd", f"{tmp_path}/cuts", "0", "45", SEED]
        judged(box(*words, HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1").splitlines(), 45)
