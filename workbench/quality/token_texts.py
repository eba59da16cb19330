"""TokenTexts: the texts of single tokens, as they are shown to the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.model.quality import Token
from workbench.model.untrusted_text import clean_text

TokenTexts = Mapping[Token, str]

_MOST_CHARACTERS = 100  # of one token: more is no token, but an attack
_VISIBLE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def format_token_text(text: str) -> str:
    """Return the text of a token on one line: line ends and tabs are written as in Python, and
    other control characters are left out."""
    for character, shown in _VISIBLE.items():
        text = text.replace(character, shown)
    return clean_text(text, _MOST_CHARACTERS)


def text_of_tokens(tokens: Sequence[Token], pieces: TokenTexts) -> str:
    """Return the text of tokens. A token whose text is not known is shown by its id: <1234>."""
    return "".join(_text_of_token(token, pieces) for token in tokens)


def _text_of_token(token: Token, pieces: TokenTexts) -> str:
    if isinstance(token, str):
        return format_token_text(token)
    return pieces.get(token) or f"<{token}>"
