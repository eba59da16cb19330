"""Directories of runs that ended, as `workbench start` and a detached process leave them."""

from __future__ import annotations

import time
from pathlib import Path

from workbench.model.plan import Command, LaunchPlan
from workbench.server.run_directory import RunRecord, encode_record

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def make_ended(
    root: Path, count: int, *, exit_code: int = 0, stopped: bool = True, days_ago: float = 0.0
) -> list[str]:
    """Write `count` run directories into `root`, each with a log of 40 KiB, and return their ids,
    oldest first."""
    ids = []
    for number in range(count):
        started_unix_s = time.time() - days_ago * 86400 - 60.0 * (count - number)
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(started_unix_s))}-vllm-{number:04x}"
        plan = LaunchPlan("vllm", "org/model").with_flag("port", 8000)
        argv = (
            "vllm",
            "serve",
            "org/model",
            "--port",
            "8000",
            *(f"--flag-{n}=value" for n in range(30)),
        )
        record = RunRecord(run_id, "local", plan, Command(argv), started_unix_s, 60.0)
        texts = {
            "log": "a line of the log\n" * 2300,
            "pid": f"{4_000_000 + 2 * number}\n",
            "starttime": "7\n",
            "sid": f"{4_000_001 + 2 * number}\n",
            "sid_starttime": "6\n",
            "boot_id": BOOT_ID.read_text(),
            "token": f"{number:016x}\n",
            "started": f"{started_unix_s:.0f}\n",
            "exit": f"{exit_code:<4}900 {started_unix_s + 30:.0f}\n",
        }
        if stopped:
            texts["stop.json"] = f'{{"unix_s": {started_unix_s + 20}}}'
        directory = root / run_id
        directory.mkdir(parents=True)
        (directory / "plan.json").write_bytes(encode_record(record))
        for name, text in texts.items():
            (directory / name).write_text(text)
        ids.append(run_id)
    return ids
