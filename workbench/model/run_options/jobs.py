"""The options of the launchers `slurm` and `pbs`."""

from __future__ import annotations

from workbench.model.run_options.option import (
    RunOption,
    make_pattern_checker,
    make_whole_number_checker,
)

_NAME = make_pattern_checker(r"[^\s\0]+", "one word")
_GPUS = make_pattern_checker(
    r"([A-Za-z0-9_.-]+:)?\d{1,4}", "a number such as 2, or a type and a number such as a100:2"
)
NODE = RunOption("node", "node on which the job has to run", _NAME)
ACCOUNT = RunOption("account", "account that pays for the job", _NAME)
EXTRA = RunOption(
    "extra",
    "a further word of the command that submits the job; repeatable",
    repeatable=True,
    foreign="adds a word to the command that submits the job, which can change where and as whom "
    "it runs",
)
CPUS = RunOption("cpus", "CPU cores for the server", make_whole_number_checker(1, 4096))
SLURM = (
    RunOption("partition", "partition to which the job is submitted", _NAME),
    ACCOUNT,
    RunOption(
        "gpus",
        "GPUs to ask for, 0 for none; the default is what the plan's parallel sizes need",
        _GPUS,
    ),
    CPUS,
    RunOption(
        "memory",
        "memory to ask for, such as 64G",
        make_pattern_checker(r"\d+[KMGT]?", "a size such as 64G"),
    ),
    RunOption(
        "walltime",
        "time after which the job is ended, such as 8:00:00 or 1-12",
        make_pattern_checker(r"[0-9][0-9:-]*|UNLIMITED", "a time such as 8:00:00 or 1-12"),
    ),
    NODE,
    RunOption("qos", "quality of service", _NAME),
    EXTRA,
)
PBS = (
    RunOption("queue", "queue to which the job is submitted", _NAME),
    ACCOUNT,
    RunOption(
        "gpus",
        "GPUs to ask for, 0 for none; the default is what the plan's parallel sizes need",
        make_whole_number_checker(0, 4096),
    ),
    CPUS,
    RunOption(
        "memory",
        "memory to ask for, such as 64gb",
        make_pattern_checker(r"\d+[kmgtKMGT]?[bBwW]?", "a size such as 64gb"),
    ),
    RunOption(
        "walltime",
        "time after which the job is ended, such as 8:00:00",
        make_pattern_checker(r"\d+(:\d\d){0,2}", "a time such as 8:00:00"),
    ),
    NODE,
    EXTRA,
)
