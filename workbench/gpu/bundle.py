"""The agent as bytes for another machine's python3: a short program on the command line, the rest framed on stdin.

Stdin stays open behind the frame for control lines, which `python3 -` would not allow (it reads to the end of file).
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from importlib.resources import files

MODULES = ("nvml", "readings", "agent")
TOO_OLD = 78  # exit status: this python3 cannot run the agent
BOOTSTRAP = f"""# workbench telemetry agent
import sys
if sys.version_info < (3, 8): sys.exit({TOO_OLD})
try: import ctypes, json, os, threading, types, zlib
except ImportError: sys.exit({TOO_OLD})
def get(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: sys.exit(0)
        b += c
    return b
package = sys.modules["workbench_agent"] = types.ModuleType("workbench_agent")
package.__path__ = []
for name, source in json.loads(zlib.decompress(get(int(get(8)))).decode()):
    name = "workbench_agent." + name
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = "workbench_agent"
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


@cache
def payload() -> bytes:
    """Eight digits with the length, then the compressed sources."""
    sources = [(name, files("workbench.gpu").joinpath(f"{name}.py").read_text("utf-8")) for name in MODULES]
    packed = zlib.compress(json.dumps(sources).encode(), 9)
    return b"%08d" % len(packed) + packed


def argv(python: str, **options: float) -> list[str]:
    """Isolated and without site: it starts in a third of the time and no file of the host's can change it.
    `options` as agent.py lists them."""
    return [python, "-I", "-S", "-u", "-c", BOOTSTRAP, json.dumps(options)]
