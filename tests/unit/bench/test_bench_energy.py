"""Tests of tokens per joule, gross and net, and of profiles and repeated runs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from workbench.bench import profiles
from workbench.bench.energy import IdlePower, add_energy_metrics, summary_without_energy
from workbench.bench.repeated_runs import spread_of_each_metric
from workbench.model.bench import BenchSpec, BenchSummary, GpuDuring
from workbench.model.errors import InputError
from workbench.model.json_records import from_json, to_json
from workbench.model.load_spec import PROFILES

BASE = BenchSummary(
    requests_ok=10,
    requests_failed=0,
    errors={},
    prompt_tokens=100,
    output_tokens=1000,
    cached_tokens=0,
    duration_s=12.0,
    output_tok_s=90.0,
    request_s=0.9,
    ttft_ms=None,
    itl_ms=None,
    tpot_ms=None,
    e2e_ms=None,
    tokens_per_chunk=1.0,
    per_stream_tok_s=10.0,
    power_w=None,
    energy_j=None,
    tok_per_joule=None,
    window="steady",
    window_s=10.0,
    window_output_tokens=900.0,
    window_requests=9.0,
    absent={"power_w": "not yet"},
)
IDLE = IdlePower(100.0, "")


def gpu(**given: Any) -> GpuDuring:
    return GpuDuring(
        **{
            "power_w": 300.0,
            "energy_j": 3000.0,
            "sm_mhz": None,
            "memory_mhz": None,
            "temperature_c": None,
            "gpu_util_pct": None,
            **given,
        }
    )


def test_gross_net_and_per_request_are_of_the_window() -> None:
    s = add_energy_metrics(BASE, gpu(), IDLE, seconds=10.0)
    # 900 / 3000, 900 / (3000 - 100 W * 10 s)
    assert (s.tok_per_joule, s.net_tok_per_joule) == (0.3, 0.45)
    assert s.energy_per_request_j == pytest.approx(3000 / 9, abs=1e-4)
    assert (s.idle_power_w, s.power_w, s.energy_j) == (100.0, 300.0, 3000.0)
    assert not {"power_w", "tok_per_joule", "net_tok_per_joule", "idle_power_w"} & set(s.absent)


def test_without_a_window_the_whole_run_counts() -> None:
    whole = replace(BASE, window_output_tokens=None, window_requests=None)
    s = add_energy_metrics(whole, gpu(), IDLE, seconds=10.0)
    assert (s.tok_per_joule, s.energy_per_request_j) == (pytest.approx(1 / 3, abs=1e-6), 300.0)


def test_power_alone_gives_energy() -> None:
    assert add_energy_metrics(BASE, gpu(energy_j=None), IDLE, seconds=10.0).energy_j == 3000.0


@pytest.mark.parametrize(
    ("during", "idle", "name", "why"),
    [
        (
            gpu(),
            IdlePower(why="the server was busy"),
            "net_tok_per_joule",
            "idle power is unknown: the server was busy",
        ),
        (gpu(), IdlePower(why="the server was busy"), "idle_power_w", "the server was busy"),
        (gpu(), IdlePower(300.0, ""), "net_tok_per_joule", "no more than the idle power of 300 W"),
        (gpu(energy_j=0.0), IDLE, "tok_per_joule", "did not change"),
        (
            gpu(
                energy_j=None,
                power_w=None,
                absent={"power_w": "no sensor", "energy_j": "no sensor"},
            ),
            IDLE,
            "energy_per_request_j",
            "no sensor",
        ),
    ],
)
def test_an_unknown_energy_has_a_reason(
    during: GpuDuring, idle: IdlePower, name: str, why: str
) -> None:
    s = add_energy_metrics(BASE, during, idle, seconds=10.0)
    assert getattr(s, name) is None and why in s.absent[name]
    figures = (
        "power_w",
        "energy_j",
        "tok_per_joule",
        "net_tok_per_joule",
        "energy_per_request_j",
        "idle_power_w",
    )
    assert all((getattr(s, figure) is None) == (figure in s.absent) for figure in figures)


def test_no_energy_at_all_keeps_the_idle_power_that_was_read() -> None:
    s = summary_without_energy(BASE, "too short", IDLE)
    assert (
        s.idle_power_w == 100.0
        and s.absent["tok_per_joule"] == "too short"
        and "idle_power_w" not in s.absent
    )
    assert summary_without_energy(BASE, "no GPU").absent["idle_power_w"] == "no GPU"


@pytest.mark.parametrize(
    ("integrated", "told"), [(3120.0, False), (3200.0, True), (2800.0, True), (None, False)]
)
def test_a_difference_of_counter_and_integration_is_noted(
    integrated: float | None, told: bool
) -> None:
    s = add_energy_metrics(
        BASE, gpu(energy_counter_j=3000.0, energy_integrated_j=integrated), IDLE, seconds=10.0
    )
    assert any("counter gives 3,000 J" in note for note in s.notes) is told


def test_per_gpu_values_survive_json() -> None:
    during = gpu(
        gpus=(0, 2), power_w_each=(100.0, None), energy_j_each=(1000.0, None), energy_counter_j=None
    )
    s = add_energy_metrics(BASE, during, IDLE, seconds=10.0)
    assert from_json(BenchSummary, to_json(s)) == s


# -- profiles --------------------------------------------------------------------------------------


def test_every_profile_is_a_run_that_can_be_made() -> None:
    known = {f.name for f in fields(BenchSpec)}
    for name in profiles.PROFILE_NAMES:
        of_profile = profiles.spec_fields_of_profile(name)
        assert (
            of_profile["profile"] == name
            and set(of_profile) <= known
            and profiles.title_by_profile_name()[name]
        )
        spec = BenchSpec(url="", model="", **of_profile)
        assert spec.requests >= 8 * spec.concurrency and spec.warmup <= spec.requests
    assert (*profiles.PROFILE_NAMES,) == PROFILES  # what --help says


def test_the_documents_protocol() -> None:
    spec = BenchSpec(url="", model="", **profiles.spec_fields_of_profile("document"))
    assert (spec.concurrency, spec.requests, spec.max_tokens, spec.warmup) == (1, 10, 500, 0)


def test_a_profile_that_is_none() -> None:
    with pytest.raises(InputError, match="'fast'") as caught:
        profiles.get_profile("fast")
    assert "single-stream" in str(caught.value.next_step)


# -- repeats ---------------------------------------------------------------------------------------


def test_the_spread_of_repeats() -> None:
    runs = [replace(BASE, output_tok_s=rate) for rate in (90.0, 100.0, 110.0)]
    found = {one.metric: one for one in spread_of_each_metric(runs)}
    assert found["output_tok_s"].geometric_mean == pytest.approx(
        (90 * 100 * 110) ** (1 / 3), abs=1e-3
    )
    assert found["output_tok_s"].cv_pct == pytest.approx(10.0) and "ttft_p50_ms" not in found


def test_an_invalid_run_is_left_out_and_one_run_has_no_spread() -> None:
    found = {
        one.metric: one
        for one in spread_of_each_metric(
            [BASE, replace(BASE, output_tok_s=1.0, refused=("cached",))]
        )
    }
    assert found["output_tok_s"].values == (90.0,) and found["output_tok_s"].cv_pct is None
    assert spread_of_each_metric([]) == ()
