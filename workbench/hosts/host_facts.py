"""A host's properties, from the output of the shell script `shell_scripts.FACTS`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping

from workbench.hosts import shell_scripts
from workbench.hosts.base import Host, HostFacts, command_timeout_error, output_too_large_error
from workbench.model.untrusted_numbers import parse_whole_number

FACTS_S = 30.0
FACTS_LINES = 10_000

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
# "init" is the command line of process 1; "missing_programs" are those of the usual shell tools
# that are missing
_EXTRA = ("shell", "dmi_vendor", "dmi_product", "init", "missing_programs")
_X86 = {"x86_64", "i686", "i386"}


async def query_host_facts(host: Host) -> HostFacts:
    """Return the properties of a host that is not this machine, with the round-trip time: that of a
    line to a running command. Raises CommandTimeout after FACTS_S, OutputTooLarge, or another
    HostError."""
    look = ("sh", "-c", "facts about the host")
    stream = await host.stream(shell_scripts.shell_argv(shell_scripts.FACTS, "ping"))
    latency_s, lines = 0.0, list[str]()
    try:
        async with asyncio.timeout(FACTS_S):
            sent = time.monotonic()
            await stream.write(b"1\n")
            async for line in stream.lines():
                latency_s = latency_s or time.monotonic() - sent
                lines.append(line.decode("utf-8", "replace"))
                if len(lines) > FACTS_LINES:  # a login shell or a program prints without end
                    raise output_too_large_error(look, host.name)
    except TimeoutError:
        raise command_timeout_error(look, FACTS_S, host.name) from None
    finally:
        await stream.close()
    return parse_host_facts("\n".join(lines), host.name, host.kind, round(latency_s * 1000, 3))


def parse_host_facts(
    output: str, name: str, kind: str, latency_ms: float | None = None
) -> HostFacts:
    """Return the properties of the host `name` of the kind `kind` from `output`, the lines
    key=value that the script FACTS printed there. A property without a line is None."""
    facts: dict[str, str] = {}
    for key, value in shell_scripts.parse_key_value_pairs(output):
        facts.setdefault(key, value.strip())
    memory_kib = parse_whole_number(facts.get("memory_kib"))
    return HostFacts(
        name=name,
        kind=kind,
        user=facts.get("user"),
        uid=parse_whole_number(facts.get("uid")),
        hostname=facts.get("hostname"),
        os=facts.get("os"),
        kernel=facts.get("kernel"),
        arch=facts.get("arch"),
        boot_id=facts.get("boot_id"),
        cpu_count=parse_whole_number(facts.get("cpu_count")),
        memory_total_bytes=memory_kib * 1024 if memory_kib is not None else None,
        python3=facts.get("python3"),
        python3_version=_parse_python_version(facts.get("python3_version")),
        nvidia_smi=facts.get("nvidia_smi"),
        initial_user_namespace=_is_initial_user_namespace(facts.get("uid_map")),
        container=_container_kind(facts),
        virtualization=_hypervisor_name(facts),
        home=facts.get("home"),
        path=tuple(p for p in facts.get("path", "").split(":") if p),
        latency_ms=latency_ms,
        simulated=facts.get("simulated"),
        extra={k: facts[k] for k in _EXTRA if k in facts},
    )


def _parse_python_version(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"\d+(\.\w+)+\+?", text) else None


def _is_initial_user_namespace(uid_map: str | None) -> bool | None:
    """Return whether `uid_map`, the contents of /proc/self/uid_map, is that of the initial user
    namespace. There every id maps onto itself ("0 0 4294967295"). None if `uid_map` is None.
    """
    if uid_map is None:
        return None
    return uid_map.split() == ["0", "0", "4294967295"]


def _container_kind(facts: Mapping[str, str]) -> str | None:
    """Return the kind of container that the host runs in, such as "docker"; None if no line of the
    script FACTS, whose values are in `facts`, says that it is in one."""
    detected = facts.get("detect_container")
    if detected and detected != "none":
        return detected
    return facts.get("container_manager") or facts.get("container_file")


def _hypervisor_name(facts: Mapping[str, str]) -> str | None:
    """Return the name of the hypervisor as systemd-detect-virt prints it, "none" without one. If
    that program is missing, the name follows from the firmware's product name. None if that is not
    known."""
    if facts.get("detect_vm"):
        return facts["detect_vm"]
    if facts.get("hypervisor_type"):
        return facts["hypervisor_type"]
    dmi = f"{facts.get('dmi_vendor', '')} {facts.get('dmi_product', '')}".lower()
    known = next((found for text, found in _HYPERVISORS if text in dmi), None)
    if facts.get("arch") in _X86:
        return (known or "vm-other") if "cpu_hypervisor" in facts else "none"
    return known or ("none" if dmi.strip() else None)
