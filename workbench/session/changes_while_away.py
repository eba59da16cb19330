"""What ended, started or changed on the host while no screen of this user was open there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import PENDING

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import Alteration
    from workbench.session.bench.row import BenchRow
    from workbench.session.state import SessionState


@dataclass(frozen=True, slots=True)
class ChangesSinceLastScreen:
    """What happened on the host after `left_unix_s`, when this user's last screen of it closed, the
    newest of each kind first. `results` has one row of each experiment or sweep."""

    left_unix_s: float
    results: tuple[BenchRow, ...] = ()
    servers: tuple[ServerStatus, ...] = ()  # started, READY or ended since
    settings: tuple[Alteration, ...] = ()  # of GPUs, made since and still in force
    guard_did: str = ""  # what the guard reverted since

    @property
    def has_changes(self) -> bool:
        return bool(self.results or self.servers or self.settings or self.guard_did)


def changes_since_last_screen(
    state: SessionState, left_unix_s: float, host_ahead_s: float
) -> ChangesSinceLastScreen:
    """Return what `state` shows to have happened since `left_unix_s`. The clock of the host is
    ahead of this machine's by `host_ahead_s` seconds."""
    left_host_s = left_unix_s + host_ahead_s
    servers = [
        server for server in state.servers if last_server_change_unix_s(server) > left_host_s
    ]
    settings = []
    for altered in (*state.alterations, *state.others):
        if altered.state != PENDING and altered.changed_unix_s > left_host_s:
            settings.append(altered)
    guard, guard_did = state.guard, ""
    if guard is not None and (guard.did_unix_s or 0.0) > left_host_s:
        guard_did = guard.did or ""
    results = _new_results(state.results, left_unix_s)
    return ChangesSinceLastScreen(left_unix_s, results, tuple(servers), tuple(settings), guard_did)


def last_server_change_unix_s(server: ServerStatus) -> float:
    """Return when a server ended, or else became READY, or else was started, by the host's
    clock."""
    return server.ended_unix_s or server.ready_unix_s or server.started_unix_s or 0.0


def _new_results(rows: tuple[BenchRow, ...], left_unix_s: float) -> tuple[BenchRow, ...]:
    """Return the results that were measured after `left_unix_s`, the newest first. Imported results
    are left out, and each experiment or sweep has only its newest one."""
    new = [row for row in rows if row.unix_s > left_unix_s and not row.imported]
    of_series = {(row.series.kind, row.series.number): row for row in reversed(new) if row.series}
    newest = {row.id for row in of_series.values()}
    return tuple(row for row in new if row.series is None or row.id in newest)
