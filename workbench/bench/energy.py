"""Energy metrics of a run: tokens per joule and joules per request, with and without the GPUs' idle
power."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.model.bench import BenchSummary, GpuDuring
from workbench.model.known_values import ratio_or_none, round_or_none
from workbench.model.lazy_dataclass import dataclass

_ENERGY_DISAGREEMENT_SHARE = (
    0.05  # counter and integrated power differ by more: one of the two is wrong
)
ENERGY_METRICS = (
    "power_w",
    "energy_j",
    "tok_per_joule",
    "energy_per_request_j",
    "net_tok_per_joule",
)


@dataclass(frozen=True, slots=True)
class IdlePower:
    """The power of all GPUs of the server together, in watts, while no request was in flight. If
    `power_w` is None, `why` says why it is unknown."""

    power_w: float | None = None
    why: str = "not measured"


def add_energy_metrics(
    summary: BenchSummary, gpu: GpuDuring, idle: IdlePower, *, seconds: float
) -> BenchSummary:
    """Return the summary with power and energy added. `gpu` contains the GPU readings over the
    summary's steady window, which lasted `seconds`.

    Tokens per joule are the output tokens in the window, divided by the energy of all GPUs of the
    server, including their idle power. The energy comes from the driver's counters if all GPUs have
    one, otherwise from the power readings integrated over time. For each metric that stays None,
    `absent` contains the reason.
    """
    tokens = (
        summary.output_tokens
        if summary.window_output_tokens is None
        else summary.window_output_tokens
    )
    absent = {k: v for k, v in summary.absent.items() if k not in (*ENERGY_METRICS, "idle_power_w")}
    energy, power = round_or_none(gpu.energy_j, 3), round_or_none(gpu.power_w, 3)
    if power is None:
        absent["power_w"] = gpu.absent.get("power_w", "the driver reported no power during the run")
    elif energy is None:
        energy = round(power * seconds, 3)
    ratio = per_request = net = None
    if energy is None:
        why = gpu.absent.get("energy_j", absent["power_w"])
        absent |= dict.fromkeys(ENERGY_METRICS[1:], why)
    elif energy <= 0:
        why = "the energy counter did not change during the run"
        absent |= dict.fromkeys(ENERGY_METRICS[2:], why)
    elif not tokens:
        why = absent.get("output_tokens", "no output tokens")
        absent |= dict.fromkeys(ENERGY_METRICS[2:], why)
    else:
        ratio = round(tokens / energy, 6)
        per_request = ratio_or_none(energy, _count_requests_in_window_or_run(summary), 4)
        if per_request is None:
            absent["energy_per_request_j"] = "the number of successful requests is unknown or 0"
        net, why = _net_tokens_per_joule_or_reason(tokens, energy, seconds, idle)
        if net is None:
            absent["net_tok_per_joule"] = why
    if idle.power_w is None:
        absent["idle_power_w"] = idle.why
    return replace(
        summary,
        power_w=power,
        energy_j=energy,
        tok_per_joule=ratio,
        energy_per_request_j=per_request,
        idle_power_w=idle.power_w,
        net_tok_per_joule=net,
        gpu=gpu,
        absent=absent,
        notes=(*summary.notes, *_energy_disagreement_notes(gpu)),
    )


def summary_without_energy(
    summary: BenchSummary, why: str, idle: IdlePower | None = None
) -> BenchSummary:
    """Return the summary with all power and energy metrics set to None and with `why` as the
    reason. Only the idle power is set if `idle` contains it."""
    idle = idle or IdlePower(why=why)
    absent = {**summary.absent, **dict.fromkeys(ENERGY_METRICS, why)}
    if idle.power_w is None:
        absent["idle_power_w"] = idle.why
    none: dict[str, Any] = dict.fromkeys(ENERGY_METRICS)
    return replace(summary, **none, idle_power_w=idle.power_w, absent=absent)


def _count_requests_in_window_or_run(summary: BenchSummary) -> float:
    """Return the number of successful requests. A request that is only partly inside the steady
    window counts by the share of its time inside."""
    if summary.window_requests is None:
        return summary.requests_ok
    return summary.window_requests


def _net_tokens_per_joule_or_reason(
    tokens: float, energy_j: float, seconds: float, idle: IdlePower
) -> tuple[float | None, str]:
    """Return (net tokens per joule, ""), or (None, why there are none)."""
    if idle.power_w is None:
        return None, f"the idle power is unknown: {idle.why}"
    above = energy_j - idle.power_w * seconds
    if above <= 0:
        return None, f"the run used no more than the idle power of {idle.power_w:.0f} W"
    return round(tokens / above, 6), ""


def _energy_disagreement_notes(gpu: GpuDuring) -> tuple[str, ...]:
    counted, integrated = gpu.energy_counter_j, gpu.energy_integrated_j
    if not counted or not integrated or abs(integrated / counted - 1) <= _ENERGY_DISAGREEMENT_SHARE:
        return ()
    return (
        f"energy: the driver's counter gives {counted:,.0f} J, its power readings "
        f"{integrated:,.0f} J"
        f" ({100 * (integrated / counted - 1):+.0f} %); the counter is used",
    )
