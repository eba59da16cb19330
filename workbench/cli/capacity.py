"""The command `capacity`, which searches the number of users, or the rate of requests, that a
server serves under limits on its latencies, and its subcommands that resume, show and list
searches."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.cli.experiment_text import format_duration
from workbench.cli.gpu_verify import TARGET, refuse_run_with_url
from workbench.cli.load_options import CLIENT, SHAPE, SIZE, read_load_options
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_message
from workbench.cli.registry import Option, command, option
from workbench.cli.servers import wait_for_ready_run_id
from workbench.cli.shared_options import IF_MEASURED, MAX_MINUTES_LEFT, select_given
from workbench.cli.stop_signals import cancel_on_signals
from workbench.cli.sweeps import (
    list_stored_sweeps,
    load_stored_sweep,
    load_sweep_to_resume,
    make_sweep_listener,
    print_sweep,
    print_sweep_list,
    report_resume_command_if_cancelled,
)
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.load_spec import OF_A_SEARCH
from workbench.model.slo import share_text
from workbench.model.sweep import USERS

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep
    from workbench.session.series.rate_capacity import RateRange
    from workbench.session.series.user_capacity import UserLevels
    from workbench.session.session import Session
    from workbench.session.state import SessionState

_DECIDED = frozenset(one.dest for one in OF_A_SEARCH)
_LOAD = tuple(
    each
    for each in (*SIZE, *SHAPE, *CLIENT)
    if not isinstance(each, Option) or each.dest not in _DECIDED
)


def parse_users_or_rate(text: str) -> float:
    """Return a number of users or a rate, which must be above 0. Raises ArgumentTypeError for other
    texts."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


@command(
    "capacity",
    "search how many users, or with --rate how many requests per second, a server serves within "
    "limits on its latencies (--slo)",
    *TARGET,
    option(
        "--rate",
        "search requests per second instead of users: a bracket over the --horizon",
        dest="of_rates",
    ),
    option(
        "--horizon M",
        "minutes over which a rate must keep the limits (10); at least 1,000 requests",
        float,
    ),
    option(
        "--from N",
        "number of users (8), or rate (2), to begin with",
        parse_users_or_rate,
        dest="first_level",
    ),
    option(
        "--most N",
        "highest number of users (4096), or rate (2000), to try",
        parse_users_or_rate,
        dest="most_level",
    ),
    option("--max-minutes M", "time limit of the search; `capacity resume` continues it", float),
    *_LOAD,
    usage="workbench capacity [RUN | --url URL] --slo LIMITS [OPTION…]\n"
    "       workbench capacity resume|show|list …",
    examples=(
        "workbench capacity RUN --slo 'ttft<=500@p95, tpot<=40@p95'",
        "workbench capacity RUN --rate --slo 'ttft<=500@p95' --horizon 5",
        "workbench capacity --url http://127.0.0.1:8000 --slo 'e2e<=8s@p99' --most 64",
    ),
)
async def search_capacity(arguments: argparse.Namespace) -> int:
    refuse_run_with_url(arguments)
    if arguments.of_rates:
        return await _search_rate_capacity(arguments)
    if arguments.horizon is not None:
        raise InputError(
            "--horizon is the time over which a rate counts, and users are searched",
            next_step="leave it out, or add --rate",
        )
    return await _search_user_capacity(arguments)


async def _search_user_capacity(arguments: argparse.Namespace) -> int:
    from workbench.session.series.user_capacity import UserLevels

    given = select_given({"first": arguments.first_level, "most": arguments.most_level})
    broken = next((each for each in given.values() if each % 1), None)
    if broken is not None:
        raise InputError(
            f"{broken:g} users are not possible",
            next_step="give a whole number, or search a rate with --rate",
        )
    numbers = {name: int(value) for name, value in given.items()}
    if arguments.first_level is None and "most" in numbers:
        numbers["first"] = min(numbers["most"], UserLevels().first)
    levels = UserLevels(**numbers)
    load = read_load_options(arguments)
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        run_id = await wait_for_ready_run_id(session, arguments.run)
        plan = tuple(_user_search_plan_lines(session, levels, run_id, arguments))
        session.subscribe(make_capacity_run_reporter(arguments, plan))
        sweep = await session.sweeps.run_user_capacity_search(
            levels,
            run_id=run_id,
            url=arguments.url,
            max_minutes=arguments.max_minutes,
            **load,
        )
    return print_sweep(sweep, arguments.json)


async def _search_rate_capacity(arguments: argparse.Namespace) -> int:
    from workbench.session.series.rate_capacity import RateRange

    horizon_s = None if arguments.horizon is None else 60 * arguments.horizon
    given = {"first": arguments.first_level, "most": arguments.most_level, "horizon_s": horizon_s}
    rates = RateRange(**select_given(given))
    load = read_load_options(arguments)
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        run_id = await wait_for_ready_run_id(session, arguments.run)
        session.subscribe(
            make_capacity_run_reporter(arguments, tuple(_rate_search_plan_lines(rates)))
        )
        sweep = await session.sweeps.run_rate_capacity_search(
            rates,
            run_id=run_id,
            url=arguments.url,
            max_minutes=arguments.max_minutes,
            **load,
        )
    return print_sweep(sweep, arguments.json)


def _rate_search_plan_lines(rates: RateRange) -> Iterator[str]:
    from workbench.bench.rate_capacity import (
        MIN_REQUESTS_TO_HOLD,
        TYPICAL_FULL_RUNS,
        TYPICAL_SHORT_RUNS,
        rate_text,
        short_run_duration_s,
    )

    look = format_duration(short_run_duration_s(rates.first_rate, rates.horizon_s))
    yield (
        f"starts at {rate_text(rates.first_rate)}: looks of {look} find the region, then each rate is "
        f"measured over {format_duration(rates.horizon_s)}, with at least {MIN_REQUESTS_TO_HOLD:,} requests"
    )
    runs = f"{TYPICAL_SHORT_RUNS} looks and {TYPICAL_FULL_RUNS} runs"
    yield f"takes about {format_duration(rates.typical_search_s)} ({runs}); a number of users is found sooner"


def _user_search_plan_lines(
    session: Session, levels: UserLevels, run_id: str | None, arguments: argparse.Namespace
) -> Iterator[str]:
    from workbench.bench.user_capacity import (
        MAX_RUNS_PER_LEVEL,
        MIN_REQUESTS_PER_USER,
        MIN_RUNS_PER_LEVEL,
        TYPICAL_RUNS,
    )

    yield (
        f"starts at {count_of(levels.first, 'user')}; each level is measured in {MIN_RUNS_PER_LEVEL} to "
        f"{MAX_RUNS_PER_LEVEL} runs of at least {MIN_REQUESTS_PER_USER} requests per user"
    )
    took_s = session.sweeps.typical_user_capacity_run_s(levels, run_id, arguments.url)
    runs = min(TYPICAL_RUNS, MAX_RUNS_PER_LEVEL * levels.most)
    if took_s is None:
        yield f"takes about {runs} runs; their duration is known after the first one"
    else:
        yield f"takes about {format_duration(runs * took_s)} ({runs} runs)"


_ID = option("id", "id of a search; `workbench capacity list` lists them", int)
_A_SEARCH = "a search for users or a rate"


@command(
    "capacity resume",
    "resume a search that ended early; the levels that were measured are kept",
    _ID,
    MAX_MINUTES_LEFT,
    IF_MEASURED,
    examples=("workbench capacity resume 2",),
)
async def resume_capacity_search(arguments: argparse.Namespace) -> int:
    stored = load_sweep_to_resume(arguments, USERS.command, _A_SEARCH)
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        await session.servers.list_runs_and_select_one()
        session.subscribe(make_capacity_run_reporter(arguments, (), stored))
        sweep = await session.sweeps.resume(stored.id, max_minutes=arguments.max_minutes)
    return print_sweep(sweep, arguments.json)


@command(
    "capacity show",
    "show a search: its answer, the levels that were measured, and notes",
    _ID,
    examples=("workbench capacity show 2",),
)
def show_capacity_search(arguments: argparse.Namespace) -> int:
    print_sweep(load_stored_sweep(arguments, USERS.command, _A_SEARCH), arguments.json)
    return 0


@command(
    "capacity list",
    "list the searches, newest first",
    examples=("workbench capacity list",),
)
def list_capacity_searches(arguments: argparse.Namespace) -> int:
    return print_sweep_list(list_stored_sweeps(USERS.command), arguments.json, "searches")


def make_capacity_run_reporter(
    arguments: argparse.Namespace, plan: Sequence[str], resumed: Sweep | None = None
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints on stderr the lines of the `plan` when the search starts, and
    then each run with the verdict on its level so far. With --json, it prints nothing. Runs that
    the `resumed` search made earlier are not printed again."""
    printed = {p.label: len(p.result_ids) for p in resumed.points} if resumed else {}
    unsaid = list(plan)

    def report(sweep: Sweep) -> None:
        while unsaid:
            print_message(unsaid.pop(0))
        for point in sweep.points:
            runs = len(point.result_ids)
            if runs <= printed.get(point.label, 0) or point.slo_verdict is None:
                continue
            printed[point.label] = runs
            left = f"; about {format_duration(sweep.left_s)} left" if sweep.left_s else ""
            kept = "n/a" if point.slo_pct is None else share_text(point.slo_pct)
            print_message(
                f"{point.label}, run {runs}: {kept} within the SLO, {point.slo_verdict}{left}"
            )

    return make_sweep_listener(arguments, report)
