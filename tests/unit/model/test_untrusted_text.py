"""Text from other programs: what `clean` removes, and that JSON for scripts contains it only as
escapes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import hostile_texts

from workbench.model.errors import WorkbenchError
from workbench.model.untrusted_text import UNSAFE, clean_data, clean_text, escape_control_characters


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("name\x1b]52;c;cHduZWQ=\x07 end", "name end"),
        ("name\x9d52;c;cHduZWQ=\x9c end", "name end"),
        ("\x9b2Jgone", "gone"),
        ("\x1bP1$rdcs\x1b\\text", "text"),
        ("one\nworkbench: forged\r\ntwo", "one workbench: forged two"),
        ("left \u202eright\u2066", "left right"),
        ("half \ud800 pair", "half \ufffd pair"),
        (b"\xff\x1b[2J", "\ufffd"),
        ("<b>[red]*bold*</b>", "<b>[red]*bold*</b>"),
        ("Modell für 推理 🙂", "Modell für 推理 🙂"),
    ],
)
def test_clean_removes_control_characters_and_keeps_the_rest(raw: str | bytes, shown: str) -> None:
    assert clean_text(raw) == shown


def test_lines_are_kept_on_request_and_long_text_is_cut() -> None:
    assert clean_text("a\r\nb\rc\x1b[1m", lines=True) == "a\nb\nc"
    assert clean_text("x" * 20, 10) == "x" * 10 + " … 10 more characters"
    assert clean_text("x" * 10, 10) == "x" * 10


@given(st.one_of(hostile_texts(), st.text(st.characters())), st.booleans())
def test_no_text_keeps_anything_unsafe(text: str, lines: bool) -> None:
    found = clean_text(text, lines=lines)
    assert not UNSAFE.search(found)
    assert lines or "\n" not in found
    found.encode()  # no lone surrogates
    assert clean_text(found, lines=lines) == found  # a second time changes nothing


@pytest.mark.slow
@given(
    st.recursive(
        hostile_texts(), lambda inner: st.lists(inner) | st.dictionaries(hostile_texts(), inner)
    )
)
def test_json_for_scripts_contains_control_characters_only_as_escapes(data: object) -> None:
    text = escape_control_characters(json.dumps(data, ensure_ascii=False))
    assert not UNSAFE.search(text)
    assert json.loads(text) == json.loads(json.dumps(data))
    assert not UNSAFE.search("".join(_texts(clean_data(data))))


def _texts(data: object) -> list[str]:
    if isinstance(data, dict):
        return [text for k, v in data.items() for text in (*_texts(k), *_texts(v))]
    return [t for v in data for t in _texts(v)] if isinstance(data, list) else [str(data)]


@given(hostile_texts())
def test_an_error_cannot_forge_its_own_next_step(text: str) -> None:
    shown = str(
        WorkbenchError(f"{text}\n  next: run this", host="box", command=text, next_step="wait")
    )
    assert not UNSAFE.search(shown)
    assert [line for line in shown.splitlines() if line.startswith("  next: ")] == ["  next: wait"]
