"""The Python programs that Workbench runs on a GPU host: telemetry agent, guard, journal,
measurement lock, and the reading of the topology."""

from __future__ import annotations

from pathlib import Path

from workbench.gpu import pynvml_part
from workbench.hosts.python_programs import PythonProgram

_REGISTER = (
    "model.untrusted_numbers",
    "model.core_values",
    "model.named_tuple",
    "model.setting_commands",
    "gpu.process_facts",
    "gpu.settings.register",
)


def _files_of(program: PythonProgram) -> list[Path]:
    package = Path(__file__).parents[1]
    return [package / f"{module.replace('.', '/')}.py" for module in program.modules]


def _files_of_agent() -> list[Path]:
    return _files_of(AGENT)


def _sent_pynvml() -> dict[str, str]:
    return {"pynvml": pynvml_part.source(_files_of_agent())}


def _place_of_pynvml() -> tuple[str, ...]:
    return (str(pynvml_part.kept(_files_of_agent()) or pynvml_part.whole().parent),)


def _pynvml_of_topology() -> dict[str, str]:
    return {"pynvml": pynvml_part.source(_files_of(TOPOLOGY))}


def _whole_pynvml() -> tuple[str, ...]:
    return (str(pynvml_part.whole().parent),)


def keep_part_of_pynvml() -> None:
    """Write the part of pynvml that the telemetry agent uses into the user's cache, from which the
    next agent on this machine reads it. Writing takes 0.02 s, so call this only after the present
    agent has begun to read the GPUs."""
    pynvml_part.keep(_files_of_agent())


AGENT = PythonProgram(
    "telemetry agent",
    (
        "model.core_values",
        "model.process_container",
        "model.untrusted_numbers",
        *(
            f"gpu.telemetry.{name}"
            for name in (
                "clock_event_reasons",
                "nvml_library",
                "plausible_readings",
                "readings",
                "agent",
            )
        ),
    ),
    options=("-S", "-u"),
    # pynvml imports find_library and never uses it; ctypes.util would load 20 modules: 1 MiB.
    first='sys.modules["ctypes.util"] = types.SimpleNamespace(find_library=None)',
    library=_sent_pynvml,
    places=_place_of_pynvml,
)
TOPOLOGY = PythonProgram(
    "topology of the GPUs",
    ("gpu.telemetry.nvml_library", "gpu.topology"),
    library=_pynvml_of_topology,
    places=_whole_pynvml,
)
JOURNAL = PythonProgram(
    "journal of GPU settings",
    (
        *_REGISTER[:-1],
        "gpu.settings.claims",
        "gpu.settings.register",
        "gpu.settings.journal_file",
        "gpu.settings.journal_program",
    ),
)
MEASUREMENT_LOCK = PythonProgram(
    "measurement lock", (*_REGISTER, "gpu.measurement_lock_holder"), options=("-S", "-u")
)
GUARD = PythonProgram(
    "guard of GPU settings",
    (
        *(
            f"model.{name}"
            for name in ("untrusted_numbers", "core_values", "named_tuple", "setting_commands")
        ),
        "gpu.process_facts",
        *(f"gpu.settings.{name}" for name in ("root_owned", "claims", "register", "journal_file")),
        "gpu.telemetry.plausible_readings",
        *(
            f"gpu.guard.{name}"
            for name in (
                "temperatures",
                "files",
                "privileges",
                "due_reverts",
                "rest",
                "guard",
                "start",
            )
        ),
    ),
    kept=False,
)
