"""Changes of GPU settings that were begun and whose end nobody has written down.

The journal announces a change before its commands run. If Workbench is killed then, only the host's
value tells whether the commands ran. Until the journal says so too, such a change is "begun", and
it is not called altered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.named_tuple import NamedTuple
from workbench.model.setting_commands import APPLIED, PENDING, value_equals

if TYPE_CHECKING:
    from workbench.model.gpu import Telemetry
    from workbench.model.setting_records import Alteration

NOT_APPLIED = "begun, not applied"
NOT_KNOWN = "begun, not known whether applied"  # nobody can read a clock lock


class BegunChange(NamedTuple):
    """A change that was begun, and whose end is not written down. `outcome` is NOT_APPLIED or
    NOT_KNOWN."""

    change: Alteration
    outcome: str


def split_altered_and_begun_changes(
    changes: Iterable[Alteration], telemetry: Telemetry | None
) -> tuple[tuple[Alteration, ...], tuple[BegunChange, ...]]:
    """Return (settings that are altered, changes that were begun and perhaps not made) among
    `changes`. If a begun change was to replace an earlier one, the earlier one counts as
    altered."""
    altered: list[Alteration] = []
    begun: list[BegunChange] = []
    for one in changes:
        outcome = _outcome_of_begun_change(one, telemetry)
        if outcome is None:
            altered.append(one)
            continue
        begun.append(BegunChange(one, outcome))
        if one.earlier_now is not None:
            altered.append(replace(one, now=one.earlier_now, state=APPLIED, earlier_now=None))
    return tuple(altered), tuple(begun)


def _outcome_of_begun_change(change: Alteration, telemetry: Telemetry | None) -> str | None:
    """Return NOT_APPLIED or NOT_KNOWN for a change that was begun, by the host's value now. None if
    the change was made, if it is not a begun one, or if somebody else has set a third value."""
    if change.state != PENDING:
        return None
    if telemetry is None:
        return NOT_KNOWN
    from workbench.model.settings import setting_of  # not for the first frame

    live = setting_of(change.setting).current_value(telemetry, change.gpu_uuid)
    if live is None:
        return NOT_KNOWN
    from_value = change.before if change.earlier_now is None else change.earlier_now
    return NOT_APPLIED if value_equals(change.setting, live, from_value) else None
