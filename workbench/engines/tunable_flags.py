"""What a tune may try with the flags of an engine, and why."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass

KV = "a KV entry of 8 bits is half as large: each step reads less, and more requests fit"
PREFILL = "more prompt tokens in one step: fewer steps for prompts, longer waits between tokens"
KERNEL = "attention kernels differ in speed by GPU, head size and batch"
GUESSES = "a step checks several guessed tokens"
BATCH = ("2048", "4096", "8192", "16384")


@dataclass(frozen=True, slots=True)
class TunableFlag:
    """A flag of an engine that a tune tries with several values.

    A server with a higher value needs more memory if `grows`. The values work only on GPUs of the
    compute capabilities with these major numbers; () stands for all. Flags with `of_gpus` act only
    on GPUs, and flags with `of_prefixes` only on prompts with a common beginning. `within` is a
    flag whose value the engine never exceeds with this one. Flags with `of_batches` act only if the
    server has several requests at a time, and those with `guesses` are for few of them. Those with
    `of_numa` act only where the CPUs of several NUMA nodes compute layers. `together` are
    assignments without which this one does not work.
    """

    name: str
    values: tuple[str, ...]
    reason: str
    grows: bool = False
    capabilities: tuple[int, ...] = ()
    of_gpus: bool = False
    of_prefixes: bool = False
    within: str = ""
    of_batches: bool = False
    guesses: bool = False
    of_numa: bool = False
    together: tuple[str, ...] = ()
