"""The file with the requests of a result: exact if it is small, bounded if it is not."""

from __future__ import annotations

import gzip
import json
import random
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.bench import KEPT_ONE_OF
from workbench.store import request_file as requests

GAPS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def made(count: int, tokens: int, spread_us: int = 300) -> list[dict[str, Any]]:
    chance = random.Random(1)
    return [
        {
            "index": n,
            "start_s": round(chance.random() * 30, 6),
            "end_us": chance.randint(2_000_000, 3_000_000),
            "ttft_us": chance.randint(40_000, 90_000),
            "gaps_us": [max(1, int(chance.gauss(10_000, spread_us))) for _ in range(tokens)],
        }
        for n in range(count)
    ]


@given(st.lists(GAPS, max_size=8))
def test_a_small_file_is_exact(all_gaps: list[list[int]]) -> None:
    samples = [{"index": n, "gaps_us": gaps} for n, gaps in enumerate(all_gaps)]
    assert list(requests.decode_requests(requests.encode_requests(samples))) == samples


@pytest.mark.parametrize(("count", "tokens"), [(64, 256), (200, 256), (256, 3072), (8000, 1)])
def test_the_requests_of_a_result_take_at_most_20_kb(count: int, tokens: int) -> None:
    assert len(requests.encode_requests(made(count, tokens))) <= 1.1 * requests.MOST_BYTES


def test_of_many_requests_some_are_kept_evenly_and_say_so() -> None:
    samples = made(4000, 2)
    found = list(requests.decode_requests(requests.encode_requests(samples)))
    one_of = found[0].pop(KEPT_ONE_OF)
    assert 2 <= one_of <= 8
    assert [sample["index"] for sample in found] == list(range(0, 4000, one_of))
    assert all(sample.pop(KEPT_ONE_OF) == one_of for sample in found[1:])
    before = samples[::one_of]
    assert [one["start_s"] for one in found] == [one["start_s"] for one in before]


def test_rounded_gaps_say_so_and_no_arrival_is_off_by_more_than_half_a_step() -> None:
    samples = made(200, 256)
    found = list(requests.decode_requests(requests.encode_requests(samples)))
    step_us = found[0][requests.RESOLUTION]
    assert step_us > 1
    for before, after in zip(samples, found, strict=True):
        assert {name: after[name] for name in before if name != "gaps_us"} == {
            name: value for name, value in before.items() if name != "gaps_us"
        }
        times = zip(accumulate(before["gaps_us"]), accumulate(after["gaps_us"]), strict=True)
        assert all(abs(exact - rounded) <= step_us / 2 for exact, rounded in times)


@pytest.mark.parametrize("gaps", [[1.5, 2], [-1], [2**31], ["x"], [True]])
def test_gaps_that_are_no_whole_numbers_are_kept_as_they_are(gaps: list[Any]) -> None:
    samples = [{"index": 0, "gaps_us": gaps}, {"index": 1, "gaps_us": [3]}, {"gaps": 5}]
    assert list(requests.decode_requests(requests.encode_requests(samples))) == samples


def test_a_file_of_an_earlier_version_is_read() -> None:
    samples = made(3, 5)
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    assert list(requests.decode_requests(gzip.compress(lines.encode()))) == samples


def test_every_changed_byte_is_noticed() -> None:
    data = requests.encode_requests(made(20, 40))
    for place in range(0, len(data), 5):
        damaged = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        with pytest.raises(Exception):  # noqa: B017 (of several kinds)
            list(requests.decode_requests(damaged))
