"""The spec of a benchmark: a profile or a preset's suggestion, changed by the user's options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.time_limits import MAX_RUN_TIMEOUT_S
from workbench.bench.workload import has_messages
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.load_spec import (
    BY_FIELD,
    DEFAULTS,
    OF_A_TRACE,
    OPTIONS,
    REPEATED,
    BenchSpec,
)
from workbench.model.slo import parse_slo, require_streaming_for_limits

if TYPE_CHECKING:
    from workbench.model.preset import Benchmark

REQUESTS_PER_STREAM = 8  # requests per stream if only the concurrency is given
OPEN_LOOP_MAX_STREAMS = 256  # limit of requests in flight at a rate; reaching it distorts the rate
DEFAULT_CONVERSATION_STREAMS = 8  # of conversations
OPEN_LOOP_DURATION_S = 30.0  # duration of a rate without a given end
REQUESTS_OF_TIMED_RUN = 1_000_000  # requests of a run that ends by time
WORDS_CONTENT, TEXT_CONTENT = (
    "words",
    "text",
)  # content of synthetic prompts; without any, they are text
_OWN_TEXT_FIELDS = (
    "prompts",
    "prompts_name",
    "command",
)  # fields of loads without synthetic prompts
# fields of a load, as a series has them, that decide what its prompts are made of
_TEXT_DECIDING_FIELDS = (
    "content",
    *_OWN_TEXT_FIELDS,
    "prompts_file",
    "trace",
    "trace_name",
    "trace_file",
)
_OPTIONS_OF_OWN_FIELDS = {  # fields of a request that only these options may set
    "model": "--model NAME",
    "messages": "--prompts FILE",
    "prompt": "--prompts FILE",
    "max_tokens": "--max-tokens N",
    "stream": "--no-stream",
    "stream_options": "leave it out: Workbench always asks for usage",
}


def make_paths_absolute(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a load, with absolute paths of its files: a series that is resumed later
    may be resumed in another directory."""
    paths = {name: bench[name] for name in ("prompts_file", "trace_file") if bench.get(name)}
    return {**bench, **{name: str(Path(path).absolute()) for name, path in paths.items()}}


def set_default_prompt_content(bench: Mapping[str, Any], content: str) -> dict[str, Any]:
    """Return the fields `bench` of a load with `content` as the content of its synthetic prompts.
    Return them unchanged if they decide already what is sent. A series stores them, so that a later
    version sends the same prompts when it resumes the series."""
    if any(bench.get(name) for name in _TEXT_DECIDING_FIELDS):
        return dict(bench)
    return {**bench, "content": content}


def seed_of_load(bench: Mapping[str, Any]) -> int:
    """Return the seed in the fields `bench` of a load, to which each run of a series adds a number
    of its own; 0 if the user gave none."""
    return int(bench.get("seed") or 0)


def repeated_fields_with_value(spec: BenchSpec, left_out: Collection[str]) -> dict[str, Any]:
    """Return the fields that repeat the benchmark `spec` and have a value, by name. Those in
    `left_out` are left out."""
    found = {}
    for name in REPEATED:
        value = getattr(spec, name)
        if name not in left_out and value not in (None, (), {}, ""):
            found[name] = value
    return found


def spec_from_fields(suggested: Benchmark | None, overrides: Mapping[str, Any]) -> BenchSpec:
    """Return the spec of a benchmark. `overrides` are fields of BenchSpec (None if not given) and
    the paths `prompts_file` and `trace_file`. A profile among the overrides replaces the preset's
    suggestion `suggested`. Without both, the profile "quick" is the base. Raises InputError for a
    spec that cannot be run."""
    from workbench.bench import profiles

    given = {k: v for k, v in overrides.items() if v is not None}
    file = given.pop("prompts_file", None)
    if file is not None:
        given |= _prompt_fields(file)
    trace_file = given.pop("trace_file", None)
    if trace_file is not None:
        given |= _trace_fields(trace_file, given)
    if "profile" in given:
        base = profiles.spec_fields_of_profile(given["profile"])
    elif suggested is not None:
        base = {**_profile_fields_of_preset(suggested), **_fields_suggested_by_preset(suggested)}
    else:
        base = profiles.spec_fields_of_profile("quick")
    _check_field_values(given)
    _check_prompt_content_option(given)
    base |= _derive_request_counts(given)
    own = any(given.get(name) for name in _OWN_TEXT_FIELDS)
    merged = {"content": WORDS_CONTENT if own else TEXT_CONTENT, **base, **given}
    if merged.get("endpoint") == "embeddings":
        merged |= {"stream": False, "max_tokens": 1}
    _check_field_values(merged)
    _fit_stream_count_to_requests(merged, given)
    if merged.get("command") and "slo" not in given:
        merged["slo"] = ""  # of the preset, whose benchmark it is not
    _normalize_slo(merged)
    _check_options_have_effect(merged)
    return BenchSpec(**{"url": "", "model": "", **merged})


def _fit_stream_count_to_requests(merged: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Lower `concurrency` in `merged`, the fields of BenchSpec, so that each stream has at least
    one request. Raises InputError if the user gave that concurrency. A benchmark with a request
    rate has no streams and is not checked."""
    streams, requests = merged.get("concurrency", 1), merged.get("requests", 1)
    scheduled = merged.get("rate") is not None or merged.get("trace_s") is not None
    if scheduled or merged.get("command") or streams <= requests:
        return
    if "concurrency" in given:
        raise InputError(
            f"{count_of(requests, 'request')} cannot keep {streams} streams busy",
            next_step=f"give --requests {REQUESTS_PER_STREAM * streams}, or a lower --concurrency",
        )
    merged["concurrency"] = requests


def _normalize_slo(merged: dict[str, Any]) -> None:
    """Write the limits of the SLO in `merged`, the fields of BenchSpec, in their usual form. Raises
    InputError for limits that this benchmark cannot measure."""
    if not merged.get("slo"):
        return
    if merged.get("command"):
        raise InputError(
            "the latencies of your own command are not known, so it cannot have an SLO",
            next_step="leave out --slo, or measure without a command",
        )
    limits = parse_slo(merged["slo"])
    require_streaming_for_limits(limits, streamed=merged.get("stream", True))
    merged["slo"] = ", ".join(map(str, limits))


def _check_options_have_effect(load: Mapping[str, Any]) -> None:
    """Raise InputError for an option in `load`, fields of BenchSpec, that has no effect there."""

    def is_set(field: str) -> bool:
        value = load.get(field)
        return value is not None and value != DEFAULTS[field]

    for option in OPTIONS:
        if not is_set(option.field):
            continue
        if option.needs and not is_set(option.needs):
            needed = BY_FIELD[option.needs]
            raise InputError(
                f"{option.name} has no effect without {needed.name}",
                next_step=f"give {needed.words}, or leave out {option.name}",
            )
        for field, why in option.no_effect_beside:
            if is_set(field):
                raise InputError(
                    f"{why}, so {option.name} has no effect", next_step=f"leave out {option.name}"
                )


def _check_prompt_content_option(given: Mapping[str, Any]) -> None:
    """Raise InputError if `given`, the user's options, has a content of synthetic prompts beside
    prompts or a command of the user's own."""
    own = next((name for name in ("prompts", "command") if given.get(name)), None)
    if own is None or given.get("content", WORDS_CONTENT) == WORDS_CONTENT:
        return
    whose = "a prompts file" if own == "prompts" else "your own command"
    raise InputError(
        f"--content is the content of synthetic prompts, and {whose} has its own",
        next_step="leave out --content",
    )


def _derive_request_counts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of "requests", "concurrency" and "warmup" that follow from the rate, the
    concurrency or the duration in `given`, the user's options. {} if `given` has none of the three.
    """
    fitting: dict[str, Any] = {}
    if given.get("trace_name"):
        return {"concurrency": OPEN_LOOP_MAX_STREAMS} if given.get("trace_s") is not None else {}
    if "rate" in given:
        fitting = {
            "requests": max(16, ceil(OPEN_LOOP_DURATION_S * given["rate"])),
            "concurrency": OPEN_LOOP_MAX_STREAMS,
        }
    elif "concurrency" in given:
        fitting = {
            "requests": REQUESTS_PER_STREAM * given["concurrency"],
            "warmup": max(1, given["concurrency"]),
        }
    return {**fitting, "requests": REQUESTS_OF_TIMED_RUN} if "seconds" in given else fitting


def _profile_fields_of_preset(suggested: Benchmark) -> dict[str, Any]:
    from workbench.bench import profiles

    return (
        profiles.spec_fields_of_profile(suggested.profile)
        if suggested.profile in profiles.PROFILE_NAMES
        else {}
    )


def _fields_suggested_by_preset(suggested: Benchmark) -> dict[str, Any]:
    in_preset = [option.field for option in OPTIONS if option.in_preset]
    return {
        "profile": suggested.profile,
        "concurrency": suggested.concurrency[0],
        **{name: getattr(suggested, name) for name in in_preset},
    }


def _prompt_fields(file: str) -> dict[str, Any]:
    from workbench.bench import prompt_file

    found = prompt_file.read_prompts(file)
    return {"prompts": found.prompts, "prompts_name": found.name}


def _trace_fields(file: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of BenchSpec for the trace in a file. `given` are the user's options.
    Raises InputError if one of them contradicts the trace, or for a trace that takes too long."""
    from workbench.bench import trace_file

    for option in OF_A_TRACE:
        value = given.get(option.field)
        is_content_of_trace = option.field == "content" and value == TEXT_CONTENT
        if value and not is_content_of_trace:
            raise InputError(
                f"a trace decides when and what is sent, so {option.name} has no effect beside it",
                next_step=f"leave out {option.name}",
            )
    if given.get("endpoint") == "embeddings":
        raise InputError(
            "a trace has answers of some length, and embeddings are no answers",
            next_step="leave out --endpoint, or measure without a trace",
        )
    _check_field_values(
        {name: given[name] for name in ("speed", "first", "seconds") if name in given}
    )
    found = trace_file.read_trace(file, given.get("first"))
    fields = {
        "trace": found.requests,
        "trace_name": found.name,
        "trace_reuse": found.reuse,
        "requests": len(found.requests),
        "input_tokens": found.input_tokens,
        "max_tokens": found.output_tokens,
        "until_steady": False,
        "shared_prefix": False,
        "length_spread": 0.0,
    }
    if found.seconds is None:
        return fields | _conversation_fields(found.conversations, given)
    lasts_s = found.seconds / given.get("speed", 1.0)
    if min(lasts_s, given.get("seconds", lasts_s)) > MAX_RUN_TIMEOUT_S:
        raise InputError(
            f"the trace lasts {lasts_s / 3600:,.1f} hours, and a benchmark at most "
            f"{MAX_RUN_TIMEOUT_S / 3600:g}",
            next_step=f"give --first N, --seconds S, or --speed {lasts_s / MAX_RUN_TIMEOUT_S:,.0f}x "
            "and more",
        )
    return fields | {"trace_s": lasts_s, "content": TEXT_CONTENT}


def _conversation_fields(conversations: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of BenchSpec for a trace of conversations, which have no times and text of
    their own."""
    if "speed" in given:
        raise InputError(
            "the conversations have no times, so --speed has no effect",
            next_step="leave out --speed; --concurrency is the number of conversations at a time",
        )
    if "content" in given or given.get("endpoint", "chat") != "chat":
        raise InputError(
            "the conversations have text of their own, as messages of a chat",
            next_step="leave out --content, and use --endpoint chat",
        )
    streams = given.get("concurrency", DEFAULT_CONVERSATION_STREAMS)
    if streams > conversations and "concurrency" in given:
        raise InputError(
            f"{count_of(conversations, 'conversation')} cannot keep {streams} streams busy",
            next_step=f"give --concurrency {conversations} or less, or more conversations",
        )
    return {
        "concurrency": min(streams, conversations),
        "endpoint": "chat",
        "content": WORDS_CONTENT,
    }


def _check_field_values(fields: Mapping[str, Any]) -> None:
    """Raise InputError if a value of `fields`, fields of BenchSpec, is not valid, alone or beside
    the others."""
    for option in OPTIONS:
        if option.field in fields:
            option.require_valid(fields[option.field])
    if fields.get("client") == "host" and fields.get("ca_file"):
        raise InputError(
            "a load client on the server's host cannot read the --cacert file of this machine",
            next_step="give --client here",
        )
    for name, own_option in _OPTIONS_OF_OWN_FIELDS.items():
        if name in fields.get("extra_body", {}):
            raise InputError(
                f"the extra body fields contain {name!r}, which has an option of its own",
                next_step=f"use {own_option}",
            )
    if (
        any(map(has_messages, fields.get("prompts", ())))
        and fields.get("endpoint", "chat") != "chat"
    ):
        raise InputError(
            f"the prompts file contains chat messages, which the endpoint {fields['endpoint']} "
            "does not accept",
            next_step="use --endpoint chat",
        )
