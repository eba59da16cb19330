"""The Python programs that Workbench runs on a GPU host: telemetry agent, guard, journal,
measurement lock, and the reading of the topology."""

from __future__ import annotations

from pathlib import Path

from workbench.gpu import pynvml_part
from workbench.hosts.python_programs import PythonProgram

_REGISTER_MODULES = (
    "model.untrusted_numbers",
    "model.core_values",
    "model.named_tuple",
    "model.setting_commands",
    "gpu.process_facts",
    "gpu.settings.register",
)


def _program_files(program: PythonProgram) -> list[Path]:
    package = Path(__file__).parents[1]
    return [package / f"{module.replace('.', '/')}.py" for module in program.modules]


def _agent_files() -> list[Path]:
    return _program_files(AGENT_PROGRAM)


def _pynvml_part_for_agent() -> dict[str, str]:
    return {"pynvml": pynvml_part.reduce_pynvml_source(_agent_files())}


def _pynvml_import_paths_of_agent() -> tuple[str, ...]:
    return (
        str(
            pynvml_part.cached_pynvml_directory(_agent_files())
            or pynvml_part.installed_pynvml_file().parent
        ),
    )


def _pynvml_part_for_topology() -> dict[str, str]:
    return {"pynvml": pynvml_part.reduce_pynvml_source(_program_files(TOPOLOGY_PROGRAM))}


def _import_paths_of_whole_pynvml() -> tuple[str, ...]:
    return (str(pynvml_part.installed_pynvml_file().parent),)


def cache_pynvml_for_agent() -> None:
    """Write the part of pynvml that the telemetry agent uses into the user's cache, from which the
    next agent on this machine reads it. Writing takes 0.02 s, so call this only after the present
    agent has begun to read the GPUs."""
    pynvml_part.cache_reduced_pynvml(_agent_files())


AGENT_PROGRAM = PythonProgram(
    "telemetry agent",
    (
        "model.core_values",
        "model.named_tuple",
        "model.gpu_readings",
        "model.pcie_link",
        "model.process_container",
        "model.untrusted_numbers",
        *(
            f"gpu.telemetry.{name}"
            for name in (
                "board_power",
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
    library=_pynvml_part_for_agent,
    places=_pynvml_import_paths_of_agent,
)
TOPOLOGY_PROGRAM = PythonProgram(
    "topology of the GPUs",
    ("gpu.telemetry.nvml_library", "gpu.topology"),
    library=_pynvml_part_for_topology,
    places=_import_paths_of_whole_pynvml,
)
JOURNAL_PROGRAM = PythonProgram(
    "journal of GPU settings",
    (
        *_REGISTER_MODULES[:-1],
        "gpu.settings.claims",
        "gpu.settings.register",
        "gpu.settings.journal_file",
        "gpu.settings.journal_program",
    ),
)
MEASUREMENT_LOCK_PROGRAM = PythonProgram(
    "measurement lock", (*_REGISTER_MODULES, "gpu.measurement_lock_holder"), options=("-S", "-u")
)
GUARD_PROGRAM = PythonProgram(
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
                "interruptible_sleep",
                "guard",
                "start",
            )
        ),
    ),
    kept=False,
)
