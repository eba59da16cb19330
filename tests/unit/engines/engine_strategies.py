"""Hypothesis strategies for flag values, and parsers built from the catalogs to check argv
independently."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hypothesis import strategies as st

from workbench.model.flags import FlagCatalog, FlagKind, FlagSpec

# argv cannot hold NUL, nor what cannot be encoded.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def scalars(spec: FlagSpec) -> st.SearchStrategy[Any]:
    match spec.kind:
        case FlagKind.BOOL:
            return st.booleans()
        case FlagKind.INT:
            low = 0 if spec.human_readable_int else -(2**40)
            numbers: st.SearchStrategy[Any] = st.integers(low, 2**40)
            return numbers | st.sampled_from(spec.words) if spec.words else numbers
        case FlagKind.FLOAT:
            return st.floats(allow_nan=False, allow_infinity=False)
        case FlagKind.JSON:
            return st.dictionaries(TEXT, JSON_VALUES, max_size=3)
    return st.sampled_from(spec.choices) if spec.choices else TEXT


def values(spec: FlagSpec) -> st.SearchStrategy[Any]:
    """Return a strategy for values that the engine's parser accepts, single ones and lists."""
    one = scalars(spec)
    if spec.nargs == ",":
        clean = one.filter(lambda v: "," not in str(v) and str(v) != "")
        return one.filter(lambda v: str(v) != "") | st.lists(clean, min_size=2, max_size=3)
    if spec.nargs == "2":
        return st.lists(one, min_size=2, max_size=2)
    if spec.repeatable and spec.nargs:  # several words after one flag: none may look like a flag
        many = st.lists(one.filter(lambda v: not str(v).startswith("-")), min_size=2, max_size=3)
        return one | st.lists(one, min_size=1, max_size=1) | many
    if spec.repeatable:
        return one | st.lists(one, min_size=1, max_size=3)
    return one


@st.composite
def settings_of(draw: st.DrawFn, catalog: FlagCatalog, without: tuple[str, ...]) -> dict[str, Any]:
    names = [n for n in catalog.flags if n not in without]
    chosen = draw(st.lists(st.sampled_from(names), max_size=8, unique=True))
    return {name: draw(values(catalog.flags[name])) for name in chosen}


def argparse_of(catalog: FlagCatalog) -> argparse.ArgumentParser:
    """Return an argparse parser with the catalog's flags, as vLLM, SGLang and TabbyAPI declare
    them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    parser.add_argument("command", nargs="*")
    for spec in catalog.flags.values():
        names = [f"--{spec.name}", *spec.aliases]
        if spec.kind == FlagKind.BOOL and not spec.value_takes_bool_word:
            parser.add_argument(*names, dest=spec.name, action="store_const", const=True)
            if spec.negation:
                parser.add_argument(
                    spec.negation, dest=spec.name, action="store_const", const=False
                )
        elif spec.repeatable and not spec.nargs:
            parser.add_argument(*names, dest=spec.name, action="append")
        else:
            nargs = int(spec.nargs) if spec.nargs and spec.nargs.isdigit() else spec.nargs
            parser.add_argument(*names, dest=spec.name, nargs=nargs)
    return parser


_parsers: dict[tuple[str, str], argparse.ArgumentParser] = {}


def parse_like_argparse(catalog: FlagCatalog, argv: list[str]) -> dict[str, Any]:
    key = (catalog.engine, catalog.version)
    if key not in _parsers:
        _parsers[key] = argparse_of(catalog)
    found = vars(_parsers[key].parse_args(argv))
    return {k: v for k, v in found.items() if v is not None and k != "command"}


def parse_like_llama(catalog: FlagCatalog, argv: list[str]) -> dict[str, Any]:
    """Parse like llama-server: an option takes any next argument as its value, and "=" has no
    meaning."""
    on = {f"--{s.name}": (s.name, True) for s in catalog.flags.values()}
    off = {s.negation: (s.name, False) for s in catalog.flags.values() if s.negation}
    found: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        name, state = {**off, **on}[rest.pop(0)]
        spec = catalog.flags[name]
        if spec.kind == FlagKind.BOOL:
            found[name] = state
        elif spec.nargs == "2":
            found[name] = [rest.pop(0), rest.pop(0)]
        elif spec.nargs == ",":
            found[name] = rest.pop(0)
        elif spec.repeatable:
            found.setdefault(name, []).append(rest.pop(0))
        else:
            found[name] = rest.pop(0)
    return found


def typed(spec: FlagSpec, words: Any, given: Any) -> Any:
    """Return the engine's value for the words of one flag, in the type of the original value."""
    if isinstance(words, bool):
        return words
    if spec.nargs == "," and isinstance(given, list) and len(given) > 1:
        words = words.split(",")
    if isinstance(words, list):
        items = [_typed_word(spec, w) for w in words]
        return items if isinstance(given, list) else items[0]
    item = _typed_word(spec, words)
    return [item] if isinstance(given, list) and spec.kind != FlagKind.JSON else item


def _typed_word(spec: FlagSpec, word: str) -> Any:
    if word in spec.words:
        return word
    match spec.kind:
        case FlagKind.BOOL:
            return {"True": True, "False": False}[word]
        case FlagKind.INT:
            return int(word)
        case FlagKind.FLOAT:
            return float(word)
        case FlagKind.JSON:
            return json.loads(word)
    return word
