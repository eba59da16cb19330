"""Tests of logs: bytes in any pieces become clean, complete lines in bounded memory."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.plan import Command
from workbench.model.secrets import mask_command, mask_text, secret_values
from workbench.server import log_lines as log_lines_module
from workbench.server.log_lines import (
    READ_BYTES,
    LineAssembler,
    LogFollower,
    LogRing,
    decode_log_line,
    decode_log_lines,
    level_of_line,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=20))
def test_lines_do_not_depend_on_how_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    whole, cut = LineAssembler(), LineAssembler()
    expected = whole.feed(data) + whole.flush()
    got = [line for piece in pieces(data, cuts) for line in cut.feed(piece)] + cut.flush()
    assert got == expected
    assert not any(re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line) for line in got)


def test_a_character_cut_by_a_read_is_whole_again() -> None:
    data = "Gewichte geladen ✓ 100 %\n".encode()
    assembler = LineAssembler()
    lines = [line for byte in data for line in assembler.feed(bytes([byte]))]
    assert lines == ["Gewichte geladen ✓ 100 %"]


def test_progress_bars_fold_to_their_last_state() -> None:
    assert (
        decode_log_line(b"shards:   0%|  | 0/2\rshards:  50%|# | 1/2\rshards: 100%|##| 2/2\r")
        == "shards: 100%|##| 2/2"
    )
    assembler = LineAssembler()
    assert assembler.feed(b"Capturing: 10%\rCapturing: 35%") == []
    assert assembler.unfinished_line == "Capturing: 35%"


def test_an_endless_progress_bar_stays_small() -> None:
    assembler = LineAssembler()
    for percent in range(20_000):
        assembler.feed(f"\rCapturing CUDA graphs: {percent / 200:.1f}%".encode())
    assert assembler.pending_byte_count < 70_000
    assert assembler.feed(b"\n") == ["Capturing CUDA graphs: 100.0%"]


def test_a_line_without_end_is_given_out_in_pieces() -> None:
    assembler = LineAssembler(limit=1000)
    given_out = [line for _ in range(10) for line in assembler.feed(b"x" * 400)]
    assert given_out == ["x" * 1200, "…", "…"]
    assert assembler.pending_byte_count == 400


@pytest.mark.parametrize("cut", (900, 958, 959, 960, 970, 975, 982, 990, 1009))
def test_a_key_that_a_piece_ends_in_is_not_shown(cut: int) -> None:
    secret = "hunter2" * 4
    line = b"x " * 480 + b"Authorization: Bearer " + secret.encode() + b" CUDA out of memory\n"
    assembler = LineAssembler(limit=900)
    lines = [*assembler.feed(line[:cut]), *assembler.feed(line[cut:])]
    assert not any("hunter2" in line for line in lines)
    assert lines[-1].endswith("of memory")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[32mINFO\x1b[0m ready", "INFO ready"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"bell\x07 back\x08space\x00", "bell backspace"),
        (b"a\tb", "a       b"),
        ("evil \u202etxt.exe".encode(), "evil txt.exe"),
        (b"windows\r", "windows"),
        (b"bad \xff byte", "bad \ufffd byte"),
    ],
)
def test_control_sequences_of_a_command_are_removed(raw: bytes, shown: str) -> None:
    assert decode_log_line(raw) == shown


RAW = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.sampled_from(
        [
            b"INFO ready",
            b"key sesam",
            b"hf_" + b"A1" * 10,
            b"8 tokens",
            b"token",
            b"s=1",
            b"x" * 8193,
        ]
    ),
    st.sampled_from(
        [
            "Σ ✓ 100 %".encode(),
            b"\xe2\x9c",
            b"a\tb",
            b"1%\r2%",
            b"\x1b[1mhi\x1b[0m",
            "a\u2028b".encode(),
        ]
    ),
)


@given(st.lists(RAW.map(lambda raw: raw.replace(b"\n", b"")), max_size=12))
def test_lines_are_the_same_together_and_one_by_one(raw: list[bytes]) -> None:
    for secrets in ((), ("sesam",)):
        assert decode_log_lines(raw, secrets) == [decode_log_line(line, secrets) for line in raw]


def test_very_long_lines_are_cut_and_say_so() -> None:
    line = decode_log_line(b"x" * 20_000)
    assert len(line) < 9_000
    assert line.endswith("… 11808 more characters")


def test_secrets_are_masked_by_value_by_name_and_by_shape() -> None:
    assert (
        decode_log_line(b"starting with key geheim-123", ["geheim-123"]) == "starting with key ***"
    )
    assert mask_text("non-default args: {'api_key': ['abc123'], 'port': 1}") == (
        "non-default args: {'api_key': ['***'], 'port': 1}"
    )
    assert mask_text("Authorization: Bearer abcdefgh12345") == "Authorization: Bearer ***"
    assert mask_text("token=hf_ABCDEFGHIJKLMNOPQRSTUVWX") == "token=***"
    assert (
        mask_text("args: {'api_key': None, 'max_tokens': 16}")
        == "args: {'api_key': None, 'max_tokens': 16}"
    )
    assert mask_text("token usage: 0.08, #token: 5383") == "token usage: 0.08, #token: 5383"


def test_a_command_is_masked_wherever_the_secret_occurs() -> None:
    command = Command(
        argv=(
            "vllm",
            "serve",
            "m",
            "--api-key",
            "one-key",
            "two-key",
            "--port",
            "8000",
            "--hf-token=three-key",
        ),
        env={"HF_TOKEN": "four-key", "VLLM_LOGGING_LEVEL": "INFO", "COPY": "say one-key"},
        files={"config.yml": "key: two-key\n"},
    )
    assert set(secret_values(command)) == {"one-key", "two-key", "three-key", "four-key"}
    masked = mask_command(command)
    assert not re.search(r"(one|two|three|four)-key", repr(masked))
    assert masked.argv[-4:] == ("***", "--port", "8000", "--hf-token=***")
    assert masked.env["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (
            "(EngineCore_DP0 pid=3) ERROR 11-20 23:21:40 [core.py:1] EngineCore failed to start.",
            "error",
        ),
        ("(APIServer pid=3) WARNING 11-20 23:21:40 [vllm.py:1703] Enforce eager set", "warn"),
        (
            "(APIServer pid=3) INFO 11-20 23:21:40 [entry.py:140] Starting vLLM server on "
            "http://127.0.0.1:1",
            "info",
        ),
        ('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', "info"),
        ("W1121 00:30:10.037000 30548 torch/_library/triton.py:53] Triton not available", "warn"),
        ("[W1120 23:20:31.751869806 utils.cpp:68] Warning: NUMA binding", "warn"),
        ("0.01.107.132 I srv  llama_server: listening on http://127.0.0.1:8161", "info"),
        ("0.00.064.606 W load: special_eos_id is not in special_eog_ids", "warn"),
        ("0.00.064.606 E srv  load_model: failed to load model", "error"),
        ("[52717] 0.00.910.211 E clip_init: failed to load model 'm.gguf'", "error"),
        ("[52717] 0.00.910.211 W load: special_eos_id is not in special_eog_ids", "warn"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "error"),
        ("Traceback (most recent call last):", "error"),
        ("vllm serve: error: unrecognized arguments: --nope", "error"),
        ("/x/awq.py:53: UserWarning: Only CUDA, HIP and XPU support AWQ currently.", "warn"),
        ("[2026-11-20 23:41:54] Cuda graph is disabled", ""),
        ("generated 12 tokens, no error found", ""),
    ],
)
def test_levels_are_read_from_each_engine_s_own_lines(line: str, level: str) -> None:
    assert level_of_line(line) == level


def test_the_ring_keeps_the_first_and_last_lines_and_counts_the_dropped() -> None:
    ring = LogRing(head_lines=3, tail_lines=4)
    ring.extend(f"line {n}" for n in range(20))
    assert list(ring.lines(0, 3)) == ["line 0", "line 1", "line 2"]
    assert ring.lines(3, 1) == [
        "… 13 lines are no longer in memory; a search reads the whole file …"
    ]
    assert list(ring.lines(4)) == ["line 16", "line 17", "line 18", "line 19"]
    assert (len(ring), ring.total, ring.dropped) == (8, 20, 13)
    assert list(ring.lines(6, 100)) == ["line 18", "line 19"]


@given(st.lists(st.text("ab", max_size=30), max_size=120), st.integers(0, 20), st.integers(1, 20))
def test_the_ring_counts_every_line_once(lines: list[str], head: int, tail: int) -> None:
    ring = LogRing(head_lines=head, tail_lines=tail, chars=200)
    ring.extend(lines)
    kept = list(ring.lines())
    assert len(kept) == len(ring)
    gap = 1 if ring.dropped else 0
    assert ring.dropped + len(kept) - gap == ring.total == len(lines)
    assert kept[: min(head, len(lines))] == lines[:head]


def test_a_part_of_the_ring_has_the_lines_of_its_indexes() -> None:
    for count in (0, 2, 3, 5, 20):
        ring = LogRing(head_lines=3, tail_lines=4)
        ring.extend(f"line {n}" for n in range(count))
        whole = list(ring.lines())
        assert len(whole) == len(ring)
        for start in range(-2, len(whole) + 2):
            for size in range(len(whole) + 2):
                assert list(ring.lines(start, size)) == whole[max(start, 0) : max(start + size, 0)]


@pytest.mark.parametrize("batch", [1, 7, 100, 5000])
def test_a_compressed_ring_has_the_lines_of_an_ordinary_list(batch: int) -> None:
    block = log_lines_module.BLOCK_LINES
    ring = LogRing(head_lines=5, tail_lines=6 * block + 3)
    whole = [f"line {n} é" for n in range(10 * block + 11)]
    for at in range(0, len(whole), batch):
        ring.extend(whole[at : at + batch])
    kept = [*whole[:5], ring.lines(5, 1)[0], *whole[-(6 * block + 3) :]]
    assert (len(ring), ring.dropped) == (len(kept), len(whole) - len(kept) + 1)
    assert list(ring.lines()) == kept
    edges = [0, 4, 5, 6, 7, *(n * block + d for n in range(1, 7) for d in (-2, 0, 5, 9))]
    for start in edges:
        for size in (0, 1, 40, block, block + 1, 3 * block):
            assert list(ring.lines(start, size)) == kept[start : start + size]
    for at in (6, 2 * block, 5 * block, len(kept) - 1):
        assert ring.find(kept[at].upper()) == at
        assert ring.find(kept[at], len(kept), backwards=True) == at
    assert ring.find("line", 3 * block) == 3 * block
    assert ring.find("line", 3 * block, backwards=True) == 3 * block


def test_a_log_that_repeats_itself_takes_less_memory_than_its_bytes() -> None:
    line = "(EngineCore pid=7) INFO 11-21 03:15:16 [loggers.py:123] Engine 000: {} requests"
    tracemalloc.start()
    try:
        ring = LogRing()
        for at in range(0, 25_000, 1000):
            ring.extend(line.format(at + n) for n in range(1000))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(ring) == log_lines_module.HEAD_LINES + log_lines_module.TAIL_LINES + 1
    assert taken < 0.5 * len(ring) * len(line)


def test_find_goes_both_ways_and_ignores_case() -> None:
    ring = LogRing()
    ring.extend(["Error one", "fine", "ERROR two", "fine"])
    assert ring.find("error") == 0
    assert ring.find("error", 1) == 2
    assert ring.find("error", 3) is None
    assert ring.find("error", 1, backwards=True) == 0
    assert ring.find("error", 99, backwards=True) == 2


def test_a_flood_stays_flat_in_memory() -> None:
    """200 MB through the follower: the memory does not grow with the input."""
    line = b"(EngineCore pid=1) INFO 11-20 23:21:16 [loggers.py:1] " + b"x" * 400 + b"\n"
    block = line * (READ_BYTES // len(line))
    follower = LogFollower("run")
    for _ in range(40):  # 20 MB, ten times what the tail may hold
        follower.feed(block, follower.offset)
    assert follower.offset == 40 * len(block)
    kept = sum(len(text) for text in follower.ring.lines())
    assert kept < 8_000_000 + 2_000 * len(line) + 200


def test_skipping_starts_at_a_whole_line_and_is_reported() -> None:
    follower = LogFollower("run")
    follower.feed(b"first\nsecond\nunfini", 0)
    batch = follower.feed(b"tial\nlater\nlast\n", 1_000)
    assert batch is not None
    assert (batch.lines, batch.truncated, batch.offset) == (("later", "last"), True, 1_016)
    assert list(follower.ring.lines()) == [
        "first",
        "second",
        "… lines skipped here to keep up with the log; a search reads the whole file …",
        "later",
        "last",
    ]


def test_a_batch_s_offset_is_after_its_last_whole_line() -> None:
    follower = LogFollower("run")
    batch = follower.feed(b"one\ntwo\nthr", 0)
    assert batch is not None
    assert (batch.lines, batch.offset, follower.offset) == (("one", "two"), 8, 11)
    assert follower.feed(b"ee", 11) is None
    last = follower.finish()
    assert last is not None
    assert (last.lines, last.offset) == (("three",), 13)


def test_a_log_that_was_cut_is_read_again_from_its_start() -> None:
    follower = LogFollower("run")
    follower.feed(b"old one\nold two\n", 0)
    batch = follower.feed(b"new\n", 0)
    assert batch is not None
    assert (batch.lines, batch.truncated) == (("new",), True)
