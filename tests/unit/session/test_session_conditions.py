"""Conditions, labels, addresses: pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workbench.bench.compare import compare
from workbench.bench.records import BenchOutcome
from workbench.cli import result_output
from workbench.engines.result_limits import (
    pct_of_speed_limit,
    stream_limit_comparison_text,
    total_limit_comparison_text,
)
from workbench.model.answer_probe import DEGENERATE, ECHO
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions
from workbench.model.errors import InputError
from workbench.model.flags import FlagSetting
from workbench.model.gpu import DriverInfo, GpuInfo, HostSample, Telemetry
from workbench.model.model_shape import ModelShape, WeightParts
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.server_run import ServedText, ServerState, ServerStatus
from workbench.session.bench.benchmark_load import ServerUnderTest
from workbench.session.bench.measurement import MeasuredLoad
from workbench.session.bench.result_rows import (
    experiment_id_and_arm,
    label_of_result,
    rows_of_results,
    speed_ceiling_view,
)
from workbench.session.conditions import (
    _gpu_conditions,
    _status_conditions,
    digest_of_load,
    gpu_indices_of_plan,
)
from workbench.session.servers.server_address import parse_server_url

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
        (plan("sglang", tensor_parallel_size=2), (0, 1)),
        (plan("llamacpp"), (0, 1, 2, 3)),
        (plan("tabbyapi"), (0, 1, 2, 3)),
        (plan(visible="2,3", tensor_parallel_size=2), (2, 3)),
        (plan(visible="GPU-1"), (1,)),
    ],
)
def test_gpus_of(of: LaunchPlan | None, expected: tuple[int, ...]) -> None:
    assert gpu_indices_of_plan(of, FOUR) == expected


LOAD = BenchSpec("http://127.0.0.1:1", "m")


@pytest.mark.parametrize(
    ("change", "same_work"),
    [
        ({"slo": "ttft<=500@p95"}, True),
        ({"requests": 7, "warmup": 3, "until_steady": True}, True),
        ({"think_time": "5"}, False),
        ({"stream": False}, False),
        ({"length_spread": 0.2}, False),
        ({"extra_body": {"top_k": 1}}, False),
        ({"rate": 2.0}, False),
    ],
)
def test_the_digest_of_a_load_tells_other_work(change: dict[str, Any], same_work: bool) -> None:
    served = ServerUnderTest("here")
    other = replace(LOAD, **change)
    assert (digest_of_load(LOAD, served) == digest_of_load(other, served)) == same_work
    bursts, even = (replace(LOAD, rate=2.0, burstiness=shape) for shape in (0.5, 2.0))
    assert digest_of_load(bursts, served) != digest_of_load(even, served)


# of the version before options declared their part in it
DIGESTS: list[tuple[dict[str, Any], str]] = [
    ({}, "5e01a93ef72caebf"),
    (
        {"concurrency": 3, "max_tokens": 5, "seed": 5, "seconds": 9.0, "ignore_eos": False},
        "054fc32b5aae8471",
    ),
    ({"content": "text", "arrival": "constant", "think_time": "2-8"}, "53622a966b009db0"),
    (
        {"trace_name": "t.jsonl (2 requests, 1f)", "trace_s": 9.0, "speed": 2.0, "first": 10},
        "2337b9f4ad985f5e",
    ),
]


@pytest.mark.parametrize(("load", "digest"), DIGESTS)
def test_stored_digests_of_loads_stay_equal(load: dict[str, Any], digest: str) -> None:
    """Known clocks are found by the digest."""
    assert digest_of_load(replace(LOAD, **load), ServerUnderTest("here")) == digest


@pytest.mark.parametrize(
    ("endpoint", "code", "kept"),
    [("completions", ECHO, False), ("chat", ECHO, True), ("completions", DEGENERATE, True)],
)
def test_a_base_model_behind_completions_need_not_follow_the_probe(
    endpoint: str, code: str, kept: bool
) -> None:
    """No experiment of a base model could be decided: "not like for like"."""
    text = ServedText("chat", 9, problem="prompt echoed: 7 of 9 answers", code=code)
    status = ServerStatus("r", "vllm", ServerState.READY, "here", text=text)
    spec = BenchSpec(url="", model="m", endpoint=endpoint)
    assert ("server_text" in _status_conditions(status, spec)) is kept


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
        (
            {},
            {"spec": {"max_tokens": 5, "input_tokens": 6, "requests": 7, "rate": 2.5}},
            "n=7 out=5 in=6 rate=2.5",
        ),
        ({}, {"spec": {"requests": 7, "seconds": 9.0, "until_steady": True}}, "again"),
        ({}, {"spec": {"command": ("x",), "concurrency": 3, "requests": 7}}, "command"),
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
    assert label_of_result(result(2, **now), result(1, **before)) == label


def test_the_first_of_its_kind_is_called_by_its_preset_or_model() -> None:
    assert label_of_result(result(1), None) == "m"
    rows = rows_of_results(
        [result(3, preset_id="p", model="other"), result(2), result(1, preset_id="p")]
    )
    assert [row.label for row in rows] == ["p", "again", "p"]


def test_a_row_has_each_of_its_changes_by_itself() -> None:
    before = {"flags": {"enforce-eager": True}, "gpu_settings": {"gpu0.power_limit_w": 250.0}}
    now = {"flags": {"enforce-eager": False}, "gpu_settings": {"gpu0.power_limit_w": 170.0}}
    changed, first = rows_of_results([result(2, **now), result(1, **before)])
    assert changed.changes == ("enforce-eager=off", "power limit 170 W")
    assert changed.label == " ".join(changed.changes) and first.changes == ()


def test_a_server_on_fewer_gpus_changes_no_setting_of_the_others() -> None:
    watts = {f"gpu{n}.power_limit_w": 250.0 for n in range(4)}
    fewer = {"gpu0.power_limit_w": 250.0, "gpu1.power_limit_w": 160.0}
    assert label_of_result(result(2, gpu_settings=fewer), result(1, gpu_settings=watts)) == (
        "power limit 160 W"
    )
    lock = {"gpu0.gpu_clocks": "1200,1200"}
    assert label_of_result(result(2, gpu_settings=lock), result(1)).startswith("GPU clocks ")


def test_the_first_point_of_a_sweep_has_its_value() -> None:
    watts = (500.0, 400.0, 300.0)
    points = [
        result(3 - n, preset_id="p", gpu_settings={"gpu0.power_limit_w": w})
        for n, w in enumerate(watts)
    ]
    labels = [row.label for row in rows_of_results(points)]
    assert labels == ["power limit 500 W", "power limit 400 W", "power limit 300 W p"]
    streams = [result(2, spec={"concurrency": 4}), result(1, spec={"concurrency": 1})]
    assert [row.label for row in rows_of_results(streams)] == ["c=4", "c=1 m"]


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
    assert all(
        experiment_id_and_arm(one.tags) == (7, arm) for one, arm in zip(made, arms, strict=True)
    )
    labels = {row.label for row in rows_of_results(made[::-1])}
    assert labels == {"A/B 7 A -enforce-eager", "A/B 7 B enforce-eager=on"}


@pytest.mark.parametrize(
    ("url", "base", "port", "loopback"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", 8000, True),
        ("http://localhost:8000/v1/", "http://localhost:8000", 8000, True),
        ("http://[::1]:80/v1", "http://[::1]:80", 80, True),
        ("http://box/llm/v1", "http://box/llm", 80, False),
        ("https://10.0.0.1", "https://10.0.0.1", 443, False),
        ("HTTPS://Box/v1", "https://Box", 443, False),
        (" Https://box:8443/llm", "https://box:8443/llm", 8443, False),
        ("HTTP://127.0.0.1:8000/v1", "http://127.0.0.1:8000", 8000, True),
    ],
)
def test_addresses(url: str, base: str, port: int, loopback: bool) -> None:
    address = parse_server_url(url)
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
        parse_server_url(url)


def test_a_marked_result_is_a_row_like_any() -> None:
    (row,) = rows_of_results([replace(result(1, simulated=True), note="n")])
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
    assert stream_limit_comparison_text(said) == share
    eight = replace(said, spec=replace(said.spec, concurrency=8))
    assert (
        stream_limit_comparison_text(eight) == share and total_limit_comparison_text(eight) is None
    )
    assert any(share in line for line in result_output.result_lines(said))
    other = replace(said, id=8)
    assert [n for n in compare(said, other).notes if share in n] == [
        f"A, #7: limit: {share}",
        f"B, #8: limit: {share}",
    ]
    view = speed_ceiling_view(said)
    assert view is not None and (view.result_id, view.tok_s, view.measured_tok_s) == (
        7,
        26.69,
        21.62,
    )
    assert "memory clock under load" in view.basis
    assert (
        stream_limit_comparison_text(result(1)) is None
        and speed_ceiling_view(result(1)) is None
        and speed_ceiling_view(eight) is None
    )


def test_a_limit_is_withheld_where_the_number_of_drafts_is_unknown() -> None:
    """It was the limit without speculation, which a server with drafts exceeds."""
    gpu = GpuInfo(0, "GPU-0", "NVIDIA GB10")
    telemetry = Telemetry(1.0, 1.0, DriverInfo(), HostSample(), (gpu,), ())
    run = BenchOutcome(LOAD, result(1).summary)
    measured = MeasuredLoad(run, run.summary, (0,), telemetry)
    facts = ModelFacts("m", bytes_per_token=5e9)

    def conditions(**flags: Any) -> dict[str, Any]:
        of = replace(plan("sglang", **flags), model_facts=facts)
        return _gpu_conditions(LOAD, of, measured, (), None)

    unknown = conditions(speculative_algorithm="EAGLE")
    assert unknown.get("ceiling_tok_s") is None
    assert "speculation" in unknown["ceiling_basis"]
    alone = conditions()["ceiling_tok_s"]
    three = conditions(speculative_algorithm="EAGLE", speculative_num_steps=3)["ceiling_tok_s"]
    assert three == pytest.approx(4 * alone)


def test_several_streams_are_compared_with_the_limit_of_all_together() -> None:
    made = result(3, spec={"concurrency": 8}, ceiling_tok_s=27.96, ceiling_total_tok_s=223.7)
    said = replace(made, summary=replace(made.summary, per_stream_tok_s=20.0, output_tok_s=160.0))
    assert (
        total_limit_comparison_text(said)
        == "72 % of 223.7 tok/s for 8 streams together (memory bandwidth)"
    )
    view = speed_ceiling_view(said)
    assert view is not None and (view.tok_s, view.measured_tok_s) == (223.7, 160.0)
    assert pct_of_speed_limit(said) == pytest.approx(71.5, abs=0.1)
    above = replace(said, summary=replace(said.summary, output_tok_s=250.0))
    assert "112 %" in (total_limit_comparison_text(above) or "") and (
        "suspect the usage first"
    ) in (total_limit_comparison_text(above) or "")
    experts = WeightParts(dense=1e9, experts=20e9, expert_share=8 / 128)
    routed = replace(
        above.conditions, model_facts=ModelFacts("org/moe", shape=ModelShape(parts=experts))
    )
    assert total_limit_comparison_text(replace(above, conditions=routed)) == (
        "112 % of 223.7 tok/s for 8 streams together (memory bandwidth, expected at uniform "
        "routing): this text may use the same experts more often, and so reads less per step, or "
        "the usage counts too many tokens"
    )
    computed = replace(routed, ceiling_total_bound="compute")
    assert "more than is possible" in (
        total_limit_comparison_text(replace(above, conditions=computed)) or ""
    )
