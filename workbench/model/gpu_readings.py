"""The readings of a GPU that are one number: how each is read, how it is shown, and its column in
the table of a fleet.

Workbench sends this module to the host with the telemetry agent, so it uses only the standard
library and Python 3.8. The values are fields of GpuSample in model/gpu.py. What takes more than one
call of NVML is read by code of its own, in gpu/telemetry/readings.py.
"""

from __future__ import annotations

from workbench.model.named_tuple import NamedTuple

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from collections.abc import Mapping

# the value of a host, from those of its GPUs
MEAN, TOTAL, HIGHEST, LOWEST = "mean", "total", "highest", "lowest"


class FleetColumn(NamedTuple):
    """A column in the table of a fleet. Columns are shown in the order of `place`. `of_gpus` says
    which of the values of a host's GPUs is shown: MEAN, TOTAL, HIGHEST or LOWEST. `cells` is the
    width of the column, and `text` the format of the number. A screen of less than `least_width`
    cells leaves the column out."""

    place: int
    title: str
    cells: int
    of_gpus: str
    text: str = "{:.0f}"
    least_width: int = 0


class Reading(NamedTuple):
    """A reading of a GPU. `field` is its field of GpuSample, or of GpuInfo. A reading with a
    `label` is listed in the pane of the GPUs, with `unit`, and is in the history.

    `nvml` has the name of the NVML function that returns it and those of pynvml's constants that it
    gets; () if other code reads it. NVML's number is multiplied by `scale`, unless that is 0. Of a
    `switch` it says whether that is on. Values that are `seldom` read change slowly. `column` is
    the column of `nvidia-smi --query-gpu` for a host without NVML: "" if there is none, None if
    other code reads it.
    """

    field: str
    label: str = ""
    unit: str = ""
    nvml: tuple[str, ...] = ()
    scale: float = 0
    switch: bool = False
    seldom: bool = False
    column: str | None = None
    fleet: FleetColumn | None = None


ALL = (
    Reading(
        "gpu_util_pct",
        "utilization",
        " %",
        column="utilization.gpu",
        fleet=FleetColumn(1, "util", 5, MEAN, "{:.0f}%"),
    ),
    Reading("memory_util_pct", "memory util", " %", column="utilization.memory"),
    Reading(
        "sm_mhz",
        "SM clock",
        " MHz",
        ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        column="clocks.sm",
        fleet=FleetColumn(3, "MHz", 5, MEAN),
    ),
    Reading(
        "memory_mhz",
        "memory clock",
        " MHz",
        ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
        column="clocks.mem",
    ),
    Reading("power_w", "power", " W", fleet=FleetColumn(2, "power", 8, TOTAL, "{:,.0f}W")),
    Reading("limit_w", "power limit", " W"),
    Reading(
        "power_limit_w",
        nvml=("nvmlDeviceGetPowerManagementLimit",),
        scale=0.001,
        column="power.limit",
    ),
    Reading(
        "power_limit_enforced_w",
        nvml=("nvmlDeviceGetEnforcedPowerLimit",),
        scale=0.001,
        column="enforced.power.limit",
    ),
    Reading(
        "temperature_c",
        "temperature",
        " C",
        column="temperature.gpu",
        fleet=FleetColumn(4, "temp", 5, HIGHEST, "{:.0f}C"),
    ),
    Reading("fan_pct", "fan", " %", ("nvmlDeviceGetFanSpeed",), seldom=True, column="fan.speed"),
    Reading(
        "pcie_gen",
        nvml=("nvmlDeviceGetCurrPcieLinkGeneration",),
        seldom=True,
        column="pcie.link.gen.current",
    ),
    Reading(
        "pcie_width",
        nvml=("nvmlDeviceGetCurrPcieLinkWidth",),
        seldom=True,
        column="pcie.link.width.current",
    ),
    Reading(
        "persistence",
        nvml=("nvmlDeviceGetPersistenceMode",),
        switch=True,
        seldom=True,
        column="persistence_mode",
    ),
    Reading(
        "temperature_margin_c", nvml=("nvmlDeviceGetMarginTemperature",), seldom=True, column=""
    ),
)
# fields of GpuInfo, which rarely change, such as the limits of a setting
PROPERTIES = (
    Reading(
        "sm_max_mhz", nvml=("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"), column="clocks.max.sm"
    ),
    Reading(
        "memory_max_mhz",
        nvml=("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
        column="clocks.max.mem",
    ),
    Reading(
        "power_default_w",
        nvml=("nvmlDeviceGetPowerManagementDefaultLimit",),
        scale=0.001,
        column="power.default_limit",
    ),
    Reading(
        "pcie_gen_max", nvml=("nvmlDeviceGetMaxPcieLinkGeneration",), column="pcie.link.gen.max"
    ),
    Reading(
        "pcie_width_max", nvml=("nvmlDeviceGetMaxPcieLinkWidth",), column="pcie.link.width.max"
    ),
    Reading("memory_bus_bits", nvml=("nvmlDeviceGetMemoryBusWidth",)),
)
READINGS: Mapping[str, Reading] = {one.field: one for one in ALL if one.label}
IN_FLEET = sorted((one for one in ALL if one.fleet), key=lambda one: one.fleet or ())
