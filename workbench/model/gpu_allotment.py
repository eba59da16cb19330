"""The GPUs that CUDA_VISIBLE_DEVICES makes visible, and those that a scheduler allotted to a
job."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import NAME_CHARS, clean_text

UNSET = "unset"


@dataclass(frozen=True, slots=True)
class Allotment:
    """What a host's own environment says of its GPUs. `job` is the scheduler's job in which the
    host's commands run, such as "PBS 1234", and `visible` is CUDA_VISIBLE_DEVICES. Each is None if
    it is not set."""

    job: str | None = None
    visible: str | None = None

    @property
    def is_from_scheduler(self) -> bool:
        """Whether a scheduler allotted some of the host's GPUs by their names."""
        return self.job is not None and self.visible is not None


NO_ALLOTMENT = Allotment()


def parse_allotment(job: str, visible_devices: str) -> Allotment:
    """Return the allotment that the script read_gpu_allotment.sh prints: `job` is the value of its
    first line, "" without a job, and `visible_devices` that of the second, UNSET if
    CUDA_VISIBLE_DEVICES is not set."""
    devices = None if visible_devices == UNSET else clean_text(visible_devices, NAME_CHARS)
    return Allotment(clean_text(job, NAME_CHARS) or None, devices)


def visible_gpus_and_first_unknown_word(
    devices: str, gpus: Sequence[GpuInfo]
) -> tuple[tuple[GpuInfo, ...], str | None]:
    """Return (the GPUs that `devices`, a value of CUDA_VISIBLE_DEVICES, makes visible, the first of
    its words that does not name exactly one GPU). CUDA ignores that word and all after it. The word
    is None if all words name a GPU, and if an empty word or -1 ends the list."""
    found: list[GpuInfo] = []
    for word in map(str.strip, devices.split(",")):
        if word in ("", "-1"):
            break
        named = [gpu for gpu in gpus if _word_names_gpu(word, gpu)]
        if len(named) != 1:
            return tuple(found), word
        found += named
    return tuple(found), None


def _word_names_gpu(word: str, gpu: GpuInfo) -> bool:
    """Return whether a word of CUDA_VISIBLE_DEVICES names a GPU: by its index, or by the beginning
    of its UUID."""
    if word.isdecimal():
        return word == str(gpu.index)
    return gpu.uuid.startswith(word)
