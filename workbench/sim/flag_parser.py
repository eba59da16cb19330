"""Parser for the command lines of the simulated engines, with the flag lists of
workbench/engines/catalogs.

The parser rejects the same command lines as the real engine's parser, with the same kind of message
and exit code. It accepts all flags of the list, including those without effect in the simulation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.sim.engines.base import SimulatedEngine

CATALOGS = Path(__file__).resolve().parents[1] / "engines" / "catalogs"
HUMAN = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1024, "M": 1 << 20, "G": 1 << 30}
TRUE_WORDS, FALSE_WORDS = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


class ArgumentsRejected(Exception):
    """Raised for a command line that the engine's parser rejects. `text` is the message for stderr,
    `code` the exit status."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Catalog:
    """The flags of one engine version. `spellings` maps each command-line option to (definition of
    its flag, whether the option turns the flag on)."""

    def __init__(self, engine: SimulatedEngine, wanted: str | None = None) -> None:
        data = json.loads(self._catalog_path(engine.name, wanted).read_text(encoding="utf-8"))
        self.engine = engine
        self.version = str(wanted or data["version"])
        self.env = {e["name"] for e in data.get("env", [])}
        self.spellings: dict[str, tuple[dict[str, Any], bool]] = {}
        for flag in data["flags"]:
            for text in (f"--{flag['name']}", *flag.get("aliases", ())):
                self.spellings[text] = (flag, True)
        for flag in data["flags"]:
            for text in engine.negated_options(flag):
                self.spellings.setdefault(text, (flag, False))

    @staticmethod
    def _catalog_path(engine: str, version: str | None) -> Path:
        exact = CATALOGS / f"{engine}-{version}.json"
        if version and exact.is_file():
            return exact
        known = [
            p
            for p in CATALOGS.glob(f"{engine}-*.json")
            if re.fullmatch(rf"{engine}-b?\d.*", p.stem)
        ]
        return max(known, key=lambda p: [int(n) for n in re.findall(r"\d+", p.stem)])

    def find_flag_and_is_on(self, option: str) -> tuple[dict[str, Any], bool] | None:
        """Return (definition of the flag, whether the option turns the flag on) for a command-line
        option. None for an unknown option. Raises ArgumentsRejected for an ambiguous beginning."""
        option = self.engine.normalize_option(option)
        if option in self.spellings:
            return self.spellings[option]
        if self.engine.accepts_prefixes and option.startswith("--"):
            return self._find_flag_by_prefix(option)
        flag = self.engine.flag_missing_from_catalog(option)
        return (flag, True) if flag else None

    def _find_flag_by_prefix(self, option: str) -> tuple[dict[str, Any], bool] | None:
        """Return what `find_flag_and_is_on` returns for the only flag that an option is the
        beginning of; None if there is none. Raises ArgumentsRejected if there are several."""
        matches = [text for text in self.spellings if text.startswith(option)]
        if len({id(self.spellings[text][0]) for text in matches}) > 1:
            raise self.engine.rejection_error(
                f"ambiguous option: {option} could match {', '.join(sorted(matches))}"
            )
        return self.spellings[matches[0]] if matches else None


def parse_flags(catalog: Catalog, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return ({flag name: value}, words that are neither flags nor values of flags) from the
    arguments `argv`. Raises ArgumentsRejected if the real engine would reject them."""
    values: dict[str, Any] = {}
    positional: list[str] = []
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not _is_option(word):
            positional.append(word)
            continue
        option, separator, inline = word.partition("=")
        field = ""
        if option.startswith("--") and catalog.engine.dotted_fields:
            option, _, field = option.partition(".")
        found = catalog.find_flag_and_is_on(option)
        if found is None:
            catalog.engine.reject_unknown_argument(word)
            unknown.append(word)
            while rest and not rest[0].startswith("-"):
                unknown.append(rest.pop(0))
            continue
        flag, on = found
        given = [inline] if separator else []
        value = _parse_flag_value(
            catalog.engine, flag, on, option, given, rest, json_field=bool(field)
        )
        if field:
            values.setdefault(flag["name"], {})[field] = value
        else:
            values[flag["name"]] = value
    if unknown:
        raise catalog.engine.rejection_error("unrecognized arguments: " + " ".join(unknown))
    return values, positional


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _parse_flag_value(
    engine: SimulatedEngine,
    flag: dict[str, Any],
    is_on: bool,
    option: str,
    inline_values: list[str],
    following_words: list[str],
    *,
    json_field: bool,
) -> Any:
    """Return the value of one flag. `inline_values` is [the value after "="], or [] without one;
    the value is then removed from the front of `following_words`, the words after the option.
    `is_on` says whether the option turns the flag on, and `json_field` whether it sets one field of
    a JSON value. Raises ArgumentsRejected if the value is missing or invalid."""
    if flag["kind"] == "bool" and not flag.get("value_takes_bool_word"):
        if (
            flag["name"] == "flash-attn"
            and following_words
            and not following_words[0].startswith("-")
        ):
            return following_words.pop(0)
        return is_on
    many = flag.get("nargs") in ("+", "*")
    given = list(inline_values)
    if not given:
        while following_words and (not given or many):
            if _is_option(following_words[0]) and following_words[0] != "-":
                break
            given.append(following_words.pop(0))
    title = "/".join([f"--{flag['name']}", *flag.get("aliases", ())])
    if not given and flag.get("nargs") not in ("*", "?"):
        raise engine.missing_value_error(option, title, many)
    if json_field or flag["kind"] == "json":
        return _parse_json_value(engine, title, given[0]) if given else None
    values = [_convert_value(engine, flag, title, text) for text in given]
    if many:
        return values
    return values[0] if values else True


def _parse_json_value(engine: SimulatedEngine, title: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if text[:1] in "{[":
            raise engine.rejection_error(
                f"argument {title}: Value {text} cannot be converted to <function loads>."
            ) from None
        return text


def _convert_value(engine: SimulatedEngine, flag: dict[str, Any], title: str, text: str) -> Any:
    """Return the value of `text` for a flag, in the type of the flag. `title` has all spellings of
    the flag. Raises ArgumentsRejected if the flag cannot have this value."""
    kind, choices = flag["kind"], flag.get("choices", ())
    if choices and text not in map(str, choices):
        listed = ", ".join(repr(str(c)) for c in choices)
        raise engine.rejection_error(
            f"argument {title}: invalid choice: {text!r} (choose from {listed})"
        )
    if text in flag.get("words", ()):
        return text
    if kind == "bool":
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise engine.rejection_error(f"argument {title}: Invalid boolean value: {text}")
        return text.lower() in TRUE_WORDS
    if kind == "int" and flag.get("human_readable_int"):
        human = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text)
        if human:
            return int(float(human.group(1)) * HUMAN[human.group(2)])
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        raise engine.invalid_value_error(title, kind, text) from None


def parse_config_flags(text: str) -> dict[str, Any]:
    """Return {flag name: value} for the text of an engine's configuration file: JSON, or YAML with
    scalars, lists and one level of sections. The names of sections are ignored, and lines that are
    not understood too."""
    try:
        data = json.loads(text)
    except ValueError:
        data = _parse_yaml_lines(text)
    flat: dict[str, Any] = {}
    for key, value in data.items():
        for name, inner in value.items() if isinstance(value, dict) else ((key, value),):
            flat[str(name).replace("_", "-")] = inner
    return flat


def _parse_yaml_lines(text: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    section: dict[str, Any] | None = None
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        match = re.fullmatch(r"(\s*)([\w.-]+):\s*(.*)", bare)
        if not match:
            continue
        indent, key, word = match.groups()
        if not word and not indent:
            section = data.setdefault(key, {})
            continue
        target = section if indent and section is not None else data
        target[key] = _parse_scalar(word)
    return {k: v for k, v in data.items() if v != {}}


def _parse_scalar(word: str) -> Any:
    lowered = word.lower()
    if lowered in ("", "null", "~"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if word[:1] in '["':
        try:
            return json.loads(word)
        except ValueError:
            return word
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word.strip("'")
