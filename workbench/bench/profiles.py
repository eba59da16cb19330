"""Named workloads (profiles), such as `quick` or `batch`. Values that a preset suggests override
those of `quick`. Values that the user gives override all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BenchProfile:
    """A named shape of the load. `fields` maps fields of BenchSpec to values.

    Most profiles make eight times as many requests as streams. The steady window, in which all
    streams are busy, is then some 92 % of the run.
    """

    name: str
    title: str
    fields: Mapping[str, Any]


_PROFILES = (
    BenchProfile(
        "quick",
        "8 streams of 128 tokens: half a minute on most servers",
        {"concurrency": 8, "requests": 64, "input_tokens": 128, "max_tokens": 128, "warmup": 8},
    ),
    BenchProfile(
        "single-stream",
        "one request after the other: the speed for a single user, compared with the memory "
        "bandwidth's limit",
        {
            "concurrency": 1,
            "requests": 8,
            "input_tokens": 128,
            "max_tokens": 256,
            "warmup": 2,
            "until_steady": True,
        },
    ),
    BenchProfile(
        "batch",
        "32 streams of mixed lengths: throughput under load",
        {
            "concurrency": 32,
            "requests": 256,
            "input_tokens": 512,
            "max_tokens": 256,
            "warmup": 64,
            "length_spread": 0.2,
            "until_steady": True,
        },
    ),
    BenchProfile(
        "long-prompt",
        "4 streams of 8,192 prompt tokens: prefill and the KV cache",
        {
            "concurrency": 4,
            "requests": 32,
            "input_tokens": 8192,
            "max_tokens": 128,
            "warmup": 8,
            "until_steady": True,
        },
    ),
    BenchProfile(
        "document",
        "the protocol of the setup documents: a short prompt and 500 tokens, ten times in a row; "
        "rates over the whole "
        "run; streamed, so that first token and gaps are measured too",
        {"concurrency": 1, "requests": 10, "input_tokens": 32, "max_tokens": 500, "warmup": 0},
    ),
)
PROFILE_NAMES = tuple(profile.name for profile in _PROFILES)


def get_profile(name: str) -> BenchProfile:
    """Return the benchmark profile of that name. Raises InputError if there is none."""
    found = next((p for p in _PROFILES if p.name == name), None)
    if found is None:
        raise InputError(
            f"there is no benchmark profile {name!r}",
            next_step=f"use one of {', '.join(PROFILE_NAMES)}",
        )
    return found


def title_by_profile_name() -> Mapping[str, str]:
    """Return the title of each benchmark profile, by its name."""
    return {p.name: p.title for p in _PROFILES}


def spec_fields_of_profile(name: str) -> dict[str, Any]:
    """Return the BenchSpec fields that the profile sets, including `profile` itself. Every field
    that differs between profiles is included, so that a profile named by the user overrides
    everything that a preset suggests."""
    return {
        "until_steady": False,
        "length_spread": 0.0,
        **get_profile(name).fields,
        "profile": name,
    }
