"""Printing for all commands: text and JSON on stdout, messages and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, Protocol

from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding, option_texts_of_changes
from workbench.model.untrusted_numbers import replace_non_finite
from workbench.model.untrusted_text import clean_text, escape_control_characters


def print_line(text: str = "") -> None:
    """Print text on stdout, without control characters."""
    print(clean_text(text, len(text), lines=True))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)


def print_message(text: str) -> None:
    """Print a message on stderr."""
    sys.stderr.write(clean_text(text, lines=True) + "\n")


def print_json(document: Any) -> int:
    """Print a JSON document on stdout. Return the exit code 0."""
    print(format_json(document, indent=2))
    return 0


def simulated_suffix(is_simulated: bool) -> str:
    """Return what a line about simulated data ends with; "" for other data."""
    if is_simulated:
        return "  SIMULATED"
    return ""


class _HasJson(Protocol):
    def as_json(self) -> dict[str, Any]: ...


def items_as_json(items: Iterable[_HasJson]) -> list[dict[str, Any]]:
    """Return each of the items, such as findings, as a JSON object."""
    return [item.as_json() for item in items]


def print_json_list(
    name: str, items: Iterable[Any], make_other_fields: Callable[[], dict[str, Any]]
) -> int:
    """Print a JSON document: first the field `name` with the list of items, each printed as soon as
    `items` yields it, then the fields that `make_other_fields` returns. Return the exit code 0. If
    the first item raises an error, nothing has been printed yet."""
    rows = iter(items)
    first = list(islice(rows, 1))
    between = "["
    print(f"{{\n  {format_json(name)}: ", end="")
    for item in chain(first, rows):
        text = format_json(item, indent=2).replace("\n", "\n    ")
        print(f"{between}\n    {text}", end="")
        between = ","
    print("[]" if between == "[" else "\n  ]", end="")
    for field, value in make_other_fields().items():
        text = format_json(value, indent=2).replace("\n", "\n  ")
        print(f",\n  {format_json(field)}: {text}", end="")
    print("\n}")
    return 0


def print_json_or_lines(as_json: bool, document: Any, lines: Iterable[str] | str) -> int:
    """Print the JSON document if `as_json` is True, otherwise the lines. Return the exit code 0."""
    if as_json:
        return print_json(document)
    print_lines([lines] if isinstance(lines, str) else lines)
    return 0


def print_error(error: WorkbenchError, as_json: bool = False) -> None:
    """Print an error on stderr. With `as_json`, also print it as a JSON document on stdout."""
    if as_json:
        print(format_json(error.as_json()))
    sys.stderr.write(f"workbench: {error}\n")
    for finding in error.findings:
        if finding.text == error.message:
            continue  # it is said above, with its next step
        fix = f" ({finding.fix})" if finding.fix else ""
        sys.stderr.write(f"  {clean_text(f'{finding.level}: {finding.text}{fix}')}\n")


def format_finding_line(finding: Finding) -> str:
    """Return a finding as one line: "level: place: text — fix  [--set name=value]"."""
    place = f"{finding.file_and_line_text}: " if finding.file_and_line_text else ""
    changes = option_texts_of_changes(finding.changes)
    return (f"{finding.level}: {place}{format_finding(finding)}") + (
        f"  [{changes}]" if changes else ""
    )


def format_finding(finding: Finding) -> str:
    """Return the text of a finding with its fix: "text — fix"."""
    return f"{finding.text} — {finding.fix}" if finding.fix else finding.text


def format_json(document: Any, indent: int | None = None) -> str:
    """Return `document` as JSON. Characters that control a terminal are escaped, such as \\u001b. If
    stdout cannot encode one of the others, all characters outside ASCII are escaped."""
    document = replace_non_finite(document)
    text = escape_control_characters(
        json.dumps(document, ensure_ascii=False, indent=indent, default=str)
    )
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent, default=str)
    return text
