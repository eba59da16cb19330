"""What a benchmark asks: profile, preset and the person's own options, in this order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.model.errors import InputError
from workbench.model.preset import Benchmark
from workbench.session.bench_spec import spec_from

SUGGESTED = Benchmark(concurrency=[4, 16], requests=12, max_tokens=200, input_tokens=100, warmup=3)


def test_without_anything_it_is_quick() -> None:
    spec = spec_from(None, {})
    assert (spec.profile, spec.concurrency, spec.requests, spec.max_tokens) == ("quick", 8, 64, 128)


def test_a_presets_suggestion_then_options() -> None:
    spec = spec_from(SUGGESTED, {"max_tokens": 7, "warmup": None, "temperature": 0.5})
    assert (spec.concurrency, spec.requests, spec.max_tokens, spec.warmup, spec.temperature) == (4, 12, 7, 3, 0.5)
    assert not spec.until_steady


def test_a_presets_profile_brings_what_a_preset_cannot_say() -> None:
    spec = spec_from(SUGGESTED.model_copy(update={"profile": "batch"}), {})
    assert (spec.profile, spec.until_steady, spec.length_spread, spec.requests) == ("batch", True, 0.2, 12)
    assert spec_from(SUGGESTED.model_copy(update={"profile": "of their own"}), {}).profile == "of their own"


def test_a_profile_by_name_stands_for_all_that_a_preset_says() -> None:
    spec = spec_from(SUGGESTED, {"profile": "document", "requests": 3})
    assert (spec.concurrency, spec.requests, spec.max_tokens, spec.warmup) == (1, 3, 500, 0)


@pytest.mark.parametrize(("level", "requests", "warmup"), [(1, 8, 1), (16, 128, 16)])
def test_eight_rounds_where_only_the_concurrency_is_given(level: int, requests: int, warmup: int) -> None:
    spec = spec_from(SUGGESTED, {"concurrency": level})
    assert (spec.concurrency, spec.requests, spec.warmup) == (level, requests, warmup)
    assert spec_from(SUGGESTED, {"concurrency": level, "requests": 5}).requests == 5


def test_a_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    spec = spec_from(None, {"prompts_file": str(path)})
    assert [json.loads(p) for p in spec.prompts] == ["a", [{"role": "user", "content": "b"}]]
    assert spec.prompts_name.startswith("mine.jsonl (2 prompts")
    with pytest.raises(InputError, match="completions do not take"):
        spec_from(None, {"prompts_file": str(path), "endpoint": "completions"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "no number of concurrency"),
        ({"requests": -1}, "no number of requests"),
        ({"max_tokens": True}, "no number of max tokens"),
        ({"warmup": -1}, "fewer than no warm-up"),
        ({"rate": 0.0}, "no number of requests per second"),
        ({"rate": float("nan")}, "no number of requests per second"),
        ({"seconds": float("inf")}, "no number of seconds"),
        ({"arrival": "bursts"}, "arrival is 'bursts'"),
        ({"endpoint": "embeddings"}, "endpoint is 'embeddings'"),
        ({"length_spread": 1.0}, "from 0 to below 1"),
        ({"extra_body": [1]}, "no JSON object"),
        ({"profile": "fast"}, "no benchmark profile 'fast'"),
    ],
)
def test_what_no_run_can_be_made_of(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec_from(None, options)


def test_a_preset_cannot_carry_a_command() -> None:
    with pytest.raises(ValueError, match="command"):
        Benchmark.model_validate({"command": ["rm", "-rf", "/"]})
    with pytest.raises(ValueError, match="prompts"):
        Benchmark.model_validate({"prompts": ["x"]})
    assert spec_from(SUGGESTED, {}).command == ()
