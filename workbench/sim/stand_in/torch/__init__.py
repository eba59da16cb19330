"""A stand-in for torch on a simulated host: as much of it as `workbench/doctor/gpu_trial.py` uses.

It copies nothing. A tensor only knows how many bytes of it are wrong, and the time of a copy
follows from the bandwidth of the simulated host. The simulated fault "copies" breaks it: {"hang":
[[a, b]], "corrupt": [[a, b]], "rate": share of the bandwidth, "peer": false, "reduce": "hang",
"hang with P2P", "wrong" or a text that becomes an error}.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[4]))

from workbench.sim import driver_state

__version__ = "SIMULATED"
int32 = float32 = uint8 = None
PAGE_BYTES = 4096
CORRUPT_PAGE = 3
STATE = driver_state.sim_state_from_environment()


def read_copy_fault(name: str, default: Any = None) -> Any:
    """Return what the simulated fault "copies" says about `name`, such as "hang"; `default` if it
    says nothing."""
    return STATE.faults().get("copies", {}).get(name, default)


def hang_forever() -> None:
    while True:
        signal.pause()


class version:
    cuda = "13.0"


class Tensor:
    def __init__(self, words: int, device: str, wrong: int = 0) -> None:
        self.words, self.device, self.wrong = words, device, wrong

    def to(self, device: str) -> Tensor:
        return Tensor(self.words, device, self.wrong)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def copy_(self, source: Tensor) -> None:
        way = [int(end.rpartition(":")[2]) for end in (source.device, self.device)]
        if way in read_copy_fault("hang", ()):
            hang_forever()
        self.wrong = PAGE_BYTES if way in read_copy_fault("corrupt", ()) else 0
        rate = STATE.profile.interconnect.link_gbs * read_copy_fault("rate", 1.0)
        cuda.passed_ms += 4 * self.words / (rate * 1e6)

    def view(self, kind: None) -> Tensor:
        return self

    def ne(self, other: Tensor) -> Tensor:
        return self

    def sum(self) -> int:
        return self.wrong

    def nonzero(self) -> list[int]:
        return [CORRUPT_PAGE * PAGE_BYTES]

    def remainder(self, divisor: int) -> Tensor:
        return self

    def __add__(self, other: float) -> Tensor:
        return self

    def __mul__(self, other: float) -> Tensor:
        return self


def arange(words: int, dtype: None) -> Tensor:
    return Tensor(words, "cpu")


def zeros_like(tensor: Tensor, device: str) -> Tensor:
    return Tensor(tensor.words, device)


class _Properties:
    def __init__(self, uuid: str) -> None:
        self.uuid = uuid


class _Nccl:
    @staticmethod
    def version() -> tuple[int, int, int]:
        return (0, 0, 0)


class _Cuda:
    nccl = _Nccl()

    def __init__(self) -> None:
        self.passed_ms = 0.0

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return STATE.profile.count

    def get_device_name(self, index: int) -> str:
        return STATE.profile.gpu.name

    def get_device_properties(self, index: int) -> _Properties:
        return _Properties(STATE.profile.uuid(index).removeprefix("GPU-"))

    def can_device_access_peer(self, one: int, other: int) -> bool:
        return (
            STATE.profile.interconnect.custom_us is not None
            and read_copy_fault("peer") is not False
        )

    def synchronize(self, index: int) -> None:
        pass

    def set_device(self, index: int) -> None:
        pass

    class device:
        def __init__(self, index: int) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            pass

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at_ms = 0.0

        def record(self) -> None:
            self.at_ms = cuda.passed_ms

        def elapsed_time(self, end: Any) -> float:
            return float(end.at_ms - self.at_ms)


cuda = _Cuda()
