"""Rules about the GPUs of a run: power limits, clocks, locks, temperature and virtualization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.advisor.advice import THRIFT, Advice, Gain, Rule, advice, percent
from workbench.advisor.facts import NODES_OF_ONE_GPU, Facts, GpuFacts
from workbench.model.counts import gpus_text
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import InForce
from workbench.model.settings import POWER_LIMIT, label_of, split_key

_POWER_CAP = "SW power cap"
# "HW slowdown" alone can also be a power brake
_THERMAL = ("SW thermal slowdown", "HW thermal slowdown")
_OFTEN = 0.2  # share of a run
_AT_LIMIT = 0.97  # of the power limit
_BELOW_LIMIT = 0.93
_LOW_POWER = 0.6  # of the rated power
_BUSY_PCT = 90.0
_HOT_C = 5.0  # below the temperature at which the card slows down
_DRIFT_PCT = 2.0
_SLOWER_PCT = 3.0
_STUCK_MHZ = 1000.0
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


def power_cap(facts: Facts) -> Iterator[Advice]:
    """Report whether the GPUs run at their power limits, and whether the GPUs of one server have
    different power limits."""
    known = [g for g in facts.gpus if g.limit_w and g.power_w]
    if not known or facts.summary is None:
        return
    capped = facts.share_of(_POWER_CAP) >= _OFTEN
    binding = [g for g in known if (g.power_w or 0) >= _AT_LIMIT * (g.limit_w or 0)]
    if len({g.limit_w for g in known}) > 1:
        yield _unequal(known, binding)
    if capped or binding:
        yield _binding(facts, binding or known)
    elif any((g.power_w or 0) > _BELOW_LIMIT * (g.limit_w or 0) for g in known):
        share = percent(facts.share_of(_POWER_CAP))
        text = (
            f"the power limit hardly binds: {_watts(known)}, and the driver names it in "
            f"{share} of the run"
        )
        yield advice(
            Level.INFO,
            "power.near",
            text,
            fix="raising the power limit would gain little",
            evidence=_watts(known),
        )
    else:
        text = f"the power limit does not bind: {_watts(known)}. Raising it changes nothing"
        single = f"{_MMBT} (single-stream decoding draws 483 to 522 W of 600 W)"
        source = single if _is_rtx_pro_6000(facts) else None
        yield advice(Level.INFO, "power.not-binding", text, evidence=_watts(known), source=source)


def _is_rtx_pro_6000(facts: Facts) -> bool:
    return any(g.type and g.type.id == "rtx-pro-6000-ws" for g in facts.gpus)


def _watts(gpus: list[GpuFacts]) -> str:
    groups: dict[tuple[float, float], list[int]] = {}
    for g in gpus:
        groups.setdefault((round(g.power_w or 0), round(g.limit_w or 0)), []).append(g.index)
    return ", ".join(
        f"{gpus_text(indexes)} {power:.0f} of {limit:.0f} W"
        for (power, limit), indexes in groups.items()
    )


def _unequal(gpus: list[GpuFacts], binding: list[GpuFacts]) -> Advice:
    limits: dict[float, list[int]] = {}
    for g in gpus:
        limits.setdefault(g.limit_w or 0, []).append(g.index)
    listed = ", ".join(
        f"{gpus_text(indexes)} {watts:.0f} W" for watts, indexes in sorted(limits.items())
    )
    text = f"the GPUs of this server have different power limits ({listed})"
    text += ": ranks that wait for each other are as fast as the slowest" if binding else ""
    fix = "set the same power limit on all of them, unless that is on purpose"
    level = Level.WARN if binding else Level.INFO
    return advice(level, "power.unequal-caps", text, fix=fix, evidence=_watts(gpus))


def _binding(facts: Facts, gpus: list[GpuFacts]) -> Advice:
    highest = {g.power_max_w or g.power_default_w for g in gpus}
    most = highest.pop() if len(highest) == 1 else None
    raisable = most is not None and all((g.limit_w or 0) < most for g in gpus)
    share = percent(facts.share_of(_POWER_CAP))
    text = f"the power limit binds: {_watts(gpus)}, and the driver names it in {share} of the run"
    if facts.memory_bound:
        text += ". Decoding is memory-bound, so a higher SM clock gains little"
    if raisable and most is not None:
        setting = f"{POWER_LIMIT.name}={most:g}"
        fix = f"measure {setting}: more watts are a gain only if tok/s rise as well"
        return advice(
            Level.HINT, "power.binding", text, fix=fix, evidence=_watts(gpus), settings=(setting,)
        )
    fix = (
        "the limit is the card's highest, or its range is unknown; only better cooling or less "
        "computation can help"
    )
    return advice(Level.INFO, "power.binding", text, fix=fix, evidence=_watts(gpus))


def lower_cap(facts: Facts) -> Iterator[Advice]:
    """Report a lower power limit that would save energy and cost little speed of one stream. The
    gain is in tokens per joule."""
    types = {g.type.id for g in facts.gpus if g.type}
    cap = _LOWER_CAPS.get(next(iter(types))) if len(types) == 1 else None
    powers = [g.power_w for g in facts.gpus if g.power_w]
    if (
        cap is None
        or facts.streams != 1
        or not facts.memory_bound
        or not powers
        or min(powers) <= 1.02 * cap.watts
    ):
        return
    gain = 100 * ((1 - cap.cost_pct / 100) * min(powers) / cap.watts - 1)
    setting = f"{POWER_LIMIT.name}={cap.watts:g}"
    text = (
        f"one stream is not limited by the SM clock: a limit of {cap.watts:g} W costs about "
        f"{cap.cost_pct:g} % of"
    )
    text += " tok/s. More watts or higher clocks at equal tok/s are a loss"
    yield advice(
        Level.HINT,
        "clock.single-stream-flat",
        text,
        fix=f"measure {setting}, with tok/J as the metric",
        evidence=f"{min(powers):.0f} W per GPU",
        source=cap.source,
        settings=(setting,),
        gain=Gain(gain, gain, THRIFT) if gain >= 1 else None,
    )


def thermal(facts: Facts) -> Iterator[Advice]:
    """Report that heat lowered the clocks, or that a GPU came close to the temperature at which it
    slows down."""
    gpu = facts.summary.gpu if facts.summary else None
    if gpu is None:
        return
    shares = {name: facts.share_of(name) for name in _THERMAL if facts.share_of(name) > 0.01}
    limits = [g.temperature_slowdown_c for g in facts.gpus if g.temperature_slowdown_c]
    fix = (
        "lower the power limit or improve the cooling; unlocking the clocks does not lower the heat"
    )
    hottest = gpu.temperature_c
    if shares:
        listed = ", ".join(f"{name} in {percent(share)}" for name, share in shares.items())
        text = f"the GPUs slowed down because of heat: {listed} of the run"
        evidence = None if hottest is None else f"at most {hottest:.0f} °C"
        yield advice(Level.WARN, "thermal.remedy", text, fix=fix, evidence=evidence)
    elif limits and hottest is not None and hottest >= min(limits) - _HOT_C:
        text = (
            f"a GPU reached {hottest:.0f} °C, near the {min(limits):.0f} °C at which it slows down"
        )
        yield advice(Level.HINT, "thermal.remedy", text, fix=fix, evidence=f"{hottest:.0f} °C")


def clocks_below_table(facts: Facts) -> Iterator[Advice]:
    """Report that the SM or memory clock under load was below the highest clock that the driver
    lists, which is normal. For the memory clock, also report how much a lock at the highest clock
    could gain at most."""
    gpu = facts.summary.gpu if facts.summary else None
    if gpu is None or not facts.gpus:
        return
    sm, memory = (
        {getattr(g, name) for g in facts.gpus} for name in ("sm_max_mhz", "memory_max_mhz")
    )
    highest_sm, highest = (found.pop() if len(found) == 1 else None for found in (sm, memory))
    if (
        gpu.sm_mhz
        and highest_sm
        and gpu.sm_mhz < 0.97 * highest_sm
        and facts.share_of(_POWER_CAP) < _OFTEN
    ):
        text = (
            f"{highest_sm:.0f} MHz is the highest SM clock of the table, not one that the "
            "card sustains"
        )
        evidence = (
            f"SM {gpu.sm_mhz:.0f} of {highest_sm:.0f} MHz under load, no limit named by the driver"
        )
        source = _MMBT if _is_rtx_pro_6000(facts) else None
        yield advice(
            Level.INFO, "clock.max-is-not-sustained", text, evidence=evidence, source=source
        )
    if gpu.memory_mhz and highest and gpu.memory_mhz < 0.99 * highest:
        most = 100 * (highest / gpu.memory_mhz - 1)
        normal = {g.type.memory_under_compute_mhz for g in facts.gpus if g.type}
        at_normal = any(mhz and abs(gpu.memory_mhz - mhz) < 0.01 * mhz for mhz in normal)
        usual = ", the normal clock of this card under compute" if at_normal else ""
        text = (
            f"the memory runs at {gpu.memory_mhz:.0f} of {highest:.0f} MHz{usual}: a lock "
            "could gain at most"
        )
        text += (
            f" +{most:.1f} %, and no published measurement shows this card at its highest "
            "memory clock"
        )
        evidence = f"memory {gpu.memory_mhz:.0f} of {highest:.0f} MHz under load"
        source = _MMBT if _is_rtx_pro_6000(facts) else None
        yield advice(Level.INFO, "promise.bound-by-clock", text, evidence=evidence, source=source)


def guest(facts: Facts) -> Iterator[Advice]:
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
    yield advice(
        Level.INFO, "env.guest", text, fix=fix, evidence="virtualization mode by NVML", source=_MMBT
    )


def locks_without_effect(facts: Facts) -> Iterator[Advice]:
    """Report GPU settings that had no effect under load."""
    idle = [place for place, seen in facts.in_force.items() if seen == InForce.NO_EFFECT]
    if idle:
        settings = (f"{gpu} {label_of(key)}" for gpu, key in map(split_key, idle))
        text = f"these GPU settings had no effect under load: {', '.join(settings)}"
        yield advice(
            Level.HINT,
            "lock.noop",
            text,
            fix="revert the settings: workbench gpu revert",
            evidence="clocks under load",
        )


def busy_at_low_power(facts: Facts) -> Iterator[Advice]:
    """Report a GPU with high utilization at low power: such a GPU is not under full load."""
    gpu = facts.summary.gpu if facts.summary else None
    if gpu is None or gpu.gpu_util_pct is None or gpu.gpu_util_pct < _BUSY_PCT:
        return
    rated = [(g.power_w, _rated_w(g)) for g in facts.gpus]
    shares = [power / watts for power, watts in rated if power and watts]
    meaning = (
        "utilization is the share of time with at least one kernel on the GPU, also while "
        "it waits for others"
    )
    if not shares or max(shares) > _LOW_POWER:
        text = f"{gpu.gpu_util_pct:.0f} % utilization does not mean a full GPU: {meaning}"
        yield advice(
            Level.INFO, "util.definition", text, evidence=f"utilization {gpu.gpu_util_pct:.0f} %"
        )
        return
    text = f"{gpu.gpu_util_pct:.0f} % utilization at {percent(max(shares))} of the rated power: "
    text += "a memory-bound load" if facts.memory_bound else "the GPU waits"
    fix = (
        None
        if facts.memory_bound
        else ("check for eager mode, synchronization between GPUs, or a stuck clock")
    )
    each = ", ".join(f"{power:.0f} of {watts:.0f} W" for power, watts in rated if power and watts)
    evidence = f"utilization {gpu.gpu_util_pct:.0f} %, {each}"
    level = Level.INFO if facts.memory_bound else Level.HINT
    yield advice(level, "util-vs-power", f"{text}. U{meaning[1:]}", fix=fix, evidence=evidence)


def waiting_gpu(facts: Facts) -> Iterator[Advice]:
    """Report that the GPUs ran no kernel for a part of a closed-loop run, because they waited for
    the host or the client."""
    gpu = facts.summary.gpu if facts.summary else None
    util = gpu.gpu_util_pct if gpu else None
    if util is None or util >= _BUSY_PCT or facts.streams is None:
        return
    shares = [g.power_w / g.limit_w for g in facts.gpus if g.power_w and g.limit_w]
    power = f", at {percent(max(shares))} of the power limit" if shares else ""
    text = (
        f"the GPUs ran no kernel in {100 - util:.0f} % of the time{power}: they wait for the "
        "host or the client"
    )
    fix = (
        "look at the CPU of the server and of the client, eager mode and the CPU governor; more "
        "streams at the same "
        "time fill the gaps"
    )
    yield advice(Level.HINT, "util.waits", text, fix=fix, evidence=f"utilization {util:.0f} %")


def _rated_w(gpu: GpuFacts) -> float | None:
    known = gpu.type
    table = (known.power_default_w or _RATED_W.get(known.id)) if known else None
    return gpu.power_default_w or table


def stuck_clock(facts: Facts) -> Iterator[Advice]:
    """Report a GB10 whose SM clock stays low under load although the driver reports no reason for
    it."""
    gpu = facts.summary.gpu if facts.summary else None
    if gpu is None or gpu.sm_mhz is None or not any(g.name == NODES_OF_ONE_GPU for g in facts.gpus):
        return
    if gpu.sm_mhz < _STUCK_MHZ and (gpu.gpu_util_pct is None or gpu.gpu_util_pct >= 50):
        text = (
            f"the SM clock was {gpu.sm_mhz:.0f} MHz under load: GB10 can stay at 500 to 850 "
            "MHz after power trouble"
        )
        fix = "unplug the machine for a minute, then measure again"
        evidence = f"SM {gpu.sm_mhz:.0f} MHz, no event reason"
        yield advice(
            Level.WARN, "gb10.hidden-cap", text, fix=fix, evidence=evidence, source=_MINEFIELD
        )


def drift(facts: Facts) -> Iterator[Advice]:
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
                f"the same configuration is {slower:.1f} % slower than in result "
                f"#{before.id}, and its {label} clock"
            )
            text += f" fell from {a:.0f} to {b:.0f} MHz"
            heat = (
                ""
                if None in (old.temperature_c, new.temperature_c)
                else f", {old.temperature_c:.0f} °C then"
            )
            heat += f" and {new.temperature_c:.0f} °C now" if heat else ""
            fix = (
                "check temperature, power limit and locks, then measure again; compare only "
                "runs of equal clocks"
            )
            evidence = (
                f"{now.output_tok_s:.4g} tok/s now, {before.summary.output_tok_s:.4g} then{heat}"
            )
            yield advice(Level.WARN, "clock.drift", text, fix=fix, evidence=evidence)
            return


RULES: tuple[Rule, ...] = (
    power_cap,
    lower_cap,
    thermal,
    clocks_below_table,
    guest,
    locks_without_effect,
    busy_at_low_power,
    waiting_gpu,
    stuck_clock,
    drift,
)
