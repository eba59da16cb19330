"""What a benchmark asks: profile, preset and the person's own options, in this order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.model.errors import InputError
from workbench.model.preset import Benchmark
from workbench.session.bench.spec import set_default_prompt_content, spec_from_fields

SUGGESTED = Benchmark(concurrency=[4, 16], requests=12, max_tokens=200, input_tokens=100, warmup=3)


def test_without_anything_it_is_quick() -> None:
    spec = spec_from_fields(None, {})
    assert (spec.profile, spec.concurrency, spec.requests, spec.max_tokens) == ("quick", 8, 64, 128)


def test_a_presets_suggestion_then_options() -> None:
    spec = spec_from_fields(SUGGESTED, {"max_tokens": 7, "warmup": None, "temperature": 0.5})
    assert (spec.concurrency, spec.requests, spec.max_tokens, spec.warmup, spec.temperature) == (
        4,
        12,
        7,
        3,
        0.5,
    )
    assert not spec.until_steady


def test_a_presets_profile_brings_what_a_preset_cannot_say() -> None:
    spec = spec_from_fields(SUGGESTED.model_copy(update={"profile": "batch"}), {})
    assert (spec.profile, spec.until_steady, spec.length_spread, spec.requests) == (
        "batch",
        True,
        0.2,
        12,
    )
    assert (
        spec_from_fields(SUGGESTED.model_copy(update={"profile": "of their own"}), {}).profile
        == "of their own"
    )


def test_a_profile_by_name_stands_for_all_that_a_preset_says() -> None:
    spec = spec_from_fields(SUGGESTED, {"profile": "document", "requests": 3})
    assert (spec.concurrency, spec.requests, spec.max_tokens, spec.warmup) == (1, 3, 500, 0)


@pytest.mark.parametrize(("level", "requests", "warmup"), [(1, 8, 1), (16, 128, 16)])
def test_eight_rounds_where_only_the_concurrency_is_given(
    level: int, requests: int, warmup: int
) -> None:
    spec = spec_from_fields(SUGGESTED, {"concurrency": level})
    assert (spec.concurrency, spec.requests, spec.warmup) == (level, requests, warmup)
    assert spec_from_fields(SUGGESTED, {"concurrency": level, "requests": 17}).requests == 17


def test_a_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    spec = spec_from_fields(None, {"prompts_file": str(path)})
    assert [json.loads(p) for p in spec.prompts] == ["a", [{"role": "user", "content": "b"}]]
    assert spec.prompts_name.startswith("mine.jsonl (2 prompts")
    with pytest.raises(InputError, match="completions does not accept"):
        spec_from_fields(None, {"prompts_file": str(path), "endpoint": "completions"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "0 is not a valid value of concurrency"),
        ({"requests": -1}, "-1 is not a valid value of requests"),
        ({"max_tokens": True}, "not a valid value of max tokens"),
        ({"warmup": -1}, "-1 is not a valid value of warmup"),
        ({"rate": 0.0}, "not a valid number of requests per second"),
        ({"rate": float("nan")}, "not a valid number of requests per second"),
        ({"seconds": float("inf")}, "not a valid number of seconds"),
        ({"arrival": "bursts"}, "'bursts' is not a valid value of arrival"),
        ({"burstiness": 0.5}, "--burstiness has no effect without --rate"),
        ({"burstiness": 0.5, "rate": 2.0, "arrival": "constant"}, "with --arrival constant"),
        ({"burstiness": 0.0, "rate": 2.0}, "is not a valid number of the shape"),
        ({"endpoint": "images"}, "'images' is not a valid value of endpoint"),
        ({"length_spread": 1.0}, "not between 0 and 1"),
        ({"extra_body": [1]}, "not a JSON object"),
        ({"profile": "fast"}, "no benchmark profile 'fast'"),
    ],
)
def test_specs_without_a_possible_run_are_rejected(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec_from_fields(None, options)


def test_a_preset_cannot_carry_a_command() -> None:
    with pytest.raises(ValueError, match="command"):
        Benchmark.model_validate({"command": ["rm", "-rf", "/"]})
    with pytest.raises(ValueError, match="prompts"):
        Benchmark.model_validate({"prompts": ["x"]})
    assert spec_from_fields(SUGGESTED, {}).command == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": 5.0}, (256, 150, 8)),  # half a minute, and no cap that would be met
        ({"rate": 0.1}, (256, 16, 8)),
        ({"rate": 5.0, "seconds": 60.0}, (256, 1_000_000, 8)),
        ({"rate": 5.0, "concurrency": 4, "requests": 9}, (4, 9, 8)),
        # the time is the end, not the profile's 64 requests
        ({"seconds": 60.0}, (8, 1_000_000, 8)),
        ({"seconds": 60.0, "concurrency": 16}, (16, 1_000_000, 16)),
        ({"seconds": 60.0, "requests": 10}, (8, 10, 8)),
    ],
)
def test_a_rate_and_an_end_by_time_bring_what_fits_them(
    given: dict[str, Any], expected: tuple[int, ...]
) -> None:
    spec = spec_from_fields(None, given)
    assert (spec.concurrency, spec.requests, spec.warmup) == expected


@pytest.mark.parametrize(
    "name", ["model", "messages", "prompt", "max_tokens", "stream", "stream_options"]
)
def test_body_fields_that_the_client_counts_on_are_not_for_extra_body(name: str) -> None:
    with pytest.raises(InputError, match=f"contain '{name}'"):
        spec_from_fields(None, {"extra_body": {name: 1}})


def test_the_command_of_a_benchmark_asks_for_the_same_again() -> None:
    """Through the command line's own parser, on top of another preset's suggestion."""
    from workbench.cli.bench import parse_concurrency_levels
    from workbench.cli.load_options import read_load_options
    from workbench.cli.parser import parse_command_line
    from workbench.model.bench_cli_options import bench_cli_options

    for given in (
        {},
        {
            "profile": "batch",
            "seed": 7,
            "extra_body": {"top_k": 3, "x": "é \"y'"},
            "shared_prefix": True,
        },
        {
            "rate": 2.5,
            "arrival": "constant",
            "seconds": 12.5,
            "endpoint": "completions",
            "stream": False,
        },
        {"concurrency": 3, "length_spread": 0.25, "until_steady": True, "api_key_env": "MY_KEY"},
        {"content": "text", "input_tokens": 300},
    ):
        spec = replace(spec_from_fields(None, given), url="http://x", model="m")
        arguments = parse_command_line(
            ["bench", "--url", spec.url, "--model", spec.model, *bench_cli_options(spec)]
        )
        levels = parse_concurrency_levels(arguments.levels)
        again = spec_from_fields(
            SUGGESTED, {**read_load_options(arguments), "concurrency": levels[0], "url": spec.url}
        )
        assert replace(again, profile=spec.profile) == spec, given


def test_the_command_of_a_benchmark_leaves_the_suggestion_of_its_preset_out() -> None:
    """Whatever the preset suggests, also where the user had set the default again."""
    from workbench.cli.bench import parse_concurrency_levels
    from workbench.cli.load_options import read_load_options
    from workbench.cli.parser import parse_command_line
    from workbench.model.bench_cli_options import bench_cli_options

    suggested = SUGGESTED.model_copy(
        update={
            "profile": "batch",
            "endpoint": "embeddings",
            "slo": "e2e<=500@p95",
            "timeout_s": 30.0,
        }
    )
    back = {"endpoint": "chat", "slo": "", "until_steady": False, "length_spread": 0.0}
    for given in ({}, back, {**back, "timeout_s": 5.0}, {"profile": "document"}):
        spec = spec_from_fields(suggested, given)
        arguments = parse_command_line(["bench", "RUN", *bench_cli_options(spec, "a-preset")])
        levels = parse_concurrency_levels(arguments.levels)
        again = spec_from_fields(
            suggested, {**read_load_options(arguments), "concurrency": levels[0]}
        )
        assert replace(again, profile=spec.profile) == spec, given


def test_a_closed_loop_has_a_request_for_each_stream() -> None:
    with pytest.raises(InputError, match="1 request cannot keep 8 streams busy"):
        spec_from_fields(None, {"concurrency": 8, "requests": 1})
    # streams of the profile, which nobody asked for
    assert spec_from_fields(None, {"requests": 3}).concurrency == 3
    assert spec_from_fields(None, {"rate": 5.0, "requests": 16}).concurrency == 256


def test_an_slo_is_read_checked_and_written_in_its_usual_form() -> None:
    assert spec_from_fields(None, {"slo": "TTFT <= 0.5s @ 95%"}).slo == "ttft<=500@p95"
    suggested = SUGGESTED.model_copy(update={"slo": "e2e<=8s@99%"})
    assert spec_from_fields(suggested, {}).slo == "e2e<=8000@p99"
    assert spec_from_fields(suggested, {"slo": "ttft<=1@p50"}).slo == "ttft<=1@p50"
    assert spec_from_fields(suggested, {"slo": ""}).slo == ""
    assert spec_from_fields(suggested, {"command": ("true",)}).slo == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"slo": "ttft<=500"}, "for how many requests"),
        ({"slo": "ttft<=500@p95", "stream": False}, "only be measured on streamed answers"),
        ({"slo": "tpot<=9@p95", "endpoint": "embeddings"}, "only be measured on streamed"),
        ({"slo": "e2e<=500@p95", "command": ("true",)}, "your own command"),
    ],
)
def test_an_slo_that_cannot_be_measured_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        spec_from_fields(None, given)


def test_a_preset_with_an_slo_that_is_none_says_what_one_is() -> None:
    with pytest.raises(ValueError, match="for how many requests"):
        Benchmark(slo="ttft<=9")


def test_the_content_of_synthetic_prompts() -> None:
    assert (
        spec_from_fields(None, {}).has_real_text and spec_from_fields(SUGGESTED, {}).has_real_text
    )
    assert not spec_from_fields(None, {"content": "words"}).has_real_text
    with pytest.raises(InputError, match="'prose' is not a valid value of content"):
        spec_from_fields(None, {"content": "prose"})


def test_own_prompts_and_commands_have_their_own_content(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}')
    for given, whose in (
        ({"prompts_file": str(path)}, "a prompts file has its own"),
        ({"command": ("true",)}, "your own command has its own"),
    ):
        with pytest.raises(InputError, match=whose):
            spec_from_fields(None, {**given, "content": "text"})
        assert spec_from_fields(None, given).content == "words"


def test_a_series_names_the_content_of_prompts_that_it_does_not_have_otherwise() -> None:
    assert set_default_prompt_content({"requests": 4}, "text") == {"requests": 4, "content": "text"}
    for given in (
        {"content": "words"},
        {"prompts_file": "mine.jsonl"},
        {"trace_file": "day.csv"},
        {"prompts": ('"hi"',), "prompts_name": "mine.jsonl (1 prompts, sha256 0)"},
        {"command": ("true",)},
    ):
        assert set_default_prompt_content(given, "text") == given
