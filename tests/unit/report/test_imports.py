"""Tests of imports. vllm bench serve 0.32, llama-benchy 0.4 and AIPerf 0.13 wrote the fixtures when
each measured a simulated engine of Workbench; only paths were removed."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import made_results as made

from workbench.bench.compare import compare
from workbench.model.bench import BenchResult
from workbench.model.distribution import PERCENTILES
from workbench.model.errors import InputError, StoreError, WorkbenchError
from workbench.report.content import Report
from workbench.report.imports import Imported, ImportOptions, read_results
from workbench.report.registry import find_output_format
from workbench.store.results_db import ResultsDb


def export(result: BenchResult, form: str, samples: Sequence[Mapping[str, Any]] = ()) -> str:
    return find_output_format(form).render(Report.from_result(result, samples))


FIXTURES = Path(__file__).parents[2] / "fixtures" / "imports"
NAMES = ("vllm-0.32.json", "vllm-0.32-detailed.json", "llama-benchy-0.4.json", "aiperf-0.13.json")


def fixture(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / name).read_text())
    return document


@pytest.fixture
def wrote(tmp_path: Path) -> Callable[[Any], Path]:
    def write(document: Any) -> Path:
        path = tmp_path / "file.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return write


def as_result(one: Imported, number: int = 1) -> BenchResult:
    return BenchResult(number, one.unix_s, one.spec, one.conditions, one.summary)


# -- vllm bench serve ------------------------------------------------------------------------------


def test_vllm_with_every_request() -> None:
    data = fixture("vllm-0.32-detailed.json")
    (one,) = read_results(FIXTURES / "vllm-0.32-detailed.json")
    s = one.summary
    assert (s.requests_ok, s.requests_failed, s.prompt_tokens, s.output_tokens) == (8, 0, 179, 128)
    assert (s.output_tok_s, s.duration_s) == (data["output_throughput"], data["duration"])
    for ours, theirs in (
        ("ttft_ms", "ttft"),
        ("tpot_ms", "tpot"),
        ("itl_ms", "itl"),
        ("e2e_ms", "e2el"),
    ):
        for part, name in (("mean", "mean"), ("p50", "median"), ("p90", "p90")):
            # Samples are whole microseconds; the percentiles are computed of them.
            assert s.latency_ms(ours, part) == pytest.approx(
                data[f"{name}_{theirs}_ms"], abs=0.002
            ), (
                ours,
                part,
            )
    assert s.ttft_ms is not None and s.ttft_ms.count == 8
    assert s.power_w is None and s.absent["power_w"] == "not in the imported file"
    assert (
        one.spec.concurrency,
        one.spec.requests,
        one.spec.max_tokens,
        one.spec.input_tokens,
    ) == (4, 8, 16, 22)
    assert one.conditions.known_workload == (
        "requests",
        "endpoint",
        "concurrency",
        "input_tokens",
        "max_tokens",
    )
    assert (one.conditions.imported, one.conditions.engine) == ("vllm bench serve", None)
    assert any("has only the role as the first token" in note for note in s.notes)
    assert len(one.samples) == 8 and {s["output_tokens"] for s in one.samples} == {16}
    assert min(s["start_s"] for s in one.samples) == 0.0 and "generated_texts" not in str(
        one.samples
    )


def test_vllm_without_requests_has_only_some_percentiles() -> None:
    data = fixture("vllm-0.32.json")
    (one,) = read_results(FIXTURES / "vllm-0.32.json")
    s = one.summary
    assert s.ttft_ms is None and s.absent["ttft_ms"] == "the file has only some of its percentiles"
    assert s.partial["ttft_ms"] == {
        "mean": data["mean_ttft_ms"],
        "p50": data["median_ttft_ms"],
        "p99": data["p99_ttft_ms"],
    }
    assert s.latency_ms("ttft_ms", "p90") is None and s.latency_ms("ttft_ms", "p99") is None
    assert (
        s.e2e_ms is None
        and "e2e_ms" not in s.partial
        and s.absent["e2e_ms"] == ("not in the imported file")
    )
    assert one.samples == ()


def test_vllm_gives_every_percentile_that_was_asked_for(wrote: Callable[[Any], Path]) -> None:
    """The option --metric-percentiles names them. p95 was not read."""
    asked = {f"{each.title}_ttft_ms": each.percent for each in PERCENTILES.values()}
    path = wrote({**fixture("vllm-0.32.json"), **asked, "median_ttft_ms": 50})
    (one,) = read_results(path)
    percentiles = {name: each.percent for name, each in PERCENTILES.items()}
    assert percentiles.items() <= one.summary.partial["ttft_ms"].items()


def test_vllm_open_loop_failures_and_several_documents(wrote: Callable[[Any], Path]) -> None:
    data = fixture("vllm-0.32.json")
    open_loop = {
        **data,
        "request_rate": 3.5,
        "max_concurrency": None,
        "burstiness": 0.5,
        "num_prompts": 10,
    }
    del open_loop["failed"]  # older versions do not have it
    nothing = {**data, "completed": 0, "failed": 8, "mean_ttft_ms": 0.0, "output_throughput": 0.0}
    first, second = read_results(wrote(json.dumps(open_loop) + "\n" + json.dumps(nothing)))
    assert first.spec.burstiness == 0.5
    assert (first.spec.rate, first.spec.arrival, first.summary.requests_failed) == (
        3.5,
        "poisson",
        2,
    )
    assert "concurrency" not in first.conditions.known_workload
    assert second.summary.output_tok_s is None and second.summary.partial == {}
    assert second.summary.absent["ttft_ms"] == (
        "no request was answered"
    ) and second.summary.errors == {"failed": 8}
    assert first.uid != second.uid


def test_vllm_requests_that_failed_are_kept_apart(wrote: Callable[[Any], Path]) -> None:
    data = fixture("vllm-0.32-detailed.json")
    data["errors"][2], data["completed"], data["failed"] = "Connection reset", 7, 1
    (one,) = read_results(wrote(data))
    assert one.samples[2]["error"] == "failed" and one.samples[2]["detail"] == "Connection reset"
    assert one.summary.ttft_ms is not None and one.summary.ttft_ms.count == 7


def test_vllm_on_the_completions_endpoint_has_no_role_chunk(wrote: Callable[[Any], Path]) -> None:
    (one,) = read_results(
        wrote({**fixture("vllm-0.32.json"), "endpoint_type": "openai", "backend": "openai"})
    )
    assert one.spec.endpoint == "completions" and not any(
        "role" in note for note in one.summary.notes
    )


def test_vllm_names_the_endpoint_without_its_backend(wrote: Callable[[Any], Path]) -> None:
    (one,) = read_results(
        wrote({**fixture("vllm-0.32.json"), "endpoint_type": "openai-chat", "backend": 5})
    )
    assert one.spec.endpoint == "chat"


# -- llama-benchy ----------------------------------------------------------------------------------


def test_llama_benchy_is_a_result_per_combination() -> None:
    data = fixture("llama-benchy-0.4.json")
    alone, four = read_results(FIXTURES / "llama-benchy-0.4.json")
    assert (alone.spec.concurrency, four.spec.concurrency) == (1, 4)
    raw = sorted(data["benchmarks"][1]["e2e_ttft"]["values"])
    assert (
        four.summary.ttft_ms is not None
        and four.summary.ttft_ms.count == len(raw) == four.summary.requests_ok
    )
    assert four.summary.ttft_ms.p50 == pytest.approx((raw[3] + raw[4]) / 2)
    assert (
        four.summary.output_tok_s is None and "decode window" in four.summary.absent["output_tok_s"]
    )
    assert four.summary.absent["requests_failed"] and four.conditions.imported == (
        "llama-benchy 0.4.0"
    )
    assert alone.unix_s == 1795243505.0  # its time is UTC, and says so
    assert alone.uid != four.uid


def test_llama_benchy_decode_rate_is_per_stream(wrote: Callable[[Any], Path]) -> None:
    data = fixture("llama-benchy-0.4.json")
    run = data["benchmarks"][0]
    run["tg_req_throughput"] = run["tg_throughput"] = {
        "mean": 50.0,
        "std": 0.0,
        "values": [49.0, 51.0],
    }
    run |= {"context_size": 4096, "is_context_prefill_phase": True}
    one = read_results(wrote(data))[0]
    assert one.summary.per_stream_tok_s == 50.0 and one.summary.output_tok_s is None
    assert one.spec.input_tokens == 32 + 4096
    assert "decode window, all streams: 50.0 tok/s (mean of 2)" in one.summary.notes
    assert any("fills a context of 4096 tokens" in note for note in one.summary.notes)


# -- AIPerf ----------------------------------------------------------------------------------------


def test_aiperf_metrics_get_workbenchs_names() -> None:
    data = fixture("aiperf-0.13.json")
    (one,) = read_results(FIXTURES / "aiperf-0.13.json")
    s = one.summary
    assert s.tpot_ms is not None and s.tpot_ms.mean == data["inter_token_latency"]["avg"]
    assert (
        s.itl_ms is not None
        and s.itl_ms.p90 == data["inter_chunk_latency"]["p90"]
        and s.itl_ms.count == 167
    )
    assert s.e2e_ms is not None and s.e2e_ms.max == data["request_latency"]["max"]
    assert (s.output_tokens, s.prompt_tokens, s.requests_ok, s.requests_failed) == (192, 208, 12, 0)
    assert (s.output_tok_s, s.duration_s) == (data["output_token_throughput"]["avg"], 0.153507584)
    assert (one.spec.model, one.spec.concurrency, one.spec.endpoint) == (
        "Qwen/Qwen3-0.6B",
        4,
        "chat",
    )
    assert one.conditions.imported == "AIPerf 0.13.0" and not s.refused


def test_aiperf_tokens_of_its_own_tokenizer_are_not_the_servers(
    wrote: Callable[[Any], Path],
) -> None:
    data = fixture("aiperf-0.13.json")
    data["input_config"]["endpoint"]["use_server_token_count"] = False
    data = {name: value for name, value in data.items() if not name.startswith("total_usage_")}
    (one,) = read_results(wrote(data))
    assert (
        one.summary.output_tokens is None
        and ("token counts of the server") in one.summary.absent["output_tokens"]
    )
    assert any("client's tokenizer" in note for note in one.summary.notes)
    data["total_usage_completion_tokens"] = {"unit": "tokens", "avg": 180.0}
    assert read_results(wrote(data))[0].summary.output_tokens == 180


def test_aiperf_energy_errors_and_an_early_end(wrote: Callable[[Any], Path]) -> None:
    data = fixture("aiperf-0.13.json") | {
        "nvidia_total_gpu_power": {"unit": "W", "avg": 512.5},
        "nvidia_total_gpu_energy": {"unit": "J", "avg": 77.0},
        "nvidia_output_tokens_per_joule": {"unit": "tokens/J", "avg": 2.5},
        "error_request_count": {"unit": "requests", "avg": 3.0},
        "error_summary": [
            {"error_details": {"code": 503, "message": "busy"}, "count": 2},
            {"error_details": {"type": "ClientError", "message": "reset"}, "count": 1},
        ],
        "is_complete": False,
        "incomplete_reason": "stalled",
        "telemetry_data": {
            "endpoints": {
                "localhost": {
                    "gpus": {
                        "gpu_0": {
                            "gpu_index": 0,
                            "gpu_name": "RTX PRO 6000",
                            "gpu_uuid": "GPU-1",
                            "metrics": {},
                        }
                    }
                }
            }
        },
        "request_latency": {
            "unit": "sec",
            "avg": 0.5,
            "p50": 0.4,
            "p90": 0.6,
            "p99": 0.7,
            "min": 0.1,
            "max": 0.8,
        },
    }
    (one,) = read_results(wrote(data))
    s = one.summary
    assert (s.power_w, s.energy_j, s.tok_per_joule) == (512.5, 77.0, 2.5)
    assert (s.requests_failed, s.errors) == (3, {"http 503": 2, "ClientError": 1})
    assert s.refused == ("AIPerf reports an incomplete run: stalled",)
    assert one.conditions.gpus == ({"index": 0, "name": "RTX PRO 6000", "uuid": "GPU-1"},)
    assert s.e2e_ms is not None and s.e2e_ms.mean == 500.0


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_result_is_like_for_like_with_none_of_another_tool(name: str) -> None:
    told = ImportOptions(model="org/tiny", engine="vllm", host="box")
    ours = made.result()
    for one in read_results(FIXTURES / name, told):
        theirs = as_result(one)
        assert (theirs.conditions.engine, theirs.conditions.host) == ("vllm", "box")
        compared = compare(ours, theirs)
        assert not compared.like_for_like
        assert any("was measured by" in warning for warning in compared.warnings)
        assert any(d["name"] == "measured by" for d in compared.differences)
        assert not compare(theirs, theirs).like_for_like


@pytest.mark.parametrize("name", NAMES)
def test_values_that_the_file_lacks_are_not_in_the_report(name: str) -> None:
    for one in read_results(FIXTURES / name):
        text = export(as_result(one), "md")
        assert "Measured by" in text and "| all else | not in the imported file |" in text
        for invented in ("| temperature |", "| seed |", "| warmup |", "| ignore eos |"):
            assert invented not in text


@pytest.mark.parametrize("name", NAMES)
def test_the_same_content_is_the_same_result(name: str, tmp_path: Path) -> None:
    db = ResultsDb(tmp_path / "results.sqlite3")
    copied = tmp_path / "again.json"
    copied.write_text(json.dumps(fixture(name), indent=3))
    ids = [
        [
            db.add(o.spec, o.conditions, o.summary, o.samples, uid=o.uid, unix_s=o.unix_s)
            for o in read_results(path)
        ]
        for path in (FIXTURES / name, copied)
    ]
    assert ids[0] == ids[1] and len(db.list()) == len(ids[0])
    back = db.get(ids[0][0])
    assert back.summary == read_results(FIXTURES / name)[0].summary and back.conditions.imported
    assert [r.id for r in db.list(search=str(back.conditions.imported))] == list(reversed(ids[0]))


def test_the_model_must_be_known(wrote: Callable[[Any], Path]) -> None:
    data = fixture("vllm-0.32.json")
    del data["model_id"]
    with pytest.raises(InputError, match="the file does not name the model") as caught:
        read_results(wrote(data))
    assert "--model" in (caught.value.next_step or "")
    assert read_results(wrote(data), ImportOptions(model="org/m"))[0].spec.model == "org/m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{", "line 1, column 2"),
        ('{"a": 1} trailing', "line 1, column 10: Expecting value"),
        ("[1, 2]", "is not a JSON object"),
        ('{"hello": 1}', "not a result of a known tool (its fields: hello)"),
        ('{"total_input_sequences": 3, "completed": 1}', "embeddings"),
        ('{"completed": 3, "total_output_tokens_retokenized": 3}', "SGLang"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_not_results_are_rejected(
    wrote: Callable[[Any], Path], text: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_results(wrote(text))
    assert (
        said in caught.value.message
        and "file.json" in caught.value.message
        and caught.value.next_step
    )


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xff"}')
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("nowhere.json", "No such file"),
        ("latin.json", "byte 7 is not UTF-8"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),  # nobody writes into it, so a reader would wait for ever
    ):
        with pytest.raises(InputError, match=said):
            read_results(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "vllm-0.32.json",
            {"completed": "8"},
            "completed: the field must be a number that is 0 or more, found '8'",
        ),
        (
            "vllm-0.32.json",
            {"completed": 7.5},
            "completed: the field must be a whole number, found 7.5",
        ),
        ("vllm-0.32.json", {"mean_ttft_ms": -1}, "mean_ttft_ms: the field must be a number"),
        (
            "vllm-0.32.json",
            {"output_throughput": float("nan")},
            "output_throughput: the field must be a number",
        ),
        (
            "vllm-0.32.json",
            {"date": "yesterday"},
            "date: the field must be a date and time since 1970, found 'yesterday'",
        ),
        ("vllm-0.32.json", {"date": "00010101-000000"}, "date: the field must be a date and time"),
        (
            "aiperf-0.13.json",
            {"benchmark_duration": {"unit": "min", "avg": 3}},
            "benchmark_duration.unit: the field must be a unit of time, found 'min'",
        ),
        ("vllm-0.32-detailed.json", {"itls": [[0.1]]}, "itls: the field must be a list of 8 lists"),
        (
            "vllm-0.32-detailed.json",
            {"itls": [[0.1], 3, *[[0.1]] * 6]},
            "itls: the field must be a list of lists",
        ),
        (
            "vllm-0.32-detailed.json",
            {"start_times": [1.0]},
            "start_times: the field must be a list of 8 numbers",
        ),
        (
            "llama-benchy-0.4.json",
            {"benchmarks": []},
            "benchmarks: the field must contain at least one benchmark",
        ),
        (
            "llama-benchy-0.4.json",
            {"benchmarks": [{}]},
            "benchmarks[0].concurrency: the field must be a whole number",
        ),
        (
            "aiperf-0.13.json",
            {"request_latency": {"unit": "parsec", "avg": 1}},
            "request_latency.unit: the field must",
        ),
        (
            "aiperf-0.13.json",
            {"request_count": 3},
            "request_count: the field must be an object, found 3",
        ),
        (
            "aiperf-0.13.json",
            {"nvidia_total_gpu_power": {"unit": "mW"}},
            "_gpu_power.unit: the field must be 'W'",
        ),
        (
            "vllm-0.32.json",
            {"completed": 1000, "num_prompts": 8},
            "completed: the field must be at most num_prompts, 8, found 1000",
        ),
        (
            "vllm-0.32.json",
            {"duration": 0},
            "duration: the field must be more than 0, as requests were answered",
        ),
        ("vllm-0.32.json", {"duration": 1e15}, "duration: the field must be a number from 0 to"),
        (
            "vllm-0.32.json",
            {"spec_decode_acceptance_rate": 5000},
            "spec_decode_acceptance_rate: the field must be a number from 0 to 100, found 5000",
        ),
        (
            "aiperf-0.13.json",
            {"good_request_count": {"unit": "requests", "avg": 13}},
            "good_request_count: the file has only 12 requests",
        ),
        (
            "aiperf-0.13.json",
            {
                "metadata": {"aggregation_type": "confidence", "num_successful_runs": 10**15},
                "metrics": {},
            },
            "metadata.num_successful_runs: the field must be at most 1,000",
        ),
        (
            "aiperf-0.13.json",
            {"was_cancelled": "no"},
            "was_cancelled: the field must be true or false",
        ),
    ],
)
def test_errors_name_the_invalid_field(
    wrote: Callable[[Any], Path], name: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_results(wrote(fixture(name) | change))
    assert said in caught.value.message and caught.value.next_step == (
        "no result of this file was imported"
    )


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("vllm-0.32.json", {"completed": 10**9, "num_prompts": 10**9}, "answered requests"),
        ("vllm-0.32.json", {"failed": 10**8}, "failed requests"),
        ("vllm-0.32.json", {"max_concurrency": 10**12}, "streams"),
        ("vllm-0.32.json", {"total_output_tokens": 10**12}, "answer tokens of a request"),
        ("vllm-0.32.json", {"total_input_tokens": 10**15}, "prompt tokens of a request"),
        ("vllm-0.32-detailed.json", {"output_lens": [10**9] * 8}, "answer tokens of request 0"),
        ("aiperf-0.13.json", {"input_sequence_length": {"avg": 1e9}}, "prompt tokens of a request"),
    ],
)
def test_a_count_that_no_run_can_have_is_refused(
    wrote: Callable[[Any], Path], name: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=f"result 1: the number of {said} must be a whole number"):
        read_results(wrote(fixture(name) | change))


@pytest.mark.parametrize("tokens", [-1, 2.5, float("inf"), 10**30, "7", True])
def test_a_request_with_an_impossible_count_is_refused(
    wrote: Callable[[Any], Path], tokens: Any
) -> None:
    document = json.loads(export(made.result(), "json"))
    document["samples"] = [{"index": 3, "prompt_tokens": tokens}]
    with pytest.raises(InputError, match="result 1: the number of prompt tokens of request 3"):
        read_results(wrote(document))


def test_a_count_names_the_line_at_which_its_document_begins(
    wrote: Callable[[Any], Path],
) -> None:
    good = json.dumps(fixture("vllm-0.32.json"), indent=1)
    wrong = json.dumps(fixture("vllm-0.32.json") | {"failed": 10**8})
    path = wrote(f"{good}\n\n{wrong}")
    with pytest.raises(InputError) as caught:
        read_results(path)
    line = good.count("\n") + 3
    assert caught.value.message.startswith(f"{path}:{line}: document 2.result 1: the number of")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_value_in_any_field_is_read_or_rejected(
    wrote: Callable[[Any], Path], data: st.DataObject
) -> None:
    """Nothing raises an unexpected error, and every imported result can be stored, compared and
    reported."""
    document = copy.deepcopy(fixture(data.draw(st.sampled_from(NAMES))))
    place: Any = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    try:
        found = read_results(wrote(document))
    except InputError as error:
        assert "file.json" in error.message
        return
    for one in found:
        result = as_result(one)
        assert export(result, "html", one.samples) and compare(made.result(), result).warnings


def test_workbenchs_results_from_another_machine_are_imported(
    wrote: Callable[[Any], Path], tmp_path: Path
) -> None:
    there = replace(made.result(), note="seen there", tags=("x",))
    (one,) = read_results(wrote(export(there, "json", made.samples())))
    assert (
        one.summary == there.summary
        and len(one.samples) == 40
        and (one.note, one.tags) == ("seen there", ("x",))
    )
    assert one.conditions.imported == "Workbench" and one.conditions.host == "box"
    assert "sesame" not in str(one)


def test_an_unsaved_result_is_imported_as_the_users_own(tmp_path: Path) -> None:
    """Its file is in the directory for temporary files, because nothing else could be written."""
    (tmp_path / "file").write_text("")
    blocked = ResultsDb(tmp_path / "file" / "results.sqlite3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        with pytest.raises(StoreError):
            blocked.add(
                made.result().spec,
                made.result().conditions,
                made.result().summary,
                made.samples(),
                unix_s=5.0,
            )
    (waiting,) = tmp_path.glob("unsaved-result-*.json")
    (one,) = read_results(waiting)
    assert one.conditions.imported is None and one.unix_s == 5.0 and len(one.samples) == 40
    assert one.uid and one.uid in waiting.name
    # the samples, the timeline and the unsaved result are named after it
    hostile = tmp_path / "hostile.json"
    hostile.write_text(waiting.read_text().replace(one.uid, "../../elsewhere"))
    with pytest.raises(WorkbenchError, match="uid"):
        read_results(hostile)


def test_genai_perf_has_a_flat_configuration(wrote: Callable[[Any], Path]) -> None:
    metrics = {
        k: v for k, v in fixture("aiperf-0.13.json").items() if isinstance(v, dict) and "unit" in v
    }
    config = {
        "model": ["org/tiny"],
        "endpoint": "v1/chat/completions",
        "endpoint_type": "chat",
        "service_kind": "openai",
        "streaming": True,
        "concurrency": 4,
    }
    (one,) = read_results(wrote({**metrics, "input_config": config}))
    assert (one.conditions.imported, one.spec.model, one.spec.concurrency) == (
        "GenAI-Perf",
        "org/tiny",
        4,
    )
    assert one.spec.endpoint == "chat" and one.spec.stream and one.summary.tpot_ms is not None


def read_document(tmp_path: Path, document: Any) -> tuple[Imported, ...]:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    return read_results(path)


def usage_of(tokens: float) -> dict[str, Any]:
    return {"unit": "tokens", "avg": tokens}


def test_aiperf_counts_of_its_own_tokenizer_are_not_the_servers(tmp_path: Path) -> None:
    """Its tokenizer counted 72 tokens where the server's usage has 64 for each request: the rate was
    12 % too high, and TPOT too low."""
    data = fixture("aiperf-0.13.json")
    del data["input_config"]["endpoint"]["use_server_token_count"]
    data |= {
        "total_output_tokens": usage_of(216),
        "total_osl": usage_of(216),
        "usage_discrepancy_count": {"unit": "requests", "avg": 12.0},
    }
    (one,) = read_document(tmp_path, data)
    s = one.summary
    rate = data["output_token_throughput"]["avg"] * 192 / 216
    assert s.output_tok_s == pytest.approx(rate) and s.output_tokens == 192
    assert one.spec.max_tokens == 16 and s.tpot_ms is None and s.per_stream_tok_s is None
    assert (
        "divided by 216 tokens of its own tokenizer; the server's usage has 192"
        in (s.absent["tpot_ms"])
    )
    assert any("differ by over 10 % in 12 requests" in note for note in s.notes)


def aiperf_summary(kind: str) -> dict[str, Any]:
    """Return AIPerf's summary of three runs, in which each statistic of a metric has a mean."""
    of_runs = {
        "request_throughput_avg": ("requests/sec", 9.5),
        "request_count_avg": ("requests", 12.0),
        "output_token_throughput_avg": ("tokens/sec", 300.0),
        "total_usage_completion_tokens_avg": ("tokens", 192.0),
        "total_osl_avg": ("tokens", 192.0),
        "benchmark_duration_avg": ("sec", 2.0),
        **{
            f"time_to_first_token_{part}": ("ms", 80.0)
            for part in ("avg", "p1", "p50", "p90", "p95", "p99", "min", "max", "std")
        },
    }
    return {
        "schema_version": "1.0",
        "aiperf_version": "0.13.0",
        "metadata": {"aggregation_type": kind, "num_profile_runs": 3, "num_successful_runs": 3},
        "metrics": {
            name: {"mean": mean, "std": 0.1, "ci_low": mean, "ci_high": mean, "unit": unit}
            for name, (unit, mean) in of_runs.items()
        },
    }


def test_aiperf_summary_of_several_runs_has_their_means(tmp_path: Path) -> None:
    path = tmp_path / "profile_export_aiperf_aggregate.json"
    path.write_text(json.dumps(aiperf_summary("confidence")))
    with pytest.raises(InputError, match="does not name the model"):
        read_results(path)
    (one,) = read_results(path, ImportOptions(model="m"))
    s = one.summary
    assert (s.requests_ok, s.output_tokens, s.duration_s) == (36, 576, 6.0)
    assert (s.request_s, s.output_tok_s, one.spec.max_tokens) == (9.5, 300.0, 16)
    assert s.ttft_ms is not None and (s.ttft_ms.mean, s.ttft_ms.p95, s.ttft_ms.count) == (
        80,
        80,
        36,
    )
    assert any("a summary of 3 runs" in note for note in s.notes)


def test_aiperf_summary_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="summary of a sweep") as caught:
        read_document(tmp_path, aiperf_summary("sweep"))
    assert "import the profile_export_aiperf.json of each run" in (caught.value.next_step or "")


def test_aiperf_requests_that_kept_the_slo(tmp_path: Path) -> None:
    """Its own attainment leaves out nothing either: a request that failed kept no limit."""
    data = fixture("aiperf-0.13.json") | {
        "good_request_count": {"unit": "requests", "avg": 9.0},
        "error_request_count": {"unit": "requests", "avg": 3.0},
        "goodput": {"unit": "requests/sec", "avg": 58.6},
    }
    data["input_config"]["slos"] = {"time_to_first_token": 30.0}
    (one,) = read_document(tmp_path, data)
    assert (one.summary.slo_pct, one.summary.goodput_request_s) == (60.0, 58.6)
    assert any("time_to_first_token <= 30.0" in note for note in one.summary.notes)
    del data["input_config"]["slos"]
    (without,) = read_document(tmp_path, data)
    assert any("but not its limits" in note for note in without.summary.notes)


def test_aiperf_file_of_single_requests_names_the_other_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="import the profile_export_aiperf"):
        read_document(tmp_path, {"metadata": {}, "metrics": {}, "error": None})


def test_a_file_without_a_measured_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no measured value"):
        read_document(
            tmp_path,
            {"aiperf_version": "0.13.0", "input_config": {"models": {"items": [{"name": "m"}]}}},
        )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('"output_throughput": 99999.0', "'output_throughput' is there twice"),
        (f'"x": {"1" * 5000}', "a number has thousands of digits"),
        (f'"x": {"[" * 900}{"]" * 900}', "nested too deeply"),
    ],
)
def test_a_document_that_no_tool_writes_is_refused(
    more: str, said: str, wrote: Callable[[Any], Path]
) -> None:
    text = (FIXTURES / "vllm-0.32.json").read_text().rstrip().removesuffix("}")
    with pytest.raises(InputError, match=said):
        read_results(wrote(f"{text}, {more}}}"))


def test_a_run_whose_requests_all_failed_is_invalid(tmp_path: Path) -> None:
    data = fixture("vllm-0.32.json")
    zeros = {name: 0.0 for name, value in data.items() if name.endswith("_ms") and value}
    (one,) = read_document(
        tmp_path,
        {**data, **zeros, "completed": 0, "failed": 8, "output_throughput": 0.0}
        | {"request_throughput": 0.0, "total_output_tokens": 0, "total_input_tokens": 0},
    )
    assert one.summary.refused == ("none of its 8 requests succeeded",)


def test_a_run_with_many_failed_requests_is_invalid(tmp_path: Path) -> None:
    """A run of GuideLLM with 500 failed requests of 570 was a valid result."""
    data = fixture("vllm-0.32.json")
    ok = data["completed"]
    (one,) = read_document(tmp_path, {**data, "failed": ok})
    assert one.summary.refused[0].startswith(f"{ok} of {2 * ok} requests failed; more than 1 % are")
    (other,) = read_document(tmp_path, {**data, "failed": 0})
    assert not other.summary.refused


@pytest.mark.parametrize(
    "document", [[], {"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": []}]
)
def test_a_file_without_results_is_refused(tmp_path: Path, document: Any) -> None:
    with pytest.raises(InputError, match="has no results"):
        read_document(tmp_path, document)


def test_a_list_of_vllm_results_has_them_all(tmp_path: Path) -> None:
    data = fixture("vllm-0.32.json")
    assert len(read_document(tmp_path, [data, {**data, "run_number": 1}])) == 2


# -- SGLang ----------------------------------------------------------------------------------------

SGLANG = {
    "backend": "sglang-oai-chat",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 4,
    "server_info": {"model_path": "Qwen/Qwen3-0.6B"},
    "duration": 8.0,
    "completed": 40,
    "total_input_tokens": 4000,
    "total_output_tokens": 2560,
    "total_output_tokens_retokenized": 2400,
    "request_throughput": 5.0,
    "input_throughput": 500.0,
    "output_throughput": 320.0,
    **{
        f"{part}_{name}_ms": value
        for name, value in (("e2e_latency", 800.0), ("ttft", 50.0), ("tpot", 11.0), ("itl", 11.5))
        for part in ("mean", "median", "p90", "p99")
    },
    "accept_length": None,
}


@pytest.mark.parametrize("name", ["llama-benchy-0.4.json", "aiperf-0.13.json"])
def test_a_duration_that_the_file_lacks_is_not_known(
    name: str, wrote: Callable[[Any], Path]
) -> None:
    """It was shown as 0 s."""
    document = fixture(name)
    document.pop("benchmark_duration", None)
    for one in read_results(wrote(document)):
        assert one.summary.duration_s is None and one.summary.absent["duration_s"]
        text = export(as_result(one), "md")
        rows = [line for line in text.splitlines() if line.startswith("| duration ")]
        assert all("n/a" in row for row in rows), rows


def test_sglang_results_are_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    open_loop = {**SGLANG, "request_rate": 2.5, "max_concurrency": None}
    path.write_text("".join(json.dumps(one) + "\n" for one in (SGLANG, open_loop)))
    one, other = read_results(path)
    s = one.summary
    assert (s.output_tok_s, s.request_s, s.requests_ok, s.duration_s) == (320.0, 5.0, 40, 8.0)
    assert (s.prompt_tokens, s.output_tokens) == (4000, 2560)
    assert s.latency_ms("e2e_ms", "p50") == 800.0 and s.latency_ms("tpot_ms", "mean") == 11.0
    assert s.latency_ms("ttft_ms", "p99") is None, "40 requests"
    assert (one.spec.model, one.spec.endpoint, one.spec.concurrency) == (
        "Qwen/Qwen3-0.6B",
        "chat",
        4,
    )
    assert one.conditions.imported == "sglang.bench_serving"
    assert any(
        "counts 2,400 output tokens in the texts, the rates count 2,560" in n for n in s.notes
    )
    assert other.spec.rate == 2.5 and "concurrency" not in other.conditions.known_workload
    path.write_text(json.dumps(SGLANG | {"request_rate": "trace"}))
    assert read_results(path)[0].spec.rate is None
    path.write_text(json.dumps(SGLANG | {"request_rate": 10**400}))
    with pytest.raises(InputError, match="request_rate: the field must be a number"):
        read_results(path)


# -- GuideLLM --------------------------------------------------------------------------------------


def guidellm_values(mean: float, count: int, **more: float) -> dict[str, Any]:
    parts = dict.fromkeys(("mean", "median", "min", "max"), mean)
    percentiles = dict.fromkeys(("p50", "p90", "p95", "p99"), mean)
    nothing = {**dict.fromkeys(parts, 0.0), "count": 0, "total_sum": 0.0, "percentiles": {}}
    found = {**parts, "count": count, "total_sum": mean * count, "percentiles": percentiles, **more}
    return {"successful": found, "errored": nothing}


def guidellm(strategy: dict[str, Any], ok: int = 20) -> dict[str, Any]:
    metrics = {
        "request_totals": {"successful": ok, "errored": 1, "incomplete": 2, "total": ok + 3},
        "requests_per_second": guidellm_values(2.0, ok),
        "request_latency": guidellm_values(1.5, ok),
        "prompt_token_count": guidellm_values(100.0, ok),
        "output_token_count": guidellm_values(64.0, ok),
        "time_to_first_token_ms": guidellm_values(80.0, ok),
        "time_per_output_token_ms": guidellm_values(23.4, 64 * ok),
        "inter_token_latency_ms": guidellm_values(22.5, 63 * ok),
        "output_tokens_per_second": guidellm_values(128.0, 64 * ok),
    }
    config = {"strategy": strategy, "backend": {"model": "org/model"}}
    return {"config": config, "metrics": metrics, "duration": 10.0, "start_time": 1.7e9}


def test_guidellm_has_a_result_for_each_load(tmp_path: Path) -> None:
    streams = {"type_": "concurrent", "streams": 4, "max_concurrency": 4}
    constant = {"type_": "constant", "rate": 3.0, "max_concurrency": None}
    document = {
        "metadata": {"version": 1, "guidellm_version": "0.8.1"},
        "benchmarks": [guidellm(streams), guidellm(constant)],
    }
    one, other = read_document(tmp_path, document)
    s = one.summary
    assert (s.output_tok_s, s.request_s, s.requests_ok, s.requests_failed) == (128.0, 2.0, 20, 1)
    assert (s.prompt_tokens, s.output_tokens, s.duration_s) == (2000, 1280, 10.0)
    assert s.ttft_ms is not None and s.ttft_ms.p95 == 80.0 and s.ttft_ms.p99 is None
    assert s.e2e_ms is not None and s.e2e_ms.mean == 1500.0
    assert s.tpot_ms is not None and s.tpot_ms.mean == 22.5, "not time_per_output_token_ms"
    assert s.itl_ms is None and "no gaps between chunks" in s.absent["itl_ms"]
    assert (one.spec.concurrency, one.spec.max_tokens, one.spec.model) == (4, 64, "org/model")
    assert one.conditions.imported == "GuideLLM 0.8.1" and one.unix_s == 1.7e9
    assert (other.spec.rate, other.spec.arrival) == (3.0, "constant")
    assert any("2 requests were incomplete" in note for note in s.notes)


def test_guidellm_since_0_7_names_the_kind_of_a_load_otherwise(tmp_path: Path) -> None:
    constant = guidellm({"kind": "constant", "rate": 3.0})
    del constant["config"]["backend"]
    document = {
        "metadata": {"version": 2, "guidellm_version": "0.7.3"},
        "config": {"spec": {"backend": {"model": "org/other"}}},
        "benchmarks": [constant],
    }
    (one,) = read_document(tmp_path, document)
    assert (one.spec.rate, one.spec.arrival, one.spec.model) == (3.0, "constant", "org/other")


def test_guidellm_before_0_4_has_no_metadata(tmp_path: Path) -> None:
    run = guidellm({})
    metrics = dict(run["metrics"])
    older = {
        "type_": "generative_benchmark",
        "args": {"strategy": {"type_": "constant", "rate": 10.0, "max_concurrency": None}},
        "worker": {"backend_model": "org/older"},
        "request_totals": metrics.pop("request_totals"),
        "metrics": metrics,
        "duration": 10.0,
        "start_time": 1.7e9,
    }
    (one,) = read_document(tmp_path, {"benchmarks": [older]})
    assert (one.spec.rate, one.spec.model) == (10.0, "org/older")
    assert (one.summary.requests_ok, one.summary.requests_failed) == (20, 1)
    assert one.conditions.imported == "GuideLLM"


def test_guidellm_requests_that_kept_the_slo(tmp_path: Path) -> None:
    run = guidellm({"kind": "concurrent", "streams": 4})
    run["config"]["slo"] = {"ttft_ms": 90.0, "tpot_ms": None, "e2el_ms": 2000.0}
    run["metrics"] |= {"slo_attainment": 0.9, "request_goodput": guidellm_values(1.8, 18)}
    document = {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [run]}
    (one,) = read_document(tmp_path, document)
    assert (one.summary.slo_pct, one.summary.goodput_request_s) == (90.0, 1.8)
    assert any("TTFT <= 90 ms and end to end <= 2000 ms" in note for note in one.summary.notes)
    run["metrics"] |= {"slo_attainment": 0.0, "request_goodput": guidellm_values(0.0, 0)}
    (none,) = read_document(tmp_path, document)
    assert (none.summary.slo_pct, none.summary.goodput_request_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": -1},
        {"content": "nonsense"},
        {"endpoint": "x"},
        {"rate": -1.0},
        {"length_spread": 7.0},
        {"slo": "zzz"},
        {"requests": 10**18},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_load_that_no_benchmark_can_have_is_not_imported(
    wrote: Callable[[Any], Path], wrong: dict[str, Any]
) -> None:
    """It was listed as `c=-1`, and its command could not be run."""
    exported = export(made.result(), "json", made.samples())
    assert read_results(wrote(exported))
    document = json.loads(exported)
    one = document["results"][0] if "results" in document else document
    one["spec"] |= wrong
    with pytest.raises(InputError, match=f"spec.{next(iter(wrong))}: give "):
        read_results(wrote(document))


# -- values that no run can have, and secrets ------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "metric", "why"),
    [
        ({"median_ttft_ms": 500, "p99_ttft_ms": 1}, "ttft_ms", "percentiles in the file are not"),
        ({"mean_ttft_ms": 9e15}, "ttft_ms", "an impossible number (9e+15)"),
        ({"output_throughput": 5e9}, "output_tok_s", "an impossible number (5e+09)"),
        ({"request_throughput": 1e9}, "request_s", "in the duration, and the file counts 8"),
    ],
)
def test_a_value_that_no_run_can_have_is_withheld(
    wrote: Callable[[Any], Path], change: dict[str, Any], metric: str, why: str
) -> None:
    (one,) = read_results(wrote(fixture("vllm-0.32.json") | change))
    assert one.summary.absent[metric].startswith("withheld: ")
    assert why in one.summary.absent[metric] and metric not in one.summary.partial
    assert getattr(one.summary, metric) is None


def test_a_mean_outside_of_its_range_is_withheld(tmp_path: Path) -> None:
    document = fixture("aiperf-0.13.json")
    document["time_to_first_token"]["avg"] = 1e6
    (one,) = read_document(tmp_path, document)
    assert one.summary.ttft_ms is None and "its mean in the file" in one.summary.absent["ttft_ms"]
    assert one.summary.e2e_ms is not None


def test_a_time_that_no_calendar_has_is_refused(tmp_path: Path) -> None:
    run = guidellm({"type_": "concurrent", "streams": 4}) | {"start_time": 1e15}
    document = {"metadata": {"guidellm_version": "0.5"}, "benchmarks": [run]}
    with pytest.raises(InputError, match="start_time: the field must be a number from 0 to"):
        read_document(tmp_path, document)


def test_an_import_keeps_no_secret(tmp_path: Path) -> None:
    key, password = "sk-abcdefghijklmnop1234567890", "hunter2hunter2"
    command = f'aiperf profile --api-key {password} --header "Authorization: Bearer {key}"'
    for document in (
        fixture("vllm-0.32.json") | {"label": f"run with api_key={key}", "model_id": f"m {key}"},
        fixture("aiperf-0.13.json") | {"run_info": {"cli_command": command}},
    ):
        (one,) = read_document(tmp_path, document)
        assert "***" in repr(one) and key not in repr(one) and password not in repr(one)
    with pytest.raises(InputError) as error:
        read_document(tmp_path, fixture("vllm-0.32.json") | {"completed": f"api_key={key}"})
    assert key not in error.value.message


def test_a_file_that_needs_far_more_memory_than_disk_is_refused(
    wrote: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.report.imports._MOST_PARTS", 1000)
    with pytest.raises(InputError, match="has more than 1,000 lists and objects"):
        read_results(wrote([[]] * 1000))
    monkeypatch.setattr("workbench.report.imports._MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read_results(wrote(" " * (1 << 20) + "{}"))
