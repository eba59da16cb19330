"""Packing of the programs that python3 runs on a host: a short program on the command line, which reads the rest from
stdin.

After the packed modules (the frame) stdin stays open for control lines; `python3 -` would read to the end of file. On
this machine the modules and pynvml are imported from where they are installed, compiled already. Another machine
receives their sources, and compiling pynvml there takes 15 MB and 0.15 s of CPU.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.hosts.base import Host

# the modules of each program, below the package workbench, in the order of their imports
MODULES = (
    "model.core_values",
    *(f"gpu.telemetry.{name}" for name in ("clock_event_reasons", "nvml_library", "readings", "agent")),
)
REGISTER = ("model.core_values", "model.setting_commands", "gpu.process_facts", "gpu.settings.register")
MEASUREMENT_LOCK = (*REGISTER, "gpu.measurement_lock_holder")
GUARD = (
    *("model.core_values", "model.setting_commands", "gpu.process_facts"),
    *(f"gpu.settings.{name}" for name in ("root_owned", "claims", "register")),
    *(f"gpu.guard.{name}" for name in ("temperatures", "files", "privileges", "due_reverts", "guard", "start")),
)
TOO_OLD = 78  # exit status: this python3 cannot run it
FRAME = b"\nworkbench frame\n"  # what stands before it on stdin is skipped unseen: a password that sudo did not read
_PROGRAM = """# workbench {title}
import sys
if sys.version_info < (3, 8): sys.exit({too_old})
try: import ctypes, json, os, threading, types, zlib
except ImportError: sys.exit({too_old})
def get(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: sys.exit(0)
        b += c
    return b
said = b""
while not said.endswith({frame!r}): said += get(1)
where, sources = json.loads(zlib.decompress(get(int(get(8)))).decode())
if where:
    sys.path += where
    from workbench.{package} import {name} as program
else:
    for name, source in sources:
        program = sys.modules[name] = types.ModuleType(name)
        if source is None: program.__path__ = []
        else: exec(compile(source, name, "exec"), program.__dict__)
    del sources, source
program.main()
"""


def program(title: str, module: str) -> str:
    """Return the short Python program for `python3 -c`. It reads the packed modules from stdin and calls `main` of the
    module `module`."""
    package, _, name = module.rpartition(".")
    return _PROGRAM.format(title=title, package=package, name=name, too_old=TOO_OLD, frame=FRAME)


BOOTSTRAP = program("telemetry agent", "gpu.telemetry.agent")


def python_on(host: Host) -> tuple[str, bool]:
    """Return (path of the Python that runs programs on `host`, whether it is the Python of this process). The latter
    has Workbench installed."""
    local = host.is_local and bool(sys.executable)
    return sys.executable if local else "python3", local


@cache
def payload(local: bool = True, modules: tuple[str, ...] = MODULES) -> bytes:
    """Return the bytes for a program's stdin: a marker, the length in eight digits, and compressed JSON. The JSON has
    the directories to import from if `local`, otherwise the sources of `modules`."""
    here = Path(__file__).parents[1]
    pynvml = _pynvml() if modules is MODULES else None
    if local:
        places = [str(here.parent), *([str(pynvml.parent)] if pynvml else [])]
        frame: tuple[list[str], list[tuple[str, str | None]]] = (places, [])
    else:
        frame = ([], [*([("pynvml", pynvml.read_text("utf-8"))] if pynvml else []), *_sources(here, modules)])
    packed = zlib.compress(json.dumps(frame).encode(), 9)
    return FRAME + b"%08d" % len(packed) + packed


def _sources(here: Path, modules: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield (full name, source) of each package and then of each module in `modules`; the source of a package is
    None."""
    names = [f"workbench.{module}" for module in modules]
    packages = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    yield from ((package, None) for package in sorted(packages))
    yield from (
        (f"workbench.{module}", (here / f"{module.replace('.', '/')}.py").read_text("utf-8")) for module in modules
    )


def _pynvml() -> Path:
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml is missing; the distribution nvidia-ml-py contains it")
    return Path(spec.origin)


def agent_argv(python: str, **options: float) -> list[str]:
    """Return the command that starts the telemetry agent; `options` are settings such as `interval_s`. Python runs
    isolated and without its site module: it starts in a third of the time, and no file on the host can change it."""
    return [python, "-I", "-S", "-u", "-c", BOOTSTRAP, json.dumps(options)]


def guard_argv(python: str, orders: Mapping[str, Any]) -> list[str]:
    """Return the command that starts the guard. `orders` has the guard's directories, programs and options;
    guard.start.main lists the keys."""
    return [python, "-I", "-S", "-c", program("guard of GPU settings", "gpu.guard.start"), json.dumps(orders)]


def register_argv(python: str, orders: Mapping[str, Any]) -> list[str]:
    """Return the command that reads the host's register and publishes in it. `orders` names the directories and whether
    to publish; register.main lists the keys. The entries to publish follow the packed modules on stdin."""
    return [python, "-I", "-S", "-c", program("register of GPU settings", "gpu.settings.register"), json.dumps(orders)]


def measurement_lock_argv(python: str, orders: Mapping[str, Any]) -> list[str]:
    """Return the command that takes the host's measurement lock. `orders` names the measurement, its machine and
    whether to wait."""
    code = program("measurement lock", "gpu.measurement_lock_holder")
    return [python, "-I", "-S", "-u", "-c", code, json.dumps(orders)]
