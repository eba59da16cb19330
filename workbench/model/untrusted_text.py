"""Cleaning of text from other programs: names from drivers and servers, error messages, logs,
files, arguments.

A terminal obeys escape sequences, a forged line break forges a row of a table, and bidirectional
marks reorder text. `clean_text` removes all of these when the text enters Workbench. Output code
calls `clean_text` again, because older versions stored text as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

NAME_CHARS = 300  # longest name of a GPU, process or model
# longest message or log line; vLLM's and SGLang's configuration lines reach 10,000
LINE_CHARS = 8_192

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    # OSC, DCS and other strings; one without an end must not remove the rest of the message
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c))?"
    r"|\x1b[ -/]*[0-~]?"  # two-character escapes
)
_BREAK = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_LINE_BREAK = re.compile(r"\r\n|[\v\f\r\x85\u2028\u2029]")
# C0 and C1 controls, marks that reorder or hide text, tags. In Python strings, surrogates are
# single characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\[bfnrtu]")  # of JSON: a character that cannot be typed into it as it is
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of the environment, as a shell accepts it
# characters that `clean_text` removes, besides line breaks
UNSAFE = re.compile(f"{_UNSEEN.pattern[:-1]}\ud800-\udfff]")


def clean_text(text: str | bytes, limit: int = LINE_CHARS, *, lines: bool = False) -> str:
    """Return `text` without escape sequences, control characters and invisible marks. A longer text
    is cut after `limit` characters, and its end says how many more there are. Line breaks become
    spaces unless `lines` is true.

    Markup stays as it is, so code that writes HTML or Markdown must escape it.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not text.isprintable():
        text = _ESCAPE.sub("", text)
        text = _LINE_BREAK.sub("\n", text) if lines else _BREAK.sub(" ", text)
        text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _UNSEEN.sub("", text))
    return text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit} more characters"


def clean_data(data: Any, limit: int = LINE_CHARS, *, lines: bool = False) -> Any:
    """Return a copy of JSON data in which `clean_text` has cleaned all texts and all field
    names."""
    if isinstance(data, str):
        return clean_text(data, limit, lines=lines)
    if isinstance(data, dict):
        return {clean_data(k): clean_data(v, limit, lines=lines) for k, v in data.items()}
    if isinstance(data, list):
        return [clean_data(v, limit, lines=lines) for v in data]
    return data


def clean_json(text: str | bytes, limit: int = LINE_CHARS, *, lines: bool = False) -> Any:
    """Parse a JSON document and remove escape sequences, control characters and invisible marks
    from all its texts and field names. Raises ValueError if the document is not valid JSON or is
    nested too deeply."""
    try:
        data = json.loads(text)
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        if (
            plain.isprintable()
            and not _ESCAPED.search(plain)
            and max(map(len, plain.split('"'))) <= limit
        ):
            return data  # nothing in it needs cleaning, which takes ten times as long as reading it
        return clean_data(data, limit, lines=lines)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def escape_control_characters(json_text: str) -> str:
    r"""Return a JSON document in which raw control characters are written as \uXXXX."""
    return UNSAFE.sub(_json_escape_of_match, json_text)


def _json_escape_of_match(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def unique_json_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields `pairs`, (name, value), as a dict, for
    `json.JSONDecoder(object_pairs_hook=…)`. Raises ValueError if one field has two values: nobody
    can say which of them is true."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {clean_text(twice, 40)!r} is there twice in one object")
    return found


def as_table(value: Any) -> Mapping[str, Any]:
    """Return a mapping of decoded data as it is; {} for any other value."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list of decoded data as it is; [] for any other value."""
    return value if isinstance(value, list) else []
