"""Whether a setting holds, judged from readings under load: a clock lock that returns success may change nothing, and
the driver has no call that tells (NVML has no getter for locked clocks)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from workbench.gpu.history import Moment, Reading
from workbench.model.settings import Alteration, InForce

LOADED_PCT = 50.0  # utilization from which a reading says something: an idle GPU lowers its clocks whatever is locked
SLACK_MHZ = 30  # clocks move in steps of 15 MHz (GeForce and RTX PRO) or less
ENOUGH = 5  # readings under load
HOLDS_SHARE = 0.9  # of the readings under load within the lock
BINDS_SHARE = 0.5  # of the readings outside it that name a limiter
OVER_LIMIT = 1.05  # power is a mean over 1 s and may pass the limit for a moment
CAPS = {
    "SW power cap": "power",
    "HW power brake slowdown": "power",
    "SW thermal slowdown": "temperature",
    "HW thermal slowdown": "temperature",
    "HW slowdown": "a hardware slowdown",
}


@dataclass(frozen=True, slots=True)
class Proof:
    """`short` fits a GPU's row; `text` says what was asked for, what was seen, and why where that is known."""

    gpu_index: int
    setting: str
    in_force: InForce
    short: str
    text: str
    samples: int


def judge(alteration: Alteration, moments: Sequence[Moment]) -> Proof | None:
    """What the readings say of one setting; None where it is not one that load can show (persistence, a reset)."""
    readings = [
        r
        for moment in moments
        for r in moment.gpus
        if r.gpu_index == alteration.gpu_index and (r.gpu_util_pct or 0.0) >= LOADED_PCT
    ]
    if alteration.setting == "power_limit_w" and isinstance(alteration.now, int | float):
        return _power(alteration, float(alteration.now), readings)
    asked = _range(alteration.now) if alteration.setting in ("gpu_clocks", "memory_clocks") else None
    return _clocks(alteration, asked, readings) if asked else None


def _range(value: object) -> tuple[int, int] | None:
    """The two of "3000,3090"; None for a reset."""
    low, comma, high = str(value).partition(",")
    return (int(low), int(high)) if comma and low.isdigit() and high.isdigit() else None


def _clocks(one: Alteration, asked: tuple[int, int], readings: Sequence[Reading]) -> Proof:
    low, high = asked
    what = "memory lock" if one.setting == "memory_clocks" else "lock"
    pairs = [(mhz, r) for r in readings if (mhz := _clock(r, one.setting)) is not None]
    if len(pairs) < ENOUGH:
        return _unproven(one, what, len(pairs))
    outside = [(mhz, r) for mhz, r in pairs if not low - SLACK_MHZ <= mhz <= high + SLACK_MHZ]
    share = len(outside) / len(pairs)
    seen = round(median(mhz for mhz, _ in (outside or pairs)))
    wanted = f"{low}-{high}" if low != high else f"{low}"
    if 1 - share >= HOLDS_SHARE:
        text = f"{what} {wanted} MHz is in force: {seen} MHz in {1 - share:.0%} of {len(pairs)} readings under load"
        return Proof(one.gpu_index, one.setting, InForce.YES, f"{what} {wanted} ok", text, len(pairs))
    limiter, bound = _limiter([r for mhz, r in outside if mhz < low])
    if limiter and bound >= BINDS_SHARE * len(outside):
        text = (
            f"{what} {wanted} MHz is in force but capped by {limiter} for {len(outside) / len(pairs):.0%} of the time: "
            f"seen {seen} MHz then"
        )
        return Proof(one.gpu_index, one.setting, InForce.CAPPED, f"{what} ▲ capped by {limiter} {share:.0%}", text,
                     len(pairs))  # fmt: skip
    text = f"{what} has no effect: requested {wanted} MHz, observed {seen} MHz for {share:.0%} of {len(pairs)} readings"
    if seen < low:
        text += " (a table's maximum is not a sustained clock: voltage and power limits hold against a lock)"
    short = f"{seen}>={low}? {what} ▲ no effect" if seen < low else f"{seen}<={high}? {what} ▲ no effect"
    return Proof(one.gpu_index, one.setting, InForce.NO_EFFECT, short, text, len(pairs))


def _power(one: Alteration, limit_w: float, readings: Sequence[Reading]) -> Proof:
    watts = [r.power_w for r in readings if r.power_w is not None]
    if len(watts) < ENOUGH:
        return _unproven(one, "power limit", len(watts))
    over = sum(w > limit_w * OVER_LIMIT for w in watts) / len(watts)
    seen = median(watts)
    if over > 1 - HOLDS_SHARE:
        text = f"power limit {limit_w:g} W has no effect: {seen:.0f} W drawn, above it in {over:.0%} of the readings"
        return Proof(one.gpu_index, one.setting, InForce.NO_EFFECT, f"{seen:.0f}>{limit_w:g} W ▲ no effect", text,
                     len(watts))  # fmt: skip
    _, bound = _limiter(readings)
    binds = f"it held the clocks down in {bound / len(readings):.0%} of the readings" if bound else "it did not bind"
    text = f"power limit {limit_w:g} W is in force: {seen:.0f} W drawn; {binds}"
    return Proof(one.gpu_index, one.setting, InForce.YES, f"limit {limit_w:g} W ok", text, len(watts))


def _unproven(one: Alteration, what: str, count: int) -> Proof:
    text = f"{what}: not checked, {count} readings under load ({ENOUGH} are needed)"
    return Proof(one.gpu_index, one.setting, InForce.NOT_CHECKED, "", text, count)


def _clock(reading: Reading, setting: str) -> int | None:
    return reading.memory_mhz if setting == "memory_clocks" else reading.sm_mhz


def _limiter(readings: Sequence[Reading]) -> tuple[str | None, int]:
    """The limiter named most often, and in how many readings any was named."""
    named = [{CAPS[name] for name in r.event_reasons or () if name in CAPS} for r in readings]
    counts = Counter(word for words in named for word in words)
    return (counts.most_common(1)[0][0] if counts else None), sum(bool(words) for words in named)
