"""The program that reads how the GPUs of a host are connected: PCIe, NVLink, NUMA, IOMMU, ACS, and
what the driver says of peer-to-peer copies. It only reads.

It prints one line of JSON:

{"driver": text, "gpus": [...], "pairs": [...], "cmdline": [words of the kernel about the IOMMU]}
or {"error": reason}.

A GPU is {"index", "uuid", "name", "bus_id", "mig", "busy": number of processes, "pcie_gen_max",
"pcie_width", "pcie_width_max", "nvlinks": active links, "nvlink_version", "numa_node", "iommu":
type of its IOMMU group, "slot": name of its slot, "acs": {bridge: words, null if unreadable}}. A
pair is {"a", "b", "ancestor", "read", "write", "nvlink"}: texts for NVML's answers. What cannot be
read is left out.

WORKBENCH_SIM_SYSFS is a simulated host's /sys.
"""

# ruff: noqa: PTH112, PTH123, PTH208, T201, UP031
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import json
import os

from pynvml import NVMLError

from workbench.gpu.telemetry.nvml_library import DRIVER_MESSAGES, Nvml, nvml_error_text, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMON_ANCESTOR_TEXTS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "several NUMA nodes",
}
P2P_STATUS_TEXTS = {
    0: "ok",
    1: "not supported by the chipset",
    2: "not supported by the GPU",
    3: "not supported by this topology",
    4: "disabled by a registry key of the driver",
    5: "not supported",
    6: "unknown",
}
# nvmlGpuP2PCapsIndex_t; in pynvml 13 some of its names are tuples, which the driver cannot take
P2P_CAPABILITIES = (("read", 0), ("write", 1), ("nvlink", 2))
MOST_GPUS = 64
MOST_LINKS = 18
ACS_CAPABILITY = 0x000D
# bits of the ACS control register that send peer-to-peer traffic up to the root complex
REDIRECTS = {2: "request redirect", 3: "completion redirect"}
SYSFS = os.environ.get("WORKBENCH_SIM_SYSFS", "/sys")


def main() -> None:
    print(json.dumps(read_gpu_topology()), flush=True)


def read_gpu_topology() -> dict[str, Any]:
    """Return what this program prints, as a dict: the GPUs, their links and pairs, the driver and
    the kernel's words, or {"error": reason} if the driver does not answer."""
    nvml = Nvml()
    try:
        nvml.open()
        count = nvml.call("nvmlDeviceGetCount")
        handles = [nvml.call("nvmlDeviceGetHandleByIndex", i) for i in range(min(count, MOST_GPUS))]
        gpus = [read_gpu_links(nvml, index, handle) for index, handle in enumerate(handles)]
    except NVMLError as error:
        said = DRIVER_MESSAGES.get(error.value)
        return {"error": said[1] if said else nvml_error_text(error.value)}
    found: dict[str, Any] = {"gpus": gpus, "pairs": read_gpu_pairs(nvml, handles)}
    driver = nvml.call_or_none("nvmlSystemGetDriverVersion")
    if driver is not None:
        found["driver"] = driver
    if not nvml.simulated:
        words = read_text("/proc/cmdline").split()
        found["cmdline"] = [word for word in words if "iommu" in word]
    return found


def read_gpu_links(nvml: Nvml, index: int, handle: Any) -> dict[str, Any]:
    """Return what NVML says about one GPU and its links. A value that it does not report is left
    out."""
    mode = nvml.call_or_none("nvmlDeviceGetMigMode", handle)
    running = nvml.call_or_none("nvmlDeviceGetComputeRunningProcesses", handle)
    links = [
        number
        for number in range(MOST_LINKS)
        if nvml.call_or_none("nvmlDeviceGetNvLinkState", handle, number) == 1
    ]
    found = {
        "index": index,
        "uuid": nvml.call_or_none("nvmlDeviceGetUUID", handle),
        "name": nvml.call_or_none("nvmlDeviceGetName", handle),
        "mig": bool(mode and mode[0]),
        "busy": None if running is None else len(running),
        "pcie_gen_max": nvml.call_or_none("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.call_or_none("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.call_or_none("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "nvlinks": len(links),
    }
    if links:
        found["nvlink_version"] = nvml.call_or_none("nvmlDeviceGetNvLinkVersion", handle, links[0])
    info = nvml.call_or_none("nvmlDeviceGetPciInfo", handle)
    if info is not None:
        said = (
            info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else info.busId
        )
        found.update(read_pci_topology(said))
    return {name: value for name, value in found.items() if value is not None}


def read_stripped_text(path: str) -> str:
    """Return the text of a file without white space around it, "" if it cannot be read."""
    return read_text(path).strip()


def read_pci_topology(bus_id: str) -> dict[str, Any]:
    """Return what the kernel says of the PCI device `bus_id`: NUMA node, IOMMU, slot and ACS of the
    bridges above it. What cannot be read is left out."""
    domain, _, rest = bus_id.lower().partition(":")
    address = domain[-4:] + ":" + rest
    folder = SYSFS + "/bus/pci/devices/" + address
    found: dict[str, Any] = {"bus_id": address}
    node = read_stripped_text(folder + "/numa_node")
    if node.isdecimal():  # -1: the firmware names none
        found["numa_node"] = int(node)
    kind = read_stripped_text(folder + "/iommu_group/type")
    if kind:
        found["iommu"] = kind
    # devices on the way from the root complex, the GPU last; behind a slot is its first function
    way = [part for part in os.path.realpath(folder).split("/") if part.count(":") == 2]
    slots = slot_names_by_pci_address()
    for device in reversed(way):
        if device.rpartition(".")[0] in slots:
            found["slot"] = slots[device.rpartition(".")[0]]
            break
    if os.path.isdir(folder):
        found["acs"] = {bridge: read_enabled_acs_redirects(bridge) for bridge in way[:-1]}
    return found


def slot_names_by_pci_address() -> dict[str, str]:
    """Return the names of the host's PCIe slots, {PCI address behind the slot: name}. {} if they
    cannot be read."""
    folder = SYSFS + "/bus/pci/slots"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    return {read_stripped_text("%s/%s/address" % (folder, name)): name for name in names}


def read_enabled_acs_redirects(bridge: str) -> list[str] | None:
    """Return the names of the redirects that the Access Control Services (ACS) of the PCIe bridge
    have switched on, [] if none is or if the bridge has no ACS. None if that cannot be read, for
    example because the user is not root."""
    try:
        with open(SYSFS + "/bus/pci/devices/" + bridge + "/config", "rb") as file:
            space = file.read(4096)
    except OSError:
        return None
    if len(space) <= 0x100:
        return None
    at, seen = 0x100, 0
    while at and seen < 64 and at + 8 <= len(space):
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            control = int.from_bytes(space[at + 6 : at + 8], "little")
            return [word for bit, word in REDIRECTS.items() if control >> bit & 1]
        at, seen = header >> 20, seen + 1
    return []


def read_gpu_pairs(nvml: Nvml, handles: list[Any]) -> list[dict[str, Any]]:
    """Return a dict for each pair of GPUs: the indices "a" and "b", the common "ancestor" of their
    PCIe paths, and the answers for peer-to-peer "read", "write" and "nvlink". What NVML does not
    report is left out."""
    found = []
    for a, one in enumerate(handles):
        for b in range(a + 1, len(handles)):
            pair: dict[str, Any] = {"a": a, "b": b}
            level = nvml.call_or_none("nvmlDeviceGetTopologyCommonAncestor", one, handles[b])
            if level in COMMON_ANCESTOR_TEXTS:
                pair["ancestor"] = COMMON_ANCESTOR_TEXTS[level]
            for name, capability in P2P_CAPABILITIES:
                status = nvml.call_or_none("nvmlDeviceGetP2PStatus", one, handles[b], capability)
                if status in P2P_STATUS_TEXTS:
                    pair[name] = P2P_STATUS_TEXTS[status]
            found.append(pair)
    return found
