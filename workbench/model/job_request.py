"""The resources that a server requests from a scheduler, as command-line options of Slurm and PBS.

Both the exported job scripts (recipes/exports) and the jobs that Workbench submits
(server/launchers) use these options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass

VISIBLE_TO_CUDA = "CUDA_VISIBLE_DEVICES"  # a scheduler sets it for the GPUs that it assigns
_SBATCH = {  # run options, and the options of sbatch that they become
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "node": "nodelist",
    "cpus": "cpus-per-task",
    "memory": "mem",
    "walltime": "time",
}
_QSUB = {"walltime": ("-l", "walltime="), "queue": ("-q", ""), "account": ("-A", "")}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The request for a job. `gpus` is the number of GPUs on each node. `options` are the run
    options of the launcher `slurm` or `pbs`. The option "gpus" replaces `gpus`; its value 0
    requests no GPUs."""

    name: str
    gpus: int
    nodes: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus_text(self) -> str:
        return self.options.get("gpus", str(self.gpus))

    @property
    def extra_arguments(self) -> tuple[str, ...]:
        return tuple(self.options.get("extra", "").splitlines())


@dataclass(frozen=True, slots=True)
class PbsWords:
    """The options of PBS's qsub. Two values of its option -l request the nodes' resources: `chunk`
    is for PBS Pro and OpenPBS, `nodes` is for Torque. `others` are all other options, equal for
    every version of PBS."""

    chunk: str
    nodes: str
    others: tuple[str, ...]


def make_job_name(text: str) -> str:
    """Convert `text` to a job name that all schedulers accept: letters, digits, ".", "_" and "-",
    beginning with a letter."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return plain if plain[:1].isalpha() else f"server-{plain}"


def slurm_words(request: JobRequest) -> tuple[str, ...]:
    """Return the options of sbatch for `request`."""
    words = [f"--job-name={request.name}", f"--nodes={request.nodes}", "--ntasks-per-node=1"]
    if request.gpus_text != "0":
        words.append(f"--gres=gpu:{request.gpus_text}")
    words += [
        f"--{word}={request.options[name]}"
        for name, word in _SBATCH.items()
        if name in request.options
    ]
    return (*words, *request.extra_arguments)


def pbs_words(request: JobRequest) -> PbsWords:
    """Return the options of qsub for `request`. The job name is cut to 15 characters, the limit
    that all versions of PBS accept."""
    options = request.options
    node, cpus, memory = options.get("node"), options.get("cpus"), options.get("memory")
    gpus = "" if request.gpus_text == "0" else request.gpus_text
    chunk = [
        str(request.nodes),
        *_name_value_assignments(host=node, ngpus=gpus, ncpus=cpus, mem=memory),
    ]
    nodes = [node or str(request.nodes), *_name_value_assignments(ppn=cpus, gpus=gpus)]
    others = ["-N", request.name[:15]]
    for name, (word, prefix) in _QSUB.items():
        if name in options:
            others += [word, f"{prefix}{options[name]}"]
    of_memory = "".join(f",{pair}" for pair in _name_value_assignments(mem=memory))
    return PbsWords(
        f"select={':'.join(chunk)}",
        f"nodes={':'.join(nodes)}{of_memory}",
        (*others, *request.extra_arguments),
    )


def _name_value_assignments(**values: str | None) -> list[str]:
    return [f"{name}={value}" for name, value in values.items() if value]
