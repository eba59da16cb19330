"""Conditions, labels, addresses: pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workbench.bench.compare import compare
from workbench.cli import result_output
from workbench.engines.result_limits import against_limit, against_total, limit_pct
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions
from workbench.model.errors import InputError
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.model_shape import ModelShape, WeightParts
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.session.bench.result_rows import ceiling_view, experiment_arm, label_of, rows_of
from workbench.session.conditions import gpus_of
from workbench.session.servers.server_address import parse

FOUR = tuple(GpuInfo(i, f"GPU-{i}", "NVIDIA L4") for i in range(4))


def plan(engine: str = "vllm", visible: str | None = None, **flags: Any) -> LaunchPlan:
    env = () if visible is None else (FlagSetting("CUDA_VISIBLE_DEVICES", visible),)
    return LaunchPlan(
        engine,
        "m",
        flags=tuple(FlagSetting(n.replace("_", "-"), v) for n, v in flags.items()),
        env=env,
    )


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (None, (0, 1, 2, 3)),
        (plan(), (0,)),
        (plan(tensor_parallel_size=2), (0, 1)),
        (plan(tensor_parallel_size=2, data_parallel_size=2), (0, 1, 2, 3)),
        (plan(tensor_parallel_size=16), (0, 1, 2, 3)),
        (plan("sglang", tp_size=2), (0, 1)),
        (plan("llamacpp"), (0, 1, 2, 3)),
        (plan("tabbyapi"), (0, 1, 2, 3)),
        (plan(visible="2,3", tensor_parallel_size=2), (2, 3)),
        (plan(visible="GPU-1"), (1,)),
    ],
)
def test_gpus_of(of: LaunchPlan | None, expected: tuple[int, ...]) -> None:
    assert gpus_of(of, FOUR) == expected


def result(number: int, spec: dict[str, Any] | None = None, **conditions: Any) -> BenchResult:
    absent = dict.fromkeys(
        (
            "prompt_tokens",
            "output_tokens",
            "cached_tokens",
            "output_tok_s",
            "request_s",
            "ttft_ms",
            "itl_ms",
            "tpot_ms",
            "e2e_ms",
            "tokens_per_chunk",
            "per_stream_tok_s",
            "power_w",
            "energy_j",
            "tok_per_joule",
        )
    )
    summary = BenchSummary(requests_ok=0, requests_failed=0, errors={}, duration_s=1.0, **absent)
    made = Conditions(
        **{"host": "h", "engine": "vllm", "engine_version": None, "model": "org/m", **conditions}
    )
    return BenchResult(number, float(number), BenchSpec("", "", **(spec or {})), made, summary)


@pytest.mark.parametrize(
    ("before", "now", "label"),
    [
        ({}, {}, "again"),
        ({}, {"flags": {"max-num-seqs": 512, "port": 1}}, "max-num-seqs=512"),
        ({"flags": {"enforce-eager": True}}, {}, "-enforce-eager"),
        ({}, {"flags": {"enforce-eager": True}}, "enforce-eager=on"),
        ({}, {"env": {"A": "1"}}, "A=1"),
        (
            {"gpu_settings": {"gpu0.power_limit_w": 600.0}},
            {"gpu_settings": {"gpu0.power_limit_w": 500.0}},
            "power limit 500 W",
        ),
        ({"gpu_settings": {"gpu0.gpu_clocks": "2400"}}, {}, "no GPU clocks"),
        # what a killed Workbench has left: its GPUs were not read
        ({"gpu_settings": {"gpu0.power_limit_w": 600.0, "gpu0.gpu_clocks": "2400"}}, {}, "again"),
        ({}, {"gpu_settings": {"gpu0.power_limit_w": 600.0}}, "again"),
        ({}, {"spec": {"concurrency": 3}}, "c=3"),
        ({}, {"spec": {"content": "text", "rate": 2.5}}, "rate=2.5 content=text"),
        (
            {"spec": {"shared_prefix": True}},
            {"spec": {"stream": False}},
            "no-shared-prefix no-stream",
        ),
        ({"spec": {"rate": 2.5}}, {"spec": {"extra_body": {"a": 1}}}, "-rate extra-body"),
        ({}, {"spec": {"prompts_name": "own.jsonl (3 prompts, 1f)"}}, "prompts=own.jsonl"),
        ({}, {"spec": {"seed": 7, "warmup": 2, "timeout_s": 9.0}}, "again"),
    ],
)
def test_a_label_says_what_differs(before: dict[str, Any], now: dict[str, Any], label: str) -> None:
    assert label_of(result(2, **now), result(1, **before)) == label


def test_the_first_of_its_kind_is_called_by_its_preset_or_model() -> None:
    assert label_of(result(1), None) == "m"
    rows = rows_of([result(3, preset_id="p", model="other"), result(2), result(1, preset_id="p")])
    assert [row.label for row in rows] == ["p", "again", "p"]


def test_the_first_point_of_a_sweep_has_its_value() -> None:
    watts = (500.0, 400.0, 300.0)
    points = [
        result(3 - n, preset_id="p", gpu_settings={"gpu0.power_limit_w": w})
        for n, w in enumerate(watts)
    ]
    labels = [row.label for row in rows_of(points)]
    assert labels == ["power limit 500 W", "power limit 400 W", "power limit 300 W p"]
    streams = [result(2, spec={"concurrency": 4}), result(1, spec={"concurrency": 1})]
    assert [row.label for row in rows_of(streams)] == ["c=4", "c=1 m"]


def test_all_results_of_an_arm_have_one_label() -> None:
    """The same arm had three names: the difference, "again", and the preset."""
    arms = ["A", "B", "B", "A"]
    made = [
        replace(
            result(n, preset_id="p", flags={"enforce-eager": True} if arm == "B" else {}),
            tags=(f"experiment 7 {arm}",),
        )
        for n, arm in enumerate(arms, start=1)
    ]
    assert all(experiment_arm(one.tags) == (7, arm) for one, arm in zip(made, arms, strict=True))
    labels = {row.label for row in rows_of(made[::-1])}
    assert labels == {"A/B 7 A -enforce-eager", "A/B 7 B enforce-eager=on"}


@pytest.mark.parametrize(
    ("url", "base", "port", "loopback"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", 8000, True),
        ("http://localhost:8000/v1/", "http://localhost:8000", 8000, True),
        ("http://[::1]:80/v1", "http://[::1]:80", 80, True),
        ("http://box/llm/v1", "http://box/llm", 80, False),
        ("https://10.0.0.1", "https://10.0.0.1", 443, False),
    ],
)
def test_addresses(url: str, base: str, port: int, loopback: bool) -> None:
    address = parse(url)
    assert (address.base, address.port, address.loopback) == (base, port, loopback)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "127.0.0.1:8000",
        "ftp://h",
        "http://",
        "http://h:0x1",
        "http://h:99999",
        "http://[::1",
        "http://h?x=1",
        "http://u:p@h",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError):
        parse(url)


def test_a_marked_result_is_a_row_like_any() -> None:
    (row,) = rows_of([replace(result(1, simulated=True), note="n")])
    assert row.simulated and row.note == "n" and row.output_tok_s is None


def test_a_result_says_its_limit_once_and_for_which_bandwidth() -> None:
    made = result(
        7,
        spec={"concurrency": 1},
        ceiling_tok_s=26.69,
        ceiling_basis="at the memory clock under load, 13,365 of 14,001 MHz",
    )
    said = replace(made, summary=replace(made.summary, per_stream_tok_s=21.62))
    share = "81 % of 26.69 tok/s per stream (at the memory clock under load, 13,365 of 14,001 MHz)"
    assert against_limit(said) == share
    eight = replace(said, spec=replace(said.spec, concurrency=8))
    assert against_limit(eight) == share and against_total(eight) is None
    assert any(share in line for line in result_output.result_lines(said))
    other = replace(said, id=8)
    assert [n for n in compare(said, other).notes if share in n] == [
        f"A, #7: limit: {share}",
        f"B, #8: limit: {share}",
    ]
    view = ceiling_view(said)
    assert view is not None and (view.result_id, view.tok_s, view.measured_tok_s) == (
        7,
        26.69,
        21.62,
    )
    assert "memory clock under load" in view.basis
    assert (
        against_limit(result(1)) is None
        and ceiling_view(result(1)) is None
        and ceiling_view(eight) is None
    )


def test_several_streams_are_compared_with_the_limit_of_all_together() -> None:
    made = result(3, spec={"concurrency": 8}, ceiling_tok_s=27.96, ceiling_total_tok_s=223.7)
    said = replace(made, summary=replace(made.summary, per_stream_tok_s=20.0, output_tok_s=160.0))
    assert against_total(said) == "72 % of 223.7 tok/s for 8 streams together (memory bandwidth)"
    view = ceiling_view(said)
    assert view is not None and (view.tok_s, view.measured_tok_s) == (223.7, 160.0)
    assert limit_pct(said) == pytest.approx(71.5, abs=0.1)
    above = replace(said, summary=replace(said.summary, output_tok_s=250.0))
    assert "112 %" in (against_total(above) or "") and ("suspect the usage first") in (
        against_total(above) or ""
    )
    experts = WeightParts(dense=1e9, experts=20e9, expert_share=8 / 128)
    routed = replace(
        above.conditions, model_facts=ModelFacts("org/moe", shape=ModelShape(parts=experts))
    )
    assert against_total(replace(above, conditions=routed)) == (
        "112 % of 223.7 tok/s for 8 streams together (memory bandwidth, expected at uniform "
        "routing): this text may use the same experts more often, and so reads less per step, or "
        "the usage counts too many tokens"
    )
    computed = replace(routed, ceiling_total_bound="compute")
    assert "more than is possible" in (against_total(replace(above, conditions=computed)) or "")
