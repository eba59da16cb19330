"""Options that describe the load of a benchmark: requests, tokens, rate and prompts."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from workbench.cli.registry import OneOf, Option, one_of, option, switch
from workbench.model.errors import InputError


def _json_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"--extra-body is not JSON: {error}",
            next_step="give a JSON object, for example '{\"top_k\": 1}'",
        ) from None
    if not isinstance(fields, dict):
        raise InputError(
            "--extra-body is not a JSON object",
            next_step="give a JSON object, for example '{\"top_k\": 1}'",
        )
    return fields


def _shell_words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(
            f"--command: {error}", next_step="quote the command as in a shell"
        ) from None
    if not words:
        raise InputError(
            "--command is empty",
            next_step="give a command, for example --command 'vf-eval … -n 100'",
        )
    return words


PROFILES = (
    "quick",
    "single-stream",
    "batch",
    "long-prompt",
    "document",
)  # as in bench/profiles.py, which is slow to import

CONCURRENCY = option("--concurrency N", "number of requests in flight at the same time", int)
SIZE = (
    option("--requests N", "requests to measure (default: 8 per stream; 30 s of a --rate)", int),
    option("--max-tokens N", "output tokens of each request", int),
    option("--input-tokens N", "prompt tokens of each request", int),
    option("--warmup N", "requests to send before the measured ones", int),
    option("--seconds S", "start requests for S seconds, in place of --requests", float),
)
SHAPE = (
    option("--profile NAME", f"shape of the load: {', '.join(PROFILES)}"),
    option(
        "--rate R",
        "start R requests per second on a schedule, with at most --concurrency (256) in flight",
        float,
    ),
    option("--arrival", "spacing of the requests of a --rate", choices=("poisson", "constant")),
    option(
        "--length-spread SHARE",
        "vary the output length: 0.2 requests 80 to 120 %% of --max-tokens",
        float,
    ),
    option(
        "--slo LIMITS",
        "limits on latencies in ms, each for a share of the requests: "
        "'ttft<=500@p95, tpot<=40@p95, e2e<=8000@99%%'",
    ),
    switch("--until-steady", "warm up until two windows of time show the same throughput"),
    option(
        "--endpoint",
        "/v1/chat/completions, /v1/completions or /v1/embeddings",
        choices=("chat", "completions", "embeddings"),
    ),
    switch(
        "--shared-prefix",
        "send prompts with a common beginning, so that the server's prefix cache takes effect",
    ),
    switch("--stream", "stream the answers (default); whole answers have neither TTFT nor ITL"),
    option(
        "--prompts FILE",
        "your own prompts: JSON lines with prompt, text or messages and optionally max_tokens, or "
        "ShareGPT JSON",
        dest="prompts_file",
    ),
    option("--extra-body JSON", "fields to add to the body of every request", _json_object),
    option(
        "--command TEXT",
        "your own benchmark command as one quoted string; {base_url} and {model} are replaced, and "
        "variables such "
        "as OPENAI_BASE_URL are set",
        _shell_words,
        dest="own_command",
    ),
)


CLIENT = (
    option("--model NAME", "model name to request (default: the first that the server lists)"),
    option("--seed N", "seed of lengths and arrival times", int),
    option(
        "--timeout S",
        "time limit of one request (default: at least 120 s to the first token, then no limit)",
        float,
        dest="timeout_s",
    ),
    option(
        "--stall-timeout S",
        "longest pause after the first token of a request (default: 60, more on a slow server)",
        float,
        dest="stall_s",
    ),
    option(
        "--deadline S",
        "time limit of the whole run (default: 1800, or more on a slow server)",
        float,
        dest="deadline_s",
    ),
    option(
        "--natural-lengths",
        "let answers end where the model ends them, instead of sending ignore_eos",
        action="store_const",
        const=False,
        dest="ignore_eos",
    ),
    option(
        "--random-weights",
        "the model has random weights, so its text need not make sense",
        action="store_const",
        const=True,
        dest="random_weights",
    ),
    option(
        "--client",
        "where the load client runs for a server on another host: on that host (default, if its "
        "python3 can), or here, "
        "through the ssh tunnel",
        choices=("here", "host"),
    ),
    option("--api-key-env NAME", "environment variable that contains the API key"),
    one_of(
        option("--cacert FILE", "PEM file of the CA to trust for an https URL", dest="ca_file"),
        option(
            "--insecure", "accept any certificate of an https URL", action="store_const", const=True
        ),
    ),
)


def fields_by_option(*arguments: Option | OneOf) -> dict[str, str]:
    """Return {field of BenchSpec: name of the option that sets the field}."""
    found: dict[str, str] = {}
    for each in arguments:
        found |= (
            fields_by_option(*each.options)
            if isinstance(each, OneOf)
            else {each.dest: each.names[0]}
        )
    return found


def load_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of BenchSpec that the command line sets, with their values."""
    fields = [
        field
        for field in fields_by_option(CONCURRENCY, *SIZE, *SHAPE, *CLIENT)
        if field != "own_command"
    ]
    found = {field: getattr(arguments, field, None) for field in fields}
    found["command"] = _own_command(arguments)
    return {name: value for name, value in found.items() if value is not None}


def quality_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return whether and with which texts an experiment compares the answers too, as fields of
    ExperimentSpec."""
    texts = str(Path(arguments.texts).absolute()) if arguments.texts else ""
    return {"quality": not arguments.no_quality, "quality_texts": texts}


def _own_command(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """Return the words of the user's own benchmark command, which is given after `--` or by
    --command. None if there is none. Raises InputError if both are given.
    """
    given, after_dashes = (
        getattr(arguments, "own_command", None),
        getattr(arguments, "own_words", None),
    )
    if after_dashes == ():
        raise InputError(
            "no benchmark command is given after --",
            next_step="give the command, for example: workbench bench RUN -- vf-eval …",
        )
    if given and after_dashes:
        raise InputError(
            "the benchmark command is given twice",
            next_step="give the command after --, or with --command TEXT",
        )
    return given or after_dashes
