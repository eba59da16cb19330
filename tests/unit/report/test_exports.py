"""Tests of exports of one result: complete, marked as simulated, without secrets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import made_results as made

from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Conditions,
    Distribution,
    GpuDuring,
)
from workbench.model.distribution import PERCENTILES
from workbench.model.errors import InputError
from workbench.model.json_records import from_json
from workbench.model.metrics import PARTS
from workbench.model.secrets import mask_data
from workbench.report import imports
from workbench.report.content import Report
from workbench.report.registry import OUTPUT_FORMATS, find_output_format


def export(result: BenchResult, form: str, samples: Sequence[Mapping[str, Any]] = ()) -> str:
    return find_output_format(form).render(Report.from_result(result, samples))


CONDITIONS = Conditions(
    host="box",
    engine="vllm",
    engine_version="0.33.0",
    model="org/tiny",
    argv=("vllm", "serve", "org/tiny", "--api-key", "sesame-a", "--hf-token=sesame-b", "-tp", "2"),
    env={"HF_TOKEN": "sesame-c", "NCCL_DEBUG": "INFO"},
    flags={"api-key": ["sesame-d"], "hf-overrides": {"token": "sesame-e"}, "max-num-seqs": 256},
    driver_version="580.1",
    gpus=({"name": "RTX PRO 6000", "power_limit_w": 600},),
    gpu_settings={"power_limit_w": 500},
)
SPEC = BenchSpec(
    "http://127.0.0.1:8000", "org/tiny", api_key_env="MY_KEY", extra_body={"api_key": "sesame-f"}
)
SUMMARY = BenchSummary(
    requests_ok=62,
    requests_failed=2,
    errors={"http 503": 2},
    prompt_tokens=6200,
    output_tokens=7936,
    cached_tokens=None,
    duration_s=1.5,
    output_tok_s=5290.6667,
    request_s=41.3,
    ttft_ms=Distribution(212.5, 210, 400, 890, 100, 900, 62),
    itl_ms=None,
    tpot_ms=None,
    e2e_ms=None,
    tokens_per_chunk=1.0,
    per_stream_tok_s=46.0,
    power_w=None,
    energy_j=None,
    tok_per_joule=None,
    gpu=GpuDuring(None, None, 2400.0, 13365.0, 66.0, 97.0),
    absent={"power_w": "not supported", "itl_ms": "one | chunk"},
    notes=("the server rejected min_tokens: requests were sent without",),
)
RESULT = BenchResult(
    7, 1_790_000_000.0, SPEC, CONDITIONS, SUMMARY, note="after | reboot", tags=("ab",)
)


def simulated(result: BenchResult = RESULT) -> BenchResult:
    return replace(result, conditions=replace(result.conditions, simulated=True))


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
def test_simulated_is_marked_and_real_is_not(form: str) -> None:
    assert "SIMULATED" in export(simulated(), form)
    assert "SIMULATED" not in export(RESULT, form)


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
def test_no_secret_is_exported(form: str) -> None:
    text = export(RESULT, form)
    assert "sesame" not in text and "***" in text
    for kept in ("MY_KEY", "NCCL_DEBUG", "RTX PRO 6000", "580.1"):
        assert kept in text
    assert "256" in text or form == "txt"  # plain text leaves folded details out


def test_json_is_the_whole_result() -> None:
    data = json.loads(export(RESULT, "json", [{"index": 0, "gaps_us": [1]}]))
    assert data["samples"] == [{"index": 0, "gaps_us": [1]}] and data["simulated"] is False
    back = from_json(BenchResult, data)
    assert (back.summary, back.id, back.note) == (SUMMARY, 7, "after | reboot")
    assert back.conditions.argv == (
        "vllm",
        "serve",
        "org/tiny",
        "--api-key",
        "***",
        "--hf-token=***",
        "-tp",
        "2",
    )


def test_csv_has_a_row_for_each_metric_and_condition() -> None:
    rows = dict(csv.reader(io.StringIO(export(RESULT, "csv"))))
    assert rows["summary.output_tok_s"] == "5290.6667" and rows["summary.ttft_ms.p90"] == "400.0"
    assert rows["summary.power_w"] == "" and rows["summary.absent.power_w"] == "not supported"
    assert rows["conditions.flags.max-num-seqs"] == "256" and rows["summary.errors.http 503"] == "2"
    assert rows["simulated"] == "no"


def test_csv_text_is_not_run_as_a_formula() -> None:
    text = export(replace(RESULT, note="=cmd|' /C calc'!A0"), "csv")
    assert dict(csv.reader(io.StringIO(text)))["note"].startswith("'=")


def test_markdown_has_every_section() -> None:
    text = export(RESULT, "md")
    for line in (
        "# org/tiny on box",
        "Benchmark #7 · vllm 0.33.0 · 2026-09-21 14:13:20 UTC · Workbench",
        "> **2 requests failed**",
        "| requests | 62 ok, 2 failed, 2 http 503 |",
        "| output | 5,291 tok/s |",
        "| mean power, all GPUs of the server | n/a (not supported) |",
        f"| TTFT | 212 | 210 | 400 |{' n/a |' * (len(PERCENTILES) - 2)} 100 | 900 |",
        "| engine | vllm 0.33.0 |",
        "| max-num-seqs | 256 |",
        "| SM clock, mean | 2,400 MHz |",
        "- after \\| reboot",
        "- the server rejected min_tokens: requests were sent without",
        "Tags: ab",
    ):
        assert line in text.splitlines(), line


def test_a_separator_in_a_value_does_not_split_a_table_cell() -> None:
    (line,) = [one for one in export(RESULT, "md").splitlines() if one.startswith("| ITL")]
    assert "one \\| chunk" in line and line.replace("\\|", "").count("|") == len(PARTS) + 2


def test_an_unknown_format() -> None:
    with pytest.raises(InputError, match="unknown format 'xml'"):
        export(RESULT, "xml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=JSON)
def test_masking_keeps_the_shape(value: Any) -> None:
    again = mask_data(mask_data(value))
    assert again == mask_data(value)
    assert shape(again) == shape(value)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return [shape(v) for v in value] if isinstance(value, list) else type(value)


@given(
    flags=st.dictionaries(
        st.sampled_from(["api-key", "password", "hf-token", "x"]), st.text(min_size=1), max_size=3
    )
)
def test_a_value_under_a_secret_name_is_masked(flags: dict[str, str]) -> None:
    for name, value in mask_data(flags).items():
        assert name == "x" or value == "***"


@pytest.mark.parametrize(("form", "ttft_ms"), [("aiperf", 88.0), ("guidellm", 91.5)])
def test_another_tools_form_has_the_same_numbers(tmp_path: Path, form: str, ttft_ms: float) -> None:
    """Checked by hand with the pydantic classes of aiperf 0.13.0 (JsonExportData) and guidellm 0.8.1
    (GenerativeBenchmarksReport), which read both files."""
    result, samples = made.simulated(7), made.samples()
    limits = "ttft<=100@p95, tpot<=40@p95"
    kept = replace(result.summary, slo_pct=90.0, goodput_request_s=9.72)
    result = replace(result, spec=replace(result.spec, slo=limits), summary=kept)
    text = export(result, form, samples)
    assert "SIMULATED" in text and "SIMULATED" not in export(made.result(), form, samples)
    path = tmp_path / "export.json"
    path.write_text(text)
    (back,) = imports.read_results(path)
    s = back.summary
    assert back.conditions.simulated and back.conditions.imported == "Workbench 0.1.0"
    for name in ("requests_ok", "requests_failed", "output_tokens", "output_tok_s", "request_s"):
        assert getattr(s, name) == getattr(result.summary, name), name
    assert s.window == result.summary.window == "steady"
    assert s.whole_run_tok_s == (result.summary.whole_run_tok_s if form == "aiperf" else None)
    assert s.latency_ms("ttft_ms", "p50") == ttft_ms  # GuideLLM's from the invented requests
    assert (s.slo_pct, s.goodput_request_s) == (pytest.approx(90.0), 9.72)
    assert back.spec.model == result.spec.model and back.spec.concurrency == result.spec.concurrency
    assert "sesame" not in export(replace(RESULT, summary=result.summary), form, samples)


@pytest.mark.parametrize("form", ["aiperf", "guidellm"])
def test_another_tools_form_drops_no_limit_of_an_slo(form: str) -> None:
    """It had the last of two limits of one latency, and nothing said so."""
    both = replace(
        made.result(), spec=replace(made.result().spec, slo="ttft<=500@p95, ttft<=300@p50")
    )
    with pytest.raises(InputError, match="one limit of ttft, and this SLO has several"):
        export(both, form, made.samples())


def test_guidellms_form_needs_the_requests() -> None:
    assert json.loads(export(RESULT, "aiperf"))["request_count"]["avg"] == 62
    with pytest.raises(InputError, match="has no single requests") as caught:
        export(RESULT, "guidellm")
    assert "--format aiperf" in (caught.value.next_step or "")


def test_an_invalid_result_is_not_complete_for_aiperf() -> None:
    refused = replace(RESULT, summary=replace(SUMMARY, refused=("the client was the limit",)))
    document = json.loads(export(refused, "aiperf"))
    assert document["is_complete"] is False
    assert document["incomplete_reason"] == "the client was the limit"


def test_another_tools_form_has_no_load_that_nobody_stated() -> None:
    """The stored spec of an imported result has defaults in place of what its file lacks, and that
    of a timed run the most requests that it may send."""
    unknown = replace(CONDITIONS, imported="sglang.bench_serving", known_workload=("requests",))
    with pytest.raises(InputError, match="the imported file does not say the load"):
        export(replace(RESULT, conditions=unknown), "aiperf")
    with pytest.raises(InputError, match="its own command decided the load"):
        export(replace(RESULT, spec=replace(SPEC, command=("eval",))), "aiperf")
    known = replace(unknown, known_workload=("concurrency",))
    document = json.loads(export(replace(RESULT, conditions=known), "aiperf"))
    assert "sglang.bench_serving" in document["exported_by"]
    assert not {"type", "streaming"} & document["input_config"]["endpoint"].keys()
    timed = replace(SPEC, seconds=6.0, requests=1_000_000)
    document = json.loads(export(replace(RESULT, spec=timed), "aiperf"))
    assert "1000000" not in json.dumps(document)
    assert document["input_config"]["phases"][0]["duration"] == 6.0


@pytest.mark.parametrize(
    ("form", "kind"), [("aiperf", '"fixed_schedule"'), ("guidellm", '"trace"')]
)
def test_a_trace_is_no_concurrency_in_another_tools_form(
    tmp_path: Path, form: str, kind: str
) -> None:
    spec = replace(made.result().spec, trace_name="t.jsonl (40 requests)", trace_s=6.0)
    text = export(replace(made.result(), spec=spec), form, made.samples())
    assert kind in text and "synthetic" not in text
    (tmp_path / "export.json").write_text(text)
    (back,) = imports.read_results(tmp_path / "export.json")
    assert "concurrency" not in back.conditions.known_workload


def test_guidellms_form_has_no_latency_that_was_withheld(tmp_path: Path) -> None:
    result = made.result()
    summary = replace(result.summary, ttft_ms=None, refused=("the client was the limit",))
    (tmp_path / "export.json").write_text(
        export(replace(result, summary=summary), "guidellm", made.samples())
    )
    (back,) = imports.read_results(tmp_path / "export.json")
    assert back.summary.ttft_ms is None and back.summary.e2e_ms is not None
    assert back.summary.refused == ("the client was the limit",)


def test_guidellm_has_no_word_for_bursts() -> None:
    bursts = replace(made.result().spec, rate=4.0, burstiness=0.3)
    with pytest.raises(InputError, match="no arrivals with a burstiness"):
        export(replace(made.result(), spec=bursts), "guidellm", made.samples())


@pytest.mark.parametrize("form", ["aiperf", "guidellm"])
def test_no_other_tool_has_a_word_for_a_think_time(form: str) -> None:
    pauses = replace(made.result().spec, think_time="2-8")
    with pytest.raises(InputError, match="no word for --think-time"):
        export(replace(made.result(), spec=pauses), form, made.samples())
