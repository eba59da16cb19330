"""Files of recorded traffic: every format, the arithmetic of shared prefixes, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from workbench.bench import trace_conversations, trace_file
from workbench.bench.trace_load import trace_load
from workbench.model.errors import InputError

MOONCAKE = [
    {"timestamp": 0, "input_length": 1124, "output_length": 500, "hash_ids": [0, 1, 2]},
    {"timestamp": 3052, "input_length": 1300, "output_length": 26, "hash_ids": [0, 3, 4]},
    {"timestamp": 3052, "input_length": 1224, "output_length": 52, "hash_ids": [0, 1, 2]},
    {"timestamp": 4000, "input_length": 900, "output_length": 1, "hash_ids": [1, 2]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
BURST_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
30.5,9f-1,4.2,GPT-4,100,20,120,Conversation log
12.25,,1.5,ChatGPT,40,7,47,API log
"""
TALKS = [
    {
        "id": "a",
        "conversations": [
            {"from": "gpt", "value": "an answer without its question"},
            {"from": "human", "value": "What is a ferry? " * 20},
            {"from": "gpt", "value": "A ship. " * 10},
            {"from": "human", "value": "Who pays?"},
            {"from": "gpt", "value": "You."},
            {"from": "human", "value": "nobody answers this"},
        ],
    },
    {"conversations": [{"from": "gpt", "value": "alone"}]},
    {"conversations": [{"from": "user", "value": "船は何時?"}, {"from": "gpt", "value": "六時。"}]},
]


# as AIPerf writes turns: what they add, and the pause before; the second session is a captured one
SESSIONS: list[dict[str, Any]] = [
    {"session_id": "a", "timestamp": 0, "input_length": 1536, "output_length": 100}
    | {"hash_ids": [0, 1, 2]},
    {
        "session_id": "a",
        "delay": 2450,
        "input_length": 600,
        "output_length": 50,
        "hash_ids": [7, 8],
    },
    {"session_id": "b", "timestamp": 900, "input_length": 700, "output_length": 30}
    | {"hash_ids": [0, 5]},
    {"session_id": "a", "delay": 500, "input_length": 40, "output_length": 10},
    {"session_id": "b", "timestamp": 1800, "delay": 400, "input_length": 1300, "output_length": 5}
    | {"hash_ids": [0, 6, 9]},
]


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def read(tmp_path: Path, text: str | bytes, first: int | None = None) -> trace_file.Trace:
    path = tmp_path / "trace.any"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return trace_file.read_trace(path, first)


def requests(trace: trace_file.Trace) -> list[tuple[float, int, int]]:
    """Return (time, prompt tokens, answer tokens) of each request."""
    load = trace_load(trace.requests)
    return [
        (at_s, load.input_tokens(index), load.output_tokens[index])
        for index, at_s in enumerate(load.times_s)
    ]


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        (AZURE, "2 requests, Azure", [(0.0, 4808, 10), (0.052, 3180, 8)]),
        ("\ufeff" + AZURE, "2 requests, Azure", [(0.0, 4808, 10), (0.052, 3180, 8)]),
        (AZURE.replace("\n", "\r\n"), "2 requests", [(0.0, 4808, 10), (0.052, 3180, 8)]),
        (AZURE_2024, "2 requests, Azure", [(0.0, 2162, 5), (0.99007, 2399, 6)]),
        (
            BURST,
            "2 requests, BurstGPT, 1 row without tokens left out",
            [(0.0, 472, 18), (113.0, 417, 276)],
        ),
        (BURST_3, "2 requests, BurstGPT", [(0.0, 40, 7), (18.25, 100, 20)]),
        (
            lines(*MOONCAKE[:2]),
            "2 requests, Mooncake",
            [(0.0, 1124, 500), (3.052, 1300, 26)],
        ),
        ("\n" + lines(MOONCAKE[0]) + "\n\n", "1 request, Mooncake", [(0.0, 1124, 500)]),
    ],
)
def test_every_format_is_found_by_its_content(
    tmp_path: Path, text: str, form: str, expected: list[tuple[float, int, int]]
) -> None:
    found = read(tmp_path, text)
    assert found.name.startswith(f"trace.any ({form}") and ", sha256 " in found.name
    assert requests(found) == [
        (pytest.approx(at_s, abs=1e-5), prompt, answer) for at_s, prompt, answer in expected
    ]
    assert found.seconds == pytest.approx(expected[-1][0], abs=1e-5)


def test_only_blocks_from_the_first_one_on_are_reused(tmp_path: Path) -> None:
    found = read(tmp_path, lines(*MOONCAKE))
    # the second has one block of the first, the third all of the first, the last one only blocks
    # that did not begin a prompt
    reused = 512 + (512 + 512 + 100)
    assert found.reuse == pytest.approx(reused / (1124 + 1300 + 1224 + 900), abs=1e-6)
    assert found.input_tokens == 1137 and found.output_tokens == 145
    blocks = trace_load(found.requests).block_numbers_and_tokens
    # one block from where the second leaves them; the shorter text is the beginning of the longer
    assert blocks(0) == [(0, 512), (1, 612)] and blocks(2) == [(0, 512), (1, 712)]


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [
        ([(100, [1, 2, 3, 4, 5, 6, 7]), (32, [1, 9])], [16, 84]),
        ([(100, [1, 2, 3, 4, 5, 6]), (32, [1, 9])], [16, 80, 4]),  # of full blocks only
        ([(600, [1])], [512, 88]),
        ([(30, [10**30]), (600, [10**30, 2])], [30]),
    ],
)
def test_the_size_of_blocks_follows_from_their_number(
    tmp_path: Path, rows: list[tuple[int, list[int]]], blocks: list[int]
) -> None:
    made = [
        {"timestamp": 1, "input_length": tokens, "output_length": 1, "hash_ids": hashes}
        for tokens, hashes in rows
    ]
    load = trace_load(read(tmp_path, lines(*made)).requests)
    assert [tokens for _, tokens in load.block_numbers_and_tokens(0)] == blocks
    assert len({number for number, _ in load.block_numbers_and_tokens(0)}) == len(blocks)


def test_the_first_requests_are_read_without_the_rest(tmp_path: Path) -> None:
    found = read(tmp_path, lines(*MOONCAKE) + "\nno JSON", first=2)
    assert len(found.requests) == 2 and "2 requests" in found.name
    assert found.name != read(tmp_path, lines(*MOONCAKE[:3])).name


@pytest.mark.parametrize(
    "text", [lines(*TALKS), json.dumps(TALKS), "\ufeff" + json.dumps(TALKS, indent=1)]
)
def test_conversations_are_requests_turn_by_turn(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert found.name.startswith("trace.any (3 requests, 2 conversations, ShareGPT, sha256 ")
    assert found.seconds is None and found.conversations == 2
    load = trace_load(found.requests)
    assert load.first_turns == [0, 2] and load.next_turn == {0: 1}
    assert [load.first_turn_index_of(index) for index in range(3)] == [0, 0, 2]
    assert [one["role"] for one in load.messages_with_earlier_turns(1)] == [
        "user",
        "assistant",
        "user",
    ]
    assert (
        load.messages_with_earlier_turns(1)[:1] == load.messages_with_earlier_turns(0)
        and load.messages_with_earlier_turns(1)[2]["content"] == "Who pays?"
    )
    assert load.output_tokens == [20, 1, 2]
    # 85 tokens of the first question are in the second request too
    assert found.reuse == pytest.approx(85 / (85 + (85 + 20 + 2) + 3), abs=1e-6)
    assert len(read(tmp_path, text, first=1).requests) == 1


def test_a_large_array_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(tmp_path, json.dumps(TALKS))
    monkeypatch.setattr(trace_conversations, "_READ_CHUNK_BYTES", 7)
    assert read(tmp_path, json.dumps(TALKS)) == whole
    beginning = json.dumps(TALKS).partition('"alone"')[0]
    assert len(read(tmp_path, beginning + "no JSON", first=1).requests) == 1
    monkeypatch.setattr(trace_conversations, "_MAX_ENTRY_CHARACTERS", 100)
    with pytest.raises(InputError, match="entry 1: not JSON"):
        read(tmp_path, json.dumps(TALKS))
    monkeypatch.setattr(trace_conversations, "_MAX_TEXT_CHARACTERS", 500)
    with pytest.raises(InputError, match="the conversations have more than"):
        read(tmp_path, lines(*TALKS))


def row(**fields: Any) -> str:
    return json.dumps({**MOONCAKE[0], **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (lines(MOONCAKE[0]) + '\n{"timestamp": 5, "input_le', ":2: not JSON: "),
        (row(timestamp=-1), ":1: the timestamp -1 is negative"),
        (row(timestamp="soon"), "the timestamp is 'soon', which is no number"),
        (row(timestamp=1e300), "the timestamp 1e+300 is too large"),
        (
            row(timestamp=10**400),
            "the timestamp 1000000000000000000000000000000000000000 is too large",
        ),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "is too large"),
        (row(input_length=-5), "the input_length -5 is negative"),
        (row(input_length=10**9), "is larger than 2,000,000"),
        (row(output_length=1.5), "the output_length is 1.5, which is no whole number"),
        (row(output_length=True), "the output_length is True"),
        (row(hash_ids=[0, "x", 2]), "hash_ids contains 'x', but needs whole numbers"),
        (row(hash_ids=[0, -1, 2]), "hash_ids contains -1"),
        (row(hash_ids={"a": 1}), "hash_ids is not a list"),
        (lines(*2 * [SESSIONS[0] | {"hash_ids": []}]), ":2: the request is a turn of the session"),
        (row(session_id=[1]), ":1: the session_id is [1], which is no text or whole number"),
        (row(session_id=True), ":1: the session_id is True, which is no text or whole number"),
        ('{"timestamp": ' + 5000 * "9" + "}", ":1: a number has thousands of digits"),
        ('[{"conversations": ' + 5000 * "9" + "}]", "entry 1: a number has thousands of digits"),
        (
            lines(TALKS[0]) + '\n{"id": ' + 5000 * "9" + "}",
            ":2: a number has thousands of digits",
        ),
        (row(delay=-1), ":1: the delay -1 is negative"),
        ('{"timestamp": 1, "timestamp": 2}', ":1: the field 'timestamp' is there twice"),
        (row(hash_ids=[1, 2]) + "\n" + row(hash_ids=[1, 2, 3, 4, 5]), ":2: 5 hashes for 1,124"),
        (row(hash_ids=[*range(2000)]), ":1: 2,000 hashes for 1,124 prompt tokens"),
        ('{"prompt": "hello"}', ":1: the request has no timestamp; its fields are prompt"),
        ("[1, 2]", "entry 1: the entry is no conversation"),
        ("[" * 20000, "the JSON is nested too deeply"),
        ("[]", "contains no answered question"),
        (json.dumps(TALKS)[:-5], "entry 3: the file ends in it"),
        ('[{"conversations": 5}]', "entry 1: the conversation is not a list"),
        ('[{"conversations": [{"from": "dog", "value": "x"}]}]', 'entry 1: each entry of "conv'),
        (lines(TALKS[0], 5), ":2: the entry is no conversation"),
        (lines(TALKS[0]) + '\n{"conv', ":2: not JSON"),
        (lines(TALKS[2]).replace("\\u6642", "\\ud800"), ":1: 'utf-8' codec can't encode"),
        (b"\x7fELF\x02\x01\x01\x00\x00", ":1: the file is binary"),
        (b"caf\xe9,1,2\n", ":1: the line is not UTF-8"),
        ("a,b,c\n1,2,3\n", ":1: the line is neither a JSON object nor the header of a known"),
        (AZURE + "2023-11-16 18:17:05.1", ":4: the line has 1 column instead of 3"),
        (AZURE + "yesterday,1,2", ":4: the time 'yesterday' is no date and time"),
        (AZURE + "2023-11-16 18:17:05.1,many,2", ":4: the number of prompt tokens is 'many'"),
        (AZURE + "2023-11-16 18:17:05.1,5,-2", ":4: the number of answer tokens -2 is negative"),
        (BURST + "-3,GPT-4,4,2,6,API log", ":5: the time -3.0 is negative"),
        (BURST + "nan,GPT-4,4,2,6,API log", ":5: the time nan is too large"),
        (BURST + "x,GPT-4,4,2,6,API log", ":5: the time 'x' is no number"),
        (AZURE.splitlines()[0], "contains no request"),
        (b"{" + b" " * (1 << 20), ":1: the line is longer than 1 MiB"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert f"{tmp_path / 'trace.any'}" in error.value.message and said in error.value.message
    assert error.value.next_step


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.csv does not exist"):
        trace_file.read_trace(tmp_path / "gone.csv")
    with pytest.raises(InputError, match="is not a regular file"):
        trace_file.read_trace(tmp_path)


def test_too_many_requests_need_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MOST_REQUESTS", 3)
    with pytest.raises(InputError, match=r"trace\.any:4: the trace has more than 3 requests") as no:
        read(tmp_path, lines(*MOONCAKE))
    assert no.value.next_step == "give --first N to use its first N requests"
    assert len(read(tmp_path, lines(*MOONCAKE), first=3).requests) == 3


# -- any file at all


_WHOLE = tuple(
    text.encode()
    for text in (
        lines(*MOONCAKE),
        AZURE,
        AZURE_2024,
        BURST,
        BURST_3,
        lines(*TALKS),
        json.dumps(TALKS),
    )
)
_ODD = (
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b"\0",
    b"\xff",
    b"NaN",
    b'"',
    b",",
    b"\n",
    b"9" * 40,
)


def spoiled(draw: random.Random) -> bytes:
    """Return a trace with a few accidents: cut, changed, repeated or exchanged parts."""
    data = bytearray(draw.choice(_WHOLE))
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1) if data else 0
        match draw.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + draw.randint(1, 20)]
            case 2:
                data[at:at] = draw.choice(_ODD)
            case 3:
                data[at : at + draw.randint(1, 6)] = draw.choice(_ODD)
            case 4:
                data[at:at] = data[: draw.randint(0, len(data))]
            case 5:
                data[at : at + 1] = bytes([draw.randrange(256)])
    return bytes(data)


def check_spoiled(path: Path, seeds: range) -> tuple[int, int]:
    """Read spoiled traces. Return how many were read and how many refused."""
    taken = refused = 0
    for seed in seeds:
        path.write_bytes(spoiled(random.Random(seed)))
        try:
            found = trace_file.read_trace(path)
        except InputError as error:
            assert str(path) in error.message and error.next_step, seed
            refused += 1
            continue
        taken += 1
        assert 0 <= found.reuse < 1, seed
        if found.seconds is None:
            load = trace_load(found.requests)
            assert all(
                load.messages_with_earlier_turns(index) for index in range(len(found.requests))
            ), seed
            continue
        made = requests(found)
        assert made == sorted(made, key=lambda one: one[0]), seed
        assert made[0][0] == 0 and all(prompt and answer for _, prompt, answer in made), seed
    return taken, refused


def test_a_spoiled_trace_is_read_or_refused(tmp_path: Path) -> None:
    taken, refused = check_spoiled(tmp_path / "spoiled", range(300))
    assert taken and refused > 100


@pytest.mark.slow
@pytest.mark.long
def test_10_000_spoiled_traces_are_read_or_refused(tmp_path: Path) -> None:
    taken, refused = check_spoiled(tmp_path / "spoiled", range(1000, 11_000))
    assert taken + refused == 10_000


def test_a_turn_of_a_session_adds_to_the_prompt_and_the_answer_before_it(tmp_path: Path) -> None:
    found = read(tmp_path, lines(*SESSIONS))
    load = trace_load(found.requests)
    assert [load.input_tokens(index) for index in range(5)] == [1536, 700, 1300, 2236, 2326]
    assert (load.first_turns, load.next_turn) == ([0, 1], {0: 3, 1: 2, 3: 4})
    assert (load.times_s, load.pauses_s) == ([0.0, 0.9], {2: 0.4, 3: 2.45, 4: 0.5})
    first, then, last = (load.block_numbers_and_tokens(index) for index in (0, 3, 4))
    assert first[0] == then[0] == (0, 512)
    assert [number for number, _ in last] == [number for number, _ in first]
    assert found.seconds == 2.95 and "3 later turns of sessions" in found.name
    assert found.reuse == round((512 + 512 + 1536 + 2236) / (1536 + 700 + 1300 + 2236 + 2326), 6)


@pytest.mark.parametrize("missing", ["input_length", "output_length"])
def test_a_turn_without_tokens_ends_its_session_and_the_name_says_so(
    tmp_path: Path, missing: str
) -> None:
    """Later turns were sent without the text of the turn that was left out."""
    rows = [*SESSIONS, {**SESSIONS[3], "delay": 700}]
    rows[1] = rows[1] | {missing: 0, "hash_ids": []}
    found = read(tmp_path, lines(*rows))
    load = trace_load(found.requests)
    assert [load.input_tokens(index) for index in range(3)] == [1536, 700, 1300]
    assert ", 1 row without tokens left out, and 2 later turns that add to such rows" in found.name


def test_a_session_whose_first_turn_has_no_tokens_is_left_out(tmp_path: Path) -> None:
    rows = [SESSIONS[0] | {"output_length": 0}, *SESSIONS[1:4]]
    found = read(tmp_path, lines(*rows))
    assert requests(found) == [(0.0, 700, 30)]
    assert ", and 2 later turns that add to such rows" in found.name


def test_a_turn_that_gives_its_whole_prompt_stays_after_one_without_tokens(tmp_path: Path) -> None:
    """The lengths of a captured turn are those of the whole prompt."""
    failed = SESSIONS[4] | {"timestamp": 1200, "output_length": 0}
    found = read(tmp_path, lines(SESSIONS[2], failed, SESSIONS[4]))
    load = trace_load(found.requests)
    assert [load.input_tokens(index) for index in range(2)] == [700, 1300]
    assert "1 row without tokens left out, sha256" in found.name


def test_a_pause_counts_in_the_length_of_a_trace_also_beside_a_timestamp(tmp_path: Path) -> None:
    """A pause of 11 hours beside a timestamp passed the limit of 4 hours, and the replay waited."""
    turns = [SESSIONS[0], {**SESSIONS[3], "timestamp": 1, "delay": 40_000_000}]
    assert read(tmp_path, lines(*turns)).seconds == 40_000.0
    later = [SESSIONS[0], {**SESSIONS[3], "timestamp": 3000, "delay": 500}]
    assert read(tmp_path, lines(*later)).seconds == 3.0


def test_a_trace_with_too_many_hashes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.bench.trace_file._MOST_HASHES", 4)
    text = "\n".join(row(hash_ids=[0, 1, 2]) for _ in range(2))
    with pytest.raises(InputError, match=":2: the trace has more than 4 hash_ids") as error:
        read(tmp_path, text)
    assert "--first N" in (error.value.next_step or "")
