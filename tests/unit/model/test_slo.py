"""Tests of the limits of an SLO as text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.model.errors import InputError
from workbench.model.slo import (
    Limit,
    LimitAttained,
    limit_with_smallest_margin,
    parse_slo,
    require_streaming_for_limits,
    share_text,
    slo_rows,
)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft<=500@p95", (Limit("ttft", 500, 95),)),
        ("ttft<=500@95%", (Limit("ttft", 500, 95),)),
        ("TTFT ≤ 0.5 s @ 99.9 %", (Limit("ttft", 500, 99.9),)),
        (
            "ttft<=500ms@p95, tpot<=40@p95,e2e<=8s@p99",
            (Limit("ttft", 500, 95), Limit("tpot", 40, 95), Limit("e2e", 8000, 99)),
        ),
        ("e2e<=1@100%", (Limit("e2e", 1, 100),)),
        ("ttft@p95<=500, TPOT @ 99 % ≤ 40 ms", (Limit("ttft", 500, 95), Limit("tpot", 40, 99))),
    ],
)
def test_limits_are_read(text: str, limits: tuple[Limit, ...]) -> None:
    assert parse_slo(text) == limits


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no limit"),
        (" , ", "has no limit"),
        ("ttft<=500", "does not say for how many requests"),
        ("ttft=500@p95", "is not a limit"),
        ("ttft<500@p95", "is not a limit"),
        ("ttft<=-5@p95", "is not a limit"),
        ("ttft<=nan@p95", "is not a limit"),
        ("ttft<=1e9@p95", "is not a limit"),
        ("ttft<=500@p95,", "is not a limit"),
        ("power<=500@p95", "'power' is not a latency"),
        ("ttft@p95<=500@p95", "is not a limit"),
        ("ttft<=0@p95", "too small or too large"),
        ("ttft<=500@p0", "too small or too large"),
        ("ttft<=500@101%", "too small or too large"),
        (", ".join(["ttft<=500@p95"] * 9), "9 limits"),
        ("x" * 10_000, "is not a limit"),
    ],
)
def test_what_is_no_limit_is_refused_with_an_example(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_slo(text)
    assert says in str(refused.value) and refused.value.next_step
    assert len(str(refused.value)) < 200


@given(st.text(alphabet="ttfpoe2<=≤@p95%. ,msx0\n", max_size=30))
@example("ttft<=500@p95")
def test_any_text_is_refused_or_read_back_as_the_same_limits(text: str) -> None:
    try:
        limits = parse_slo(text)
    except InputError:
        return
    assert parse_slo(", ".join(map(str, limits))) == limits


def test_only_end_to_end_times_are_limited_without_a_stream() -> None:
    require_streaming_for_limits(parse_slo("ttft<=1@p50"), streamed=True)
    require_streaming_for_limits(parse_slo("e2e<=1@p50"), streamed=False)
    with pytest.raises(InputError, match="tpot can only be measured on streamed answers"):
        require_streaming_for_limits(parse_slo("e2e<=1@p50, tpot<=1@p50"), streamed=False)


def test_the_limit_with_the_smallest_margin_binds() -> None:
    kept = LimitAttained("ttft<=500@p95", 95, 99)
    tight = LimitAttained("tpot<=40@p50", 50, 49)
    unknown = LimitAttained("e2e<=9@p99", 99, None)
    assert limit_with_smallest_margin([kept, tight, unknown]) is tight
    assert limit_with_smallest_margin([unknown]) is None and limit_with_smallest_margin([]) is None
    assert slo_rows((kept, tight, unknown)) == (
        ("ttft<=500@p95", "held: 99.0 % of the requests kept it"),
        ("tpot<=40@p50", "NOT HELD: 49.0 % of the requests kept it, the limit that binds"),
        ("e2e<=9@p99", "n/a: this latency has no value"),
    )


@pytest.mark.parametrize(
    "text", ["ttft<=500@100%", "e2e<=1234567.5@p95", "tpot<=0.000001@p99.99", "e2e<=1000000s@p1"]
)
def test_the_text_of_a_limit_can_be_read_again(text: str) -> None:
    limits = parse_slo(text)
    assert parse_slo(", ".join(map(str, limits))) == limits


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (99.86, "99.86 %"),
        (99.8999, "99.89 %"),
        (99.94, "99.94 %"),
        (94.99, "94.9 %"),
        (95.8, "95.8 %"),
        (99.0, "99.0 %"),
        (100.0, "100.0 %"),
        (0.0, "0.0 %"),
    ],
)
def test_a_share_below_a_limit_does_not_look_like_the_limit(share: float, text: str) -> None:
    assert share_text(share) == text
