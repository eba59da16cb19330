"""Many kills by killing.py, in several processes at the same time, and a table of their outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("killing.py")


def kills(
    directory: Path, count: int, seed: int, processes: int, timeout_s: float
) -> list[dict[str, Any]]:
    share = -(-count // processes)
    running = [
        subprocess.Popen(
            [
                "nice",
                sys.executable,
                str(SCRIPT),
                str(directory / str(n)),
                str(n * share),
                str(min(share, count - n * share)),
                str(seed),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    try:
        lines = [process.communicate(timeout=timeout_s)[0].splitlines() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(line) for one in lines for line in one]


def table(found: list[dict[str, Any]]) -> str:
    """Return a table: for each step the number of kills, how many of them left settings altered,
    and who reverted these."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for kill in found:
        row = rows.setdefault((kill["phase"], kill["step"]), Counter())
        row["kills"] += 1
        row["altered"] += kill["altered"] > 0
        row["by the guard"] += kill["by_guard"]
        row["by the next start"] += kill["reported"]
    heads = ("kills", "altered", "by the guard", "by the next start")
    lines = [f"{'phase':<15}{'step':<18}" + "".join(f"{h:>18}" for h in heads)]
    for phase, step in sorted(rows):
        counts = rows[phase, step]
        lines.append(f"{phase:<15}{step:<18}" + "".join(f"{counts[h]:>18}" for h in heads))
    total = [sum(row[h] for row in rows.values()) for h in heads]
    return "\n".join([*lines, f"{'all':<33}" + "".join(f"{t:>18}" for t in total)])
