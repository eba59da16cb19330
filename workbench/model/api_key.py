"""Reading of a server's API key from an environment variable, with a check that the key can be
sent. The key is never shown, not even in part."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.model.errors import InputError


def api_key_from_variable(name: str, env: Mapping[str, str]) -> str:
    """Return the API key that the variable `name` has in the environment `env`. Raises InputError
    if the variable is not set, is empty, or contains characters that an HTTP header cannot carry.
    """
    key = env.get(name)
    if key is None:
        raise InputError(
            f"the environment variable {name} is not set",
            next_step=f"run `export {name}=…`, then try again",
        )
    if problem := _api_key_problem(key):
        raise InputError(
            f"the API key in the variable {name} {problem}, so it cannot be sent in an HTTP header",
            next_step=f"set the variable again, for example {name}=$(tr -d '\\r\\n' < keyfile)",
        )
    return key


def _api_key_problem(key: str) -> str:
    """Return why the key cannot be sent, as the end of a sentence; "" if it can."""
    if not key:
        return "is empty"
    if "\n" in key or "\r" in key:
        return "contains a line end"
    if not key.isascii():
        return "contains characters beyond ASCII"
    if not key.isprintable() or " " in key:
        return "contains a space or a control character"
    return ""
