"""Whether the host still has what Workbench set there: each reading is compared with what is journalled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.gpu.settings import claims
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.revert import LOCKS
from workbench.model.gpu import Telemetry
from workbench.model.settings import HOST, Alteration, Drift

VOLATILE = ("power_limit_w", *LOCKS)


def drifts(alterations: Sequence[Alteration], others: Sequence[Alteration], telemetry: Telemetry) -> tuple[Drift, ...]:
    """Of `alterations`, ours, those that the host does not have; `others` explain the values of other Workbenches."""
    told = [_claim(other) for other in others]
    found = []
    for one in alterations:
        live = live_value(one.gpu_uuid, one.setting, telemetry)
        if text := claims.drift(_entry(one), live, told):
            found.append(Drift(one.gpu_index, one.gpu_uuid, one.setting, live, text))
    return tuple(found)


def locks_on(alterations: Sequence[Alteration], others: Sequence[Alteration]) -> tuple[Alteration, ...]:
    """The clock locks that hold, ours or another Workbench's. No driver tells one: the newest that is told counts."""
    told = {_claim(one): one for one in others if one.setting in LOCKS}
    ours = {(a.gpu_uuid, a.setting): a for a in alterations if a.setting in LOCKS}
    found = []
    for key in sorted({*ours, *(claim.key for claim in told)}):
        by = claims.explains(list(told), key, None, _entry(ours[key]) if key in ours else None)
        found.append(ours[key] if by is None else told[by])
    return tuple(found)


def lock_drift(one: Alteration, others: Sequence[Alteration]) -> str | None:
    """What to say where another Workbench has set another lock since."""
    return claims.drift(_entry(one), None, [_claim(other) for other in others]) if one.setting in LOCKS else None


def cautions(alterations: Sequence[Alteration], others: Sequence[Alteration], telemetry: Telemetry) -> tuple[str, ...]:
    """What to know before settings are left on without a guard: some are not there, others will not last."""
    said = [f"{named(d.gpu_index)} {d.setting}: {d.text}" for d in drifts(alterations, others, telemetry)]
    for sample in telemetry.gpus:
        mine = [a.setting for a in alterations if a.gpu_uuid == sample.uuid and a.setting in VOLATILE]
        if mine and sample.live and sample.persistence is False:
            what = f"{named(sample.index)}: persistence mode is off, so {', '.join(mine)} may be lost when the last "
            what += "program that uses the GPU ends, which the guard may be; "
            said.append(what + "`workbench gpu set --persistence on` prevents it")
    return tuple(said)


def named(gpu_index: int) -> str:
    return "host" if gpu_index < 0 else f"GPU{gpu_index}"


def live_value(uuid: str, setting: str, telemetry: Telemetry) -> Any:
    """None where it cannot be told (never for a lock)."""
    if uuid == HOST:
        return telemetry.host.cpu_governor
    sample = next((s for s in telemetry.gpus if s.uuid == uuid and s.live), None)
    return None if sample is None or setting in LOCKS else getattr(sample, setting)


def _entry(one: Alteration) -> dict[str, Any]:
    return {
        "gpu_uuid": one.gpu_uuid,
        "setting": one.setting,
        "before": one.before,
        "now": one.now,
        "since_unix_s": one.since_unix_s,
        "set_unix_s": one.extra.get("set_unix_s"),
        "state": one.extra.get("state"),
    }


def _claim(one: Alteration) -> SettingClaim:
    by = str(one.extra.get("by", ""))
    return SettingClaim(by, one.gpu_uuid, one.gpu_index, one.setting, one.before, one.now, one.since_unix_s)
