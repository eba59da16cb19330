"""The proof that a setting has an effect, from readings under load. The command that locks a clock
can report success and change nothing, and NVML has no call that returns the locked clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from workbench.engines import memory_locks
from workbench.engines.gpu_table import find_gpu_type
from workbench.gpu.settings.alterations import lock_drift_message, select_locks_in_force
from workbench.gpu.settings.clock_contrasts import (
    BINDING_LIMITER_SHARE,
    CLOCK_TOLERANCE_MHZ,
    MIN_CONTRAST_MHZ,
    MIN_LOADED_UTILIZATION_PCT,
    MIN_READINGS,
    POWER,
    ContrastEvidence,
    MeasuredClock,
    causes_of_lower_clock,
    clock_mhz_limited_by_lock,
    collect_measured_clocks,
    find_clock_that_ignores_lock,
    find_clock_that_proves_lock,
    find_lower_clock_without_lock,
    is_within_lock,
    limiter_of_difference,
    select_readings_under_load,
)
from workbench.gpu.settings.setting_traps import Trap, fill_in_trap, memory_lock_trap
from workbench.gpu.telemetry.reading_buffer import (
    BenchmarkReading,
    Moment,
    known_values_of_field,
)
from workbench.model.gpu import GpuInfo, Telemetry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import WATTS_EQUAL
from workbench.model.setting_records import Alteration, InForce
from workbench.model.settings import (
    GPU_CLOCKS,
    HOST_INDEX,
    MEMORY_CLOCKS,
    PERSISTENCE,
    POWER_LIMIT,
    ClockRange,
    ClockSetting,
    setting_of,
)

MIN_HOLDING_SHARE = 0.9  # share of the readings under load within the lock
MAX_POWER_OVER_LIMIT = 1.05  # power is a mean over 1 s and may pass the limit for a moment
STUCK_CLOCK_MHZ = 900  # below this a loaded GB10 shows the fault of "gb10.hidden-cap"
TRAPS_OF_WHOLE_CARD = (
    "persistence.off",
)  # traps of all settings of a card: reported once, not with each
UNSHOWN_VERDICTS = (InForce.NO_EFFECT, InForce.CONSISTENT)
PROVES_NOTHING_TEXT = "is consistent, which proves nothing"
CONSISTENT = str(InForce.CONSISTENT)
UNNAMED_LIMITER = "what the driver does not name"


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on one setting. `short` is a short text for the GPU's row. `text` names the
    requested and the observed value, and the cause of a difference if it is known. `observed` is in
    the setting's unit (MHz, W). `share` is the share (0 to 1) of the samples that support the
    verdict; for a power limit, the share in which the limit lowered the clocks."""

    gpu_index: int
    setting: str
    in_force: InForce
    short: str
    text: str
    samples: int
    requested: str = ""
    observed: float | None = None
    share: float | None = None
    limiter: str | None = None
    traps: tuple[Trap, ...] = ()

    @property
    def storage_key_prefix(self) -> str:
        """The first part of the key under which a result stores this setting: "gpu0", or "host" for
        a setting of the CPU cores."""
        return "host" if self.gpu_index == HOST_INDEX else f"gpu{self.gpu_index}"

    @property
    def gpu_or_host_name(self) -> str:
        return self.storage_key_prefix if self.gpu_index == HOST_INDEX else f"GPU{self.gpu_index}"

    @property
    def summary_line(self) -> str:
        return f"{self.gpu_or_host_name}: {self.text}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "in_force": str(self.in_force)}


def assess_effects_of_settings(
    alterations: Sequence[Alteration],
    moments: Sequence[Moment],
    telemetry: Telemetry | None = None,
    known: ContrastEvidence | None = None,
) -> tuple[Proof, ...]:
    """Return the verdict on every altered setting: on clocks and power from the readings under
    load, on all others from the values in `telemetry`. `known` has clocks that were measured
    before, under the same load with another lock or none."""
    known = known or ContrastEvidence()
    on = select_locks_in_force(alterations, known.others)
    now = collect_measured_clocks(on, moments, telemetry, known.load) if telemetry else ()
    clocks = {(clock.gpu_uuid, clock.setting): clock for clock in now}
    proofs = []
    for one in alterations:
        found = _proof_of_replaced_lock(one, known.others) or assess_effect_under_load(one, moments)
        if found is None and telemetry is not None:
            found = _proof_from_reported_value(one, telemetry)
        if found is None:
            continue
        clock = clocks.get((one.gpu_uuid, one.setting))
        if found.in_force is InForce.CONSISTENT:
            found = _judge_lock_by_contrast(found, one, clock, known)
        elif found.in_force is InForce.NO_EFFECT and clock is not None:
            found = _assess_unreached_lock_minimum(found, clock, known)
        proofs.append(_add_traps(found, telemetry))
    return tuple(proofs)


def _proof_of_replaced_lock(one: Alteration, others: Sequence[Alteration]) -> Proof | None:
    said = lock_drift_message(one, others)
    if not said:
        return None
    what = _name_of_clock_lock(one.setting)
    text = f"{what} changed by someone else: {said}"
    return Proof(one.gpu_index, one.setting, InForce.CHANGED, f"{what} ▲ changed", text, 1)


def assess_effect_under_load(alteration: Alteration, moments: Sequence[Moment]) -> Proof | None:
    """Return the verdict whether one changed setting has an effect, from the readings under load
    alone. None if a load cannot show that, as for persistence mode or for a clock lock that was
    reset."""
    readings = select_readings_under_load(moments, alteration.gpu_index)
    setting, now = setting_of(alteration.setting), alteration.now
    found: Proof | None = None
    if setting.proof == "power" and isinstance(now, int | float):
        found = _assess_power_limit(alteration, float(now), readings)
    elif isinstance(setting, ClockSetting) and isinstance(now, ClockRange):
        found = _assess_clock_lock(alteration, setting, now, readings)
    if found is not None and found.in_force is InForce.NOT_CHECKED:
        most = _highest_utilization_text(moments, alteration.gpu_index)
        return replace(found, text="; ".join(filter(None, [found.text, most])))
    return found


def _highest_utilization_text(moments: Sequence[Moment], gpu_index: int) -> str:
    found = [r for moment in moments for r in moment.gpus if r.gpu_index == gpu_index]
    if not found:
        return ""
    return (
        f"the GPU was at most {max(r.gpu_util_pct or 0.0 for r in found):.0f} % busy, and readings "
        f"count from {MIN_LOADED_UTILIZATION_PCT:.0f} %"
    )


def _judge_lock_by_contrast(
    proof: Proof, one: Alteration, clock: MeasuredClock | None, known: ContrastEvidence
) -> Proof:
    """Return `proof`, whose clock agrees with its lock, with the verdict of a contrast: "in force"
    if a clock with another lock or none proves that this lock works, "no effect" if it proves the
    opposite. If there is no such clock, only add the reason to the text. `clock` is the present
    clock, None if it was not measured."""
    other = find_clock_that_proves_lock(clock, known.clocks) if clock else None
    if other is not None or known.is_effect_shown(one):
        how = ", as a contrast showed before"
        if other is not None:
            how = f"; under the same load the clock was {_compared_clock_text(other)}"
        text = proof.text.replace(PROVES_NOTHING_TEXT, "is in force", 1) + how
        return replace(
            proof, in_force=InForce.YES, short=proof.short.replace(CONSISTENT, "ok"), text=text
        )
    deaf = find_clock_that_ignores_lock(clock, known.clocks) if clock else None
    if deaf is not None or known.is_effect_refuted(one):
        how = ", as a contrast showed before"
        if deaf is not None:
            how = f": the clock was {_compared_clock_text(deaf)} too"
        text = f"{proof.text.partition(PROVES_NOTHING_TEXT)[0]}has no effect{how}"
        short = f"▲ {proof.short.replace(CONSISTENT, 'has no effect')}"
        return replace(proof, in_force=InForce.NO_EFFECT, short=short, text=text)
    return replace(proof, text=f"{proof.text}; {_why_effect_is_unproven(clock, known)}")


def _why_effect_is_unproven(clock: MeasuredClock | None, known: ContrastEvidence) -> str:
    unknown = "the card's clock without the lock is unknown"
    if clock is None:
        return unknown
    other = next(filter(clock.differs_only_in_lock, reversed(known.clocks)), None)
    if other is None:
        return unknown
    text = f"the clock was {_compared_clock_text(other)}"
    why = limiter_of_difference(clock, other)
    if not why or abs(clock.mhz - other.mhz) < MIN_CONTRAST_MHZ:
        return f"{text} too"
    return f"{text}, and {why} may explain that"


def _assess_unreached_lock_minimum(
    proof: Proof, clock: MeasuredClock, known: ContrastEvidence
) -> Proof:
    """Return `proof` with the verdict "capped" if a clock measured without a lock proves that the
    lock raised `clock`, but not up to the lock's minimum. Otherwise return `proof`."""
    other = find_lower_clock_without_lock(clock, known.clocks)
    if other is None:
        return proof
    what = _name_of_clock_lock(proof.setting)
    text = (
        f"{what} {proof.requested} is not reached: capped by {UNNAMED_LIMITER}, observed "
        f"{proof.observed:.0f} MHz;"
        f" under the same load the clock was {_compared_clock_text(other)}"
    )
    short = f"▲ {what} capped by {UNNAMED_LIMITER}"
    return replace(proof, in_force=InForce.CAPPED, short=short, text=text, limiter=UNNAMED_LIMITER)


def _compared_clock_text(clock: MeasuredClock) -> str:
    if clock.lock is None:
        return f"{clock.mhz} MHz without the lock"
    return f"{clock.mhz} MHz with a lock of {GPU_CLOCKS.format(clock.lock)}"


def _name_of_clock_lock(setting: str) -> str:
    return "memory lock" if setting == MEMORY_CLOCKS.key else "lock"


def _assess_clock_lock(
    one: Alteration, setting: ClockSetting, lock: ClockRange, readings: Sequence[BenchmarkReading]
) -> Proof:
    what = _name_of_clock_lock(one.setting)
    wanted = setting.input_text(lock)
    clocks_mhz: list[int] = []
    outside_mhz: list[int] = []
    below: list[BenchmarkReading] = []
    for reading in readings:
        mhz = clock_mhz_limited_by_lock(reading, setting)
        if mhz is None:
            continue
        clocks_mhz.append(mhz)
        if not is_within_lock(mhz, lock):
            outside_mhz.append(mhz)
            if mhz < lock.min_mhz:
                below.append(reading)
    count = len(clocks_mhz)
    if count < MIN_READINGS:
        return _proof_with_few_readings(one, what, count, f"{wanted} MHz")
    share = len(outside_mhz) / count
    seen = round(median(outside_mhz or clocks_mhz))

    def make_proof(
        verdict: InForce, short: str, text: str, share: float, limiter: str | None = None
    ) -> Proof:
        return Proof(
            one.gpu_index,
            one.setting,
            verdict,
            short,
            text,
            count,
            f"{wanted} MHz",
            seen,
            share,
            limiter,
        )

    if 1 - share >= MIN_HOLDING_SHARE:
        seen_in = f"{seen} MHz in {_percent_text(1 - share)} of {count} readings under load"
        text = f"{what} {wanted} MHz {PROVES_NOTHING_TEXT}: {seen_in}"
        return make_proof(InForce.CONSISTENT, f"{what} {wanted} {CONSISTENT}", text, 1 - share)
    limiter, bound = _main_limiter_and_limited_count(
        below, {POWER} if setting is MEMORY_CLOCKS else set()
    )
    if not (limiter and bound >= BINDING_LIMITER_SHARE * len(outside_mhz)):
        # Reached now and then, and the driver names no limiter for the rest: neither "in force" nor
        # "no effect".
        is_never_above = len(below) == len(outside_mhz)
        limiter = UNNAMED_LIMITER if is_never_above and share < MIN_HOLDING_SHARE else None
    if limiter:
        text = (
            f"{what} {wanted} MHz is not reached: capped by {limiter} for {_percent_text(share)} of the "
            "time, "
            f"observed {seen} MHz then"
        )
        return make_proof(
            InForce.CAPPED,
            f"▲ {what} capped by {limiter}, {_percent_text(share)}",
            text,
            share,
            limiter,
        )
    text = (
        f"{what} has no effect: requested {wanted} MHz, observed {seen} MHz for {_percent_text(share)} of "
        f"{count} readings"
    )
    return make_proof(InForce.NO_EFFECT, f"▲ {what} {wanted} has no effect", text, share)


def _assess_power_limit(
    one: Alteration, limit_w: float, readings: Sequence[BenchmarkReading]
) -> Proof:
    watts = known_values_of_field(readings, "power_w")
    wanted = f"{limit_w:g} W"
    limits = known_values_of_field(readings, "limit_w")
    others = [limit for limit in limits if abs(limit - limit_w) > WATTS_EQUAL]
    if others:
        text = f"power limit changed by someone else: now {others[-1]:g} W, Workbench set {wanted}"
        short = f"▲ limit now {others[-1]:g} W"
        return Proof(
            one.gpu_index,
            one.setting,
            InForce.CHANGED,
            short,
            text,
            len(others),
            wanted,
            others[-1],
        )
    if len(watts) < MIN_READINGS:
        return _proof_with_few_readings(one, "power limit", len(watts), wanted)
    over = sum(w > limit_w * MAX_POWER_OVER_LIMIT for w in watts) / len(watts)
    seen = median(watts)

    def make_proof(
        verdict: InForce, short: str, text: str, share: float, limiter: str | None = None
    ) -> Proof:
        return Proof(
            one.gpu_index,
            one.setting,
            verdict,
            short,
            text,
            len(watts),
            wanted,
            round(seen, 1),
            share,
            limiter,
        )

    if over >= BINDING_LIMITER_SHARE:
        text = (
            f"power limit has no effect: requested {wanted}, {seen:.0f} W drawn, above it "
            f"{_percent_text(over)} of the time"
        )
        return make_proof(InForce.NO_EFFECT, f"▲ limit {wanted} has no effect", text, over)
    bound = sum("power" in causes_of_lower_clock(r) for r in readings) / len(readings)
    binds = "it did not bind"
    if bound:
        binds = f"it held the clocks down for {_percent_text(bound)} of the time"
    text = f"power limit {wanted} is in force: {seen:.0f} W drawn; {binds}"
    if over > 1 - MIN_HOLDING_SHARE:
        text += f"; passed in {_percent_text(over)} of the readings"
    return make_proof(InForce.YES, f"limit {wanted} ok", text, bound, "power" if bound else None)


def _proof_from_reported_value(one: Alteration, telemetry: Telemetry) -> Proof | None:
    """Return the verdict whether a setting has an effect, from the host's present value. None for a
    clock lock or a power limit, which only a load can prove."""
    setting = setting_of(one.setting)
    if setting.proof != "reading":
        return None
    found = setting.current_value(telemetry, one.gpu_uuid)
    wanted, seen = setting.format(one.now), setting.format(found)
    if found is None:
        verdict, short, text = (
            InForce.NOT_CHECKED,
            "",
            (f"{setting.label}: not checked, the host does not report it"),
        )
    elif found == one.now:
        verdict, short, text = InForce.YES, "", f"{setting.label} is {wanted}"
    else:
        verdict, short = InForce.CHANGED, f"▲ {setting.label} now {seen}"
        text = f"{setting.label} changed by someone else: now {seen}, Workbench set {wanted}"
    return Proof(one.gpu_index, one.setting, verdict, short, text, int(found is not None), wanted)


def _proof_with_few_readings(one: Alteration, what: str, count: int, wanted: str) -> Proof:
    text = f"{what}: not checked, {count} readings under load ({MIN_READINGS} are needed)"
    return Proof(one.gpu_index, one.setting, InForce.NOT_CHECKED, "", text, count, wanted)


def _main_limiter_and_limited_count(
    readings: Sequence[BenchmarkReading], ignored: AbstractSet[str]
) -> tuple[str | None, int]:
    """Return (what most often lowered the clock according to the driver, such as "power", or None;
    number of readings that name any cause). Causes in `ignored` are ignored, because they do not
    lower this clock: a power limit lowers the SM clock, not the memory clock."""
    named = [causes_of_lower_clock(r) - ignored for r in readings]
    counts = Counter(word for words in named for word in sorted(words))
    return (counts.most_common(1)[0][0] if counts else None), sum(map(bool, named))


def _percent_text(share: float) -> str:
    """Return a share (0 to 1) as a percentage. A share near 0 or 1 is not rounded to "0 %" or "100
    %"."""
    percent = round(100 * share)
    if 0 < share < 1:
        percent = min(99, max(1, percent))
    return f"{percent} %"


# -- traps -----------------------------------------------------------------------------------------


def _add_traps(proof: Proof, telemetry: Telemetry | None) -> Proof:
    info = telemetry.info(proof.gpu_index) if telemetry else None
    found = tuple(_traps_for_proof(proof, info, telemetry))
    if not found:
        return proof
    text = "; ".join(
        [proof.text, *(one.text for one in found if one.id not in TRAPS_OF_WHOLE_CARD)]
    )
    return replace(proof, text=text, traps=found)


def _traps_for_proof(proof: Proof, info: GpuInfo | None, telemetry: Telemetry | None) -> list[Trap]:
    """Return the known causes that can explain this verdict on this card, such as a limit of the
    hardware, the most likely first."""
    known = find_gpu_type(info.name) if info else None
    chip, normal_mhz = "", None
    if known is not None:
        chip, normal_mhz = known.chip, known.memory_under_compute_mhz
    found: list[Trap] = []
    if proof.in_force is InForce.NOT_CHECKED:
        return found
    if proof.setting == MEMORY_CLOCKS.key:
        found += _memory_lock_traps(proof, normal_mhz, chip)
    elif proof.setting == GPU_CLOCKS.key and proof.in_force in UNSHOWN_VERDICTS:
        found += _clock_lock_traps(proof, info, chip)
    elif (proof.setting, proof.in_force, proof.limiter) == (POWER_LIMIT.key, InForce.YES, None):
        found.append(fill_in_trap("power.not-binding"))
    if proof.limiter == UNNAMED_LIMITER:
        found.append(fill_in_trap("lock.unknown-limiter"))
    persistence = _gpu_persistence_mode(proof.gpu_index, telemetry)
    if proof.setting != PERSISTENCE.key and persistence is False:
        found.append(fill_in_trap("persistence.off"))
    return found


def _clock_lock_traps(proof: Proof, info: GpuInfo | None, chip: str) -> list[Trap]:
    found: list[Trap] = []
    if proof.observed is None:
        return found
    if chip.endswith("GB10") and proof.observed < STUCK_CLOCK_MHZ:
        found.append(fill_in_trap("gb10.hidden-cap"))
    elif proof.in_force is InForce.NO_EFFECT and proof.observed < _lowest_locked_mhz(proof):
        found.append(fill_in_trap("clock.max-is-not-sustained"))
    if info is not None and info.virtualization not in (None, "none"):
        found.append(fill_in_trap("lock.success-is-a-request"))
    return found


def _memory_lock_traps(proof: Proof, normal_mhz: int | None, chip: str) -> list[Trap]:
    found = []
    observed_mhz = proof.observed or 0
    if proof.in_force is InForce.NO_EFFECT:
        if normal_mhz and abs(observed_mhz - normal_mhz) <= CLOCK_TOLERANCE_MHZ:
            found.append(fill_in_trap("memory.normal-clock", mhz=normal_mhz))
        elif observed_mhz < _lowest_locked_mhz(proof):
            found.append(fill_in_trap("clock.max-is-not-sustained"))
    elif proof.in_force is InForce.CONSISTENT and proof.requested == f"{normal_mhz} MHz":
        found.append(fill_in_trap("memory.lock-is-where-it-runs", mhz=normal_mhz))
    if chip == memory_locks.CHIP:
        found.append(memory_lock_trap())
    return found


def _lowest_locked_mhz(proof: Proof) -> int:
    return int(proof.requested.removesuffix(" MHz").partition("-")[0])


def _gpu_persistence_mode(gpu_index: int, telemetry: Telemetry | None) -> bool | None:
    if telemetry is None:
        return None
    return next((s.persistence for s in telemetry.gpus if s.index == gpu_index), None)
