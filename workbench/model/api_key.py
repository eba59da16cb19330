"""The API key of a server, read and checked in one place. It is never shown, not even a part of it."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.model.errors import InputError


def api_key(name: str, env: Mapping[str, str]) -> str:
    """Return the key in the variable `name`. Raises InputError where there is none that a header can carry."""
    key = env.get(name)
    if key is None:
        raise InputError(f"there is no environment variable {name}", next_step=f"export {name}=… first")
    if problem := _problem(key):
        raise InputError(
            f"the API key in the variable {name} {problem}: no HTTP header can carry it",
            next_step=f"set it anew, for example {name}=$(tr -d '\\r\\n' < keyfile)",
        )
    return key


def _problem(key: str) -> str:
    if not key:
        return "is empty"
    if "\n" in key or "\r" in key:
        return "has a line end in it"
    if not key.isascii():
        return "has characters beyond ASCII"
    if not key.isprintable() or " " in key:
        return "has a space or a control character in it"
    return ""
