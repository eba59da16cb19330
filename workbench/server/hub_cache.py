"""Where the cache of the Hugging Face hub is on a host."""

from __future__ import annotations

from collections.abc import Mapping


def hub_search_script(first: int) -> str:
    """Return the lines of a shell script that set `hub` to the cache's directory. Arguments `first`
    and `first` + 1 of the script are those of `hub_variables`."""
    cache, home = f"${{{first}:-", f"${{{first + 1}:+${first + 1}/hub}}"
    return (
        f"hub={cache}{home}}}\n"
        "hub=${hub:-${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}}\n"
    )


def hub_variables(env: Mapping[str, str]) -> tuple[str, str]:
    """Return HF_HUB_CACHE and HF_HOME as the environment `env` of a server sets them, each "" if it
    does not."""
    return env.get("HF_HUB_CACHE", ""), env.get("HF_HOME", "")
