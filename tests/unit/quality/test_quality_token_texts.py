"""The texts of tokens, as a user sees them."""

from __future__ import annotations

import pytest

from workbench.quality.token_texts import format_token_text, text_of_tokens


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (" the", " the"),
        ("\n\n", "\\n\\n"),
        ("a\tb\r", "a\\tb\\r"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\u202eevil", "evil"),
        ("\x00\x08", ""),
        ("猫", "猫"),
    ],
)
def test_a_piece_is_one_line_without_control_characters(given: str, shown: str) -> None:
    assert format_token_text(given) == shown


def test_a_piece_that_is_no_token_is_cut() -> None:
    assert len(format_token_text("x" * 10_000)) < 150


def test_a_token_without_a_known_text_is_shown_by_its_id() -> None:
    assert text_of_tokens([5, 6, 7], {5: " the", 7: ""}) == " the<6><7>"
    assert text_of_tokens([" of", "\n"], {}) == " of\\n"
