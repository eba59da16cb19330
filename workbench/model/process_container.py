"""The container that a process runs in, from the control groups of the process.

Sent to the host with the telemetry agent: standard library only, Python 3.8. The names of the
groups are those that the runtimes give: docker-ID.scope or /docker/ID (moby), libpod-ID (podman),
lxc.payload.NAME or /lxc/NAME (LXC, Proxmox), cri-containerd-ID and crio-ID (Kubernetes).
"""

from __future__ import annotations

import re

_ID = "([0-9a-f]{12})[0-9a-f]{52}"
_GROUPS = (
    (re.compile(f"(?:/docker/|docker-){_ID}"), "docker"),
    (re.compile(f"libpod-{_ID}"), "podman"),
    (re.compile(r"/lxc(?:\.payload)?[./]([A-Za-z0-9][\w.-]*)"), "lxc"),
    (re.compile(f"(?:cri-containerd-|crio-|/kubepods[^\n]*/){_ID}"), "kubernetes"),
)


def parse_container_of_process(cgroups_text: str) -> str:
    """Return the container of a process, such as "docker:0123456789ab" or "pct:101". `cgroups_text`
    is the content of /proc/PID/cgroup, read on the host. "" for a process outside containers; of
    nested containers, the outermost one."""
    found = []
    for pattern, kind in _GROUPS:
        match = pattern.search(cgroups_text)
        if match:
            found.append((match.start(), kind, match[1]))
    if not found:
        return ""
    _, kind, name = min(found)
    if kind == "lxc" and name.isdecimal():
        kind = "pct"
    return f"{kind}:{name}"
