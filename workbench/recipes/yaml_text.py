"""YAML as data only: reading with limits on size, nesting and repetition, and writing with unambiguous quotes.

A document is read by the rules of YAML 1.2: `on`, `yes` and `22:22` are texts. No tag can make an object.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml

from workbench.model.errors import InputError

MAX_BYTES = 128 * 1024
MAX_NODES = 20_000  # values after aliases are followed; a "billion laughs" document has more
MAX_DEPTH = 40


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader with the plain values of YAML 1.2, which rejects a key that is given twice."""

    yaml_implicit_resolvers: ClassVar[Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=True)
        return mapping


def _integer(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]{1,40}|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,20}", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
     "-+0123456789."),
    ("merge", r"<<", "<"),
):  # fmt: off
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def load(text: str) -> Any:
    """Return the data of a YAML document, with texts as keys. Raises InputError with the place of the problem."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InputError(f"the file has more than {MAX_BYTES // 1024} KiB, which no recipe needs")
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"not valid YAML: {place}{getattr(error, 'problem', None) or error}") from None
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"not valid YAML: {why}") from None
    return _plain(data, [MAX_NODES], 0)


def _plain(value: Any, left: list[int], depth: int) -> Any:
    """Return a copy without shared parts. Raises InputError if it has too many values or is nested too deeply."""
    left[0] -= 1
    if left[0] < 0:
        raise InputError(
            f"the YAML document stands for more than {MAX_NODES:,} values, most of them repeated by aliases"
        )
    if depth > MAX_DEPTH:
        raise InputError("the YAML document is nested too deeply, or contains itself")
    if isinstance(value, dict):
        return {str(k): _plain(v, left, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, left, depth + 1) for v in value]
    return value


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """PyYAML's safe dumper without aliases. A text has quotes unless no reader can take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "inf", "nan"])


def _text(dumper: Any, value: str) -> Any:
    style = None if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else '"'
    if "\n" in value.rstrip("\n") and value.isascii():
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(data: Any) -> str:
    """Return the data as YAML that readers of YAML 1.1 and of 1.2 understand alike."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text
