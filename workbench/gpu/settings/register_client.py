"""The host's register of GPU settings, from the answer of the program that reads it on the host.

The register has the settings that other users' Workbenches changed, and the entries that this
Workbench published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.gpu.settings import claims, register
from workbench.gpu.settings.claims import SettingClaim
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import is_clock_lock
from workbench.model.settings import parse_stored_value
from workbench.model.untrusted_numbers import number_for_field, parse_strict_json
from workbench.model.untrusted_text import clean_text

UNREAD_REGISTER_TEXT = "changes by other users cannot be read"


class LockChange(NamedTuple):
    """A change of a clock lock: the user `by` set, changed or reverted the lock at `unix_s`, by the
    host's clock."""

    gpu_index: int
    setting: str
    by: str
    unix_s: float


@dataclass(frozen=True, slots=True)
class Register:
    """The contents of the host's register. `others` are the settings that other Workbenches
    changed, `own` the published entries of this journal, and `changes` the recent changes of clock
    locks. `problem` says why the register cannot be read. In that case the changes of other users
    are unknown. `unpublished` says why they cannot see the last change of this journal."""

    others: tuple[SettingClaim, ...] = ()
    own: tuple[Mapping[str, Any], ...] = ()
    directory: str | None = None
    problem: str | None = None
    changes: frozenset[LockChange] = frozenset()
    own_version: int = 1  # of the format of `own`
    unpublished: str | None = None


def parse_register(text: object) -> Register:
    """Return the register from the answer of the program on the host, which is what
    register.publish_entries_and_read_register returned. An answer that cannot be used gives a
    register with a `problem`."""
    try:
        answer = parse_strict_json(str(text))
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and "problem" in answer:
        return Register(problem=f"{UNREAD_REGISTER_TEXT}: {clean_text(str(answer['problem']))}")
    try:
        found = [one for one in answer["found"] if _claim_is_valid(one)]
        mine = (answer["uid"], str(answer["journal"]))
        directory = clean_text(str(answer["directory"]))
    except (KeyError, TypeError):
        return Register(problem=f"{UNREAD_REGISTER_TEXT}: its program gave no valid answer")
    others, own = claims.parse_foreign_claims_and_own_entries(found, *mine)
    changes = frozenset(_parse_lock_changes(found))
    unpublished = answer.get("unpublished")
    versions = [one["version"] for one in found if (one["uid"], one["journal"]) == mine]
    return Register(
        tuple(map(_claim_with_parsed_values, others)),
        own,
        directory,
        changes=changes,
        own_version=max(versions, default=1),
        unpublished=None if unpublished is None else clean_text(str(unpublished)),
    )


def _claim_is_valid(one: Any) -> bool:
    """Return whether `one`, a register file as the host has read it, can be used. The host has
    checked its files, but the host itself may send anything."""
    return (
        register.register_document_is_valid(one)
        and isinstance(one.get("user"), str)
        and {"version", "changes"} <= one.keys()
        and number_for_field("uid", one.get("uid")) is not None
    )


def _parse_lock_changes(found: Sequence[Mapping[str, Any]]) -> Iterator[LockChange]:
    for one in found:
        for change in one["changes"]:
            if is_clock_lock(change["setting"]):
                yield LockChange(
                    change["gpu_index"],
                    change["setting"],
                    clean_text(one["user"]),
                    change["unix_s"],
                )


def _claim_with_parsed_values(claim: SettingClaim) -> SettingClaim:
    before = parse_stored_value(claim.setting, claim.before)
    now = parse_stored_value(claim.setting, claim.now)
    return claim._replace(before=before, now=now)
