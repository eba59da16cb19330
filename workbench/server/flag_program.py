"""A program that prints an engine's launch flags as JSON. The engine's own Python runs it: Python
3.8 or newer, without Workbench.

usage: python -c PROGRAM '{"parsers": ["module:class"], "builders": ["module:function"],
"variables": "module:name"}'

`parsers` and `builders` are alternatives; the first that can be imported is used. The program
creates an argument parser of the class in `parsers`, and the function in `builders` adds the
engine's flags to the parser. `variables` names a mapping whose keys are the environment variables
of the engine. What the engine prints goes to stderr.
"""

import argparse
import dataclasses
import enum
import importlib
import json
import os
import re
import sys
from typing import Any, Dict, Sequence  # noqa: UP035 (Python 3.8)

_DEPRECATION_TEXT = re.compile(r"^\W*deprecat|\bis deprecated|[(\[]deprecat")


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines log to stdout while they are imported
    # A stream of its own would be written at the end, behind the error that Workbench shows.
    sys.stdout = sys.stderr
    sys.path[:] = [entry for entry in sys.path if entry]  # not from the current directory
    wanted = json.loads(sys.argv[1])
    sys.argv = ["serve", "--help=all", "--help"]  # vLLM leaves the help texts empty otherwise
    parser = _import_first_available(wanted["parsers"])()
    parser = _import_first_available(wanted["builders"])(parser) or parser
    variables = _import_first_available([wanted["variables"]]) if wanted["variables"] else ()
    groups = [
        (g.title or "", a)
        for g in parser._action_groups
        for a in g._group_actions
        if a.option_strings
    ]
    names: Dict[int, Any] = {}  # noqa: UP006 (Python 3.8)
    for name, action in parser._option_string_actions.items():
        names.setdefault(id(action), []).append(name)
    flags = [
        _describe_flag(names[id(a)], group, a)
        for group, a in groups
        if not isinstance(a, argparse._HelpAction)
    ]
    json.dump({"flags": flags, "variables": sorted(map(str, variables))}, out)
    out.flush()
    os._exit(0)  # an engine's threads and exit handlers could hang


def _import_first_available(import_paths: Sequence[str]) -> Any:
    for import_path in import_paths:
        module, _, path = import_path.partition(":")
        try:
            found = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
            return found
        except (ImportError, AttributeError) as error:
            problem = error
    raise SystemExit("cannot import %s: %s" % (import_paths[-1], problem))  # noqa: UP031


def _describe_flag(names: Sequence[str], group: str, action: argparse.Action) -> Dict[str, Any]:  # noqa: UP006 (Python 3.8)
    switch = action.nargs == 0
    negations = list(getattr(action, "negative_option_strings", ())) if switch else []
    if switch and type(action).__name__ == "BooleanOptionalAction" and not negations:
        negations = [name for name in names if name.startswith("--no-")]
    kind, fields = ("bool", []) if switch else _find_value_type(action.type)
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    return {
        "names": [name for name in names if name not in negations],
        "negations": negations,
        "kind": kind,
        "json_fields": fields,
        "human_readable_int": kind == "int" and _convert_or_none(action.type, "1k") == 1000,
        "choices": None if switch else [_to_json_data(choice) for choice in action.choices or ()],
        "default": _to_json_data(action.default),
        "nargs": None if switch or action.nargs is None else str(action.nargs),
        "repeatable": isinstance(action, argparse._AppendAction),
        "group": group,
        "help": " ".join(text.split())[:2000],
        "required": action.required,
        "deprecated": bool(getattr(action, "deprecated", False))
        or bool(_DEPRECATION_TEXT.search(text[:300].lower())),
    }


def _find_value_type(convert: Any) -> Any:
    """Return (type of a flag's values, field names). The type is "str", "int", "float" or "json",
    and the field names are those of the JSON object, or []. `convert`, the flag's conversion
    function in argparse, is called with sample values, because its name says nothing reliable."""
    if convert is None or convert is str:
        return "str", []
    data = _convert_or_none(convert, "{}")
    if dataclasses.is_dataclass(data):
        return "json", [field.name for field in dataclasses.fields(data) if field.init]
    if isinstance(data, dict):
        return "json", []
    one, part = _convert_or_none(convert, "1"), _convert_or_none(convert, "1.5")
    if isinstance(one, int) and not isinstance(one, bool) and not isinstance(part, (float, str)):
        return "int", []
    return ("float" if isinstance(part, float) else "str"), []


def _convert_or_none(converter: Any, text: str) -> Any:
    try:
        return converter(text)
    except Exception:
        return None


def _to_json_data(value: Any) -> Any:
    """Return `value` as JSON data; None for an object that is not JSON data, such as an object of
    the engine."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        if value == argparse.SUPPRESS:
            return None
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json_data(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json_data(item) for key, item in value.items()}
    return None


if __name__ == "__main__":
    main()
