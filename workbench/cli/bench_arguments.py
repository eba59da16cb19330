"""Arguments of bench, compare."""

from __future__ import annotations

import argparse

from workbench.cli.arguments import Commands, add, turn_option

PROFILES = ("quick", "single-stream", "batch", "long-prompt", "document")  # bench/profiles.py


def measuring(sub: Commands) -> None:
    bench = add(sub, "bench", "benchmark a run, or any OpenAI-compatible server by URL; after -- a command of your own")
    bench.usage = "workbench bench [RUN | --url URL] [OPTION…] [-- COMMAND…]"
    bench.add_argument("run", nargs="?", metavar="RUN")
    bench.add_argument("--url", help="base URL of a server that Workbench did not start")
    bench.add_argument("--model", help="model name to ask for (default: the first the server names)")
    _load(bench)
    _prompts(bench)
    bench.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    trusted = bench.add_mutually_exclusive_group()
    trusted.add_argument("--cacert", metavar="FILE", help="PEM file of the CA to trust at an https URL")
    trusted.add_argument("--insecure", action="store_true", help="accept any certificate at an https URL")
    bench.add_argument("--extra-body", metavar="JSON", help="more fields for the body of every request")
    bench.add_argument("--repeat", type=int, default=1, metavar="N", help="so many runs, and how far they scatter")
    bench.add_argument(
        "--command",
        metavar="TEXT",
        dest="own_command",
        help="the same as after --, in one word; "
        "{base_url} and {model} are filled in, OPENAI_BASE_URL and the like are set",
    )
    turn_option(bench)
    compare = add(sub, "compare", "what changed between two results or groups of results, and what it did")
    compare.add_argument(
        "groups", nargs="*", metavar="IDS", help="A, then B: 7, 1-3 or 1,2,5; several give an interval"
    )
    compare.add_argument(
        "--tag", action="append", default=[], dest="tags", metavar="TAG", help="a group: all with this tag"
    )
    compare.add_argument(
        "--arm",
        action="append",
        default=[],
        dest="arms",
        choices=("model", "engine", "host", "driver"),
        help="this is what is compared, so that a difference in it is the answer and no reproach",
    )


def _load(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--profile", metavar="NAME", help=", ".join(PROFILES))
    bench.add_argument("--concurrency", default=None, metavar="N[,N…]", help="streams; several: one after the other")
    for name, what in (
        ("requests", "counted ones (default: 8 per stream; 30 s of a --rate)"),
        ("max-tokens", "of each answer"),
        ("input-tokens", "of each prompt"),
        ("warmup", "requests before that are not counted"),
        ("seed", "of lengths and arrivals"),
    ):
        bench.add_argument(f"--{name}", type=int, default=None, metavar="N", help=what)
    bench.add_argument("--seconds", type=float, metavar="S", help="in place of --requests: none starts after so long")
    for name, what in (
        ("timeout", "for one request (default: none while tokens come, 120 s or more until the first)"),
        ("stall-timeout", "without a byte after the first token (default: 60, more on a slow server)"),
        ("deadline", "for the whole run (default: 1800, or the time that the server's speed asks for)"),
    ):
        bench.add_argument(f"--{name}", type=float, metavar="S", help=what)
    bench.add_argument("--max-minutes", type=float, metavar="M", help="of several concurrencies")
    bench.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests per second on a schedule; at most --concurrency (256) in flight",
    )
    bench.add_argument("--arrival", choices=("poisson", "constant"), help="of --rate")
    bench.add_argument("--length-spread", type=float, metavar="SHARE", help="0.2: 80 to 120 %% of --max-tokens each")
    bench.add_argument(
        "--until-steady", action=argparse.BooleanOptionalAction, default=None, help="warm up until two windows agree"
    )


def _prompts(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSON lines of prompt, text or messages, each with max_tokens if wanted; or ShareGPT's JSON",
    )
    bench.add_argument(
        "--natural-lengths", action="store_true", help="answers end where the model ends them (ignore_eos is not sent)"
    )
    bench.add_argument("--shared-prefix", action="store_true", help="keep the prefix cache in play")
    bench.add_argument("--endpoint", choices=("chat", "completions"))
    bench.add_argument("--no-stream", action="store_true", help="whole answers: neither TTFT nor ITL")
