"""Interpretation of the facts script: from the lines that `shell_scripts.FACTS` prints to HostFacts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.hosts.base import HostFacts
from workbench.model.untrusted_text import clean

# DMI vendor or product text (lower case) -> name as systemd-detect-virt has it.
_HYPERVISORS = (
    ("vmware", "vmware"),
    ("qemu", "kvm"),
    ("kvm", "kvm"),
    ("proxmox", "kvm"),
    ("amazon ec2", "kvm"),
    ("google", "kvm"),
    ("digitalocean", "kvm"),
    ("openstack", "kvm"),
    ("microsoft corporation", "microsoft"),
    ("virtualbox", "oracle"),
    ("innotek", "oracle"),
    ("xen", "xen"),
    ("parallels", "parallels"),
)
_X86 = {"x86_64", "i686", "i386"}


def parse(output: str, name: str, kind: str, latency_ms: float | None = None) -> HostFacts:
    """Parse key=value lines into HostFacts. Facts without a line are None."""
    said: dict[str, str] = {}
    for text in output.splitlines():
        key, equals, value = clean(text).partition("=")
        if equals:
            said.setdefault(key, value.strip())
    memory_kib = _number(said.get("memory_kib"))
    return HostFacts(
        name=name,
        kind=kind,
        user=said.get("user"),
        uid=_number(said.get("uid")),
        hostname=said.get("hostname"),
        os=said.get("os"),
        kernel=said.get("kernel"),
        arch=said.get("arch"),
        boot_id=said.get("boot_id"),
        cpu_count=_number(said.get("cpu_count")),
        memory_total_bytes=memory_kib * 1024 if memory_kib is not None else None,
        python3=said.get("python3"),
        python3_version=_version(said.get("python3_version")),
        nvidia_smi=said.get("nvidia_smi"),
        initial_user_namespace=_initial_namespace(said.get("uid_map")),
        container=_container(said),
        virtualization=_virtualization(said),
        home=said.get("home"),
        path=tuple(p for p in said.get("path", "").split(":") if p),
        latency_ms=latency_ms,
        simulated=said.get("simulated"),
        extra={k: said[k] for k in ("shell", "dmi_vendor", "dmi_product") if k in said},
    )


def _version(text: str | None) -> str | None:
    """Return `text` if it is a Python version. Another program called python3 may print anything."""
    return text if text and re.fullmatch(r"\d+(\.\w+)+\+?", text) else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _initial_namespace(uid_map: str | None) -> bool | None:
    """Return whether the process is in the initial user namespace, which maps every id onto itself: "0 0
    4294967295"."""
    return None if uid_map is None else uid_map.split() == ["0", "0", "4294967295"]


def _container(said: Mapping[str, str]) -> str | None:
    """Return "lxc", "docker", "podman", …, or None if nothing indicates a container."""
    detected = said.get("detect_container")
    if detected and detected != "none":
        return detected
    return said.get("container_manager") or said.get("container_file")


def _virtualization(said: Mapping[str, str]) -> str | None:
    """Return the hypervisor by systemd-detect-virt's names, derived from DMI if that program is missing. None if it
    cannot be determined (no DMI and no CPU flag, as on Arm)."""
    if said.get("detect_vm"):
        return said["detect_vm"]
    if said.get("hypervisor_type"):
        return said["hypervisor_type"]
    dmi = f"{said.get('dmi_vendor', '')} {said.get('dmi_product', '')}".lower()
    known = next((found for text, found in _HYPERVISORS if text in dmi), None)
    if said.get("arch") in _X86:
        return (known or "vm-other") if "cpu_hypervisor" in said else "none"
    return known or ("none" if dmi.strip() else None)
