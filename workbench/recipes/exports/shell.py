"""Exports that a shell runs: a shell script, and the job scripts of Slurm and PBS."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.job_request import (
    VISIBLE_TO_CUDA,
    JobRequest,
    make_job_name,
    pbs_words,
    slurm_words,
)
from workbench.model.loopback import is_loopback
from workbench.model.open_files import open_files_shell_lines
from workbench.recipes.launch import RAY_ORDER, Launch, Secret, Word
from workbench.recipes.recipe import Notes, shorten_value


def quote_argument(word: Word) -> str:
    """Return one argument of a command line, quoted for a POSIX shell. A secret becomes a reference
    to the environment variable that contains it."""
    if isinstance(word, Secret):
        return f'{_quote_unless_empty(word.prefix)}"${word.variable}"'
    return shlex.quote(word)


def _quote_unless_empty(text: str) -> str:
    return shlex.quote(text) if text else ""


def format_flag_per_line(words: Sequence[str]) -> str:
    """Return the arguments of a command line as text, with each flag and its values on a line of
    its own."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


def lines_that_check_secrets(names: Iterable[str]) -> list[str]:
    """Return shell lines that end the script if one of the environment variables `names`, which
    contain secrets, is not set."""
    lines = []
    for name in names:
        lines += [f': "${{{name}:?set {name} to the secret}}"', f"export {name}"]
    return lines


def add_open_file_limit_warning(launch: Launch, notes: Notes, tool: str) -> None:
    """Add a warning if the server needs a limit of open files, because `tool`, which will start it,
    cannot set one."""
    if launch.open_files:
        text = f"the limit of {launch.open_files} open files is left out: {tool} cannot set it"
        fix = "set the limit of the program that starts the server"
        notes.add(Level.WARN, "open-files", text, fix=fix)


def script_header_lines(launch: Launch, shell: str = "#!/bin/sh") -> list[str]:
    return [shell, f"# Written by Workbench: {shorten_value(launch.title)}"]


def shell_script(launch: Launch, notes: Notes) -> str:
    """Return a POSIX shell script that starts the server. The user must run the script in an empty
    directory, because it writes the server's files there. For a plan with several nodes, the
    argument of the script is the node to start."""
    lines = [
        *script_header_lines(launch),
        "set -eu",
        "umask 077",
        *lines_that_check_secrets(launch.secrets),
    ]
    if launch.needs_ray:
        notes.add(Level.INFO, "order", RAY_ORDER)
        lines.insert(2, f"# {RAY_ORDER}")
    if launch.nodes:
        names = "|".join(node.key for node, _ in launch.nodes)
        usage = shlex.quote(f"usage: sh SCRIPT {names}, on that node")
        lines += _shell_case_lines(
            '"${1:-}"', [(shlex.quote(node.key), its) for node, its in launch.nodes]
        )
        lines[-1:] = ["*)", f"echo {usage} >&2", "exit 2", ";;", "esac"]
    else:
        lines += lines_that_start_server(launch)
    return "\n".join(lines) + "\n"


def _shell_case_lines(subject: str, cases: Sequence[tuple[str, Launch]]) -> list[str]:
    lines = [f"case {subject} in"]
    for pattern, launch in cases:
        lines += [f"{pattern})", *lines_that_start_server(launch), ";;"]
    return [*lines, "esac"]


def lines_that_start_server(launch: Launch, *, without: Iterable[str] = ()) -> list[str]:
    """Return the shell lines that write the server's files, set its environment except the
    variables `without`, and start it."""
    lines = [
        f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"
        for name, text in launch.files.items()
    ]
    lines += [
        f"export {name}={shlex.quote(text)}"
        for name, text in launch.env.items()
        if name not in without
    ]
    if launch.open_files:
        lines.append(open_files_shell_lines(launch.open_files))
    if launch.files:
        lines.append("run_dir=$PWD")
    if launch.workdir:
        lines.append(f"cd -- {shlex.quote(launch.workdir)}")
    return [*lines, f"exec {' '.join(map(_quote_word_with_run_dir, launch.argv))}"]


def _quote_word_with_run_dir(word: Word) -> str:
    if isinstance(word, Secret):
        return quote_argument(word)
    return '"$run_dir"'.join(map(_quote_unless_empty, word.split("{run_dir}"))) or "''"


def slurm_script(launch: Launch, notes: Notes) -> str:
    """Return a job script for sbatch. It contains the plan's options for Slurm if the plan runs as
    a Slurm job. Raises InputError for a server that needs Ray."""
    if launch.needs_ray:
        raise InputError(
            "a Slurm job script cannot start Ray and the server on one node",
            next_step="export as shell, or unset distributed-executor-backend",
        )
    request = _job_request(launch, "slurm")
    directives = [*slurm_words(request), "--output=%x-%j.log"]
    lines = [
        *script_header_lines(launch, "#!/bin/bash"),
        *(f"#SBATCH {shlex.quote(one)}" for one in directives),
    ]
    lines += ["set -eu", "umask 077", *lines_that_check_secrets(launch.secrets)]
    hidden = _variables_set_by_scheduler(launch, notes)
    _add_loopback_note(launch, notes)
    if launch.nodes:
        notes.add(
            Level.WARN,
            "addresses",
            "the nodes' addresses are those of the plan, not those that Slurm assigns",
        )
        cases = [(str(node.rank), its) for node, its in launch.nodes]
        inner = "\n".join(["set -eu", *_shell_case_lines('"$SLURM_NODEID"', cases)])
        lines.append(f"exec srun --kill-on-bad-exit=1 sh -c {shlex.quote(inner)}")
    else:
        lines += lines_that_start_server(launch, without=hidden)
    if "walltime" not in request.options:
        notes.add(
            Level.INFO,
            "time-limit",
            "the job has no time limit of its own",
            fix="add: #SBATCH --time=HH:MM:SS",
        )
    return "\n".join(lines) + "\n"


def pbs_script(launch: Launch, notes: Notes) -> str:
    """Return a job script for qsub of PBS. It contains the plan's options for PBS if the plan runs
    as a PBS job."""
    request = _job_request(launch, "pbs")
    words = pbs_words(request)
    directives = ["-l", words.chunk, *words.others, "-j", "oe", "-r", "n"]
    log = f'"$PBS_O_WORKDIR/{request.name}-$PBS_JOBID.log"'
    lines = [
        *script_header_lines(launch, "#!/bin/bash"),
        f"#PBS {shlex.join(directives)}",
        "set -eu",
        "umask 077",
    ]
    if launch.secrets:
        notes.add(
            Level.INFO,
            "secret",
            "PBS passes no environment by itself",
            fix=f"submit the script with: qsub -v {','.join(launch.secrets)} FILE",
        )
    # PBS keeps a job's own output in its spool until the job ends.
    lines += [
        *lines_that_check_secrets(launch.secrets),
        f"exec > {log} 2>&1",
        'cd -- "$PBS_O_WORKDIR"',
    ]
    _add_loopback_note(launch, notes)
    lines += lines_that_start_server(launch, without=_variables_set_by_scheduler(launch, notes))
    if "walltime" not in request.options:
        notes.add(
            Level.INFO,
            "time-limit",
            "the job has the queue's time limit",
            fix="add: #PBS -l walltime=HH:MM:SS",
        )
    return "\n".join(lines) + "\n"


def _job_request(launch: Launch, launcher: str) -> JobRequest:
    """Return the request for a job that runs the server, with the plan's own options if it runs by
    this `launcher`."""
    options = launch.plan.run_options if launch.plan.run_as == launcher else {}
    return JobRequest(make_job_name(launch.name), launch.gpus, launch.host_count, options)


def _add_loopback_note(launch: Launch, notes: Notes) -> None:
    """Add a warning if only programs on the job's own node can reach the server."""
    if not is_loopback(launch.host):
        return
    text = f"the server listens on {launch.host}: only programs on the job's node reach it"
    fix = "export with --set host=0.0.0.0, and set an API key: other users then reach the port"
    notes.add(Level.WARN, "loopback", text, "host", fix)


def _variables_set_by_scheduler(launch: Launch, notes: Notes) -> tuple[str, ...]:
    """Return the variables of the launch that a scheduler sets by itself, and add a note about
    them; () if there are none."""
    if VISIBLE_TO_CUDA not in launch.env:
        return ()
    notes.add_left_out_note(VISIBLE_TO_CUDA, "the scheduler sets it for the GPUs that it assigns")
    return (VISIBLE_TO_CUDA,)
