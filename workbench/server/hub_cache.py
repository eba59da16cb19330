"""Where the cache of the Hugging Face hub is on a host."""

from __future__ import annotations

from collections.abc import Mapping


def hub_search_script(first_argument: int) -> str:
    """Return the lines of a shell script that set `hub` to the cache's directory. Arguments
    `first_argument` and the next one of the script are those of `hub_cache_and_home`."""
    cache, home = f"${{{first_argument}:-", f"${{{first_argument + 1}:+${first_argument + 1}/hub}}"
    return (
        f"hub={cache}{home}}}\n"
        "hub=${hub:-${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}}\n"
    )


def hub_cache_and_home(env: Mapping[str, str]) -> tuple[str, str]:
    """Return HF_HUB_CACHE and HF_HOME as the environment `env` of a server sets them, each "" if it
    does not."""
    return env.get("HF_HUB_CACHE", ""), env.get("HF_HOME", "")
