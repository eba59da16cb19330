"""Rules about the GPUs of a run: power limits, clocks, locks, temperature and virtualization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.advisor.advice import THRIFT, Advice, Gain, Rule, make_advice, percent_text
from workbench.advisor.facts import NODES_OF_ONE_GPU, Facts, GpuFacts
from workbench.model.bench import PcieDuring
from workbench.model.counts import gpus_text
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import InForce
from workbench.model.settings import POWER_LIMIT, label_of, split_key

_POWER_CAP = "SW power cap"
# "HW slowdown" alone can also be a power brake
THERMAL_REASONS = ("SW thermal slowdown", "HW thermal slowdown")
_OFTEN = 0.2  # share of a run
_AT_LIMIT = 0.97  # of the power limit
_BELOW_LIMIT = 0.93
_LOW_POWER = 0.6  # of the rated power
_BUSY_PCT = 90.0
_HOT_C = 5.0  # below the temperature at which the card slows down
_DRIFT_PCT = 2.0
_SLOWER_PCT = 3.0
_STUCK_MHZ = 1000.0
_LOADED_PCT = 50.0
# Of its nominal bandwidth a link carries about 85 %: copies between GPUs reach 25.9 of 31.5 GB/s. In
# prefill, experts in the host's memory took 57 and 68 % of that, and two cards that exchange data
# 39 %. In decoding, all of them took 0 to 3 %.
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
    cost_pct: float
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


def report_power_cap(facts: Facts) -> Iterator[Advice]:
    """Report whether the GPUs run at their power limits, and whether the GPUs of one server have
    different power limits."""
    known = [g for g in facts.gpus if g.limit_w and g.power_w]
    if not known or facts.summary is None:
        return
    capped = facts.fraction_of_run_limited_by(_POWER_CAP) >= _OFTEN
    binding = [g for g in known if (g.power_w or 0) >= _AT_LIMIT * (g.limit_w or 0)]
    if len({g.limit_w for g in known}) > 1:
        yield _report_unequal_power(known, binding)
    if capped or binding:
        yield _report_binding_power_limit(facts, binding or known)
    elif any((g.power_w or 0) > _BELOW_LIMIT * (g.limit_w or 0) for g in known):
        share = percent_text(facts.fraction_of_run_limited_by(_POWER_CAP))
        text = (
            f"the power limit hardly binds: {_power_range_text(known)}, and the driver names it in "
            f"{share} of the run"
        )
        yield make_advice(
            Level.INFO,
            "power.near",
            text,
            fix="raising the power limit would gain little",
            evidence=_power_range_text(known),
        )
    else:
        text = (
            f"the power limit does not bind: {_power_range_text(known)}. Raising it changes nothing"
        )
        source = _mmbt_source(facts, " (single-stream decoding draws 483 to 522 W of 600 W)")
        yield make_advice(
            Level.INFO, "power.not-binding", text, evidence=_power_range_text(known), source=source
        )


def _mmbt_source(facts: Facts, about: str = "") -> str:
    """Return the source of the measurements of an RTX PRO 6000; "" without such a GPU."""
    measured = any(g.type and g.type.id == "rtx-pro-6000-ws" for g in facts.gpus)
    return f"{_MMBT}{about}" if measured else ""


def _power_range_text(gpus: list[GpuFacts]) -> str:
    groups: dict[tuple[float, float], list[int]] = {}
    for g in gpus:
        groups.setdefault((round(g.power_w or 0), round(g.limit_w or 0)), []).append(g.index)
    return ", ".join(
        f"{gpus_text(indexes)} {power:.0f} of {limit:.0f} W"
        for (power, limit), indexes in groups.items()
    )


def _report_unequal_power(gpus: list[GpuFacts], binding: list[GpuFacts]) -> Advice:
    limits: dict[float, list[int]] = {}
    for g in gpus:
        limits.setdefault(g.limit_w or 0, []).append(g.index)
    listed = ", ".join(
        f"{gpus_text(indexes)} {watts:.0f} W" for watts, indexes in sorted(limits.items())
    )
    level, text = Level.INFO, f"the GPUs of this server have different power limits ({listed})"
    if binding:
        level = Level.WARN
        text += ": ranks that wait for each other are as fast as the slowest"
    fix = "set the same power limit on all of them, unless that is on purpose"
    return make_advice(level, "power.unequal-caps", text, fix=fix, evidence=_power_range_text(gpus))


def _report_binding_power_limit(facts: Facts, gpus: list[GpuFacts]) -> Advice:
    most = _only_value({g.power_max_w or g.power_default_w for g in gpus})
    share = percent_text(facts.fraction_of_run_limited_by(_POWER_CAP))
    text = f"the power limit binds: {_power_range_text(gpus)}, and the driver names it in {share} of the run"
    if facts.memory_bound:
        text += ". Decoding is memory-bound, so a higher SM clock gains little"
    if most is not None and all((g.limit_w or 0) < most for g in gpus):
        setting = f"{POWER_LIMIT.name}={most:g}"
        fix = f"measure {setting}: more watts are a gain only if tok/s rise as well"
        return make_advice(
            Level.HINT,
            "power.binding",
            text,
            fix=fix,
            evidence=_power_range_text(gpus),
            settings=(setting,),
        )
    fix = (
        "the limit is the card's highest, or its range is unknown; only better cooling or less "
        "computation can help"
    )
    return make_advice(Level.INFO, "power.binding", text, fix=fix, evidence=_power_range_text(gpus))


def report_useful_lower_cap(facts: Facts) -> Iterator[Advice]:
    """Report a lower power limit that would save energy and cost little speed of one stream. The
    gain is in tokens per joule."""
    types = {g.type.id for g in facts.gpus if g.type}
    if len(types) != 1 or facts.streams != 1 or not facts.memory_bound:
        return
    cap = _LOWER_CAPS.get(next(iter(types)))
    powers = [g.power_w for g in facts.gpus if g.power_w]
    if cap is None or not powers or min(powers) <= 1.02 * cap.watts:
        return
    gain = 100 * ((1 - cap.cost_pct / 100) * min(powers) / cap.watts - 1)
    setting = f"{POWER_LIMIT.name}={cap.watts:g}"
    text = (
        f"one stream is not limited by the SM clock: a limit of {cap.watts:g} W costs about "
        f"{cap.cost_pct:g} % of"
    )
    text += " tok/s. More watts or higher clocks at equal tok/s are a loss"
    yield make_advice(
        Level.HINT,
        "clock.single-stream-flat",
        text,
        fix=f"measure {setting}, with tok/J as the metric",
        evidence=f"{min(powers):.0f} W per GPU",
        source=cap.source,
        settings=(setting,),
        gain=Gain(gain, gain, THRIFT),
    )


def report_heat(facts: Facts) -> Iterator[Advice]:
    """Report that heat lowered the clocks, or that a GPU came close to the temperature at which it
    slows down."""
    gpu = facts.gpu_during
    if gpu is None:
        return
    reasons = {name: facts.fraction_of_run_limited_by(name) for name in THERMAL_REASONS}
    shares = {name: share for name, share in reasons.items() if share > 0.01}
    limits = [g.temperature_slowdown_c for g in facts.gpus if g.temperature_slowdown_c]
    fix = (
        "lower the power limit or improve the cooling; unlocking the clocks does not lower the heat"
    )
    hottest = gpu.temperature_c
    if shares:
        listed = ", ".join(f"{name} in {percent_text(share)}" for name, share in shares.items())
        text = f"the GPUs slowed down because of heat: {listed} of the run"
        evidence = "" if hottest is None else f"at most {hottest:.0f} °C"
        yield make_advice(Level.WARN, "thermal.remedy", text, fix=fix, evidence=evidence)
    elif limits and hottest is not None and hottest >= min(limits) - _HOT_C:
        text = (
            f"a GPU reached {hottest:.0f} °C, near the {min(limits):.0f} °C at which it slows down"
        )
        yield make_advice(Level.HINT, "thermal.remedy", text, fix=fix, evidence=f"{hottest:.0f} °C")


def report_clocks_below_table(facts: Facts) -> Iterator[Advice]:
    """Report that the SM or memory clock under load was below the highest clock that the driver
    lists, which is normal. For the memory clock, also report how much a lock at the highest clock
    could gain at most."""
    gpu = facts.gpu_during
    if gpu is None or not facts.gpus:
        return
    highest_sm = _only_value({g.sm_max_mhz for g in facts.gpus})
    highest = _only_value({g.memory_max_mhz for g in facts.gpus})
    at_power_limit = facts.fraction_of_run_limited_by(_POWER_CAP) >= _OFTEN
    if gpu.sm_mhz and highest_sm and gpu.sm_mhz < 0.97 * highest_sm and not at_power_limit:
        yield _sm_clock_advice(facts, gpu.sm_mhz, highest_sm)
    if gpu.memory_mhz and highest and gpu.memory_mhz < 0.99 * highest:
        yield _memory_clock_advice(facts, gpu.memory_mhz, highest)


def _only_value(found: set[float | None]) -> float | None:
    """Return the value that all GPUs have in common; None if they differ."""
    return found.pop() if len(found) == 1 else None


def _sm_clock_advice(facts: Facts, mhz: float, highest_mhz: float) -> Advice:
    text = f"{highest_mhz:.0f} MHz is the highest SM clock of the table, not one that the card sustains"
    evidence = f"SM {mhz:.0f} of {highest_mhz:.0f} MHz under load, no limit named by the driver"
    source = _mmbt_source(facts)
    return make_advice(
        Level.INFO, "clock.max-is-not-sustained", text, evidence=evidence, source=source
    )


def _memory_clock_advice(facts: Facts, mhz: float, highest_mhz: float) -> Advice:
    most_pct = 100 * (highest_mhz / mhz - 1)
    normal = {g.type.memory_under_compute_mhz for g in facts.gpus if g.type}
    runs_at = f"the memory runs at {mhz:.0f} of {highest_mhz:.0f} MHz"
    if any(usual and abs(mhz - usual) < 0.01 * usual for usual in normal):
        runs_at += ", the normal clock of this card under compute"
    text = (
        f"{runs_at}: a lock could gain at most +{most_pct:.1f} %, and no published measurement "
        "shows this card at its highest memory clock"
    )
    evidence = f"memory {mhz:.0f} of {highest_mhz:.0f} MHz under load"
    source = _mmbt_source(facts)
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


def report_locks_without_effect(facts: Facts) -> Iterator[Advice]:
    """Report GPU settings that had no effect under load."""
    idle = [place for place, seen in facts.in_force.items() if seen == InForce.NO_EFFECT]
    if idle:
        settings = (f"{gpu} {label_of(key)}" for gpu, key in map(split_key, idle))
        text = f"these GPU settings had no effect under load: {', '.join(settings)}"
        yield make_advice(
            Level.HINT,
            "lock.noop",
            text,
            fix="revert the settings: workbench gpu revert",
            evidence="clocks under load",
        )


def report_busy_at_low_power(facts: Facts) -> Iterator[Advice]:
    """Report a GPU with high utilization at low power: such a GPU is not under full load."""
    gpu = facts.gpu_during
    if gpu is None or gpu.gpu_util_pct is None or gpu.gpu_util_pct < _BUSY_PCT:
        return
    rated = [(g.power_w, _rated_power_w(g)) for g in facts.gpus]
    shares = [power / watts for power, watts in rated if power and watts]
    meaning = (
        "utilization is the share of time with at least one kernel on the GPU, also while "
        "it waits for others"
    )
    if not shares or max(shares) > _LOW_POWER:
        text = f"{gpu.gpu_util_pct:.0f} % utilization does not mean a full GPU: {meaning}"
        yield make_advice(
            Level.INFO, "util.definition", text, evidence=f"utilization {gpu.gpu_util_pct:.0f} %"
        )
        return
    text = (
        f"{gpu.gpu_util_pct:.0f} % utilization at {percent_text(max(shares))} of the rated power: "
    )
    level, why, fix = Level.INFO, "a memory-bound load", ""
    if not facts.memory_bound:
        level, why = Level.HINT, "the GPU waits"
        fix = "check for eager mode, synchronization between GPUs, or a stuck clock"
    each = ", ".join(f"{power:.0f} of {watts:.0f} W" for power, watts in rated if power and watts)
    evidence = f"utilization {gpu.gpu_util_pct:.0f} %, {each}"
    text = f"{text}{why}. U{meaning[1:]}"
    yield make_advice(level, "util-vs-power", text, fix=fix, evidence=evidence)


def report_waiting_gpu(facts: Facts) -> Iterator[Advice]:
    """Report that the GPUs ran no kernel for a part of a closed-loop run, because they waited for
    the host or the client."""
    gpu = facts.gpu_during
    if gpu is None or gpu.gpu_util_pct is None or facts.streams is None:
        return
    util = gpu.gpu_util_pct
    if util >= _BUSY_PCT:
        return
    shares = [g.power_w / g.limit_w for g in facts.gpus if g.power_w and g.limit_w]
    power = f", at {percent_text(max(shares))} of the power limit" if shares else ""
    text = (
        f"the GPUs ran no kernel in {100 - util:.0f} % of the time{power}: they wait for the "
        "host or the client"
    )
    fix = (
        "look at the CPU of the server and of the client, eager mode and the CPU governor; more "
        "streams at the same "
        "time fill the gaps"
    )
    yield make_advice(Level.HINT, "util.waits", text, fix=fix, evidence=f"utilization {util:.0f} %")


def _rated_power_w(gpu: GpuFacts) -> float | None:
    known = gpu.type
    if gpu.power_default_w or known is None:
        return gpu.power_default_w
    return known.power_default_w or _RATED_W.get(known.id)


def has_stuck_clock(name: str, sm_mhz: float, util_pct: float) -> bool | None:
    """Return whether the SM clock of the GPU type `name` is one at which a GB10 is stuck under
    load. None without a load."""
    if util_pct < _LOADED_PCT:
        return None
    return name == NODES_OF_ONE_GPU and sm_mhz < _STUCK_MHZ


def report_stuck_clock(facts: Facts) -> Iterator[Advice]:
    """Report a GB10 whose SM clock stays low under load although the driver reports no reason for
    it."""
    gpu = facts.gpu_during
    if gpu is None or gpu.sm_mhz is None:
        return
    util_pct = _LOADED_PCT if gpu.gpu_util_pct is None else gpu.gpu_util_pct
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


def pcie_link(facts: Facts) -> Iterator[Advice]:
    """Report whether the PCIe links of the GPUs limit the run, by the bytes that crossed them."""
    gpu = facts.gpu_during
    known = [link for link in gpu.pcie if link.link_mb_s] if gpu else []
    if not known:
        return
    busiest = max(known, key=_mean_share)
    share, text = _mean_share(busiest), _traffic_text(busiest)
    if share >= _SHARED_LINK:
        level, code, verdict = _PCIE_SHARED
        if share >= _LINK_BOUND:
            level, code, verdict = _PCIE_BOUND
        yield make_advice(
            level,
            code,
            f"{verdict}: GPU {busiest.gpu} {text}, {percent_text(share)} of what the link can carry in "
            "practice",
            fix="keep weights and KV cache in GPU memory, prefer replicas or pipeline stages to "
            "tensor parallelism, or give the GPU a slot with more lanes or a newer generation",
            evidence=text,
            source=_PCIE_MEASURED,
        )
        return
    peak = max(map(_peak_share, known))
    if peak < _PEAK_FAR_BELOW:
        text = (
            f"the bandwidth of PCIe is not the limit: at most {percent_text(peak)} of what a link can "
            "carry was in use at any time. More lanes would gain little; the delay of small "
            "messages is not in this"
        )
        evidence = f"GPU {busiest.gpu} {_traffic_text(busiest)}"
        yield make_advice(
            Level.INFO, "pcie.not-bound", text, evidence=evidence, source=_PCIE_MEASURED
        )


def _mean_share(link: PcieDuring) -> float:
    return _share_of_link(link, max(link.rx_mb_s or 0.0, link.tx_mb_s or 0.0))


def _peak_share(link: PcieDuring) -> float:
    """Return the share of the link that was in use at most; 1 if that is not known."""
    peaks = (link.rx_peak_mb_s, link.tx_peak_mb_s)
    return 1.0 if None in peaks else _share_of_link(link, max(peak or 0.0 for peak in peaks))


def _share_of_link(link: PcieDuring, mb_s: float) -> float:
    return mb_s / (_USABLE_LINK * (link.link_mb_s or 0.0))


def _traffic_text(link: PcieDuring) -> str:
    receives = (link.rx_mb_s or 0.0) >= (link.tx_mb_s or 0.0)
    verb, mean = ("received", link.rx_mb_s) if receives else ("sent", link.tx_mb_s)
    nominal = (link.link_mb_s or 0.0) / 1000
    return f"{verb} {(mean or 0.0) / 1000:.1f} GB/s on average over a link of {nominal:.1f} GB/s"


def report_clock_drift(facts: Facts) -> Iterator[Advice]:
    """Report that a result is slower than an earlier result of the same configuration, and that a
    clock was lower too."""
    now, before = facts.summary, facts.before
    if now is None or before is None or not (now.output_tok_s and before.summary.output_tok_s):
        return
    slower = 100 * (1 - now.output_tok_s / before.summary.output_tok_s)
    new, old = now.gpu, before.summary.gpu
    if slower < _SLOWER_PCT or new is None or old is None:
        return
    for label, field in (("SM", "sm_mhz"), ("memory", "memory_mhz")):
        a, b = getattr(old, field), getattr(new, field)
        if a and b and 100 * (1 - b / a) > _DRIFT_PCT:
            text = (
                f"the same configuration is {slower:.1f} % slower than in result #{before.id}, and "
                f"its {label} clock fell from {a:.0f} to {b:.0f} MHz"
            )
            fix = (
                "check temperature, power limit and locks, then measure again; compare only "
                "runs of equal clocks"
            )
            evidence = f"{now.output_tok_s:.4g} tok/s now, {before.summary.output_tok_s:.4g} then"
            if old.temperature_c is not None and new.temperature_c is not None:
                evidence += f", {old.temperature_c:.0f} °C then and {new.temperature_c:.0f} °C now"
            yield make_advice(Level.WARN, "clock.drift", text, fix=fix, evidence=evidence)
            return


RULES: tuple[Rule, ...] = (
    report_power_cap,
    report_useful_lower_cap,
    report_heat,
    report_clocks_below_table,
    report_virtual_machine,
    report_locks_without_effect,
    report_busy_at_low_power,
    report_waiting_gpu,
    report_stuck_clock,
    pcie_link,
    report_clock_drift,
)
