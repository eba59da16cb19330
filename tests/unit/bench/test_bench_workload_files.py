"""Tests of prompt files: every accepted form, and the messages for invalid lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench import prompt_file
from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec
from workbench.model.errors import InputError
from workbench.session.bench.spec import spec_from_fields

USER = [{"role": "user", "content": "hi"}]


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    )
    return path


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ({"prompt": "one"}, "one"),
        ({"text": "two", "id": 7}, "two"),
        ("three", "three"),
        ({"messages": USER}, USER),
        ({"messages": [*USER, {"role": "assistant", "content": "hello"}]}, USER),
        (
            {
                "id": "x",
                "conversations": [
                    {"from": "human", "value": "hi"},
                    {"from": "gpt", "value": "hello"},
                ],
            },
            USER,
        ),
        (
            {
                "conversations": [
                    {"from": "system", "value": "be kind"},
                    {"from": "user", "value": "hi"},
                ]
            },
            [{"role": "system", "content": "be kind"}, *USER],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        ),
    ],
)
def test_forms(tmp_path: Path, line: Any, prompt: Any) -> None:
    found = prompt_file.read_prompts(write(tmp_path, line))
    assert [json.loads(one) for one in found.prompts] == [prompt]


def test_a_result_keeps_name_count_and_digest_of_a_prompt_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "very private"}, b"", b"   ", {"prompt": "b"})
    found = prompt_file.read_prompts(path)
    assert (
        found.name.startswith("prompts.jsonl (2 prompts, sha256 ") and "private" not in found.name
    )
    other = prompt_file.read_prompts(write(tmp_path, {"prompt": "very public"}, {"prompt": "b"}))
    assert other.name != found.name


def test_byte_order_mark_crlf_and_line_separators_inside_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b"}\r', b'{"text": "c"}\r')
    assert [json.loads(one) for one in prompt_file.read_prompts(path).prompts] == ["a\u2028b", "c"]


SHAREGPT = [
    {
        "id": "a_0",
        "conversations": [
            {"from": "human", "value": "hi\u2028"},
            {"from": "gpt", "value": "hello"},
        ],
    },
    {"id": "a_1", "conversations": []},
    {"id": "a_2", "conversations": [{"from": "gpt", "value": "an answer to nothing"}]},
    {
        "id": "a_3",
        "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}],
    },
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_sharegpt_as_it_is_distributed(tmp_path: Path, indent: int | None, mark: bytes) -> None:
    path = tmp_path / "ShareGPT_V3.json"
    path.write_bytes(mark + json.dumps(SHAREGPT, indent=indent, ensure_ascii=False).encode())
    found = prompt_file.read_prompts(path)
    assert [json.loads(one) for one in found.prompts] == [
        [{"role": "user", "content": "hi\u2028"}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
    ]
    assert found.name.startswith("ShareGPT_V3.json (2 prompts, sha256 ")


def test_a_bad_entry_of_an_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"prompt": "fine"}, {"question": "a"}]))
    with pytest.raises(InputError, match="entry 2: the prompt has no field"):
        prompt_file.read_prompts(path)


def test_a_line_may_name_the_length_of_its_answer(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "a", "max_tokens": 7},
        {"prompt": "b"},
        {"messages": USER, "max_tokens": 9},
    )
    spec = BenchSpec(
        "u", "m", max_tokens=5, prompts=prompt_file.read_prompts(path).prompts, salt="ab"
    )
    workload = Workload(spec)
    bodies = [json.loads(workload.request_body(i, warmup=False)) for i in range(4)]
    assert [b["max_tokens"] for b in bodies] == [b["min_tokens"] for b in bodies] == [7, 5, 9, 7]
    assert [workload.asked_tokens(i, warmup=False) for i in range(4)] == [7, 5, 9, 7]
    assert (
        bodies[0]["messages"][0]["content"].endswith("] a")
        and bodies[2]["messages"][0]["role"] == "user"
    )
    with pytest.raises(InputError, match="the prompts file contains chat messages"):
        spec_from_fields(None, {"prompts_file": str(path), "endpoint": "completions"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", ":2: not JSON"),
        (b"\xff\xfe", ":2: not"),
        ([1], ":2: the prompt is neither a JSON object nor a string"),
        (
            {"question": "a"},
            ":2: the prompt has no field prompt, text, messages or conversations; its fields are "
            "question",
        ),
        ({"prompt": "  "}, ":2: the prompt is empty"),
        (b'{"prompt": "a\\ud800b"}', ":2: the prompt contains half of a character"),
        ({"prompt": "a", "max_tokens": 0}, ":2: max_tokens is 0"),
        ({"prompt": "a", "max_tokens": "9"}, ":2: max_tokens is '9'"),
        ({"messages": []}, ':2: the prompt has no message with the role "user" or "tool"'),
        ({"messages": [{"role": "robot", "content": "a"}]}, ':2: each message needs a "role"'),
        ({"messages": [{"role": "user"}]}, ':2: each message needs a "content"'),
        ({"conversations": [{"from": "human"}]}, ':2: each entry of "conversations"'),
        ({"conversations": [{"from": ["x"], "value": "a"}]}, ':2: each entry of "conversations"'),
        (b"[" * 100_000, ":2: "),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(InputError) as caught:
        prompt_file.read_prompts(path)
    assert str(path) + said in caught.value.message and ("one JSON object per line") in str(
        caught.value.next_step
    )


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for name, said in (
        ("gone", "cannot be read"),
        (".", "is not a regular file"),
        ("empty", "contains no prompt"),
    ):
        with pytest.raises(InputError, match=said):
            prompt_file.read_prompts(tmp_path / name)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_parsed_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "p"
    path.write_bytes(data)
    try:
        found = prompt_file.read_prompts(path)
    except InputError:
        return
    assert found.prompts and all(json.loads(one) for one in found.prompts)
