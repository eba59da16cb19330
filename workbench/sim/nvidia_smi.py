# ruff: noqa: T201 (a command-line program: it prints)
"""The simulated nvidia-smi: the options that Workbench and its users need, with the texts and exit
codes of the real program.

Its misleading answers are simulated too: a change that the board does not support prints "Treating
as warning and moving on" and exits with 0; the text about a changed power limit names the default
limit as the previous value; a clock lock without effect is accepted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import driver_state, physics
from workbench.sim.nvidia_smi_fields import (
    FIELDS,
    Cell,
    Device,
    NvmlError,
    query_cell,
    query_header,
)
from workbench.sim.nvml_library import SimulatedNvml

ALIASES = {
    "-i": "--id",
    "-l": "--loop",
    "-lms": "--loop-ms",
    "-L": "--list-gpus",
    "-q": "--query",
    "-d": "--display",
    "-pm": "--persistence-mode",
    "-pl": "--power-limit",
    "-lgc": "--lock-gpu-clocks",
    "-lmc": "--lock-memory-clocks",
    "-rgc": "--reset-gpu-clocks",
    "-rmc": "--reset-memory-clocks",
    "-h": "--help",
}
SWITCHES = {
    "--list-gpus",
    "--query",
    "--help",
    "--version",
}
VALUED = {
    "--id",
    "--loop",
    "--loop-ms",
    "--display",
    "--query-gpu",
    "--query-compute-apps",
    "--format",
}
INIT_TEXTS = {
    9: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.",
    18: "Failed to initialize NVML: Driver/library version mismatch",
    4: "Failed to initialize NVML: Insufficient Permissions",
    17: "Failed to initialize NVML: Operating System call failed",
    28: "No devices were found",
}
EARLY = "Terminating early due to previous errors."
WARNING = "Treating as warning and moving on."


@dataclass
class Exit(Exception):
    code: int
    text: str = ""


@dataclass
class Setter:
    """An option that changes a setting. `change` gets the GPU and the option's value."""

    change: Callable[[Device, str], object]
    takes_value: bool = True


@dataclass
class Options:
    values: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)


def parse_options(argv: Sequence[str]) -> Options:
    """Return the options of the command line by their long names. Raises Exit for an unknown
    option, a missing value, and more than one change of a setting."""
    options, rest = Options(), list(argv)
    while rest:
        word, separator, value = rest.pop(0).partition("=")
        name = ALIASES.get(word, word)
        if name not in _TAKES_VALUE:
            raise Exit(
                1,
                "Invalid combination of input arguments. Please run 'nvidia-smi -h' for "
                f'help.\n"{word}"',
            )
        if not _TAKES_VALUE[name]:
            options.values[name] = ""
            continue
        if not separator:
            if not rest:
                raise Exit(
                    1,
                    f"Option \"{word}\" is missing its value. Please run 'nvidia-smi -h' for help.",
                )
            value = rest.pop(0)
        options.values[name] = value
    if sum(name in options for name in SETTERS) > 1:
        raise Exit(1, "Only one device modification may be done at a time.")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        options = parse_options(arguments)
        if "--help" in options:
            print(
                "NVIDIA System Management Interface (SIMULATED by Workbench: no GPU is behind it)\n"
            )
            print("options: " + " ".join(sorted({*ALIASES, *SWITCHES, *VALUED, *SETTERS})))
            return 0
        _run_query(options, SimulatedNvml(driver_state.sim_state_from_environment()))
    except Exit as end:
        if end.text:
            print(end.text)
        return end.code
    except NvmlError as refused:  # the GPU was lost while the program ran
        why = "GPU is lost" if refused.code == 15 else "Unknown Error"
        print(f"Unable to talk to the GPU any more: {why}\n{EARLY}")
        return refused.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        pass
    return 0


def _run_query(options: Options, library: SimulatedNvml) -> None:
    code = library.nvmlInitWithFlags(0)
    if code:
        # exit codes of the real tool; 255 for an unknown error
        exit_code = code if code < 100 else 255
        if code == 28:
            exit_code = 6
        text = INIT_TEXTS.get(code, "Failed to initialize NVML: Unknown Error")
        raise Exit(exit_code, text)
    devices = _select_devices(options.get("--id"), library)
    setter = next((name for name in SETTERS if name in options), None)
    if setter:
        _set_values(setter, options.get(setter), devices)
    elif "--version" in options:
        profile = library._state.profile
        print(
            f"NVIDIA-SMI version  : {profile.driver_version}\nNVML version        : "
            f"{profile.nvml_version[3:]}"
        )
        print(
            f"DRIVER version      : {profile.driver_version}\nCUDA Version        : "
            f"{_cuda_version_text(profile.cuda_version)}"
        )
    elif "--list-gpus" in options:
        for device in _responding_devices(devices):
            print(f"GPU {device.index}: {device.text('Name')} (UUID: {device.text('UUID')})")
    elif "--query-gpu" in options or "--query-compute-apps" in options:
        _run_query_loop(options, devices)
    elif "--query" in options:
        _print_details(devices)
    else:
        _print_table(devices, library)


def _select_devices(selectors: str, library: SimulatedNvml) -> list[Device]:
    """Return the GPUs that `selectors` names by index, UUID or bus id, separated by commas; all
    GPUs for "". Raises Exit for an unknown one."""
    profile = library._state.profile
    if not selectors:
        return [Device(library, i) for i in range(profile.count)]
    indices: dict[str, int] = {}
    for i in range(profile.count):
        indices.update(dict.fromkeys((str(i), profile.uuid(i), profile.bus_id(i)), i))
    found = []
    for word in map(str.strip, selectors.split(",")):
        if word not in indices:
            raise Exit(6, "No devices were found")
        found.append(Device(library, indices[word]))
    return found


def _responding_devices(devices: list[Device]) -> list[Device]:
    """Return the GPUs that respond, and print the real program's message about each lost GPU.
    Raises Exit if the only GPU in `devices` is lost."""
    answering = []
    for device in devices:
        try:
            device.text("Name")
            answering.append(device)
        except NvmlError as refused:
            bus_id = device.library._state.profile.bus_id(device.index)
            print(
                f"Unable to determine the device handle for GPU{device.index}: {bus_id}: GPU is "
                "lost.  "
                "Reboot the system to recover this GPU"
            )
            if len(devices) == 1:
                raise Exit(refused.code) from None
    return answering


# -- queries ---------------------------------------------------------------------------------------


def _run_query_loop(options: Options, devices: list[Device]) -> None:
    words = options.get("--format").split(",")
    if "csv" not in words:
        raise Exit(2, '"--format=" is required: csv[,noheader][,nounits]')
    units, show_header = "nounits" not in words, "noheader" not in words
    option, rows = "--query-gpu", _gpu_query_lines
    if "--query-compute-apps" in options:
        option, rows = "--query-compute-apps", _process_query_lines
    names = [name.strip() for name in options.get(option).split(",")]
    if rows is _gpu_query_lines:
        for name in names:
            if name not in FIELDS:
                raise Exit(2, f'Field "{name}" is not a valid field to query.')
        if show_header:
            print(", ".join(query_header(name, units) for name in names))
    period = float(options.get("--loop-ms", "0")) / 1000 or float(options.get("--loop", "0"))
    due = time.monotonic()
    while True:
        for device in _responding_devices(devices):
            for line in rows(device, names, units):
                print(line)
        sys.stdout.flush()
        if not period:
            return
        due += period
        time.sleep(max(0.0, due - time.monotonic()))


def _gpu_query_lines(device: Device, names: list[str], units: bool) -> list[str]:
    """Return the line of --query-gpu for one GPU: its fields `names`, with units if `units` is
    True."""
    return [", ".join(query_cell(device, name, units) for name in names)]


def _process_query_lines(device: Device, names: list[str], units: bool) -> list[str]:
    """Return a line of --query-compute-apps for each process on one GPU: its fields `names`, with
    units if `units` is True."""
    reading = device.library._state.gpu_readings()[device.index]
    lines = []
    for process in reading.processes:
        used = f"{process.memory_bytes >> 20}{' MiB' if units else ''}"
        known = {
            "pid": str(process.pid),
            "process_name": "VLLM::EngineCore",
            "name": "VLLM::EngineCore",
            "used_memory": used,
            "used_gpu_memory": used,
            "gpu_uuid": device.text("UUID"),
            "gpu_bus_id": device.bus_id,
            "gpu_name": device.text("Name"),
        }
        lines.append(", ".join(known.get(name, "[N/A]") for name in names))
    return lines


def _cuda_version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _print_details(devices: list[Device]) -> None:
    print("\n==============NVSMI LOG==============  (SIMULATED)\n")
    print(f"{'Timestamp':<42}: {time.ctime()}")
    print(f"{'Driver Version':<42}: {query_cell(devices[0], 'driver_version', True)}")
    print(f"{'Attached GPUs':<42}: {len(devices)}")
    modes = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")
    for device in _responding_devices(devices):
        print(f"GPU {device.bus_id}")
        print(f"    {'Virtualization Mode':<38}: {modes[device.get('VirtualizationMode')]}")
        for name in FIELDS:
            if "throttle" not in name and name not in (
                "timestamp",
                "count",
                "driver_version",
                "gpu_name",
                "gpu_uuid",
            ):
                print(
                    f"    {query_header(name, False):<38}: {query_cell(device, name, True).strip('[]')}"
                )


def _print_table(devices: list[Device], library: SimulatedNvml) -> None:
    profile = library._state.profile
    print(f"{time.ctime()}   (SIMULATED by Workbench: {profile.name})")
    line = "+" + "-" * 89 + "+"
    print(line)
    cuda = _cuda_version_text(profile.cuda_version)
    text = (
        f"| NVIDIA-SMI {profile.driver_version}   Driver Version: {profile.driver_version}   "
        f"CUDA Version: {cuda}"
    )
    print(f"{text:<90}|\n{line}")
    for device in _responding_devices(devices):
        parts = [
            query_cell(device, n, False).strip("[]")
            for n in ("index", "name", "pci.bus_id", "pstate")
        ]
        watts = [query_cell(device, n, False).strip("[]") for n in ("power.draw", "power.limit")]
        used = [query_cell(device, n, True) for n in ("memory.used", "memory.total")]
        memory = "Not Supported" if "[" in used[0] else " / ".join(used)
        util = query_cell(device, "utilization.gpu", True)
        print(f"{'| ' + '  '.join(parts):<90}|")
        heat = query_cell(device, "temperature.gpu", False)
        print(f"{'|      ' + f'{heat}C  {watts[0]}W / {watts[1]}W  {memory}  {util}':<90}|")
    print(line)


# -- settings --------------------------------------------------------------------------------------


def _set_values(option: str, value: str, devices: list[Device]) -> None:
    for device in _responding_devices(devices):
        SETTERS[option].change(device, value)
    print("All done.")


def _set_persistence(device: Device, value: str) -> None:
    wanted = {"0": 0, "DISABLED": 0, "1": 1, "ENABLED": 1}.get(value.upper())
    if wanted is None:
        raise Exit(2, f"Invalid persistence mode: {value}")
    word = "Enabled" if wanted else "Disabled"
    if bool(device.get("PersistenceMode")) == bool(wanted):
        print(f"Persistence mode is already {word} for GPU {device.bus_id}.")
        return
    _change_setting_or_warn(
        device,
        lambda: device.call("nvmlDeviceSetPersistenceMode", wanted),
        denied=f"Unable to set persistence mode for GPU {device.bus_id}: Insufficient Permissions",
        unsupported=f"Setting persistence mode is not supported for GPU {device.bus_id}.",
    )
    print(f"{word} persistence mode for GPU {device.bus_id}.")


def _set_power_limit(device: Device, value: str) -> None:
    try:
        watts = float(value)
    except ValueError:
        raise Exit(2, f"Invalid power limit: {value}") from None
    bus_id, ends = device.bus_id, (Cell(), Cell())
    unsupported = f"Changing power management limit is not supported for GPU: {bus_id}."
    done = _change_setting_or_warn(
        device,
        lambda: device.call("nvmlDeviceGetPowerManagementLimitConstraints", *ends),
        denied="",
        unsupported=unsupported,
    )
    if not done:
        return
    low, high = (end.value / 1000 for end in ends)
    if not low <= watts <= high:
        raise Exit(
            2,
            f"Provided power limit {watts:.2f} W is not a valid power limit which should be "
            "between "
            f"{low:.2f} W and {high:.2f} W for GPU {bus_id}\n{EARLY}",
        )
    default = device.get("PowerManagementDefaultLimit") / 1000
    if _change_setting_or_warn(
        device,
        lambda: device.call("nvmlDeviceSetPowerManagementLimit", round(watts * 1000)),
        denied=f"Failed to set power management limit for GPU {bus_id}: Insufficient Permissions",
        unsupported=unsupported,
    ):
        print(f"Power limit for GPU {bus_id} was set to {watts:.2f} W from {default:.2f} W.")
        _warn_persistence(device)


def _warn_persistence(device: Device) -> None:
    if not device.get("PersistenceMode"):
        print(
            f"\nWarning: persistence mode is disabled on device {device.bus_id}. The setting goes "
            "back to its default "
            "when the last program that uses the driver ends."
        )


def _parse_clocks(value: str) -> tuple[int, int]:
    """Return (lowest, highest) clock in MHz for a value such as "210,2400", "1500" or "tdp". Raises
    Exit for any other text."""
    symbols = {"tdp": physics.TDP_MHZ, "unlimited": physics.UNLIMITED_MHZ}
    words = [word.strip().lower() for word in value.split(",")]
    try:
        numbers = [symbols[w] if w in symbols else int(w) for w in words]
        low, high = (numbers[0], numbers[0]) if len(numbers) == 1 else numbers
    except ValueError:
        raise Exit(2, f"Invalid clock range: {value}\n{EARLY}") from None
    return low, high


def _lock_clocks(device: Device, kind: str, value: str) -> None:
    """Lock the clocks of a kind, "Gpu" or "Memory", to `value`, and print what the real program
    prints."""
    low, high = _parse_clocks(value)
    if _change_clocks(device, f"nvmlDeviceSet{kind}LockedClocks", kind, low, high):
        name = {"Gpu": "GPU", "Memory": "Memory"}[kind]
        short = name[:3].lower()
        print(
            f'{name} clocks set to "({short}ClkMin {low}, {short}ClkMax {high})" for GPU '
            f"{device.bus_id}"
        )
        _warn_persistence(device)


def _change_clocks(device: Device, function: str, kind: str, *arguments: int) -> bool:
    """Call an NVML function that locks or resets the clocks of a kind, "Gpu" or "Memory", and
    return whether it succeeded, as `_change_setting_or_warn` does."""
    return _change_setting_or_warn(
        device,
        lambda: device.call(function, *arguments),
        denied="The current user does not have permission to change clocks for GPU "
        f"{device.bus_id}.",
        unsupported=f"Setting locked {kind} clocks is not supported for GPU {device.bus_id}.",
    )


def _change_setting_or_warn(
    device: Device, change: Callable[[], object], *, denied: str, unsupported: str
) -> bool:
    """Call `change`, which changes a setting, and return True. If the board does not support the
    setting, print the warning `unsupported` and return False. Raises Exit for other errors;
    `denied` is its message for a missing permission."""
    try:
        change()
    except NvmlError as refused:
        if refused.code == 3:
            print(f"{unsupported}\n{WARNING}")
            return False
        text = denied
        if refused.code != 4:
            text = f"Unable to change settings of GPU {device.bus_id}: Invalid Argument"
        raise Exit(refused.code, f"{text}\n{EARLY}") from None
    return True


SETTERS = {
    "--persistence-mode": Setter(_set_persistence),
    "--power-limit": Setter(_set_power_limit),
    "--lock-gpu-clocks": Setter(lambda gpu, value: _lock_clocks(gpu, "Gpu", value)),
    "--lock-memory-clocks": Setter(lambda gpu, value: _lock_clocks(gpu, "Memory", value)),
    "--reset-gpu-clocks": Setter(
        lambda gpu, _: _change_clocks(gpu, "nvmlDeviceResetGpuLockedClocks", "Gpu"),
        takes_value=False,
    ),
    "--reset-memory-clocks": Setter(
        lambda gpu, _: _change_clocks(gpu, "nvmlDeviceResetMemoryLockedClocks", "Memory"),
        takes_value=False,
    ),
}


_TAKES_VALUE: dict[str, bool] = {
    **dict.fromkeys(SWITCHES, False),
    **dict.fromkeys(VALUED, True),
    **{name: setter.takes_value for name, setter in SETTERS.items()},
}


if __name__ == "__main__":
    sys.exit(main())
