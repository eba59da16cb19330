"""The POSIX shell code that runs on hosts. It works with dash, bash and busybox, and needs no
python3 on the host.

Each script is a file in the folder `scripts`, whose head names its arguments. Variable parts are
passed as positional parameters or on stdin, never inserted into the text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from workbench.hosts.script_files import read_script
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import LINE_CHARS, VARIABLE_NAME, clean_text

SUDO = ("sudo", "-n")  # before a command that needs root; fails where sudo would ask for a password


def quote(text: str) -> str:
    """Return `text` as one quoted word for a POSIX shell. It is on one line: for each newline it
    has the shell variable $_wb_nl, which the script must set."""
    return "'" + text.replace("'", "'\\''").replace("\n", "'\"$_wb_nl\"'") + "'"


def parse_key_value_pairs(output: str, limit: int = LINE_CHARS) -> list[tuple[str, str]]:
    """Return (key, value) for each line key=value in `output`, in their order. The lines are
    cleaned, and cut after `limit` characters. Other lines are left out."""
    found = (clean_text(line, limit).partition("=") for line in output.split("\n"))
    return [(key, value) for key, equals, value in found if equals]


def parse_last_values(lines: Iterable[str], separator: str = "=") -> dict[str, str]:
    """Return the last value of each key in lines of the form key=value, with `separator` in place
    of "=". A line without it is a key with the value ""."""
    return dict(line.partition(separator)[::2] for line in lines)


def parse_values_by_key(lines: Iterable[str]) -> Mapping[str, list[str]]:
    """Return the values of each key in lines of the form key=value, in their order. A key without a
    line has []."""
    found = defaultdict[str, list[str]](list)
    for line in lines:
        key, _, value = line.partition("=")
        found[key].append(value)
    return found


def shell_argv(script: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs `script` with `arguments` as $1, $2, …"""
    return ("sh", "-c", script, "sh", *arguments)


# The text that sshd passes to the user's login shell for every command. POSIX shells, fish and csh
# must parse it alike: no newline, no backslash, no "!". The command itself is the first line of
# stdin (`shell_command_line`), which only sh reads.
LINE = """exec sh -c 'IFS= read -r _wb && eval "$_wb"'"""


GUARD = read_script(__file__, "end_with_stdin.sh")

# SshHost wraps every command in this. $1: GUARD or "". MARK goes to both outputs, to separate the
# output of a .bashrc from that of the command. On stderr, the process id follows MARK, or "missing"
# if there is no such command.
MARK = "workbench-4f1c7a2e"
PRELUDE = read_script(__file__, "run_order.sh", MARK=MARK)


def shell_command_line(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    ends_with_stdin: bool = False,
    prelude: str = PRELUDE,
) -> bytes:
    """Return the line of shell code that the script LINE reads from stdin, so that no value is
    visible in the process list. It exports `env`, and starts `argv` by the script `prelude`. With
    `ends_with_stdin`, the command ends when its stdin ends. Raises ValueError for an invalid name
    of a variable, or a NUL in a value."""
    variables = env or {}
    for name, value in variables.items():
        if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
    newline = "_wb_nl=$(printf '\\012.'); _wb_nl=${_wb_nl%.}"
    exports = "".join(f"; export {name}={quote(value)}" for name, value in variables.items())
    words = " ".join(quote(word) for word in (GUARD if ends_with_stdin else "", *argv))
    text = f"{newline}{exports}; set -- {words}; eval {quote(prelude)}\n"
    return text.encode("utf-8", "surrogateescape")


def remove_text_before_mark(stderr_text: str, mark: str = MARK) -> str:
    """Return the part of `stderr_text` that the command wrote: all after the line that has `mark`.
    The login shell wrote what is before. Return the whole text if it has no mark."""
    before, mark, rest = stderr_text.partition(mark)
    return rest.partition("\n")[2] if mark else before


def parse_pid_after_mark(stderr_text: str) -> int | None:
    """Return the process id that the script PRELUDE printed on stderr after MARK; None if it
    printed none there, or if the end of its line has not come: the rest of the number may follow."""
    line, newline, _ = stderr_text.partition(MARK)[2].partition("\n")
    if not newline:
        return None
    return parse_whole_number(line.strip())


# In place of MARK in a container: the host around it may be behind ssh, and mark its own output.
INSIDE = "workbench-9e0d3b61"

ENTER = read_script(__file__, "enter_container.sh", INSIDE=INSIDE)
READ_ORDER = 'IFS= read -r _wb && eval "$_wb"'

PRELUDE_INSIDE = read_script(__file__, "run_order_in_container.sh", INSIDE=INSIDE)

END = read_script(__file__, "end_in_container.sh")

SWEEP = read_script(__file__, "end_marked_processes.sh")
RUN_SWEPT = read_script(__file__, "run_and_sweep.sh", SWEEP=SWEEP)

AROUND = read_script(__file__, "list_control_groups.sh")

GPUS_OF_JOB = read_script(__file__, "list_gpus_of_job.sh")

NETWORK = read_script(__file__, "read_network.sh")
READ_GPU_ALLOTMENT = read_script(__file__, "read_gpu_allotment.sh")
COUNT_CORES = read_script(__file__, "count_cores.sh")


def split_stderr_and_exit_code(stderr_text: str) -> tuple[str, int | None]:
    """Return (stderr of a command in a container, its exit code). The script PRELUDE_INSIDE writes
    the code at the end of stderr; what is after it, such as text of srun, is dropped. Without a
    code, the command was cut off: return (`stderr_text`, None)."""
    before, mark, rest = stderr_text.rpartition(f"\n{INSIDE} exit ")
    code = parse_whole_number(rest.partition("\n")[0].strip())
    return (before, code) if mark and code is not None else (stderr_text, None)


STATE_DIR = read_script(__file__, "make_state_directory.sh")

READ_FILE = read_script(__file__, "read_file.sh")

WRITE_FILE = read_script(__file__, "write_file.sh")

FACTS = read_script(__file__, "read_host_facts.sh")

_START_OF = read_script(__file__, "start_of_process.sh")

_BECOME = _START_OF + read_script(__file__, "become_command.sh")

_LEAD = _START_OF + read_script(__file__, "lead_session.sh")

_CLAIM = read_script(__file__, "claim_port.sh")

_START = _CLAIM + read_script(__file__, "start_process.sh")


def start_script_argv(
    run_dir: str,
    token: str,
    workdir: str,
    argv: Sequence[str],
    open_files: int | None = None,
    port: int | None = None,
) -> tuple[str, ...]:
    """Return the argv that starts `argv` as a detached process in `run_dir`, with the working
    directory `workdir`, or the default one for "". `token` in the environment of its processes
    marks them as members of the run. Their limit of open files is raised to `open_files`, or to the
    hard limit if that is lower. The start fails if the process of another start has claimed
    `port`."""
    numbers = str(open_files or ""), str(port or "")
    return shell_argv(_START, run_dir, token, workdir, *numbers, _LEAD, _BECOME, *argv)


_START_AGAIN = read_script(__file__, "start_process_again.sh")


def restart_script_argv(run_dir: str, ended_process: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that starts `argv` in `run_dir`, the directory of a run whose process has
    ended. The files of that process are moved to a subdirectory, whose name has `ended_process`,
    such as "PID-STARTTIME"."""
    return shell_argv(
        _START_AGAIN, run_dir, ended_process, _START, "", "", "", _LEAD, _BECOME, *argv
    )


SURVEY = read_script(__file__, "survey_runs.sh")

KERNEL_LOG_FUNCTION = read_script(__file__, "kernel_log_function.sh")

KERNEL_LOG = KERNEL_LOG_FUNCTION + read_script(__file__, "read_kernel_log.sh")

MARK_ENDED = read_script(__file__, "mark_ended_runs.sh")

ENDED_RUNS = read_script(__file__, "list_ended_runs.sh")

REMOVE_RUNS = read_script(__file__, "remove_runs.sh")

EXISTING = read_script(__file__, "list_existing.sh")

SIGNAL = read_script(__file__, "signal_run.sh")

RECORD_SHARED_MEMORY = read_script(__file__, "record_shared_memory.sh")

CLEAR_SHARED_MEMORY = read_script(__file__, "clear_shared_memory.sh")
