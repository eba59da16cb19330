"""The flag catalog of an installed engine, made from the flag list that the engine itself prints.
The result has the form of catalogs/*.json.

The engine may be broken or malicious, so every part of its output is checked. Properties that an
engine does not print, such as the range of a number, come from the shipped catalog of the nearest
version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.engines import catalog as catalogs
from workbench.engines.base import Engine
from workbench.model.errors import InputError
from workbench.model.flags import FlagCatalog, FlagKind
from workbench.model.untrusted_text import clean_data, clean_text

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


def catalog_entries(engine: Engine, version: str, answer: object) -> dict[str, Any]:
    """Return the data of a catalog file, {"engine", "version", "env", "flags"}, from the flag list
    of an installed engine.

    `answer` is the parsed JSON that server/flag_program.py printed, or the text of the engine's
    help. Raises InputError if it is not the flag list of this engine.
    """
    if isinstance(answer, str):
        answer = engine.flags_of_help(clean_text(answer, 2**22, lines=True))
    raw = answer if isinstance(answer, Mapping) else {}
    listed = raw.get("flags")
    items = clean_data(listed)[:MOST_FLAGS] if isinstance(listed, list) else ()
    shipped = engine.catalog(version)
    flags: dict[str, Entry] = {}
    for item in items:
        entry = _catalog_entry(engine, shipped, item)
        if entry is not None:
            flags.setdefault(entry["name"], entry)
    if not {"host", "port"} <= set(flags) or not any(name in flags for name in engine.model_flags):
        raise InputError(
            f"the output is not the flag list of {engine.title}: host, port or "
            f"{engine.model_flags[0]} is missing"
        )
    names = _matching_texts(raw.get("variables"), _VARIABLE_NAME)
    variables = [_environment_variable_entry(shipped, name) for name in names[:MOST_VARIABLES]]
    return {
        "engine": engine.name,
        "version": version,
        "env": [_drop_empty_fields(entry) for entry in variables],
        "flags": list(flags.values()),
    }


def _environment_variable_entry(shipped: FlagCatalog, name: str) -> Entry:
    spec = shipped.env.get(name)
    if spec is None:
        return {"name": name}
    return {
        "name": name,
        "type": spec.type,
        "default": spec.default,
        "choices": list(spec.choices),
        "help": spec.help,
    }


def _catalog_entry(engine: Engine, shipped: FlagCatalog, raw: object) -> Entry | None:
    """Return the catalog entry of one flag; None if `raw` is not a flag that a plan can set."""
    if not isinstance(raw, Mapping):
        return None
    names, negations = (_matching_texts(raw.get(key), _NAME) for key in ("names", "negations"))
    in_plans = {option: name for name, option in engine.option_names.items()}
    printed = [name[2:] for name in names if name.startswith("--")]
    long = [in_plans.get(name, name) for name in printed]
    kind = raw.get("kind")
    if not long or not _PRINT_AND_END.isdisjoint(names):
        return None
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    with_help = (name for name in long if catalogs.has_help(engine.name, name))
    name = next(with_help, "")
    help_text = "" if name else first_sentence(str(raw.get("help", "")))
    name = name or max(long, key=len)
    choices, nargs = raw.get("choices"), raw.get("nargs")
    if not isinstance(choices, list):
        choices = []
    entry: Entry = {
        "name": name,
        "kind": str(kind),
        "aliases": [n for n in names if n != f"--{name}"],
        "negation": next((n for n in negations if n.startswith("--")), None),
        "choices": [str(c) for c in choices if isinstance(c, str | int | float)],
        "default": raw.get("default"),
        "nargs": nargs if isinstance(nargs, str) and len(nargs) < 4 else None,
        "repeatable": raw.get("repeatable") is True or nargs not in (None, "?"),
        "json_fields": _matching_texts(raw.get("json_fields"), _VARIABLE_NAME),
        "group": str(raw.get("group", ""))[:80],
        "env": next(iter(_matching_texts([raw.get("env")], _VARIABLE_NAME)), None),
        "help": help_text,
    }
    entry |= {key: raw.get(key) is True for key in ("human_readable_int", "required", "deprecated")}
    of_text = isinstance(raw.get("default_text"), str)
    entry |= _from_shipped(shipped, entry, (*_NOTED, *_NOT_IN_HELP) if of_text else _NOTED)
    if of_text:
        entry["default"] = _default_of_text(entry["kind"], raw["default_text"])
    if not _has_valid_default(entry):
        del entry["default"]
    return _drop_empty_fields(entry)


def _has_valid_default(entry: Entry) -> bool:
    """Return whether the entry's default is a value that a user could set. An engine may report a
    Python object or "" as a default."""
    value, kind = entry["default"], entry["kind"]
    if value is None:
        return True
    if not isinstance(value, list):
        items = [value]
    elif entry["repeatable"] or kind == FlagKind.JSON:
        items = value
    else:
        return False
    if entry["choices"]:
        return all(str(item) in (*entry["choices"], *entry.get("words", ())) for item in items)
    return all(isinstance(item, bool) == (kind == FlagKind.BOOL) for item in items)


def _from_shipped(shipped: FlagCatalog, entry: Entry, properties: Sequence[str]) -> Entry:
    """Return those `properties` of a flag that the engine does not print, taken from the shipped
    catalog. {} if that catalog lacks the flag."""
    spec = shipped.flags.get(entry["name"])
    if spec is None:
        return {}
    noted = _drop_empty_fields({key: getattr(spec, key) for key in properties})
    shipped_json = spec.kind == FlagKind.JSON
    # the engine parses it later
    text_of_json = shipped_json and entry["kind"] == FlagKind.STR
    # whose fields depend on the platform
    of_configuration = shipped_json and spec.default is None
    lacks_fields = entry["kind"] == FlagKind.JSON and not entry["json_fields"]
    if text_of_json or lacks_fields:
        noted |= {"kind": str(spec.kind), "json_fields": list(spec.json_fields)}
    if text_of_json or (of_configuration and not isinstance(entry["default"], list)):
        noted["default"] = spec.default
    return {key: list(value) if isinstance(value, tuple) else value for key, value in noted.items()}


def first_sentence(text: str) -> str:
    """Return the first sentence of an engine's help as one line, cut to HELP_CHARS characters."""
    line = re.sub(r"[`*\s]+", " ", text).strip()
    sentence = re.split(r"(?<=[^.A-Z][.!?]) (?=[A-Z\[(])", line, maxsplit=1)[0]
    return sentence if len(sentence) <= HELP_CHARS else f"{sentence[: HELP_CHARS - 1].rstrip()}…"


def flags_of_text(text: str) -> Iterator[Entry]:
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
        section, block = (heading[1], "") if heading else (section, line)


def _parse_help_block(section: str, block: str) -> Entry | None:
    head, _, below = block.partition("\n")
    signature, _, beside = re.sub(r", +(?=-)", ", ", head).partition("  ")
    names = re.findall(r"(?:(?<=^)|(?<=, ))(--?[A-Za-z][\w.-]*)", signature)
    if not names:
        return None
    argument = re.sub(r"^(?:--?[A-Za-z][\w.-]*,? ?)+", "", signature).strip()
    text = " ".join(f"{beside} {below}".split())
    listed = _ALLOWED.search(text) or _ALTERNATIVES.fullmatch(argument)
    choices = [c.strip() for c in re.split(r"[|,]", listed[1])] if listed else []
    variable = re.search(r"\(env: (\w+)\)", text)
    default = re.search(r"\(default: ([^()]*)", text)
    off = next((n for n, name in enumerate(names) if name.startswith("--no-") and n), len(names))
    while off < len(names) and not names[off - 1].startswith("--") and off > 1:
        off -= 1  # "-kvo, --kv-offload, -nkvo, --no-kv-offload"
    kind = "str" if argument else "bool"
    if argument == "N":
        kind = "int"
    return {
        "names": names[:off],
        "negations": names[off:],
        "kind": kind,
        "choices": [choice for choice in choices if choice] if len(choices) > 1 else [],
        "default_text": default[1].strip() if default else "",
        "group": section,
        "env": variable[1] if variable else None,
        "help": text,
        "deprecated": bool(re.search(r"deprecat|\bremoved\b|obsolete", text, re.IGNORECASE)),
    }


def _default_of_text(kind: str, text: str) -> Any:
    """Parse the default value in a help text, such as "-1, -1 = infinity", "enabled" or "f16", in
    the type `kind`. None if the text is not a constant."""
    word = re.split(r"[,; ]", text, maxsplit=1)[0].strip("'\"")
    if kind == "bool":
        return {"enabled": True, "true": True, "disabled": False, "false": False}.get(word)
    if kind in _NUMBERS:
        number, pattern = _NUMBERS[kind]
        return number(word) if re.fullmatch(pattern, word) else None
    return word if re.fullmatch(r"[\w.*:/]+", text) and word not in ("unused", "none") else None


def _matching_texts(value: object, pattern: re.Pattern[str]) -> list[str]:
    items: Sequence[object] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, str) and pattern.fullmatch(item)]


def _drop_empty_fields(entry: Entry) -> Entry:
    """Return the entry without its empty fields. A field with False or 0 is not empty, because
    these can be a default or a limit."""
    stays = ("default", "minimum", "maximum")
    return {k: v for k, v in entry.items() if v is not None and (v or k in stays)}
