"""What a tune may try with the flags of an engine, and why."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass

KV = "a KV entry of 8 bits is half as large: each step reads less, and more requests fit"
PREFILL = "more prompt tokens in one step: fewer steps for prompts, longer waits between tokens"
KERNEL = "attention kernels differ in speed by GPU, head size and batch"
BATCH = ("2048", "4096", "8192", "16384")


@dataclass(frozen=True, slots=True)
class TunableFlag:
    """A flag of an engine that a tune tries with several values. A server with a higher value needs
    more memory if `grows`."""

    name: str
    values: tuple[str, ...]
    reason: str
    grows: bool = False
