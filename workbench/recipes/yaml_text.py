"""Reads YAML as data only, with limits on size, nesting and repetition, and writes it so that no
value is ambiguous.

Documents are read by the rules of YAML 1.2: `on`, `yes` and `22:22` are texts. Values with tags
other than those of texts, numbers, booleans, null, lists and mappings are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import yaml

from workbench.model.errors import InputError

MAX_BYTES = 128 * 1024
# values after aliases and merges are followed; a "billion laughs" document has more
MAX_NODES = 20_000
MAX_DEPTH = 40
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader with the value types of YAML 1.2. It rejects a mapping that contains a
    key twice."""

    yaml_implicit_resolvers: ClassVar[Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    "a key of a mapping is a list or mapping, not a text",
                    key.start_mark,
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key.value!r} is given twice in one mapping",
                    key.start_mark,
                )
            seen.add(key.value)
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=True)
        return mapping


def _construct_integer(loader: Any, node: Any) -> int:
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
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)


def load_yaml(text: str) -> Any:
    """Return the data of a text with one YAML document, in which all keys are texts; None for a
    text without a document. Raises InputError, with line and column of the problem if known, if the
    text is not valid or has several documents."""
    documents = load_all_documents(text)
    if len(documents) > 1:
        raise InputError(f"not valid YAML: the text has {len(documents)} documents in place of one")
    return documents[0]


def load_all_documents(text: str) -> list[Any]:
    """Return the data of each YAML document in a text, in which all keys are texts; [None] for a
    text without a document. Raises InputError, with line and column of the problem if known."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InputError(
            f"the document has more than {MAX_BYTES // 1024} KiB, the limit for a recipe"
        )
    loader = _Loader(text)
    try:
        left, documents = [MAX_NODES], []
        while loader.check_node():
            node = loader.get_node()
            _require_size_within_limits(node, left, 0)  # before merges and aliases are followed
            documents.append(_plain_data(loader.construct_document(node)))
        return documents or [None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(
            f"not valid YAML: {place}{getattr(error, 'problem', None) or error}"
        ) from None
    except (RecursionError, ValueError) as error:
        why = "the document is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"not valid YAML: {why}") from None


def _require_size_within_limits(node: Any, remaining_node_count: list[int], depth: int) -> None:
    """Raise InputError if a YAML document contains too many values after its aliases are resolved,
    is nested too deeply, or has a tag that is not in _TAGS. `remaining_node_count` is a list of one
    number, which counts down how many values the document may still have."""
    remaining_node_count[0] -= 1
    if remaining_node_count[0] < 0:
        raise InputError(
            f"the YAML document has more than {MAX_NODES:,} values after its aliases are resolved"
        )
    if depth > MAX_DEPTH:
        raise InputError(
            "the YAML document is nested too deeply, or contains itself through an alias"
        )
    if node.tag not in _TAGS:
        line = node.start_mark.line + 1
        raise InputError(
            f"not valid YAML: line {line}: Workbench reads no values with the tag {node.tag}"
        )
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _require_size_within_limits(key, remaining_node_count, depth + 1)
            _require_size_within_limits(value, remaining_node_count, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _require_size_within_limits(value, remaining_node_count, depth + 1)


def _plain_data(value: Any) -> Any:
    """Return a copy of a document's data in which all keys are texts. A list or mapping that occurs
    several times becomes separate objects."""
    if isinstance(value, dict):
        return {str(k): _plain_data(v) for k, v in value.items()}
    return [_plain_data(v) for v in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """PyYAML's safe dumper without aliases. It quotes every text that a YAML reader could take for
    another type of value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_RESERVED_WORDS = frozenset(
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "inf", "nan"]
)


def _represent_text(dumper: Any, value: str) -> Any:
    style = None if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED_WORDS else '"'
    if "\n" in value.rstrip("\n") and value.isascii():
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


def drop_empty_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without the fields whose value is empty, None, 0 or False."""
    return {name: value for name, value in document.items() if value}


def dump_yaml(data: Any) -> str:
    """Return `data` as YAML text that readers of YAML 1.1 and YAML 1.2 understand in the same
    way."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text
