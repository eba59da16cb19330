"""Where commands run: this machine, a host behind ssh; one protocol (base.Host) for all."""

from __future__ import annotations

from workbench.hosts.base import Host


def open_host(name: str | None = None) -> Host:
    """The host called `name`: None or "local" is this machine, anything else a host of the person's ssh
    configuration. Connects on first use. Only an ssh host imports asyncssh."""
    if name is None or name == "local":
        from workbench.hosts.local import LocalHost

        return LocalHost()
    from workbench.hosts.ssh import SshHost

    return SshHost(name)
