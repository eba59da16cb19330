"""The agent as bytes for a python3: a short program on the command line, the rest framed on stdin.

Stdin stays open behind the frame for control lines, which `python3 -` would not allow (it reads to the end of file).
This machine's agent imports our modules and pynvml where they are installed, compiled already. Another machine's gets
the sources, of the pynvml that is installed here too: to compile that takes 15 MB and 0.15 s of CPU there.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
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
    sys.path += where
    from workbench.gpu import agent
else:
    package = sys.modules["workbench_agent"] = types.ModuleType("workbench_agent")
    package.__path__ = []
    for name, source in sources:
        agent = sys.modules[name] = types.ModuleType(name)
        agent.__package__ = name.rpartition(".")[0]
        exec(compile(source, name, "exec"), agent.__dict__)
    del sources, source
agent.main()
"""


@cache
def payload(local: bool = True) -> bytes:
    """Eight digits with the length, then compressed where the modules lie (`local`) or their sources."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml, from the nvidia-ml-py distribution")
    pynvml, here = Path(spec.origin), Path(__file__).parent
    if local:
        frame: tuple[list[str], list[tuple[str, str]]] = ([str(here.parents[1]), str(pynvml.parent)], [])
    else:
        ours = [(f"workbench_agent.{name}", (here / f"{name}.py").read_text("utf-8")) for name in MODULES]
        frame = ([], [("pynvml", pynvml.read_text("utf-8")), *ours])
    packed = zlib.compress(json.dumps(frame).encode(), 9)
    return b"%08d" % len(packed) + packed


def argv(python: str, **options: float) -> list[str]:
    """Isolated and without site: it starts in a third of the time and no file of the host's can change it.
    `options` as agent.py lists them."""
    return [python, "-I", "-S", "-u", "-c", BOOTSTRAP, json.dumps(options)]
