"""The endpoint file of the Python library verifiers, in which its command `vf-eval -m NAME` looks
up a server.

The file is a Python file (configs/endpoints.py) with one dictionary, ENDPOINTS: name -> {"model",
"url", "key"}. `key` is the name of the environment variable that contains the API key. Workbench
edits the file as text, so that comments stay, and runs nothing in it.
"""

from __future__ import annotations

import ast
import json

from workbench.model.errors import InputError

PLACEHOLDER_KEY = "EMPTY"  # what the file names for a server without a key


def endpoint_file_line(name: str, *, model: str, url: str, key: str = PLACEHOLDER_KEY) -> str:
    """Return one line of the dictionary ENDPOINTS: the server's name with its model, its URL and
    the environment variable of its API key."""
    return f"{_quote_name(name)}: {_format_entry_values(model, url, key)},"


def add_or_replace_endpoint_entry(
    text: str, name: str, *, model: str, url: str, key: str = PLACEHOLDER_KEY
) -> str:
    """Return the text of the endpoint file `text` with an entry for the server `name`, which
    replaces an older entry of that name. `url` ends with /v1, and an empty `text` gives a new file.
    Raises InputError if `text` is not an endpoint file."""
    own = endpoint_file_line(name, model=model, url=url, key=key)
    entry = _format_entry_values(model, url, key)
    if not text.strip():
        return f"ENDPOINTS = {{\n    {own}\n}}\n"
    endpoints = _find_endpoints_dictionary(text)
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def byte_offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    for known, value in zip(endpoints.keys, endpoints.values, strict=True):
        if isinstance(known, ast.Constant) and known.value == name:
            begin = byte_offset(value.lineno, value.col_offset)
            assert value.end_lineno is not None  # `ast.parse` sets both
            assert value.end_col_offset is not None
            end = byte_offset(value.end_lineno, value.end_col_offset)
            return (data[:begin] + entry.encode() + data[end:]).decode()
    after = byte_offset(endpoints.lineno, endpoints.col_offset) + 1
    return (data[:after] + f"\n    {own}".encode() + data[after:]).decode()


def _find_endpoints_dictionary(text: str) -> ast.Dict:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"the endpoint file is not valid Python: {error}") from None
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        named = any(isinstance(target, ast.Name) and target.id == "ENDPOINTS" for target in targets)
        if named and isinstance(statement.value, ast.Dict):
            return statement.value
    raise InputError(
        "the endpoint file has no dictionary ENDPOINTS",
        next_step="name another endpoint file, or add the line `ENDPOINTS = {}` to the file",
    )


def _format_entry_values(model: str, url: str, key: str) -> str:
    return json.dumps({"model": model, "url": url, "key": key}, ensure_ascii=False)


def _quote_name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
