"""The options of the launcher `pbs`."""

from __future__ import annotations

from workbench.model.run_options.option import RunOption, matching, whole_number
from workbench.model.run_options.slurm import ACCOUNT, CPUS, EXTRA, NODE

OPTIONS = (
    RunOption("queue", "queue to which the job is submitted", "NAME", matching(r"[^\s\0]+", "one word")),
    ACCOUNT,
    RunOption(
        "gpus",
        "GPUs to ask for, 0 for none; the default is what the plan's parallel sizes need",
        "N",
        whole_number(0, 4096),
    ),
    CPUS,
    RunOption(
        "memory", "memory to ask for, such as 64gb", "SIZE", matching(r"\d+[kmgtKMGT]?[bBwW]?", "a size such as 64gb")
    ),
    RunOption(
        "walltime",
        "time after which the job is ended, such as 8:00:00",
        "TIME",
        matching(r"\d+(:\d\d){0,2}", "a time such as 8:00:00"),
    ),
    NODE,
    EXTRA,
)
