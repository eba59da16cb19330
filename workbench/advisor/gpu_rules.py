"""Rules about the GPUs of a run: power limits, clocks, locks, temperature and virtualization."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from workbench.advisor.advice import (
    THRIFT,
    Advice,
    Gain,
    Rule,
    format_share_as_percent,
    make_advice,
    rule_about,
)
from workbench.advisor.facts import NODES_OF_ONE_GPU, Facts, GpuFacts
from workbench.model.bench import GpuDuring, PcieDuring
from workbench.model.counts import gpus_text
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import InForce
from workbench.model.settings import POWER_LIMIT, label_of, split_target_and_setting

_POWER_CAP = "SW power cap"
# "HW slowdown" alone can also be a power brake
THERMAL_REASONS = ("SW thermal slowdown", "HW thermal slowdown")
_OFTEN = 0.2  # share of a run
_AT_LIMIT = 0.97  # of the power limit
_BELOW_LIMIT = 0.93
_LOW_POWER = 0.6  # of the rated power
_BUSY_PCT = 90.0
_HOT_C = 5.0  # below the temperature at which the card slows down
_DRIFTED = 0.98  # of the clock of an earlier result
_SLOWER = 0.97  # of the speed of an earlier result
_STUCK_MHZ = 1000.0
_LOADED_PCT = 50.0
# Of its nominal bandwidth a link carries about 85 %: copies between GPUs reach 25.9 of 31.5 GB/s.
# In prefill, experts in the host's memory took 57 and 68 % of that, and two cards that exchange
# data 39 %. In decoding, all of them took 0 to 3 %.
_USABLE_LINK = 0.85
_LINK_BOUND = 0.5
_SHARED_LINK = 0.2
_PEAK_FAR_BELOW = 0.5
_PCIE_BOUND = (Level.WARN, "pcie.bound", "PCIe-bound")
_PCIE_SHARED = (Level.HINT, "pcie.shared", "the PCIe link takes a part of the time")
_PCIE_MEASURED = (
    "https://github.com/noonghunna/club-3090/issues/931, 986 and 1098 (measured traffic); "
    "https://github.com/ikawrakow/ik_llama.cpp/pull/1018 (what a link carries)"
)
_MMBT = "https://github.com/Light-Heart-Labs/MMBT-Messy-Model-Bench-Tests"
_MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield"


@dataclass(frozen=True, slots=True)
class LowerCap:
    """A lower power limit at which, according to a measurement, one stream decodes almost as fast:
    the limit in watts, the loss of speed in percent, and the source of the measurement."""

    watts: float
    speed_loss_pct: float
    source: str


# Row of engines/gpu_table.json -> the lower limit.
_LOWER_CAPS: Mapping[str, LowerCap] = {
    "rtx-pro-6000-ws": LowerCap(
        400.0, 1.1, f"{_MMBT} (power sweep of 2026-04-29: 600 to 400 W costs 1.1 %)"
    ),
    "rtx-5060ti-16": LowerCap(
        150.0,
        1.0,
        "https://inventivehq.com/blog/gpu-power-limit-tokens-per-watt (180 to 150 W costs 1 %)",
    ),
}
_RATED_W = {"gb10": 140.0}  # thermal design power of GPUs that report no power limit


class _Power(NamedTuple):
    """The mean power of a GPU during the run, its power limit, and the highest limit that it
    allows."""

    gpu: int
    watts: float
    limit_w: float
    highest_limit_w: float | None

    @property
    def fraction_of_limit(self) -> float:
        return self.watts / self.limit_w


def _list_gpus_with_known_power(facts: Facts) -> list[_Power]:
    """Return the power of each GPU whose power and limit are known."""
    found = []
    for gpu in facts.gpus:
        highest_w = gpu.power_max_w or gpu.power_default_w
        if gpu.power_w and gpu.limit_w:
            found.append(_Power(gpu.index, gpu.power_w, gpu.limit_w, highest_w))
    return found


class _Drop(NamedTuple):
    """A clock or a speed that is lower than the one to which it is compared."""

    low: float
    high: float


def _find_drop(value: float | None, reference: float | None, fraction: float) -> _Drop | None:
    """Return `value` and `reference` if the value is below this fraction of the reference. None if
    it is not, or if one of them is unknown."""
    if not value or not reference:
        return None
    return _Drop(value, reference) if value < fraction * reference else None


def _is_power_capped(facts: Facts) -> bool:
    return facts.fraction_of_run_limited_by(_POWER_CAP) >= _OFTEN


def report_power_cap(facts: Facts) -> Iterator[Advice]:
    """Report whether the GPUs run at their power limits, and whether the GPUs of one server have
    different power limits."""
    known = _list_gpus_with_known_power(facts)
    if not known or facts.summary is None:
        return
    binding = [power for power in known if power.fraction_of_limit >= _AT_LIMIT]
    if len({power.limit_w for power in known}) > 1:
        yield _make_unequal_power_limit_advice(known, binding)
    if binding or _is_power_capped(facts):
        yield _make_power_limited_advice(facts, binding or known)
        return
    evidence = _format_gpu_powers(known)
    if max(power.fraction_of_limit for power in known) > _BELOW_LIMIT:
        share = format_share_as_percent(facts.fraction_of_run_limited_by(_POWER_CAP))
        text = f"the power limit hardly binds: {evidence}, and the driver names it in {share} of the run"
        fix = "raising the power limit would gain little"
        yield make_advice(Level.INFO, "power.near", text, fix=fix, evidence=evidence)
    else:
        text = f"the power limit does not bind: {evidence}. Raising it changes nothing"
        source = _format_rtx_pro_6000_source(
            facts, " (single-stream decoding draws 483 to 522 W of 600 W)"
        )
        yield make_advice(Level.INFO, "power.not-binding", text, evidence=evidence, source=source)


def _format_rtx_pro_6000_source(facts: Facts, about: str = "") -> str:
    """Return the source of the measurements of an RTX PRO 6000; "" without such a GPU."""
    if "rtx-pro-6000-ws" in facts.gpu_type_ids:
        return f"{_MMBT}{about}"
    return ""


def _format_gpu_powers(powers: list[_Power]) -> str:
    groups: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
    for power in powers:
        groups[round(power.watts), round(power.limit_w)].append(power.gpu)
    texts = []
    for (watts, limit_w), indexes in groups.items():
        texts.append(f"{gpus_text(indexes)} {watts:.0f} of {limit_w:.0f} W")
    return ", ".join(texts)


def _make_unequal_power_limit_advice(powers: list[_Power], binding: list[_Power]) -> Advice:
    limits: defaultdict[float, list[int]] = defaultdict(list)
    for power in powers:
        limits[power.limit_w].append(power.gpu)
    listed = ", ".join(
        f"{gpus_text(indexes)} {watts:.0f} W" for watts, indexes in sorted(limits.items())
    )
    level, text = Level.INFO, f"the GPUs of this server have different power limits ({listed})"
    if binding:
        level = Level.WARN
        text += ": ranks that wait for each other are as fast as the slowest"
    fix = "set the same power limit on all of them, unless that is on purpose"
    evidence = _format_gpu_powers(powers)
    return make_advice(level, "power.unequal-caps", text, fix=fix, evidence=evidence)


def _make_power_limited_advice(facts: Facts, powers: list[_Power]) -> Advice:
    most = _common_value_or_none({power.highest_limit_w for power in powers})
    share = format_share_as_percent(facts.fraction_of_run_limited_by(_POWER_CAP))
    evidence = _format_gpu_powers(powers)
    text = f"the power limit binds: {evidence}, and the driver names it in {share} of the run"
    if facts.is_memory_bound:
        text += ". Decoding is memory-bound, so a higher SM clock gains little"
    if most is not None and max(power.limit_w for power in powers) < most:
        setting = f"{POWER_LIMIT.name}={most:g}"
        fix = f"measure {setting}: more watts are a gain only if tok/s rise as well"
        return make_advice(
            Level.HINT, "power.binding", text, fix=fix, evidence=evidence, settings=(setting,)
        )
    fix = (
        "the limit is the card's highest, or its range is unknown; only better cooling or less "
        "computation can help"
    )
    return make_advice(Level.INFO, "power.binding", text, fix=fix, evidence=evidence)


def _find_lower_cap(facts: Facts) -> LowerCap | None:
    """Return the lower power limit for the type of the GPUs. None if they are of several types, or
    if none was measured for the type."""
    types = facts.gpu_type_ids
    return _LOWER_CAPS.get(next(iter(types))) if len(types) == 1 else None


@rule_about(_find_lower_cap)
def report_useful_lower_cap(facts: Facts, cap: LowerCap) -> Iterator[Advice]:
    """Report a lower power limit that would save energy and cost little speed of one stream. The
    gain is in tokens per joule."""
    if facts.streams != 1 or not facts.is_memory_bound:
        return
    least_w = min((g.power_w for g in facts.gpus if g.power_w), default=0.0)
    if least_w <= 1.02 * cap.watts:
        return
    gain = 100 * ((1 - cap.speed_loss_pct / 100) * least_w / cap.watts - 1)
    setting = f"{POWER_LIMIT.name}={cap.watts:g}"
    text = (
        f"one stream is not limited by the SM clock: a limit of {cap.watts:g} W costs about "
        f"{cap.speed_loss_pct:g} % of"
    )
    text += " tok/s. More watts or higher clocks at equal tok/s are a loss"
    yield make_advice(
        Level.HINT,
        "clock.single-stream-flat",
        text,
        fix=f"measure {setting}, with tok/J as the metric",
        evidence=f"{least_w:.0f} W per GPU",
        source=cap.source,
        settings=(setting,),
        gain=Gain(gain, gain, THRIFT),
    )


@rule_about(Facts.find_gpu_during_benchmark)
def report_heat(facts: Facts, gpu: GpuDuring) -> Iterator[Advice]:
    """Report that heat lowered the clocks, or that a GPU came close to the temperature at which it
    slows down."""
    slowed = []
    for name in THERMAL_REASONS:
        share = facts.fraction_of_run_limited_by(name)
        if share > 0.01:
            slowed.append(f"{name} in {format_share_as_percent(share)}")
    limits = [g.temperature_slowdown_c for g in facts.gpus if g.temperature_slowdown_c]
    fix = (
        "lower the power limit or improve the cooling; unlocking the clocks does not lower the heat"
    )
    hottest = gpu.temperature_c
    if slowed:
        text = f"the GPUs slowed down because of heat: {', '.join(slowed)} of the run"
        evidence = ""
        if hottest is not None:
            evidence = f"at most {hottest:.0f} °C"
        yield make_advice(Level.WARN, "thermal.remedy", text, fix=fix, evidence=evidence)
    elif hottest is not None and hottest >= min(limits, default=math.inf) - _HOT_C:
        text = (
            f"a GPU reached {hottest:.0f} °C, near the {min(limits):.0f} °C at which it slows down"
        )
        yield make_advice(Level.HINT, "thermal.remedy", text, fix=fix, evidence=f"{hottest:.0f} °C")


@rule_about(Facts.find_gpu_during_benchmark)
def report_clocks_below_highest(facts: Facts, gpu: GpuDuring) -> Iterator[Advice]:
    """Report that the SM or memory clock under load was below the highest clock that the driver
    lists, which is normal. For the memory clock, also report how much a lock at the highest clock
    could gain at most."""
    highest_sm = _common_value_or_none({g.sm_max_mhz for g in facts.gpus})
    highest = _common_value_or_none({g.memory_max_mhz for g in facts.gpus})
    sm_drop = _find_drop(gpu.sm_mhz, highest_sm, 0.97)
    if sm_drop is not None and not _is_power_capped(facts):
        yield _sm_clock_advice(facts, *sm_drop)
    memory_drop = _find_drop(gpu.memory_mhz, highest, 0.99)
    if memory_drop is not None:
        yield _memory_clock_advice(facts, *memory_drop)


def _common_value_or_none(found: set[float | None]) -> float | None:
    """Return the value that all GPUs have in common; None if they differ."""
    if len(found) > 1:
        return None
    return next(iter(found), None)


def _sm_clock_advice(facts: Facts, mhz: float, highest_mhz: float) -> Advice:
    text = f"{highest_mhz:.0f} MHz is the highest SM clock of the table, not one that the card sustains"
    evidence = f"SM {mhz:.0f} of {highest_mhz:.0f} MHz under load, no limit named by the driver"
    source = _format_rtx_pro_6000_source(facts)
    return make_advice(
        Level.INFO, "clock.max-is-not-sustained", text, evidence=evidence, source=source
    )


def _memory_clock_advice(facts: Facts, mhz: float, highest_mhz: float) -> Advice:
    most_pct = 100 * (highest_mhz / mhz - 1)
    normal = filter(None, (known.memory_under_compute_mhz for known in facts.gpu_types))
    runs_at = f"the memory runs at {mhz:.0f} of {highest_mhz:.0f} MHz"
    if any(abs(mhz - usual) < 0.01 * usual for usual in normal):
        runs_at += ", the normal clock of this card under compute"
    text = (
        f"{runs_at}: a lock could gain at most +{most_pct:.1f} %, and no published measurement "
        "shows this card at its highest memory clock"
    )
    evidence = f"memory {mhz:.0f} of {highest_mhz:.0f} MHz under load"
    source = _format_rtx_pro_6000_source(facts)
    return make_advice(Level.INFO, "promise.bound-by-clock", text, evidence=evidence, source=source)


def report_virtual_machine(facts: Facts) -> Iterator[Advice]:
    """Report that the server runs in a virtual machine, whose kernel offers no CPU governor and no
    C-states."""
    kinds = {g.virtualization for g in facts.gpus if g.virtualization not in (None, "none")}
    if not kinds:
        return
    text = (
        f"the GPU is in a virtual machine ({', '.join(sorted(map(str, kinds)))}): a guest has "
        "no CPU governor and no"
    )
    text += " C-states to set. Clocks below the table's highest are no sign of the hypervisor"
    fix = "set power management on the hypervisor's host; check a lock by the clocks under load"
    yield make_advice(
        Level.INFO, "env.guest", text, fix=fix, evidence="virtualization mode by NVML", source=_MMBT
    )


def report_settings_without_effect(facts: Facts) -> Iterator[Advice]:
    """Report GPU settings that had no effect under load."""
    idle = [place for place, seen in facts.in_force.items() if seen == InForce.NO_EFFECT]
    if idle:
        settings = (f"{gpu} {label_of(key)}" for gpu, key in map(split_target_and_setting, idle))
        text = f"these GPU settings had no effect under load: {', '.join(settings)}"
        yield make_advice(
            Level.HINT,
            "lock.noop",
            text,
            fix="revert the settings: workbench gpu revert",
            evidence="clocks under load",
        )


@rule_about(Facts.find_gpu_util_pct)
def report_busy_at_low_power(facts: Facts, util_pct: float) -> Iterator[Advice]:
    """Report a GPU with high utilization at low power: such a GPU is not under full load."""
    if util_pct < _BUSY_PCT:
        return
    shares, each = [], []
    for g in facts.gpus:
        rated_w = _find_rated_power_w(g)
        if g.power_w and rated_w:
            shares.append(g.power_w / rated_w)
            each.append(f"{g.power_w:.0f} of {rated_w:.0f} W")
    meaning = (
        "utilization is the share of time with at least one kernel on the GPU, also while "
        "it waits for others"
    )
    if max(shares, default=1.0) > _LOW_POWER:
        text = f"{util_pct:.0f} % utilization does not mean a full GPU: {meaning}"
        yield make_advice(
            Level.INFO, "util.definition", text, evidence=f"utilization {util_pct:.0f} %"
        )
        return
    text = f"{util_pct:.0f} % utilization at {format_share_as_percent(max(shares))} of the rated power: "
    level, why, fix = Level.INFO, "a memory-bound load", ""
    if not facts.is_memory_bound:
        level, why = Level.HINT, "the GPU waits"
        fix = "check for eager mode, synchronization between GPUs, or a stuck clock"
    evidence = f"utilization {util_pct:.0f} %, {', '.join(each)}"
    text = f"{text}{why}. U{meaning[1:]}"
    yield make_advice(level, "util-vs-power", text, fix=fix, evidence=evidence)


@rule_about(Facts.find_gpu_util_pct)
def report_idle_gpu_time(facts: Facts, util_pct: float) -> Iterator[Advice]:
    """Report that the GPUs ran no kernel for a part of a closed-loop run, because they waited for
    the host or the client."""
    if facts.streams is None or util_pct >= _BUSY_PCT:
        return
    power = ""
    if powers := _list_gpus_with_known_power(facts):
        most = max(power.fraction_of_limit for power in powers)
        power = f", at {format_share_as_percent(most)} of the power limit"
    text = (
        f"the GPUs ran no kernel in {100 - util_pct:.0f} % of the time{power}: they wait for the "
        "host or the client"
    )
    fix = (
        "look at the CPU of the server and of the client, eager mode and the CPU governor; more "
        "streams at the same "
        "time fill the gaps"
    )
    yield make_advice(
        Level.HINT, "util.waits", text, fix=fix, evidence=f"utilization {util_pct:.0f} %"
    )


def _find_rated_power_w(gpu: GpuFacts) -> float | None:
    known = gpu.type
    if gpu.power_default_w or known is None:
        return gpu.power_default_w
    return known.power_default_w or _RATED_W.get(known.id)


def has_stuck_clock(gpu_name: str, sm_mhz: float, util_pct: float) -> bool | None:
    """Return whether the SM clock of the GPU type `gpu_name` is one at which a GB10 is stuck under
    load. None without a load."""
    if util_pct < _LOADED_PCT:
        return None
    return gpu_name == NODES_OF_ONE_GPU and sm_mhz < _STUCK_MHZ


@rule_about(Facts.find_gpu_during_benchmark)
def report_stuck_clock(facts: Facts, gpu: GpuDuring) -> Iterator[Advice]:
    """Report a GB10 whose SM clock stays low under load although the driver reports no reason for
    it."""
    if gpu.sm_mhz is None:
        return
    util_pct = gpu.gpu_util_pct
    if util_pct is None:
        util_pct = _LOADED_PCT
    if any(has_stuck_clock(g.name, gpu.sm_mhz, util_pct) for g in facts.gpus):
        text = (
            f"the SM clock was {gpu.sm_mhz:.0f} MHz under load: GB10 can stay at 500 to 850 "
            "MHz after power trouble"
        )
        fix = "unplug the machine for a minute, then measure again"
        evidence = f"SM {gpu.sm_mhz:.0f} MHz, no event reason"
        yield make_advice(
            Level.WARN, "gb10.hidden-cap", text, fix=fix, evidence=evidence, source=_MINEFIELD
        )


class _LinkTraffic(NamedTuple):
    """What crossed a PCIe link whose nominal bandwidth is known, in MB/s in one direction."""

    link_mb_s: float
    during: PcieDuring

    def mean_fraction(self) -> float:
        """Return the share of what the link can carry in practice that was in use on average."""
        return self._fraction_of_usable(self.during.rx_mb_s, self.during.tx_mb_s)

    def peak_fraction(self) -> float:
        """Return the share of the link that was in use at most; 1 if that is not known."""
        peaks = (self.during.rx_peak_mb_s, self.during.tx_peak_mb_s)
        return 1.0 if None in peaks else self._fraction_of_usable(*peaks)

    def _fraction_of_usable(self, *mb_s: float | None) -> float:
        """Return the highest of these rates in MB/s as a share of what the link can carry in
        practice. Unknown rates are left out; 0 if all are."""
        return max(filter(None, mb_s), default=0.0) / (_USABLE_LINK * self.link_mb_s)

    def format_mean_rate(self) -> str:
        rates = {"received": self.during.rx_mb_s or 0.0, "sent": self.during.tx_mb_s or 0.0}
        verb = max(rates, key=rates.__getitem__)
        used, nominal = rates[verb] / 1000, self.link_mb_s / 1000
        return f"{verb} {used:.1f} GB/s on average over a link of {nominal:.1f} GB/s"


@rule_about(Facts.find_gpu_during_benchmark)
def report_pcie_link(facts: Facts, gpu: GpuDuring) -> Iterator[Advice]:
    """Report whether the PCIe links of the GPUs limit the run, by the bytes that crossed them."""
    known = [_LinkTraffic(link.link_mb_s, link) for link in gpu.pcie if link.link_mb_s]
    if not known:
        return
    busiest = max(known, key=_LinkTraffic.mean_fraction)
    share, traffic = busiest.mean_fraction(), busiest.format_mean_rate()
    if share >= _SHARED_LINK:
        level, code, verdict = _PCIE_SHARED
        if share >= _LINK_BOUND:
            level, code, verdict = _PCIE_BOUND
        yield make_advice(
            level,
            code,
            f"{verdict}: GPU {busiest.during.gpu} {traffic}, {format_share_as_percent(share)} of "
            "what the link can carry in practice",
            fix="keep weights and KV cache in GPU memory, prefer replicas or pipeline stages to "
            "tensor parallelism, or give the GPU a slot with more lanes or a newer generation",
            evidence=traffic,
            source=_PCIE_MEASURED,
        )
        return
    peak = max(map(_LinkTraffic.peak_fraction, known))
    if peak < _PEAK_FAR_BELOW:
        text = (
            f"the bandwidth of PCIe is not the limit: at most {format_share_as_percent(peak)} of what a link can "
            "carry was in use at any time. More lanes would gain little; the delay of small "
            "messages is not in this"
        )
        evidence = f"GPU {busiest.during.gpu} {traffic}"
        yield make_advice(
            Level.INFO, "pcie.not-bound", text, evidence=evidence, source=_PCIE_MEASURED
        )


def report_clock_drift(facts: Facts) -> Iterator[Advice]:
    """Report that a result is slower than an earlier result of the same configuration, and that a
    clock was lower too."""
    now, before = facts.summary, facts.before
    if now is None or before is None:
        return
    speed = _find_drop(now.output_tok_s, before.summary.output_tok_s, _SLOWER)
    new, old = now.gpu, before.summary.gpu
    if speed is None or new is None or old is None:
        return
    slower_pct = 100 * (1 - speed.low / speed.high)
    for label, field in (("SM", "sm_mhz"), ("memory", "memory_mhz")):
        clock = _find_drop(getattr(new, field), getattr(old, field), _DRIFTED)
        if clock is not None:
            text = (
                f"the same configuration is {slower_pct:.1f} % slower than in result #{before.id}, "
                f"and its {label} clock fell from {clock.high:.0f} to {clock.low:.0f} MHz"
            )
            fix = (
                "check temperature, power limit and locks, then measure again; compare only "
                "runs of equal clocks"
            )
            evidence = f"{speed.low:.4g} tok/s now, {speed.high:.4g} then"
            if old.temperature_c is not None and new.temperature_c is not None:
                evidence += f", {old.temperature_c:.0f} °C then and {new.temperature_c:.0f} °C now"
            yield make_advice(Level.WARN, "clock.drift", text, fix=fix, evidence=evidence)
            return


RULES: tuple[Rule, ...] = (
    report_power_cap,
    report_useful_lower_cap,
    report_heat,
    report_clocks_below_highest,
    report_virtual_machine,
    report_settings_without_effect,
    report_busy_at_low_power,
    report_idle_gpu_time,
    report_stuck_clock,
    report_pcie_link,
    report_clock_drift,
)
