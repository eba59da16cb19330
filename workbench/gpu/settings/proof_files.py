"""Storage for the results of proofs in files next to the journal: clocks under loads, and the short
verdicts.

The files contain only numbers and words, which are compared and shown; nothing in them is run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from workbench.gpu.settings.clock_contrasts import MAX_KEPT_CLOCKS, ContrastEvidence, MeasuredClock
from workbench.hosts.base import FileError, Host
from workbench.model.setting_records import Alteration
from workbench.model.settings import ClockRange, setting_of, value_to_store
from workbench.model.untrusted_numbers import number_for_field, parse_strict_json

CLOCKS_FILE = "gpu/clocks.json"
# {GPU UUID: {"of": the altered settings then, "short": [words]}}
FINDINGS_FILE = "gpu/findings.json"
KEPT_CLOCKS_S = (
    86_400.0  # after a day the room, and with it a clock under a power limit, may have changed
)
MAX_FINDING_CELLS = 80  # of one finding, which has a few words

EffectTexts: TypeAlias = tuple[tuple[int, str], ...]  # (GPU index, "▲ lock 3000 has no effect")


# -- clocks ----------------------------------------------------------------------------------------


async def read_measured_clocks(host: Host) -> ContrastEvidence:
    """Return the clocks that GPUs showed under load during the last day. The ContrastEvidence is
    empty if the file is missing or invalid."""
    try:
        kept = parse_strict_json(await host.read_file(f"{await host.state_dir()}/{CLOCKS_FILE}"))
        rows, shown, refuted = kept["clocks"], kept["shown"], kept.get("refuted", [])
        now = time.time()
        clocks = tuple(
            c
            for c in map(_clock_from_row, rows)
            if c is not None and 0 <= now - c.unix_s < KEPT_CLOCKS_S
        )
        return ContrastEvidence(
            clocks[-MAX_KEPT_CLOCKS:],
            _parse_identities_of_changes(shown),
            _parse_identities_of_changes(refuted),
        )
    except (FileError, ValueError, KeyError, TypeError, RecursionError):
        return ContrastEvidence()


def _parse_identities_of_changes(kept: list[object]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(key) for key in kept if isinstance(key, list))[-MAX_KEPT_CLOCKS:]


_TYPES_IN_ROW = {
    **dict.fromkeys(("gpu_uuid", "setting", "load", "circumstances"), str),
    **dict.fromkeys(("lock", "limiter"), str | None),
}


def _clock_from_row(row: object) -> MeasuredClock | None:
    if not isinstance(row, dict):
        return None
    if not all(isinstance(row.get(name), kind) for name, kind in _TYPES_IN_ROW.items()):
        return None
    if any(number_for_field(name, row.get(name)) is None for name in ("mhz", "unix_s")):
        return None
    lock = setting_of(row["setting"]).from_stored(row["lock"]) if row["lock"] else None
    facts = {f.name: row[f.name] for f in fields(MeasuredClock)}
    return MeasuredClock(**{**facts, "lock": lock if isinstance(lock, ClockRange) else None})


async def store_measured_clocks(host: Host, known: ContrastEvidence) -> None:
    """Store the clocks that GPUs showed under load, as evidence for later proofs. Raises FileError
    if the file on the host cannot be written."""
    rows = [{**asdict(clock), "lock": value_to_store(clock.lock)} for clock in known.clocks]
    kept = {"clocks": rows, "shown": known.shown, "refuted": known.refuted}
    await host.write_file(f"{await host.state_dir()}/{CLOCKS_FILE}", json.dumps(kept).encode())


# -- verdicts --------------------------------------------------------------------------------------


async def store_effect_texts(
    host: Host, findings: EffectTexts, alterations: Sequence[Alteration]
) -> None:
    """Store on the host, for each changed setting, the short text that says whether it has an
    effect. Raises FileError if the file cannot be written."""
    kept: dict[str, dict[str, Any]] = {}
    for uuid, index in _gpu_indices_by_uuid(alterations).items():
        if short := [text for i, text in findings if i == index]:
            kept[uuid] = {"of": _identities_of_alterations(uuid, alterations), "short": short}
    await host.write_file(f"{await host.state_dir()}/{FINDINGS_FILE}", json.dumps(kept).encode())


async def read_effect_texts(host: Host, alterations: Sequence[Alteration]) -> EffectTexts:
    """Return the stored short texts that say whether settings have an effect, as (GPU index, text).
    Texts about settings that have changed since are left out. () if the file is missing or invalid.
    """
    try:
        kept = json.loads(await host.read_file(f"{await host.state_dir()}/{FINDINGS_FILE}"))
    except (FileError, ValueError, RecursionError):
        return ()
    if not isinstance(kept, dict):
        return ()
    found: list[tuple[int, str]] = []
    for uuid, index in _gpu_indices_by_uuid(alterations).items():
        one = kept.get(uuid)
        if isinstance(one, dict) and one.get("of") == _identities_of_alterations(uuid, alterations):
            short = one.get("short")
            if isinstance(short, list):
                found += [(index, text) for text in short if _is_short_effect_text(text)]
    return tuple(sorted(found))


def _gpu_indices_by_uuid(alterations: Sequence[Alteration]) -> dict[str, int]:
    return {a.gpu_uuid: a.gpu_index for a in alterations}


def _identities_of_alterations(uuid: str, alterations: Sequence[Alteration]) -> list[list[Any]]:
    return sorted(
        [a.setting, str(a.now), a.since_unix_s] for a in alterations if a.gpu_uuid == uuid
    )


def _is_short_effect_text(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= MAX_FINDING_CELLS
