"""Conversion of the agent's JSON documents to the data of model/gpu.py. Whatever the host sends in
place of a document, the result has only possible values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from workbench.model.gpu import (
    DriverInfo,
    DriverStatus,
    GpuInfo,
    GpuProcess,
    GpuSample,
    GpuState,
    HostSample,
    MigInstance,
    Telemetry,
)
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import MOST_GPUS, integer_or_none, number_for_field
from workbench.model.untrusted_records import (
    MOST_ITEMS,
    build_record,
    read_fields_and_reasons,
    read_record,
)
from workbench.model.untrusted_text import NAME_CHARS, clean_text

T = TypeVar("T")
Slow = tuple[dict[str, Any], dict[str, str]]  # values that are sent rarely, and reasons


@dataclass(frozen=True, slots=True)
class HungCall:
    """A call of the driver that has not returned for `for_s` seconds. `gpu` is the index of the GPU
    that the call concerns, None for the whole driver."""

    function: str
    gpu: int | None
    for_s: float


class AgentMessageDecoder:
    """Combines the messages of the telemetry agent into whole readings. The agent sends some values
    rarely (the driver, the properties of the GPUs, slow values), and each reading gets the newest
    of them."""

    def __init__(self) -> None:
        self.driver = DriverInfo()
        self.simulated = False
        self.infos: tuple[GpuInfo, ...] = ()
        self.last: Telemetry | None = None
        self._slow: dict[int, Slow] = {}

    def decode_message(self, document: Mapping[str, Any]) -> Telemetry | None:
        """Process one JSON document of the telemetry agent. Return the reading in it, None if it
        has only the driver or the properties of the GPUs. Raises ValueError if a value is
        impossible or of a wrong type."""
        if "t" in document:
            self.last = Telemetry(
                t_s=_decode_time_s("t_s", document.get("t")),
                unix_s=_decode_time_s("unix_s", document.get("u")),
                driver=self.driver,
                took_s=number_for_field("took_s", document.get("took_s")),
                slowest=clean_text(str(document.get("slowest") or ""), NAME_CHARS),
                host=read_record(
                    HostSample, document.get("host"), {"rails_w": _decode_watts_by_name}
                ),
                infos=self.infos,
                gpus=self._decode_gpus(document.get("gpus")),
                simulated=self.simulated,
            )
            return self.last
        if "driver" in document:
            self.driver = _decode_driver(document["driver"])
            self.simulated = bool(document.get("simulated"))
            if self.driver.status is not DriverStatus.OK:
                self.infos = ()
        elif "infos" in document:
            listed = _require_list_of_at_most("infos", document["infos"], MOST_GPUS)
            self.infos = tuple(
                read_record(GpuInfo, one, {"instances": decode_mig_instances}) for one in listed
            )
        return None

    def reading_of_hung_driver(self, message: str, gpu_index: int | None = None) -> Telemetry:
        """Return the last reading without the values of its GPUs, after a driver call has hung, so
        that old values are not taken for new ones. `message` describes the call. `gpu_index` is the
        GPU whose call hangs, None if the call concerns the whole driver."""

        def sample_without_values(gpu: GpuSample) -> GpuSample:
            if gpu_index in (None, gpu.index):
                return GpuSample(gpu.index, gpu.uuid, GpuState.ERROR, message)
            why = f"not read while GPU{gpu_index} does not answer"
            return GpuSample(gpu.index, gpu.uuid, GpuState.NOT_READ, why)

        before = self.last or Telemetry(0.0, 0.0, self.driver, HostSample(), self.infos, ())
        return replace(
            before,
            driver=replace(self.driver, status=DriverStatus.HUNG, message=message),
            gpus=tuple(map(sample_without_values, before.gpus)),
        )

    def _decode_gpus(self, said: Any) -> tuple[GpuSample, ...]:
        found = tuple(map(self._decode_gpu, _require_list_of_at_most("gpus", said, MOST_GPUS)))
        if len({gpu.index for gpu in found}) < len(found):
            raise ValueError("two GPUs have the same index")
        return found

    def _decode_gpu(self, said: Any) -> GpuSample:
        values, reasons = read_fields_and_reasons(GpuSample, said, SAMPLE_READERS)
        index: Any = values.get("index")
        if "state" in said:
            sample = build_record(GpuSample, values, reasons)
            self._slow.pop(index, None)
            return replace(sample, state=_decode_gpu_state("state", said["state"]))
        if "slow" in said:
            self._slow[index] = read_fields_and_reasons(GpuSample, said["slow"], SLOW_READERS)
        if index in self._slow:
            slow, why = self._slow[index]
            added = {name: value for name, value in slow.items() if name not in said}
            reasons = {**slow.get("absent", {}), **why, **values.get("absent", {}), **reasons}
            values = {**added, **values, "absent": {}}
        return build_record(GpuSample, values, reasons)


def decode_hung_call(document: Mapping[str, Any]) -> HungCall:
    """Return the driver call that the telemetry agent reports as hung in `document`. Raises
    ValueError for a GPU index or a duration that is not possible."""
    gpu = document.get("gpu")
    found = integer_or_none(gpu, 0, MOST_GPUS - 1)
    if found is None and gpu is not None:
        raise ValueError("the GPU of the hung call is not possible")
    return HungCall(
        clean_text(str(document["hung"]), NAME_CHARS),
        found,
        _decode_time_s("for_s", document.get("for_s")),
    )


def _decode_driver(said: Any) -> DriverInfo:
    driver = read_record(DriverInfo, said)
    return replace(driver, status=DriverStatus(said.get("status")))


def decode_processes(field: str, said: Any) -> tuple[GpuProcess, ...]:
    """Return the processes on a GPU from a JSON list. Raises ValueError for anything else."""
    return _decode_records(GpuProcess, field, said)


def decode_mig_instances(field: str, said: Any) -> tuple[MigInstance, ...]:
    """Return the MIG instances of a GPU from a JSON list. Raises ValueError for anything else."""
    return _decode_records(MigInstance, field, said)


def _decode_records(kind: type[T], field: str, said: Any) -> tuple[T, ...]:
    return tuple(
        read_record(kind, one) for one in _require_list_of_at_most(field, said, MOST_ITEMS)
    )


def _decode_bytes_by_uuid(field: str, said: Any) -> dict[str, int]:
    sizes = _decode_numbers_by_name("bytes", said, "numbers of bytes")
    return {uuid: int(size) for uuid, size in sizes.items()}


def _decode_watts_by_name(field: str, said: Any) -> dict[str, float]:
    return _decode_numbers_by_name("rail_w", said, "numbers of watts")


def _decode_numbers_by_name(unit: str, said: Any, what: str) -> dict[str, float]:
    """Return the numbers of the JSON object `said`, by name, without those outside the range of
    the field `unit`. Raises ValueError that names
    `what`, the kind of numbers, if it is no object of at most MOST_ITEMS."""
    if not isinstance(said, dict) or len(said) > MOST_ITEMS:
        raise ValueError(f"not an object of {what}")
    known: dict[str, float] = {}
    for name, value in said.items():
        number = number_for_field(unit, value)
        if number is not None:
            known[clean_text(name, NAME_CHARS)] = number
    return known


SLOW_READERS = {"processes": decode_processes, "instance_used_bytes": _decode_bytes_by_uuid}


def _decode_gpu_state(field: str, said: Any) -> GpuState:
    return GpuState(said)


SAMPLE_READERS = {"state": _decode_gpu_state, "processes": decode_processes}


def _decode_time_s(field: str, said: Any) -> float:
    found = number_for_field(field, said)
    if found is None:
        raise ValueError(f"the time {field} is not possible")
    return found


def _require_list_of_at_most(field: str, said: Any, most: int) -> list[Any]:
    if not isinstance(said, list) or len(said) > most:
        raise ValueError(f"{field} is not a list of at most {most}")
    return said
