"""Texts whose log probabilities are compared: those of the package, and those of the user.

All texts of the package were written for it, so that no model has seen them in its training, and
their licence is that of the package. `NAME` and `VERSION` name them in stored results: a change
of any text needs a new version.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

from workbench.model.counts import count_of
from workbench.model.errors import InputError, error_reason
from workbench.model.lazy_dataclass import dataclass

DIRECTORY = Path(__file__).parent / "texts"
NAME, VERSION = "workbench", "1"
LONG_TOKENS = 8192  # of a long text, with what comes before the scored positions
_BETWEEN = "\n\n"
_LONG_ENDS = ("prose-signal", "math-series")  # the scored ends of the two long texts
_MOST_FILE_BYTES = 16 * 1024 * 1024
_EXPECTED = 'write one JSON object per line: {"text": "…"}, each with an optional "name" and "kind"'
_UNNAMED_KIND = "own"
_CHAT, _ANSWER = "chat", "\n\nAssistant:"


@dataclass(frozen=True, slots=True)
class Text:
    """One text. `before` is context that is sent in front of it and not scored; only the long texts
    have it. `kind` is prose, code, json, cjk, arabic, math or chat, or the user's own word."""

    name: str
    kind: str
    content: str
    before: str = ""

    @property
    def is_long(self) -> bool:
        return bool(self.before)

    @property
    def text_before_last_answer(self) -> str:
        """All that comes before the last answer of a conversation; the content of any other
        text."""
        place = self.content.rfind(_ANSWER) if self.kind == _CHAT else -1
        return self.content if place < 0 else self.content[: place + len(_ANSWER)]


@dataclass(frozen=True, slots=True)
class TextSet:
    """A named set of texts. Results of two different sets or versions cannot be compared."""

    name: str
    version: str
    texts: tuple[Text, ...]


@cache
def shipped_text_set() -> TextSet:
    """Return the texts of the package: short ones of about 256 to 512 tokens, and two long ones."""
    short = list(map(_shipped_text, sorted(DIRECTORY.glob("*.txt"))))
    long = [_join_into_long_text(short, name) for name in _LONG_ENDS]
    return TextSet(NAME, VERSION, (*short, *long))


@cache
def shipped_short_contents() -> tuple[str, ...]:
    """Return the short texts of the package without their names. Texts of one kind stand apart from
    each other: the first of each kind comes first, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    rounds: defaultdict[int, list[str]] = defaultdict(list)
    for text in shipped_text_set().texts:
        if not text.is_long:
            rounds[seen[text.kind]].append(text.content)
            seen[text.kind] += 1
    return tuple(chain.from_iterable(rounds[number] for number in sorted(rounds)))


def _shipped_text(path: Path) -> Text:
    return Text(path.stem, path.stem.partition("-")[0], path.read_text(encoding="utf-8").rstrip())


def _join_into_long_text(short: list[Text], end_name: str) -> Text:
    """Return a long text: the short texts one after the other, and `end_name` as its scored part.
    `end_name` is not among those before it, so that it cannot be copied."""
    contents = {text.name: text.content for text in short}
    scored = contents.pop(end_name)
    others = list(contents.values())
    if end_name != _LONG_ENDS[0]:
        others.reverse()
    return Text(f"long-{end_name}", "long", scored, _BETWEEN.join(others) + _BETWEEN)


def read_own_texts(path: str | Path) -> TextSet:
    """Return the user's own texts, from a file with one JSON object per line. The version of the
    set is the beginning of the file's hash. Raises InputError if the file has no usable texts."""
    path = Path(path)
    try:
        # a pipe would be waited for without end, and a device has no end
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file", next_step=_EXPECTED)
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise InputError(
                f"{path} is larger than {_MOST_FILE_BYTES >> 20} MiB",
                next_step="use a smaller file: 32 texts of 512 tokens are enough",
            )
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error_reason(error)}",
            next_step="check the file given by --texts",
        ) from None
    texts = [
        _parse_own_text(f"{path}:{number}", number, line)
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    ]
    names = Counter(text.name for text in texts)
    if doubled := sorted(name for name, times in names.items() if times > 1):
        raise InputError(
            f"{path}: {count_of(len(doubled), 'name')} given twice, the first is {doubled[0]!r}",
            next_step="give each text a name of its own, or none",
        )
    if not texts:
        raise InputError(f"{path} contains no text", next_step=_EXPECTED)
    return TextSet(path.name, hashlib.sha256(data).hexdigest()[:12], tuple(texts))


def _parse_own_text(location: str, number: int, line: bytes) -> Text:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{location}: not JSON", next_step=_EXPECTED) from None
    content = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(content, str) or not content.strip():
        raise InputError(f'{location}: there is no "text" with words', next_step=_EXPECTED)
    try:
        content.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{location}: the text contains half of a character (a lone surrogate)",
            next_step=_EXPECTED,
        ) from None
    name, kind = entry.get("name", f"text-{number}"), entry.get("kind", _UNNAMED_KIND)
    if not isinstance(name, str) or not isinstance(kind, str):
        raise InputError(f'{location}: "name" and "kind" must be strings', next_step=_EXPECTED)
    return Text(name, kind, content)
