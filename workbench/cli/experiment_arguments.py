"""Arguments of experiment and sweep."""

from __future__ import annotations

import argparse

from workbench.cli.arguments import Commands, add, plan_options, trust_option, turn_option


def experiments(sub: Commands) -> None:
    _experiment(sub)
    _sweep(sub)


def _shows() -> str:
    """ "3 show 5 %, 5 show 2 %", as argparse wants it."""
    from workbench.model.experiment import SHOWS_PCT

    return ", ".join(f"{pairs} show {pct:g} %%" for pairs, pct in SHOWS_PCT.items())


def _experiment(sub: Commands) -> None:
    what = "A against B in pairs of runs, with an interval and a verdict"
    parser = add(sub, "experiment", what)
    parser.usage = (
        'workbench experiment PRESET|RUN --a "flag=value …" --b "flag=value …" [OPTION…]\n'
        '       workbench experiment --a "TARGET flag=value …" --b "TARGET flag=value …" [OPTION…]'
    )
    parser.add_argument(
        "base",
        nargs="?",
        metavar="PRESET|RUN",
        help="what both arms share; --a and --b are changes on it. Without it, each begins with a TARGET: a preset "
        "(started for each run), a run (as it is; with changes started for each run), or the URL of a server",
    )
    _arms(parser)
    parser.add_argument("--set", action="append", default=[], metavar="flag=value", dest="sets", help="in both")
    parser.add_argument("--unset", action="append", default=[], metavar="flag", dest="unsets")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", dest="envs")
    parser.add_argument("--executable", metavar="PATH", help="program that starts the engine of both: in a venv, say")
    parser.add_argument("--var", action="append", default=[], metavar="name=value", dest="variables")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--pairs", type=int, metavar="N", help=f"{_shows()} (3)")
    size.add_argument("--until", type=float, metavar="PERCENT", help="until the interval is ± so narrow")
    parser.add_argument("--at-most", type=int, metavar="N", help="pairs, with --until (16; 5 at least)")
    parser.add_argument(
        "--max-minutes", type=float, metavar="M", help="no pair is begun that would take longer: it stops"
    )
    parser.add_argument("--metric", default="output_tok_s", help="what is claimed; all others are shown beside it")
    parser.add_argument("--match-temperature", type=float, metavar="C", help="begin each run within C °C of the first")
    parser.add_argument(
        "--throw-away",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="discard the first run of each arm (default: of one, and of each arm that compiles at its first start)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of lengths and arrivals; pair n has seed + n")
    parser.add_argument("--order-seed", type=int, metavar="N", help="of the order inside the pairs (a new one; stored)")
    shape_options(parser)
    turn_option(parser)
    trust_option(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    resume = add(sub, "experiment resume", "go on with one that ended early, or make more pairs")
    resume.add_argument("id", type=int)
    resume.add_argument("--pairs", type=int, metavar="N", help="in all; another number widens the interval")
    resume.add_argument("--max-minutes", type=float, metavar="M", help="from now (default: without end)")
    turn_option(resume)
    resume.add_argument("--yes", action="store_true", help="do not ask")
    show = add(sub, "experiment show", "its pairs, intervals and verdict")
    show.add_argument("id", type=int)
    listed = add(sub, "experiment list", "newest first")
    for action, action_parser in (("resume", resume), ("show", show), ("list", listed)):
        action_parser.set_defaults(command="experiment", action=action)


def _arms(parser: argparse.ArgumentParser) -> None:
    for arm in ("a", "b"):
        name = arm.upper()
        parser.add_argument(
            f"--{arm}", action="append", default=[], metavar='"[TARGET] flag=value …"', help=f"what {name} is"
        )
        parser.add_argument(f"--host-{arm}", metavar="NAME", help=f"the host of {name}, where it is not --host")
        parser.add_argument(f"--executable-{arm}", metavar="PATH", help=f"program that starts the engine of {name}")
        parser.add_argument(f"--unset-{arm}", action="append", default=[], metavar="flag", help=f"not set in {name}")
        parser.add_argument(f"--env-{arm}", action="append", default=[], metavar='"K=V …"', help=f"variables of {name}")
        parser.add_argument(
            f"--gpu-{arm}",
            action="append",
            default=[],
            metavar='"setting=value …"',
            help=f"GPU settings of {name} as in gpu set: power-limit=400 lock-gpu-clocks=210,2400",
        )


def shape_options(parser: argparse.ArgumentParser) -> None:
    """What one run is, as in bench. `shape_of` reads them."""
    parser.add_argument("--profile", metavar="NAME", help="shape of the load: quick, single-stream, batch, …")
    for name in ("concurrency", "requests", "max-tokens", "input-tokens", "warmup"):
        parser.add_argument(f"--{name}", type=int, default=None, metavar="N")
    for name in ("rate", "seconds", "length-spread"):
        parser.add_argument(f"--{name}", type=float, default=None, metavar="X")
    parser.add_argument("--arrival", choices=("poisson", "constant"))
    parser.add_argument("--endpoint", choices=("chat", "completions"))
    parser.add_argument("--until-steady", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--shared-prefix", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--stream", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--prompts", metavar="FILE", dest="prompts_file", help="the person's own, JSON lines")
    parser.add_argument("--extra-body", metavar="JSON", help="more fields for the body of every request")
    parser.add_argument("--command", metavar="TEXT", dest="own_command", help="a workload of the person's own")


_SHAPE = (
    "profile",
    "concurrency",
    "requests",
    "max_tokens",
    "input_tokens",
    "warmup",
    "rate",
    "seconds",
    "length_spread",
    "arrival",
    "endpoint",
    "until_steady",
    "shared_prefix",
    "stream",
    "prompts_file",
)


def shape_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Fields of BenchSpec that were given."""
    from workbench.cli.bench import extra_body, own_command

    given: dict[str, object] = {name: getattr(arguments, name) for name in _SHAPE}
    given["extra_body"] = extra_body(arguments.extra_body)
    given["command"] = own_command(argparse.Namespace(own_command=arguments.own_command, own_words=None))
    return {name: value for name, value in given.items() if value is not None}


def _sweep(sub: Commands) -> None:
    parser = add(sub, "sweep", "one or two flags over values: screened, and the best compared with the start in pairs")
    plan_options(parser)
    trust_option(parser)
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="NAME=v1,v2,…",
        dest="swept",
        required=True,
        help="values to try, one by one; twice for a grid of two flags",
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each value (1)")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="of the best against the start (3; 0: none)")
    parser.add_argument("--max-minutes", type=float, metavar="M", help="for all of it")
    shape_options(parser)
    turn_option(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask before a running server is stopped meanwhile")
    resume = add(sub, "sweep resume", "go on with one that ended early: the values that are missing, then the pairs")
    resume.add_argument("id", type=int)
    resume.add_argument("--max-minutes", type=float, metavar="M", help="from now (default: without end)")
    resume.add_argument("--yes", action="store_true", help="do not ask before a running server is stopped meanwhile")
    turn_option(resume)
    resume.set_defaults(command="sweep", action="resume")
    add(sub, "sweep list", "sweeps that were made, newest first").set_defaults(command="sweep", action="list")
    show = add(sub, "sweep show", "one sweep: its points, knee and notes")
    show.add_argument("id", type=int)
    show.set_defaults(command="sweep", action="show")
