"""The agent as bytes for a python3: a short program on the command line, the rest framed on stdin.

Stdin stays open behind the frame for control lines, which `python3 -` would not allow (it reads to the end of file).
NVML is read with the pynvml that is installed here. This machine's agent imports it where it lies, compiled already,
which takes 4 MB; another machine's gets its source, which takes 18 MB and 0.15 s of CPU to compile there.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

MODULES = ("events", "nvml", "readings", "agent")
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
where, sources = json.loads(zlib.decompress(get(int(get(8)))).decode())
if where:
    sys.path.append(where)
    import pynvml
    sys.path.remove(where)
package = sys.modules["workbench_agent"] = types.ModuleType("workbench_agent")
package.__path__ = []
while sources:
    name, source = sources.pop(0)
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


@cache
def payload(local: bool = True) -> bytes:
    """Eight digits with the length, then compressed where pynvml lies (`local`) or its source, and our sources."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml, from the nvidia-ml-py distribution")
    pynvml = Path(spec.origin)
    sources = [] if local else [("pynvml", pynvml.read_text("utf-8"))]
    for name in MODULES:
        sources.append((f"workbench_agent.{name}", files("workbench.gpu").joinpath(f"{name}.py").read_text("utf-8")))
    packed = zlib.compress(json.dumps((str(pynvml.parent) if local else None, sources)).encode(), 9)
    return b"%08d" % len(packed) + packed


def argv(python: str, **options: float) -> list[str]:
    """Isolated and without site: it starts in a third of the time and no file of the host's can change it.
    `options` as agent.py lists them."""
    return [python, "-I", "-S", "-u", "-c", BOOTSTRAP, json.dumps(options)]
