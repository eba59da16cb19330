"""The Python programs that Workbench runs on a GPU host: telemetry agent, guard, register and measurement lock."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from workbench.hosts.python_programs import PythonProgram

_REGISTER = ("model.core_values", "model.setting_commands", "gpu.process_facts", "gpu.settings.register")
_STATEMENT = re.compile(r"(?m)^(?=[A-Za-z_@])")
_NAMED = re.compile(r"(?:(?:@|#).*\n)*(?:(?:def|class)\s+(\w+)|(\w+)\s*=(?!=))")
_DECORATED = re.compile(r"(?:(?:@|#).*\n)+")
_NVML_ERROR = "NVML_ERROR_"  # pynvml makes a class for each name that begins with it


@cache
def _pynvml() -> Path:
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml is missing; the distribution nvidia-ml-py contains it")
    return Path(spec.origin)


def _used_of_pynvml() -> dict[str, str]:
    """Return {"pynvml": source}. The source has only those definitions of pynvml that the agent needs, a tenth of the
    whole, so the host has less to receive and to compile."""
    here = Path(__file__).parents[1]
    own = "".join((here / f"{module.replace('.', '/')}.py").read_text("utf-8") for module in AGENT.modules)
    whole = _pynvml().read_text("utf-8")
    part = used_definitions(whole, own)
    try:
        compile(part, "pynvml", "exec")
    except SyntaxError:  # a version that is laid out in another way
        part = whole
    return {"pynvml": part}


def used_definitions(source: str, user: str) -> str:
    """Return `source`, the source of a Python module, without the functions, classes and variables that `user`, the
    source of another module, needs neither directly nor through other definitions. All other statements, such as
    imports and calls, stay."""
    statements: list[str] = []
    for text in _STATEMENT.split(source):
        if statements and _DECORATED.fullmatch(statements[-1]):
            statements[-1] += text
        else:
            statements.append(text)
    by_name: dict[str, list[int]] = {}
    kept, todo = set[int](), [user]
    for number, text in enumerate(statements):
        named = _NAMED.match(text)
        name = (named[1] or named[2]) if named else ""
        if name and not name.startswith(_NVML_ERROR):
            by_name.setdefault(name, []).append(number)
        else:
            kept.add(number)
            todo.append(text)
    while todo:
        for word in set(re.findall(r"\w+", todo.pop())):
            for number in by_name.pop(word, ()):
                kept.add(number)
                todo.append(statements[number])
    return "".join(statements[number] for number in sorted(kept))


AGENT = PythonProgram(
    "telemetry agent",
    (
        "model.core_values",
        "model.process_container",
        *(f"gpu.telemetry.{name}" for name in ("clock_event_reasons", "nvml_library", "readings", "agent")),
    ),
    options=("-S", "-u"),
    # pynvml imports find_library and never uses it; ctypes.util would load 20 modules: 1 MiB.
    first='sys.modules["ctypes.util"] = types.SimpleNamespace(find_library=None)',
    library=_used_of_pynvml,
    places=lambda: (str(_pynvml().parent),),
)
REGISTER = PythonProgram("register of GPU settings", _REGISTER)
MEASUREMENT_LOCK = PythonProgram("measurement lock", (*_REGISTER, "gpu.measurement_lock_holder"), options=("-S", "-u"))
GUARD = PythonProgram(
    "guard of GPU settings",
    (
        *("model.core_values", "model.setting_commands", "gpu.process_facts"),
        *(f"gpu.settings.{name}" for name in ("root_owned", "claims", "register")),
        *(f"gpu.guard.{name}" for name in ("temperatures", "files", "privileges", "due_reverts", "guard", "start")),
    ),
    kept=False,
)
