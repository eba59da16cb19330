"""Where the cache of the Hugging Face hub is on a host."""

from __future__ import annotations

from collections.abc import Mapping


def hub_cache_script(cache_argument_number: int) -> str:
    """Return lines of shell code that set `hub` to the directory of the hub's cache. The two values
    of `hub_cache_and_home_values` are the arguments of the script from `cache_argument_number`
    on."""
    cache = f"${{{cache_argument_number}:-"
    home = f"${{{cache_argument_number + 1}:+${cache_argument_number + 1}/hub}}"
    return (
        f"hub={cache}{home}}}\n"
        "hub=${hub:-${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}}\n"
    )


def hub_cache_and_home_values(env: Mapping[str, str]) -> tuple[str, str]:
    """Return (HF_HUB_CACHE, HF_HOME) in `env`, the environment of a server; "" for one that it does
    not set."""
    return env.get("HF_HUB_CACHE", ""), env.get("HF_HOME", "")
