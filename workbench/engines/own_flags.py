"""The flag catalog of an installed engine, made from the flag list that the engine itself prints.
The result has the form of catalogs/*.json.

The engine may be broken or malicious, so every part of its output is checked. Properties that an
engine does not print, such as the range of a number, come from the shipped catalog of the nearest
version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.engines import catalog as catalogs
from workbench.engines.base import Engine
from workbench.model.errors import InputError
from workbench.model.flags import FlagCatalog, FlagKind
from workbench.model.untrusted_text import as_list, as_table, clean_data, clean_text

MOST_FLAGS, MOST_VARIABLES = 5_000, 5_000
HELP_CHARS = 240
_NAME = re.compile(r"--?[A-Za-z][\w.-]{0,79}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_ALLOWED = re.compile(r"allowed values: ([\w, ]+)")
_ALTERNATIVES = re.compile(r"[{\[<]([\w|, -]+)[}\]>]")
_NUMBERS = {"int": (int, r"-?\d{1,18}"), "float": (float, r"-?\d{1,18}(\.\d+)?")}
_KINDS = frozenset(FlagKind)
_PRINT_AND_END = frozenset(
    {"--help", "--version", "--completion-bash", "--list-devices", "--cache-list"}
)
# What only the shipped catalog knows: the engine's parser has no such property.
_NOTED = (
    "minimum",
    "maximum",
    "multiple_of",
    "words",
    "words_are_all",
    "default_note",
    "value_takes_bool_word",
    "group",
)
_NOT_IN_HELP = ("kind", "nargs", "repeatable")
Entry = dict[str, Any]


def make_catalog_data(engine: Engine, version: str, printed: object) -> dict[str, Any]:
    """Return the data of a catalog file, {"engine", "version", "env", "flags"}, from the flag list
    of an installed engine.

    `printed` is the parsed JSON that server/flag_program.py printed, or the text of the engine's
    help. Raises InputError if it is not the flag list of this engine.
    """
    if isinstance(printed, str):
        printed = engine.flag_data_from_help(clean_text(printed, 2**22, lines=True))
    raw = as_table(printed)
    items = clean_data(as_list(raw.get("flags")))[:MOST_FLAGS]
    shipped = engine.catalog(version)
    flags: dict[str, Entry] = {}
    for item in items:
        entry = _make_catalog_entry(engine, shipped, item)
        if entry is not None:
            flags.setdefault(entry["name"], entry)
    if not {"host", "port"} <= flags.keys() or flags.keys().isdisjoint(engine.model_flags):
        raise InputError(
            f"the output is not the flag list of {engine.title}: host, port or "
            f"{engine.model_flags[0]} is missing"
        )
    names = _select_matching_texts(raw.get("variables"), _VARIABLE_NAME)
    variables = [_make_variable_entry(shipped, name) for name in names[:MOST_VARIABLES]]
    return {
        "engine": engine.name,
        "version": version,
        "env": variables,
        "flags": list(flags.values()),
    }


def _make_variable_entry(shipped: FlagCatalog, name: str) -> Entry:
    spec = shipped.env.get(name)
    if spec is None:
        return {"name": name}
    entry = {
        "name": name,
        "type": spec.type,
        "default": spec.default,
        "choices": list(spec.choices),
        "help": spec.help,
    }
    return _drop_empty_fields(entry)


def _make_catalog_entry(engine: Engine, shipped: FlagCatalog, raw: object) -> Entry | None:
    """Return the catalog entry of one flag; None if `raw` is not a flag that a plan can set."""
    raw = as_table(raw)
    names = _select_matching_texts(raw.get("names"), _NAME)
    long = _plan_names_of_options(engine, names)
    kind = str(raw.get("kind"))
    if kind not in _KINDS or not long or not _PRINT_AND_END.isdisjoint(names):
        return None
    explained = [name for name in long if catalogs.has_flag_help(engine.name, name)]
    name, help_text = max(long, key=len), extract_first_sentence(str(raw.get("help", "")))
    if explained:
        name, help_text = explained[0], ""
    negations = _select_matching_texts(raw.get("negations"), _NAME)
    nargs = raw.get("nargs")
    entry: Entry = {
        "name": name,
        "kind": kind,
        "aliases": [n for n in names if n != f"--{name}"],
        "negation": next((n for n in negations if n.startswith("--")), None),
        "choices": [
            str(c) for c in as_list(raw.get("choices")) if isinstance(c, str | int | float)
        ],
        "default": raw.get("default"),
        "nargs": nargs if isinstance(nargs, str) and len(nargs) < 4 else None,
        "repeatable": raw.get("repeatable") is True or nargs not in (None, "?"),
        "json_fields": _select_matching_texts(raw.get("json_fields"), _VARIABLE_NAME),
        "group": str(raw.get("group", ""))[:80],
        "env": next(iter(_select_matching_texts([raw.get("env")], _VARIABLE_NAME)), None),
        "help": help_text,
    }
    entry |= {key: raw.get(key) is True for key in ("human_readable_int", "required", "deprecated")}
    of_text = isinstance(raw.get("default_text"), str)
    entry |= _unprinted_properties_from_shipped_catalog(
        shipped, entry, (*_NOTED, *_NOT_IN_HELP) if of_text else _NOTED
    )
    if of_text:
        entry["default"] = _parse_default_text(entry["kind"], raw["default_text"])
    if not _has_settable_default(entry):
        del entry["default"]
    return _drop_empty_fields(entry)


def _plan_names_of_options(engine: Engine, names: Sequence[str]) -> list[str]:
    """Return the names in plans of a flag whose options the engine prints as `names`, one for each
    option with two dashes. Options with one dash are left out."""
    in_plans = {option: name for name, option in engine.option_names.items()}
    long = (name[2:] for name in names if name.startswith("--"))
    return [in_plans.get(name, name) for name in long]


def _has_settable_default(entry: Entry) -> bool:
    """Return whether a user could give the default of `entry` on a command line. True for an entry
    without a default. False for a Python object, such as an engine may report."""
    value, kind = entry["default"], entry["kind"]
    if value is None:
        return True
    items = [value]
    if isinstance(value, list):
        if not entry["repeatable"] and kind != FlagKind.JSON:
            return False
        items = value
    if entry["choices"]:
        return {*entry["choices"], *entry.get("words", ())}.issuperset(map(str, items))
    return all(isinstance(item, bool) == (kind == FlagKind.BOOL) for item in items)


def _unprinted_properties_from_shipped_catalog(
    shipped: FlagCatalog, entry: Entry, properties: Sequence[str]
) -> Entry:
    """Return those `properties` (fields of FlagSpec) of a flag that the engine does not print,
    taken from the shipped catalog. Empty ones are left out. {} if that catalog lacks the flag."""
    spec = shipped.flags.get(entry["name"])
    if spec is None:
        return {}
    noted = _drop_empty_fields({key: getattr(spec, key) for key in properties})
    # the engine parses it later
    text_of_json = spec.kind == FlagKind.JSON and entry["kind"] == FlagKind.STR
    # whose fields depend on the platform
    of_configuration = spec.kind == FlagKind.JSON and spec.default is None
    lacks_fields = entry["kind"] == FlagKind.JSON and not entry["json_fields"]
    if text_of_json or lacks_fields:
        noted |= {"kind": str(spec.kind), "json_fields": list(spec.json_fields)}
    if text_of_json or (of_configuration and not isinstance(entry["default"], list)):
        noted["default"] = spec.default
    return {key: list(value) if isinstance(value, tuple) else value for key, value in noted.items()}


def extract_first_sentence(text: str) -> str:
    """Return the first sentence of an engine's help as one line, cut to HELP_CHARS characters."""
    line = re.sub(r"[`*\s]+", " ", text).strip()
    sentence = re.split(r"(?<=[^.A-Z][.!?]) (?=[A-Z\[(])", line, maxsplit=1)[0]
    if len(sentence) <= HELP_CHARS:
        return sentence
    return f"{sentence[: HELP_CHARS - 1].rstrip()}…"


def parse_help_text(text: str) -> Iterator[Entry]:
    """Yield the flags of a help text in the form of llama.cpp: a line per flag that begins with its
    names, and its description on the same line after two spaces and on indented lines below."""
    section, block = "", ""
    for line in [*text.splitlines(), "-"]:
        heading = re.match(r"-----\s*(.*?)(?: params)?\s*-----", line)
        if not heading and not line.startswith("-"):
            block += f"\n{line}"
            continue
        if block and (flag := _parse_help_block(section, block)):
            yield flag
        block = line
        if heading:
            section, block = heading[1], ""


def _parse_help_block(section: str, block: str) -> Entry | None:
    head, _, below = block.partition("\n")
    signature, _, beside = re.sub(r", +(?=-)", ", ", head).partition("  ")
    names = re.findall(r"(?:(?<=^)|(?<=, ))(--?[A-Za-z][\w.-]*)", signature)
    if not names:
        return None
    argument = re.sub(r"^(?:--?[A-Za-z][\w.-]*,? ?)+", "", signature).strip()
    text = " ".join(f"{beside} {below}".split())
    listed = _ALLOWED.search(text) or _ALTERNATIVES.fullmatch(argument)
    choices: list[str] = []
    if listed:
        choices = re.split(r"\s*[|,]\s*", listed[1].strip())
    off = next((n for n, name in enumerate(names[1:], 1) if name.startswith("--no-")), len(names))
    while off < len(names) and not names[off - 1].startswith("--") and off > 1:
        off -= 1  # "-kvo, --kv-offload, -nkvo, --no-kv-offload"
    return {
        "names": names[:off],
        "negations": names[off:],
        "kind": {"": "bool", "N": "int"}.get(argument, "str"),
        "choices": [*filter(None, choices)] if len(choices) > 1 else [],
        "default_text": _find_first_group(r"\(default: ([^()]*)", text).strip(),
        "group": section,
        "env": _find_first_group(r"\(env: (\w+)\)", text),
        "help": text,
        "deprecated": bool(re.search(r"deprecat|\bremoved\b|obsolete", text, re.IGNORECASE)),
    }


def _find_first_group(pattern: str, text: str) -> str:
    """Return the first group of the first match of `pattern`; "" if nothing matches."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def _parse_default_text(kind: str, text: str) -> Any:
    """Parse the default value in a help text, such as "-1, -1 = infinity", "enabled" or "f16", in
    the type `kind`. None if the text is not a constant."""
    word = re.split(r"[,; ]", text, maxsplit=1)[0].strip("'\"")
    if kind == "bool":
        return {"enabled": True, "true": True, "disabled": False, "false": False}.get(word)
    if kind in _NUMBERS:
        number, pattern = _NUMBERS[kind]
        return number(word) if re.fullmatch(pattern, word) else None
    return word if re.fullmatch(r"[\w.*:/]+", text) and word not in ("unused", "none") else None


def _select_matching_texts(value: object, pattern: re.Pattern[str]) -> list[str]:
    texts = (item for item in as_list(value) if isinstance(item, str))
    return list(filter(pattern.fullmatch, texts))


def _drop_empty_fields(entry: Entry) -> Entry:
    """Return the entry without the fields that are None, False, 0 or empty. In `default`, `minimum`
    and `maximum` only None is left out, because False and 0 are values there."""
    stays = ("default", "minimum", "maximum")
    return {k: v for k, v in entry.items() if v is not None and (v or k in stays)}
