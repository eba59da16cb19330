"""The command `watch`, which judges upgrades at night: the version that a preset pins against a
candidate, in pairs of fresh starts."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.experiment_text import experiment_if_changed
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option, repeatable_option
from workbench.cli.shared_options import IF_MEASURED, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError, WorkbenchError, error_reason

if TYPE_CHECKING:
    from workbench.model.watch import Night, Watch
    from workbench.session.session import Session
    from workbench.session.state import SessionState
    from workbench.store.watches import WatchStore

ALARM_CODE = 4
_SAME_NIGHT_S = 12 * 3600.0
# of this process, which the unit needs to find the same programs, presets and results
_UNIT_VARIABLES = (
    "HOME",
    "PATH",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_PRESET = option("preset PRESET", "the preset whose version is pinned")
_JUNIT = option("--junit FILE", "also write the night as JUnit XML, in place of an older file")
_MARKDOWN = option("--markdown FILE", "also write the night as Markdown, in place of an older file")


def _watch_store() -> WatchStore:
    from workbench.store import paths
    from workbench.store.watches import WatchStore

    return WatchStore(paths.watches_dir())


@command(
    "watch add",
    "watch an upgrade: judge a candidate each night against the version that a preset pins",
    _PRESET,
    option(
        "--candidate CANDIDATE",
        "image:NAME:TAG for a preset that starts a container, or venv:/PATH of another environment",
        required=True,
    ),
    option("--nightly HH:MM", "when `watch install` lets systemd run it (03:00)", default="03:00"),
    repeatable_option(
        "--var name=value", "value of a variable of the preset; repeatable", dest="variables"
    ),
    repeatable_option("--set flag=value", "launch flag of both arms; repeatable", dest="sets"),
    option("--requests N", "requests of each benchmark (as the preset says)", int),
    option("--no-quality", "do not compare the answers"),
    examples=("workbench watch add vllm-any --candidate venv:/opt/vllm-nightly --nightly 03:00",),
)
def add_watch(arguments: argparse.Namespace) -> int:
    from workbench.cli.open_session import read_selected_host_name
    from workbench.model.watch import Watch
    from workbench.session.series.night_watch import validated_candidate

    reject_unstorable_assignments(arguments)
    watch = Watch(
        preset=arguments.preset,
        candidate=validated_candidate(arguments.candidate),
        nightly=_validated_time_of_day(arguments.nightly),
        host=read_selected_host_name(arguments),
        simulate=arguments.simulate,
        variables=tuple(arguments.variables),
        sets=tuple(arguments.sets),
        requests=arguments.requests,
        quality=not arguments.no_quality,
    )
    _check_preset_and_trust_image(arguments, watch)
    _watch_store().add(watch)
    line = (
        f"{watch.watch_name} is watched; `workbench watch run` judges it now, `workbench watch "
        "install` nightly"
    )
    return print_json_or_lines(arguments.json, asdict(watch), line)


def reject_unstorable_assignments(arguments: argparse.Namespace) -> None:
    """Raise InputError for a variable or a flag that is a secret, because watches and bisections
    are stored, and for one without the form name=value."""
    from workbench.cli.plan import parse_variables
    from workbench.model.secrets import is_secret_name

    parse_variables(arguments)
    for word in (*arguments.variables, *arguments.sets):
        if is_secret_name(word.partition("=")[0]):
            raise InputError(
                f"{word.partition('=')[0]} is a secret, which is not stored",
                next_step="leave it out: the preset, or the environment of the command, has it",
            )


def _check_preset_and_trust_image(arguments: argparse.Namespace, watch: Watch) -> None:
    """Check that the preset exists and can start the watch's candidate. Trust the candidate's
    image, which the user has named. Raises InputError if the preset cannot start it."""
    from workbench.cli.open_session import create_session
    from workbench.session.series.night_watch import (
        pinned_and_candidate_arms,
        plan_of_preset_with_variables,
        trust_image_of_candidate,
    )

    plan = plan_of_preset_with_variables(create_session(arguments), watch.preset, watch.variables)
    trust_image_of_candidate(pinned_and_candidate_arms(plan, watch)[2]["B"])


def _validated_time_of_day(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise InputError(f"{text!r} is no time of the day", next_step="give --nightly HH:MM")
    return text


@command("watch list", "list the watches", examples=("workbench watch list",))
def list_watches(arguments: argparse.Namespace) -> int:
    store = _watch_store()
    found = store.watches()
    if not found and not arguments.json:
        print_message("nothing is watched; `workbench watch add` begins")
    lines = [
        f"{one.nightly}  {_host_text_with_simulated_suffix(one)}  {one.preset} {one.candidate}"
        for one in found
    ]
    night = next(iter(store.nights()), None)
    document: dict[str, Any] = {"watches": list(map(asdict, found)), "unfinished_night": None}
    if night is not None and not night.done:
        document["unfinished_night"] = night.id
        lines.append(_unfinished_night_text(night))
    return print_json_or_lines(arguments.json, document, lines)


def _unfinished_night_text(night: Night) -> str:
    from workbench.store.watches import find_unfinished_night

    text = f"night {night.id} is not finished; `workbench watch show {night.id}` shows it"
    if find_unfinished_night([night], _SAME_NIGHT_S) is None:
        return text
    return f"{text}, and `workbench watch run` goes on with it unless it runs now"


def _host_text_with_simulated_suffix(watch: Watch) -> str:
    return f"{watch.host_text}{simulated_suffix(bool(watch.simulate))}"


@command(
    "watch remove",
    "watch an upgrade no longer, on --host or on all hosts; the nights stay",
    _PRESET,
    option("candidate CANDIDATE", "only this candidate of the preset", nargs="?"),
    examples=("workbench watch remove vllm-any",),
)
def remove_watch(arguments: argparse.Namespace) -> int:
    from workbench.cli.open_session import read_selected_host_name
    from workbench.model.watch import Watch

    host, simulate = read_selected_host_name(arguments), arguments.simulate
    host_text = None  # of all hosts
    if host or simulate:
        host_text = Watch(arguments.preset, "", "", host=host, simulate=simulate).host_text
    gone = _watch_store().remove(arguments.preset, arguments.candidate, host_text)
    lines = (f"{one.watch_name} is no longer watched" for one in gone)
    return print_json_or_lines(arguments.json, {"removed": list(map(asdict, gone))}, lines)


@command(
    "watch run",
    "judge the watched upgrades now; exit code 4 if one is worse",
    option("presets PRESET", "only the watches of these presets", nargs="*"),
    option("--at HH:MM", "only the watches of this time"),
    option("--again", "begin a new night, although one is not finished"),
    _JUNIT,
    _MARKDOWN,
    IF_MEASURED,
    YES,
    examples=("workbench watch run --yes --junit night.xml",),
)
async def run_watches(arguments: argparse.Namespace) -> int:
    from workbench.session.series.night_watch import NightRun

    store = _watch_store()
    with store.hold_night_lock():
        night, watches = _find_night_and_watch_names(store, arguments)
        await require_confirmation(
            arguments,
            f"The night starts and stops servers for {', '.join(watches)}. Continue?",
            problem="the night starts and stops servers, and nobody can be asked to confirm",
            next_step="add --yes to confirm",
        )
        if night.id == 0:
            night = store.save(replace(store.add_night(), entries=night.entries))
        print_message(f"night {night.id}")

        @asynccontextmanager
        async def open_watch_session(watch: Watch) -> AsyncIterator[Session]:
            given = {"host": watch.host, "simulate": watch.simulate, "container": None}
            own = argparse.Namespace(**{**vars(arguments), **given, "cluster": None})
            async with connect_session(own) as session:
                await session.servers.list_runs_and_select_one()
                session.subscribe(make_experiment_pair_reporter())
                yield session

        async with cancel_on_signals():
            night = await NightRun(
                night, store, open_watch_session, print_message
            ).run_night_experiments()
    _write_night_files(night, store, arguments)
    _print_night_report(night, store, arguments.json)
    if night.alarm_entries:
        return ALARM_CODE
    return 1 if any(entry.state == "failed" for entry in night.entries) else 0


def make_experiment_pair_reporter() -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints each new verdict of an experiment on stderr, as its pairs of
    runs end."""
    said = ""

    def report(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal said
        now = experiment_if_changed(state, changed)
        if now is None or now.verdict == said:
            return
        said = now.verdict
        if said:
            print_message(f"  experiment {now.id}: {said}")

    return report


def _find_night_and_watch_names(
    store: WatchStore, arguments: argparse.Namespace
) -> tuple[Night, list[str]]:
    """Return the night to run and the names of its watches. It is the unfinished night of the same
    watches if there is one, otherwise a new night with the id 0. Raises InputError if no watch is
    chosen."""
    from workbench.model.watch import Night, NightEntry
    from workbench.store.watches import find_unfinished_night

    if arguments.at is not None:
        _validated_time_of_day(arguments.at)
    chosen = [
        one
        for one in store.watches()
        if (not arguments.presets or one.preset in arguments.presets)
        and arguments.at in (None, one.nightly)
    ]
    if not chosen:
        raise InputError(
            "no watch is chosen", next_step="`workbench watch list` shows what is watched"
        )
    names = [one.watch_name for one in chosen]
    begun = None if arguments.again else find_unfinished_night(store.nights(), _SAME_NIGHT_S)
    if begun is not None and [entry.watch for entry in begun.entries] == chosen:
        print_message(f"night {begun.id} was not finished, and goes on; --again begins a new one")
        return begun, names
    return Night(id=0, unix_s=0.0, entries=tuple(map(NightEntry, chosen))), names


def _write_night_files(night: Night, store: WatchStore, arguments: argparse.Namespace) -> None:
    from workbench.report.formats.markdown import document_text
    from workbench.report.watch_night import night_document, night_junit_xml

    if arguments.junit:
        _write_report_file(arguments.junit, night_junit_xml(night))
    if arguments.markdown:
        _write_report_file(
            arguments.markdown,
            document_text(night_document(night, _list_earlier_nights(night, store))),
        )


def _write_report_file(path_text: str, text: str) -> None:
    path = Path(path_text).expanduser()
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error_reason(error)}",
            next_step="`workbench watch show --junit FILE` writes it to another place",
        ) from None


def _list_earlier_nights(night: Night, store: WatchStore) -> list[Night]:
    return [one for one in store.nights() if one.id < night.id]


def _print_night_report(night: Night, store: WatchStore, as_json: bool) -> None:
    from workbench.report.formats.terminal import block_lines
    from workbench.report.watch_night import night_blocks, verdict_items

    blocks = [*night_blocks(night, _list_earlier_nights(night, store)), verdict_items(night)]
    print_json_or_lines(as_json, asdict(night), block_lines(blocks))


@command(
    "watch show",
    "show a night: alarms, what the engines chose differently, and the history; the newest one",
    option("night NIGHT", "number of a night", int, nargs="?"),
    _JUNIT,
    _MARKDOWN,
    examples=("workbench watch show", "workbench watch show 12 --markdown night.md"),
)
def show_night(arguments: argparse.Namespace) -> int:
    store = _watch_store()
    if arguments.night is not None:
        night = store.get_night(arguments.night)
    else:
        nights = store.nights()
        if not nights:
            raise InputError("no night yet", next_step="`workbench watch run` makes one")
        night = nights[0]
    _write_night_files(night, store, arguments)
    _print_night_report(night, store, arguments.json)
    return 0


@command(
    "watch install",
    "let systemd run the watches at their times; the units are shown first",
    option("--system", "units of the system in place of those of your user; needs root"),
    YES,
    examples=("workbench watch install",),
)
async def install_watches(arguments: argparse.Namespace) -> int:
    times = sorted({one.nightly for one in _watch_store().watches()})
    if not times:
        raise InputError("nothing is watched", next_step="add a watch first: workbench watch add")
    directory = _systemd_units_dir(arguments.system)
    units = {name: text for at in times for name, text in _systemd_unit_texts(at).items()}
    for name, text in units.items():
        print_message(f"{directory / name}:\n{text}")
    timers = [name for name in units if name.endswith(".timer")]
    scope = "--system" if arguments.system else "--user"
    commands = (
        ["systemctl", scope, "daemon-reload"],
        ["systemctl", scope, "enable", "--now", *timers],
    )
    await require_confirmation(
        arguments,
        f"Write these units to {directory} and enable the timers?",
        problem="the units are written only after a confirmation, and nobody can be asked",
        next_step="add --yes to confirm",
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in units.items():
            (directory / name).write_text(text, "utf-8")
    except OSError as error:
        raise WorkbenchError(f"{directory} cannot be written: {error_reason(error)}") from None
    for argv in commands:
        _run_systemctl(argv)
    lines = [f"wrote {directory / name}" for name in units]
    lines += [f"{name} is enabled" for name in timers]
    document = {"directory": str(directory), "units": list(units), "enabled": timers}
    return print_json_or_lines(arguments.json, document, lines)


def _systemd_units_dir(system: bool) -> Path:
    if system:
        return Path("/etc/systemd/system")
    base = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".config"
    return root / "systemd" / "user"


def _systemd_unit_texts(time_of_day: str) -> dict[str, str]:
    """Return the service and the timer of the watches of one time, by file name."""
    from workbench.model.systemd_text import double_dollars, escape_for_unit_quotes, quote_argument

    name = f"workbench-watch-{time_of_day.replace(':', '')}"
    words = [sys.executable, "-m", "workbench", "watch", "run", "--at", time_of_day, "--yes"]
    kept = [name for name in _UNIT_VARIABLES if name in os.environ]
    variables = "".join(
        f'Environment="{n}={escape_for_unit_quotes(os.environ[n])}"\n' for n in kept
    )
    service = (
        f"[Unit]\nDescription=Workbench: the watches of {time_of_day}\n\n[Service]\nType=oneshot\n"
        f"{variables}SuccessExitStatus={ALARM_CODE}\n"
        f"ExecStart={' '.join(quote_argument(double_dollars(word)) for word in words)}\n"
    )
    timer = (
        f"[Unit]\nDescription=Workbench: the watches of {time_of_day}, each night\n\n[Timer]\n"
        f"OnCalendar=*-*-* {time_of_day}:00\nPersistent=false\n\n[Install]\nWantedBy=timers.target\n"
    )
    return {f"{name}.service": service, f"{name}.timer": timer}


def _run_systemctl(argv: list[str]) -> None:
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        said = ran.stderr.strip() if ran.returncode else ""
    except FileNotFoundError:
        said = "there is no systemctl on this machine"
    except subprocess.TimeoutExpired:
        said = "no answer within 60 s"
    if said:
        raise WorkbenchError(
            f"systemd did not take the units: {said}",
            command=" ".join(argv),
            next_step="the files are written: run the command by hand, or call "
            "`workbench watch run --yes` from cron or CI",
        )
