"""Command lines of the simulated engines, read against the real engines' flag lists (workbench/engines/catalogs).

What the real parser refuses is refused here with the same kind of message and exit code; what it takes is taken, also
where it changes nothing in the simulation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CATALOGS = Path(__file__).resolve().parents[1] / "engines" / "catalogs"
PROGRAM = {"vllm": "vllm serve", "sglang": "sglang serve", "tabbyapi": "main.py", "llamacpp": "llama-server"}
HUMAN = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1024, "M": 1 << 20, "G": 1 << 30}
TRUE_WORDS, FALSE_WORDS = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


class ArgumentsRejected(Exception):
    """The command line is not taken: `text` goes to stderr, `code` is the exit status."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Catalog:
    """The flags of one engine version by every spelling."""

    def __init__(self, engine: str, wanted: str | None = None) -> None:
        path = self._path(engine, wanted)
        data = json.loads(path.read_text(encoding="utf-8"))
        self.engine = engine
        self.version = str(wanted or data["version"])
        self.env = {e["name"] for e in data.get("env", [])}
        self.flags: dict[str, dict[str, Any]] = {f["name"]: f for f in data["flags"]}
        self.spellings: dict[str, tuple[dict[str, Any], bool]] = {}
        for flag in data["flags"]:
            for text in (f"--{flag['name']}", *flag.get("aliases", ())):
                self.spellings[text] = (flag, True)
        for flag in data["flags"]:
            names = {
                flag.get("negation"),
                f"--no-{flag['name']}" if engine == "vllm" and flag.get("negation") else None,
            }
            for text in names - {None}:
                self.spellings.setdefault(str(text), (flag, False))

    @staticmethod
    def _path(engine: str, wanted: str | None) -> Path:
        """The file of the wanted version, else of the newest."""
        exact = CATALOGS / f"{engine}-{wanted}.json"
        if wanted and exact.is_file():
            return exact
        known = [p for p in CATALOGS.glob(f"{engine}-*.json") if re.fullmatch(rf"{engine}-b?\d.*", p.stem)]
        return max(known, key=lambda p: [int(n) for n in re.findall(r"\d+", p.stem)])

    def find(self, option: str) -> tuple[dict[str, Any], bool] | None:
        """The flag that `option` spells and whether it turns it on; None where the engine does not know it."""
        if self.engine == "vllm" and option.startswith("--"):
            option = option.replace("_", "-")
        if option in self.spellings or self.engine != "sglang" or not option.startswith("--"):
            return self.spellings.get(option)
        matches = [text for text in self.spellings if text.startswith(option)]  # argparse takes unambiguous prefixes
        targets = {id(self.spellings[text][0]) for text in matches}
        if len(targets) > 1:
            self.refuse(f"ambiguous option: {option} could match {', '.join(sorted(matches))}")
        return self.spellings[matches[0]] if matches else None

    def refuse(self, why: str) -> None:
        if self.engine == "llamacpp":
            raise ArgumentsRejected(f"error: {why}", 1)
        # an unknown argument is the outer parser's to refuse
        program = "vllm" if self.engine == "vllm" and why.startswith("unrecognized") else PROGRAM[self.engine]
        usage = f"usage: {PROGRAM[self.engine]} [-h] [options]"
        raise ArgumentsRejected(f"{usage}\n{program}: error: {why}", 2)


def parse(catalog: Catalog, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """({flag name: value}, positional words). Raises Refused as the engine would."""
    values: dict[str, Any] = {}
    positional: list[str] = []
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", word):
            positional.append(word)
            continue
        option, separator, inline = word.partition("=")
        field = ""
        if option.startswith("--") and "." in option and catalog.engine == "vllm":
            option, _, field = option.partition(".")
        found = catalog.find(option) or _optimization(catalog, option)
        if found is None:
            if catalog.engine == "llamacpp":
                catalog.refuse(f"invalid argument: {word}")
            unknown.append(word)
            while rest and not rest[0].startswith("-"):
                unknown.append(rest.pop(0))
            continue
        flag, on = found
        given = [inline] if separator else []
        value = _take(catalog, flag, on, option, given, rest, json_field=bool(field))
        if field:
            values.setdefault(flag["name"], {})[field] = value
        else:
            values[flag["name"]] = value
    if unknown:
        catalog.refuse("unrecognized arguments: " + " ".join(unknown))
    return values, positional


def _optimization(catalog: Catalog, option: str) -> tuple[dict[str, Any], bool] | None:
    """vLLM's -O3."""
    if catalog.engine == "vllm" and re.fullmatch(r"-O\d", option):
        return {"name": "optimization-level", "kind": "bool"}, True
    return None


def _take(
    catalog: Catalog,
    flag: dict[str, Any],
    on: bool,
    option: str,
    given: list[str],
    rest: list[str],
    *,
    json_field: bool,
) -> Any:
    """The value of one flag, taken from the words that follow."""
    if flag["kind"] == "bool" and not flag.get("value_takes_bool_word"):
        if flag["name"] in ("flash-attn",) and rest and not rest[0].startswith("-"):
            return rest.pop(0)
        return on
    many = flag.get("nargs") in ("+", "*")
    if not given:
        while rest and (not given or many) and not _is_option(catalog, rest[0]):
            given.append(rest.pop(0))
    if not given and flag.get("nargs") not in ("*", "?"):
        if catalog.engine == "llamacpp":
            catalog.refuse(f'expected value for argument "{option}"')
        expected = "expected at least one argument" if many else "expected one argument"
        catalog.refuse(f"argument {_title(flag)}: {expected}")
    if json_field or flag["kind"] == "json":
        return _json(catalog, flag, given[0]) if given else None
    values = [_convert(catalog, flag, text) for text in given]
    return values if many else (values[0] if values else True)


def _is_option(catalog: Catalog, word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word) and (word.startswith("--") or len(word) > 1)


def _title(flag: dict[str, Any]) -> str:
    return "/".join([f"--{flag['name']}", *flag.get("aliases", ())])


def _json(catalog: Catalog, flag: dict[str, Any], text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if text[:1] in "{[":
            catalog.refuse(f"argument {_title(flag)}: Value {text} cannot be converted to <function loads>.")
        return text


def _convert(catalog: Catalog, flag: dict[str, Any], text: str) -> Any:
    kind, choices = flag["kind"], flag.get("choices") or ()
    if choices and text not in map(str, choices):
        listed = ", ".join(repr(str(c)) for c in choices)
        catalog.refuse(f"argument {_title(flag)}: invalid choice: {text!r} (choose from {listed})")
    if text in (flag.get("words") or ()):
        return text
    if kind == "bool":
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            catalog.refuse(f"argument {_title(flag)}: Invalid boolean value: {text}")
        return text.lower() in TRUE_WORDS
    if kind == "int":
        human = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", text) if flag.get("human_readable_int") else None
        if human:
            return int(float(human.group(1)) * HUMAN[human.group(2)])
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        if catalog.engine == "llamacpp":
            catalog.refuse(f'error while handling argument "{_title(flag)}": stoi')
        catalog.refuse(f"argument {_title(flag)}: invalid {kind} value: {text!r}")


def unknown_variables(catalog: Catalog) -> list[str]:
    """VLLM_* variables of our environment that this vLLM does not know: it warns of each."""
    if catalog.engine != "vllm":
        return []
    return sorted(name for name in os.environ if name.startswith("VLLM_") and name not in catalog.env)


def small_yaml(text: str) -> dict[str, Any]:
    """Flags of a configuration file: JSON, or YAML of scalars and lists under at most one level of sections."""
    try:
        data = json.loads(text)
    except ValueError:
        data = _yaml_lines(text)
    flat: dict[str, Any] = {}
    for key, value in data.items():
        for name, inner in value.items() if isinstance(value, dict) else ((key, value),):
            flat[str(name).replace("_", "-")] = inner
    return flat


def _yaml_lines(text: str) -> dict[str, Any]:
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
        target[key] = _scalar(word)
    return {k: v for k, v in data.items() if v != {}}


def _scalar(word: str) -> Any:
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
