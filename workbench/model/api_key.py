"""The API key of a server, read from the environment and checked. It is never shown, not even in part."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.model.errors import InputError


def api_key(name: str, env: Mapping[str, str]) -> str:
    """Return the key in the variable `name`. Raises InputError if the variable is missing or its value cannot be sent
    in a header."""
    key = env.get(name)
    if key is None:
        raise InputError(f"the environment variable {name} is not set", next_step=f"export {name}=… first")
    if problem := _problem(key):
        raise InputError(
            f"the API key in the variable {name} {problem}, so it cannot be sent in an HTTP header",
            next_step=f"set it again, for example {name}=$(tr -d '\\r\\n' < keyfile)",
        )
    return key


def _problem(key: str) -> str:
    if not key:
        return "is empty"
    if "\n" in key or "\r" in key:
        return "contains a line end"
    if not key.isascii():
        return "contains characters beyond ASCII"
    if not key.isprintable() or " " in key:
        return "contains a space or a control character"
    return ""
