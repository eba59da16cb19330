"""Reads with py-spy where the Python processes of a start that hangs stand.

py-spy is used only if it is installed on the host: on its PATH, or beside the engine's program. It
reads the memory of another process, without stopping it. The kernel allows this for a process of
the same user unless kernel.yama.ptrace_scope forbids it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.findings import Finding
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text
from workbench.server.log_patterns import find_engine_part_name

_MOST_PROCESSES = 8  # one for each rank of a host with eight GPUs
_PROCESS_TIMEOUT_S = 4  # for one process
_TIMEOUT_S = 45.0  # for all
_SHOWN_FRAMES = 4  # of a stack that are shown, the innermost first
_MAX_SHOWN_CHARACTERS = 160  # of a stack

_DUMP_STACKS_SCRIPT = read_script(__file__, "dump_stacks.sh").replace(
    "SECONDS", str(_PROCESS_TIMEOUT_S)
)
_THREAD_LINE = re.compile(
    r'^Thread (?:0x)?[0-9A-Fa-f]+ \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?'
)
_FRAME_LINE = re.compile(r"^ {4}(?P<function>\S.*?) \((?P<path>[^()]+):(?P<line>\d+)\)$")
_NO_PERMISSION = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PythonStack:
    """Where the main thread of one process stands. `frames` are its last calls as "function
    (file:line)", the innermost first."""

    pid: int
    state: str  # "active" or "idle"
    frames: tuple[str, ...]

    @property
    def text(self) -> str:
        calls = " < ".join(self.frames)
        return f"{self.pid} {self.state}: {calls}"[:_MAX_SHOWN_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Stacks:
    """What py-spy said about the processes of a start. `installed` says whether the host has it.
    `refused` are the ids of the processes that the kernel did not let it read."""

    installed: bool
    stacks: tuple[PythonStack, ...] = ()
    refused: tuple[int, ...] = ()
    ptrace_scope: str = ""


async def read_stacks(host: Host, program: str, pids: Sequence[int]) -> Stacks:
    """Return where the processes `pids`, which Workbench has started, stand: of the first
    _MOST_PROCESSES. py-spy is also searched beside `program`, the engine's program. Raises
    HostError if the host cannot be queried."""
    directory = program.rpartition("/")[0] or "/usr/bin"
    chosen = map(str, pids[:_MOST_PROCESSES])
    done = await host.run(shell_argv(_DUMP_STACKS_SCRIPT, directory, *chosen), timeout_s=_TIMEOUT_S)
    return parse_stacks(done.out)


def parse_stacks(output: str) -> Stacks:
    """Return what `output`, that of the script, says about the processes."""
    head, *blocks = re.split(r"^pid (?=\d+$)", output, flags=re.MULTILINE)
    if head.strip() == "absent":
        return Stacks(installed=False)
    refused: list[int] = []
    stacks: list[PythonStack] = []
    for block in blocks:
        number, _, dump = block.partition("\n")
        pid = parse_whole_number(number) or 0
        stack = _parse_main_stack(pid, dump)
        if stack is not None:
            stacks.append(stack)
        elif _NO_PERMISSION.search(dump):
            refused.append(pid)
    scope = clean_text(head.removeprefix("scope ").strip(), 4)
    return Stacks(True, tuple(stacks), tuple(refused), scope)


def _parse_main_stack(pid: int, dump: str) -> PythonStack | None:
    """Return the stack of the main thread of the process `pid` in `dump`, the output of py-spy, or
    else that of the first thread; None if it has no thread with calls."""
    threads: list[tuple[str, str, list[str]]] = []
    for line in dump.splitlines():
        thread = _THREAD_LINE.match(line)
        frame = _FRAME_LINE.match(line)
        if thread is not None:
            threads.append((thread["name"] or "", thread["state"], []))
        elif frame is not None and threads:
            threads[-1][2].append(f"{frame['function']} ({frame['path']}:{frame['line']})")
    found = [one for one in threads if one[2]]
    if not found:
        return None
    _, state, frames = next((one for one in found if one[0] == "MainThread"), found[0])
    return PythonStack(
        pid, clean_text(state, 20), tuple(clean_text(one, 120) for one in frames[:_SHOWN_FRAMES])
    )


def add_python_stacks(finding: Finding, stacks: Stacks | None) -> Finding:
    """Return the finding about a start that hangs, with where its Python processes stand, or with
    what to do so that py-spy can show it. It is unchanged if `stacks` is None or says neither."""
    if stacks is None:
        return finding
    if stacks.stacks:
        part = next(filter(None, map(_engine_part_of_stack, stacks.stacks)), None)
        where = f". py-spy finds them in {part}" if part else ""
        text = "; ".join(stack.text for stack in stacks.stacks)
        evidence = "; ".join(filter(None, (finding.evidence, text)))
        return replace(finding, text=f"{finding.text}{where}", evidence=evidence)
    if not stacks.installed:
        return _add_next_step(
            finding, "pip install py-spy on that host lets Workbench show where it waits"
        )
    if not stacks.refused:
        return finding
    pids = " ".join(map(str, stacks.refused))
    scope = f" (kernel.yama.ptrace_scope is {stacks.ptrace_scope})" if stacks.ptrace_scope else ""
    return _add_next_step(
        finding,
        f"the kernel does not let py-spy read process {pids}{scope}: sudo py-spy dump --pid "
        f"{stacks.refused[0]} shows where it waits",
    )


def _engine_part_of_stack(stack: PythonStack) -> str | None:
    return next(filter(None, map(find_engine_part_name, stack.frames)), None)


def _add_next_step(finding: Finding, step: str) -> Finding:
    return replace(finding, fix=f"{finding.fix}; {step}" if finding.fix else step)
