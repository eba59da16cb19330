"""Exports that a shell runs: a shell script, and the job scripts of Slurm and PBS."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from workbench.model.findings import Level
from workbench.model.job_request import (
    VISIBLE_TO_CUDA,
    JobRequest,
    job_name,
    pbs_words,
    slurm_words,
)
from workbench.recipes.launch import Launch, Secret, Word
from workbench.recipes.recipe import Notes, short


def quoted(word: Word) -> str:
    """Return one argument, quoted for a POSIX shell. A secret becomes a reference to the
    environment variable that contains the secret."""
    if isinstance(word, Secret):
        return f'{shlex.quote(word.prefix) if word.prefix else ""}"${word.variable}"'
    return shlex.quote(word)


def flag_lines(words: Sequence[str]) -> str:
    """Return the arguments of a command line as text, with each flag and its values on a line of
    its own."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


def secret_checks(names: Iterable[str]) -> list[str]:
    """Return shell lines that end the script if one of the environment variables `names`, which
    contain secrets, is not set."""
    return [
        line
        for name in names
        for line in (f': "${{{name}:?set {name} to the secret}}"', f"export {name}")
    ]


def header(launch: Launch, shell: str = "#!/bin/sh") -> list[str]:
    return [shell, f"# Written by Workbench: {short(launch.title or launch.name)}"]


def script(launch: Launch, notes: Notes) -> str:
    """Return a POSIX shell script that starts the server. The user must run the script in an empty
    directory, because it writes the server's files there. For a plan with several nodes, the
    argument of the script is the node to start."""
    lines = [*header(launch), "set -eu", "umask 077", *secret_checks(launch.secrets)]
    if launch.nodes:
        names = "|".join(node.key for node, _ in launch.nodes)
        usage = shlex.quote(f"usage: sh SCRIPT {names}, on that node")
        lines += _cases('"${1:-}"', [(shlex.quote(node.key), its) for node, its in launch.nodes])
        lines[-1:] = ["*)", f"echo {usage} >&2", "exit 2", ";;", "esac"]
    else:
        lines += start_lines(launch)
    return "\n".join(lines) + "\n"


def _cases(subject: str, cases: Sequence[tuple[str, Launch]]) -> list[str]:
    lines = [f"case {subject} in"]
    for pattern, launch in cases:
        lines += [f"{pattern})", *start_lines(launch), ";;"]
    return [*lines, "esac"]


def start_lines(launch: Launch, *, without: Iterable[str] = ()) -> list[str]:
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
    if launch.files:
        lines.append("run_dir=$PWD")
    if launch.workdir:
        lines.append(f"cd -- {shlex.quote(launch.workdir)}")
    return [*lines, f"exec {' '.join(_with_run_dir(word) for word in launch.argv)}"]


def _with_run_dir(word: Word) -> str:
    if isinstance(word, Secret):
        return quoted(word)
    return (
        '"$run_dir"'.join(shlex.quote(part) if part else "" for part in word.split("{run_dir}"))
        or "''"
    )


def slurm(launch: Launch, notes: Notes) -> str:
    """Return a job script for sbatch. It contains the plan's options for Slurm if the plan runs as
    a Slurm job."""
    request = _request(launch, "slurm")
    directives = [*slurm_words(request), "--output=%x-%j.log"]
    lines = [*header(launch, "#!/bin/bash"), *(f"#SBATCH {shlex.quote(one)}" for one in directives)]
    lines += ["set -eu", "umask 077", *secret_checks(launch.secrets)]
    hidden = _scheduler_chooses_gpus(launch, notes)
    if launch.nodes:
        notes.add(
            Level.WARN,
            "addresses",
            "the nodes' addresses are those of the plan, not those that Slurm assigns",
        )
        cases = [(str(node.rank), its) for node, its in launch.nodes]
        inner = "\n".join(["set -eu", *_cases('"$SLURM_NODEID"', cases)])
        lines.append(f"exec srun --kill-on-bad-exit=1 sh -c {shlex.quote(inner)}")
    else:
        lines += start_lines(launch, without=hidden)
    if "walltime" not in request.options:
        notes.add(
            Level.INFO,
            "time-limit",
            "the job has no time limit of its own",
            fix="add: #SBATCH --time=HH:MM:SS",
        )
    return "\n".join(lines) + "\n"


def pbs(launch: Launch, notes: Notes) -> str:
    """Return a job script for qsub of PBS. It contains the plan's options for PBS if the plan runs
    as a PBS job."""
    request = _request(launch, "pbs")
    words = pbs_words(request)
    directives = ["-l", words.chunk, *words.others, "-j", "oe", "-r", "n"]
    lines = [
        *header(launch, "#!/bin/bash"),
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
    lines += [*secret_checks(launch.secrets), 'cd -- "$PBS_O_WORKDIR"']
    lines += start_lines(launch, without=_scheduler_chooses_gpus(launch, notes))
    if "walltime" not in request.options:
        notes.add(
            Level.INFO,
            "time-limit",
            "the job has the queue's time limit",
            fix="add: #PBS -l walltime=HH:MM:SS",
        )
    return "\n".join(lines) + "\n"


def _request(launch: Launch, run_as: str) -> JobRequest:
    options = launch.plan.run_options if launch.plan.run_as == run_as else {}
    return JobRequest(job_name(launch.name), launch.gpus, len(launch.nodes) or 1, options)


def _scheduler_chooses_gpus(launch: Launch, notes: Notes) -> tuple[str, ...]:
    if VISIBLE_TO_CUDA not in launch.env:
        return ()
    notes.left_out(VISIBLE_TO_CUDA, "the scheduler sets it for the GPUs that it assigns")
    return (VISIBLE_TO_CUDA,)
