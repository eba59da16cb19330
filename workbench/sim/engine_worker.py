"""The worker process of a simulated engine. It does nothing, but can be listed and stopped.

Its arguments are NAME MANNER PARENT_PID. MANNER says what happens when the parent is killed. With
"orphan" the worker continues to run, as vLLM's EngineCore does. With "follow" it ends too, as
SGLang's scheduler does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

FOLLOW_S = 0.5


def main() -> None:
    name, manner, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
    while manner == "orphan" or os.getppid() == parent:
        time.sleep(FOLLOW_S if manner == "follow" else 3600)


if __name__ == "__main__":
    main()
