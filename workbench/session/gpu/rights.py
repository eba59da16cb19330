"""The rights of this user to change GPU settings on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.gpu.settings.rights import Rights, add_password, read_rights
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.session.state_holder import StateHolder


class GpuRights:
    def __init__(self, core: StateHolder) -> None:
        self._core = core
        self._known: tuple[Host, Rights] | None = None

    async def load_rights(self) -> Rights:
        """Return the user's rights to change GPU settings, and show them in the session's state.
        Complete rights are read once for each host. Rights that are refused, or that need a sudoers
        rule, are read again at each call, because the user may have changed sudoers."""
        host = self._core.host
        if self._known is not None and self._known[0] is host:
            rights = self._known[1]
            if not (rights.refusal or rights.by_sudoers):
                return rights
        rights = await self._read_rights(host)
        self._known = (host, rights)
        self._core.update_host(
            can_change_gpus=rights.refusal, user=rights.user, sudo_password=rights.sudo_password
        )
        return rights

    async def _read_rights(self, host: Host) -> Rights:
        entry = HostsStore().host(host.name)
        rights = await read_rights(host)
        if entry is None or entry.sudo is not False or not rights.by_sudoers:
            return rights
        return Rights(
            rights.nvidia_smi,
            refusal=f"hosts.toml says sudo = false for {host.name}",
            user=rights.user,
        )

    async def load_rights_with_password(self, password: str | None) -> Rights:
        """Return the user's rights to change GPU settings, including those that sudo grants with
        `password`. `password` None stands for no password. The password is not stored."""
        rights = await self.load_rights()
        return rights if password is None else await add_password(self._core.host, rights, password)
