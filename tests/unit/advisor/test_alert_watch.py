"""When alerts begin, end and ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.advisor.alert_rules import OF_GPU, OF_HOST, LiveFacts
from workbench.advisor.alert_watch import RING_S, SETTLE_S, AlertChange, AlertWatch, RuleWatch
from workbench.model.alerts import BEGIN, END, RULES, AlertLimits
from workbench.model.gpu import (
    DriverInfo,
    GpuInfo,
    GpuSample,
    GpuState,
    HostSample,
    MigInstance,
    Telemetry,
)

UP = AlertLimits(begin=90.0, end=70.0, for_s=3.0)
DOWN = AlertLimits(begin=5.0, end=10.0, for_s=3.0)
GIB = 1024**3


def run(limits: AlertLimits, values: Sequence[float | None], rule: str = "kv-cache") -> list[str]:
    """Return what a rule did with one value each second: "3 begin", or "3 (begin)" without a
    ring."""
    watch = RuleWatch(RULES[rule], limits)
    found = []
    for second, value in enumerate(values):
        for change in watch.update_alerts(float(second), [(0, "", value)]):
            found.append(
                f"{second} {change.phase}" if change.rings else f"{second} ({change.phase})"
            )
    return found


@pytest.mark.parametrize(
    ("limits", "values", "told"),
    [
        (UP, [95] * 3, []),  # not long enough
        (UP, [95] * 5, ["3 begin"]),
        (UP, [95, 95, 95, 80, 95, 95, 95], []),  # interrupted
        (UP, [95] * 4 + [80] * 9 + [95] * 9, ["3 begin"]),  # between the thresholds: still active
        (UP, [95] * 4 + [70], ["3 begin", "4 end"]),
        (UP, [95, 95, 95, None, 95, 95, 95], []),  # an unknown value is no proof
        (UP, [95] * 4 + [None] * 9 + [60], ["3 begin", "13 end"]),
        (DOWN, [4] * 4 + [7, 10], ["3 begin", "5 end"]),
        (DOWN, [11] * 9, []),
    ],
)
def test_an_alert_begins_after_its_time_and_ends_at_the_other_threshold(
    limits: AlertLimits, values: list[float | None], told: list[str]
) -> None:
    assert run(limits, values) == told


def test_a_flapping_alert_rings_once_a_minute_and_one_that_stays_is_told_then() -> None:
    flaps = replace(UP, for_s=0.0)
    told = run(flaps, [95.0, 60.0] * 60)
    assert [line for line in told if "(" not in line] == ["0 begin", "1 end", "60 begin", "61 end"]
    assert run(flaps, [95.0, 60.0] + [95.0] * 70) == ["0 begin", "1 end", "2 (begin)", "60 begin"]


def test_a_share_of_time_bears_a_reason_that_comes_and_goes() -> None:
    rule, limits = RULES["heat-slowdown"], RULES["heat-slowdown"].limits
    assert limits is not None
    flickering = [0.0, 1.0] * 40 + [0.0] * 60
    watch = RuleWatch(rule, limits)
    told = [
        (second, change.phase)
        for second, value in enumerate(flickering)
        for change in watch.update_alerts(float(second), [(0, "", value)])
    ]
    assert [phase for _, phase in told] == [BEGIN, END]
    assert told[0][0] < 40 and told[1][0] > 80
    assert run(limits, [0.0] * 5 + [1.0] + [0.0] * 30, "heat-slowdown") == []


def test_equal_gpus_share_one_alert_and_unlike_ones_do_not() -> None:
    watch = RuleWatch(RULES["kv-cache"], UP)
    told: list[tuple[float, AlertChange]] = []
    for second in range(90):
        # GPU 1 passes the threshold 2 s after GPU 0, GPU 2 a minute later, GPU 3 is another type
        begun_s = {0: 0, 1: 2, 2: 70, 3: 0}
        readings = [
            (gpu, "B200" if gpu == 3 else "H100", 95.0 if second >= begun_s[gpu] else 20.0)
            for gpu in (2, 0, 3, 1)
        ]
        told += [(second, change) for change in watch.update_alerts(float(second), readings)]
    assert [(second, change.indexes, change.rings) for second, change in told] == [
        (3, (0, 1), True),
        (3, (3,), True),
        (73, (0, 1, 2), True),
    ]
    ends = watch.update_alerts(90.0, [(gpu, "H100", 10.0) for gpu in range(3)])
    assert [(change.phase, change.indexes) for change in ends] == [(END, (0, 1, 2))]


def test_another_error_of_a_gpu_is_told_at_once_and_the_same_one_once_a_minute() -> None:
    watch = RuleWatch(RULES["gpu-error"], AlertLimits(1.0, 0.0, 0.0))
    told = []
    for second, xid in enumerate((0, 94, 0, 79, 79, 0, 94, 0)):
        told += watch.update_alerts(float(second), [(0, "H100", float(xid))])
    assert [change.value for change in told if change.rings] == [94.0, 79.0]
    assert watch.current_state(8.0).state == "ended"


values = st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=120)


@given(values, st.integers(0, 5))
def test_no_alert_rings_twice_without_an_end_or_within_a_minute(
    found: list[int | None], for_s: int
) -> None:
    watch = RuleWatch(RULES["kv-cache"], replace(UP, for_s=float(for_s)))
    active, rung_s = False, -RING_S
    for second, value in enumerate(found):
        for change in watch.update_alerts(float(second), [(0, "", value)]):
            if change.phase == END:
                assert active and value is not None and value <= UP.end
                active = False
            elif change.rings:
                assert value is not None and second - rung_s >= RING_S
                rung_s = float(second)
                active = True
            else:
                assert not active
                active = True


@given(st.lists(st.one_of(st.none(), st.integers(71, 89)), max_size=60))
def test_values_between_the_thresholds_start_nothing(found: list[int | None]) -> None:
    assert run(replace(UP, for_s=0.0), found) == []


@given(
    st.lists(st.tuples(*[st.integers(0, 100)] * 4), max_size=40),
    st.permutations(range(4)),
)
def test_the_order_of_the_gpus_changes_nothing(
    rows: list[tuple[int, ...]], order: list[int]
) -> None:
    told = []
    for places in (range(4), order):
        watch = RuleWatch(RULES["kv-cache"], UP)
        told.append(
            [
                watch.update_alerts(
                    float(second), [(i, "ab"[i % 2], float(row[i])) for i in places]
                )
                for second, row in enumerate(rows)
            ]
        )
    assert told[0] == told[1]


# ---- the rules


def info(**fields: object) -> GpuInfo:
    return replace(GpuInfo(0, "GPU-0", "NVIDIA A100", temperature_slowdown_c=90.0), **fields)


def sample(**fields: object) -> GpuSample:
    known = GpuSample(
        0,
        "GPU-0",
        sm_mhz=1400,
        gpu_util_pct=90,
        temperature_c=50,
        memory_used_bytes=10 * GIB,
        memory_total_bytes=40 * GIB,
    )
    return replace(known, **fields)


def facts(host: HostSample | None = None, **engine: float) -> LiveFacts:
    return LiveFacts(
        Telemetry(0.0, 0.0, DriverInfo(), host or HostSample(), (info(),), (sample(),)), engine
    )


MIG = (MigInstance(0, "MIG-0", "1g", 10 * GIB), MigInstance(1, "MIG-1", "1g", 10 * GIB))


@pytest.mark.parametrize(
    ("rule", "of_info", "of_sample", "value"),
    [
        ("heat-slowdown", {}, {"event_reasons": ("SW power cap",)}, 0.0),
        ("heat-slowdown", {}, {"event_reasons": ("SW thermal slowdown",)}, 1.0),
        ("heat-slowdown", {}, {"absent": {"event_reasons": "not supported"}}, None),
        ("hardware-slowdown", {}, {"event_reasons": ("HW power brake slowdown",)}, 1.0),
        ("hidden-clock-cap", {"name": "NVIDIA GB10"}, {"sm_mhz": 700}, 1.0),
        ("hidden-clock-cap", {"name": "NVIDIA GB10"}, {"sm_mhz": 2400}, 0.0),
        ("hidden-clock-cap", {"name": "NVIDIA GB10"}, {"sm_mhz": 200, "gpu_util_pct": 0}, None),
        (
            "hidden-clock-cap",
            {"name": "NVIDIA GB10"},
            {"sm_mhz": 700, "event_reasons": ("SW thermal slowdown",)},
            0.0,
        ),
        ("hidden-clock-cap", {}, {"sm_mhz": 700}, 0.0),
        ("temperature", {}, {"temperature_c": 87}, 3.0),
        ("temperature", {"temperature_slowdown_c": None}, {"temperature_c": 87}, None),
        ("gpu-memory", {}, {}, 75.0),
        ("gpu-memory", {"unified_memory": True}, {}, None),
        (
            "gpu-memory",
            {"mig": True, "instances": MIG},
            {"instance_used_bytes": {"MIG-0": 9 * GIB, "MIG-1": 1 * GIB}},
            10.0,
        ),
        ("gpu-lost", {}, {"state": GpuState.LOST}, 1.0),
        ("gpu-error", {}, {"xid": 79}, 79),
        ("pcie-errors", {}, {"pcie_replays_per_min": 12.0}, 12.0),
        ("gpu-lost", {}, {"state": GpuState.NO_PERMISSION}, 0.0),
    ],
)
def test_what_a_rule_reads_of_a_gpu(
    rule: str, of_info: dict[str, object], of_sample: dict[str, object], value: float | None
) -> None:
    assert OF_GPU[rule](info(**of_info), sample(**of_sample), facts()) == value


def test_what_a_rule_reads_of_the_host_and_the_engine() -> None:
    host = HostSample(
        100 * GIB, 4 * GIB, memory_pressure_pct=12.5, io_pressure_pct=70.0, prochot=True
    )
    found = {name: read(facts(host, waiting=12, kv_use_pct=96.0)) for name, read in OF_HOST.items()}
    assert found == {
        "host-memory": 4.0,
        "memory-pressure": 12.5,
        "disk-pressure": 70.0,
        "prochot": 1.0,
        "queue": 12,
        "kv-cache": 96.0,
    }
    assert {read(facts()) for read in OF_HOST.values()} == {None}
    assert set(OF_GPU) | set(OF_HOST) == {n for n, rule in RULES.items() if rule.limits}
    assert set(OF_GPU) == {name for name, rule in RULES.items() if rule.of_gpu}


def test_a_cap_that_a_load_has_shown_is_a_hidden_one() -> None:
    shown = replace(facts(), capped=frozenset({0}))
    assert OF_GPU["hidden-clock-cap"](info(), sample(gpu_util_pct=0), shown) == 1.0


# ---- old values


def test_old_values_that_arrive_after_a_gap_raise_nothing() -> None:
    watch = AlertWatch({"queue": AlertLimits(10.0, 2.0, 0.0), "kv-cache": UP})
    full = facts(waiting=50, kv_use_pct=99.0)
    assert watch.update_alerts(0.0, 1.0, facts(waiting=0, kv_use_pct=99.0)) == []
    burst = [watch.update_alerts(60.0 + number / 1000, 1.0, full) for number in range(30)]
    assert burst == [[]] * 30
    empty = facts(waiting=0, kv_use_pct=10.0)
    assert [watch.update_alerts(60.5 + second, 1.0, empty) for second in range(9)] == [[]] * 9
    assert [c.rule for c in watch.update_alerts(70.5, 1.0, full)] == ["queue"]


def test_an_alert_that_was_active_before_a_gap_ends_after_it_and_rings_not_again() -> None:
    watch = AlertWatch({"queue": AlertLimits(10.0, 2.0, 0.0)})
    assert [c.phase for c in watch.update_alerts(0.0, 1.0, facts(waiting=50))] == [BEGIN]
    assert watch.update_alerts(600.0, 1.0, facts(waiting=50)) == []
    assert watch.update_alerts(601.0 + SETTLE_S, 1.0, facts(waiting=50)) == []
    assert [c.phase for c in watch.update_alerts(602.0 + SETTLE_S, 1.0, facts(waiting=0))] == [END]


def test_a_gpu_that_is_divided_anew_ends_its_alerts() -> None:
    watch = AlertWatch({"temperature": AlertLimits(5.0, 10.0, 0.0)})
    hot = facts().telemetry
    hot = replace(hot, gpus=(sample(temperature_c=89),))
    assert [c.phase for c in watch.update_alerts(0.0, 1.0, LiveFacts(hot, {}))] == [BEGIN]
    cool = replace(hot, infos=(info(mig=True, instances=MIG),), gpus=(sample(),))
    ends = watch.update_alerts(1.0, 1.0, LiveFacts(cool, {}))
    assert [(c.phase, c.value, c.rings) for c in ends] == [(END, None, True)]


def test_readings_of_a_long_interval_are_no_gaps() -> None:
    watch = AlertWatch({"kv-cache": UP})
    told = [watch.update_alerts(30.0 * n, 30.0, facts(kv_use_pct=99.0)) for n in range(3)]
    assert [[change.phase for change in changes] for changes in told] == [[], [BEGIN], []]
