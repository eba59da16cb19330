"""The guard's client: starts the guard on a host of any kind, gives it instructions, and reads its
state.

The guard's instructions are in the journal, under each entry's `watch` (guard.py lists them). Every
function here that changes these instructions locks the journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from workbench.gpu.guard.files import GUARD_VERSION
from workbench.gpu.remote_programs import GUARD_PROGRAM
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings.journal import KEPT_STATE, Journal, JournalEntry, LockedJournal
from workbench.gpu.settings.rights import (
    ENGLISH_LOCALE,
    SUDO_WITH_PASSWORD,
    Rights,
    sudo_permission_for,
)
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.hosts.python_programs import TOO_OLD
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import SUDO, shell_argv
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import GuardView
from workbench.model.settings import HOST, value_to_store
from workbench.model.untrusted_numbers import (
    number_for_field,
    parse_decimal,
    parse_strict_json,
    range_of_field,
)
from workbench.model.untrusted_text import clean_text

START_S = 30.0
STALLED_AFTER_S = 20.0  # a guard completes a round at least every 5 s
MOST_UPTIME_S = 1e10
JOURNAL_REREAD_S = 3.0  # time for the guard to read a changed journal
NO_PYTHON = "the guard needs python3 3.8 or later, which this host lacks"

READ_STATUS_SCRIPT = read_script(__file__, "read_guard_status.sh")
# $1: the guard's directory, $2: the reported act. The old file is removed first: a FIFO in its
# place would block.
MARK_GUARD_ACTION_SEEN_SCRIPT = 'rm -f -- "$1/told" && printf "%s\\n" "$2" >"$1/told"'


def own_heartbeat_file_name() -> str:
    """Return the name of the file that this process touches as its heartbeat for the guard:
    "BOOT_ID.PID.START_TIME"."""
    owner = journals.identity_of_this_process()
    return f"{owner['boot_id']}.{owner['pid']}.{owner['start']}"


@dataclass(frozen=True, slots=True)
class GuardTerms:
    """The conditions under which the guard reverts one change: no heartbeat for `heartbeat_s`, or
    no confirmation of a trial within `trial_s`. `heartbeat_s` is None if this Workbench ends after
    the change and sends no heartbeat. `trial_s` is None if the change is not a trial."""

    rights: Rights
    heartbeat_s: float | None = None
    trial_s: float | None = None
    trial: str = field(default_factory=lambda: os.urandom(6).hex())

    def guard_instructions_for(
        self, entry: JournalEntry, earlier: JournalEntry | None
    ) -> dict[str, Any]:
        """Return the guard's instructions for `entry`, a new entry of the journal, as a dict for
        its field `watch`. `earlier` is the journal's present entry of the same setting, None if it
        has none. The key "back" has the fields that the guard restores instead of reverting: those
        of `earlier` if this change is a trial, or those of a setting that the user chose to
        keep."""
        made: dict[str, Any] = {"heartbeat_s": self.heartbeat_s}
        if self.trial_s is not None:
            made |= {"trial": self.trial, "trial_s": self.trial_s}
        if (
            earlier is not None
            and earlier.boot_id == entry.boot_id
            and earlier.state != setting_commands.PENDING
        ):
            if self.trial_s is not None or earlier.state == KEPT_STATE:
                kept = {name: getattr(earlier, name) for name in ("state", "watch", "owner", "who")}
                made["back"] = {**kept, "now": value_to_store(earlier.now)}
            elif earlier.watch.get("back", {}).get("state") == KEPT_STATE:
                made["back"] = earlier.watch["back"]
        return made


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """The state of the guard. `seen_action` is the Unix time, as text, of the last revert by the
    guard that the user was shown; "-" if there was none. `owners` are the names of the heartbeat
    files of those Workbenches whose heartbeats the guard expects."""

    view: GuardView
    seen_action: str = "-"
    owners: tuple[str, ...] = ()


async def guard_directory(host: Host) -> str:
    return f"{await host.state_dir()}/gpu/guard"


async def start_guard(
    host: Host, terms: GuardTerms, journal: Journal, **options: float
) -> GuardView:
    """Start the guard on the host and return its state. If a guard runs already, wait until it has
    read the changed `journal`, which the caller has locked. `options` are arguments of the class
    `Guard`. If no guard could be started, `running` of the result is False and `problem` says why.
    Raises HostUnreachable if the link is lost."""
    root, rights = f"{await host.state_dir()}/gpu", terms.rights
    log = f"{root}/guard/log"
    try:
        orders = {
            "root": root,
            "register": journal.register.directory,
            "nvidia_smi": rights.nvidia_smi,
            "tee": rights.tee,
            "sudo": list(rights.prefix),
            "options": options,
        }
        how, why = _root_prefix_and_problem(
            rights, journal, GUARD_PROGRAM.argv(rights.python3, False, orders)
        )
        if why is not None:
            return GuardView(False, problem=why)
        # root imports no file of the user's
        local = host.is_local and bool(sys.executable) and not how
        python = "python3"
        if local:
            python = sys.executable
        elif how:
            python = rights.python3
        argv = GUARD_PROGRAM.argv(python, local, orders)
        password = f"{rights.password}\n".encode() if how == SUDO_WITH_PASSWORD else b""
        # the guard of a Workbench that is root serves root
        env = ENGLISH_LOCALE if how else {"SUDO_UID": "0"}
        done = await host.run(
            (*how, *argv),
            input=password + GUARD_PROGRAM.stdin_frame(local),
            timeout_s=START_S,
            env=env,
        )
    except CommandNotFound:
        return GuardView(False, problem=NO_PYTHON)
    except HostUnreachable:
        raise  # no command could be sent either
    except HostError as error:
        return GuardView(False, problem=error.message, log=log)
    if done.returncode in (TOO_OLD, 126, 127):
        return GuardView(False, problem=NO_PYTHON)
    try:
        answer = dict(parse_strict_json(done.out.splitlines()[-1]))
    except (ValueError, IndexError, TypeError, RecursionError):
        why = f"the guard could not be started: {done.problem}"
        return GuardView(False, problem=why, log=log)
    if "error" in answer:
        return GuardView(False, problem=clean_text(str(answer["error"])), log=log)
    view = (await read_guard_status(host)).view
    if not view.running and view.problem is None:
        why = (
            f"the guard (process {answer.get('pid')}) started, but its state in {root}/guard "
            "cannot be read"
        )
        view = replace(view, problem=why, log=log)
    return view


def _root_prefix_and_problem(
    rights: Rights, journal: Journal, argv: Sequence[str]
) -> tuple[tuple[str, ...], str | None]:
    """Return (prefix, problem). `prefix` is the sudo command to put before `argv`, the command that
    starts the guard. It is () if the guard needs no root, or can call sudo itself without a
    password. `problem` says why a guard could not revert the settings, None if it could."""
    if not rights.prefix:
        return (), None
    back = [
        step.argv
        for entry in journal.entries
        if entry.watch and entry.gpu_uuid != HOST
        for step in setting_commands.commands_to_set_value(
            entry.gpu_uuid,
            entry.setting,
            setting_commands.value_to_restore(entry.before),
            nvidia_smi=rights.nvidia_smi,
        )
    ]
    if back and all(sudo_permission_for(rights.rules, command) == "free" for command in back):
        return (), None
    how = rights.sudo_permission_now(argv) if rights.python3 else ""
    if how == "free":
        return SUDO, None
    if how and rights.password is not None:
        return SUDO_WITH_PASSWORD, None
    return (), (
        "the guard cannot revert anything: sudo must allow python3 as root, or the "
        "commands that revert"
    )


async def read_guard_status(host: Host, heartbeat_file: str = "") -> GuardStatus:
    """Return the state of the guard. `heartbeat_file` is the name of a heartbeat file, which is
    then touched as a new heartbeat, or "" for none. Raises HostError if the host is out of
    reach."""
    home = await guard_directory(host)
    done = await host.run(shell_argv(READ_STATUS_SCRIPT, home, heartbeat_file))
    head, _, state = done.out.partition("\n\n")
    if not state.strip():
        return GuardStatus(GuardView(False))
    now, seen_action, boot_id, process_state, rounds, *beats = [
        *head.split("\n"),
        *[""] * 5,
    ]
    heartbeat_ages_s = {}
    for line in filter(None, beats):
        at, _, name = line.partition(" ")
        heartbeat_ages_s[name.removeprefix("beats/")] = max(
            0.0, _parse_seconds(now) - _parse_seconds(at)
        )
    try:
        stored_state = json.loads(state)
        if not setting_commands.has_only_bounded_numbers(stored_state):
            raise ValueError(
                "the guard's state contains a number that Workbench cannot have written"
            )
        seen = _parse_guard_status(
            stored_state,
            int(_parse_seconds(now)),
            seen_action,
            boot_id,
            process_state,
            heartbeat_ages_s,
            home,
            _round_age_s(rounds),
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        seen = GuardStatus(
            GuardView(False, problem=f"the guard's state {home}/state.json is damaged ({error!r})")
        )
    if seen.view.problem and not seen.view.running and await _journal_has_nothing_to_watch(host):
        return replace(seen, view=replace(seen.view, problem=None))
    return seen


def _parse_seconds(text: str) -> float:
    return parse_decimal(text, *range_of_field("unix_s")) or 0.0


async def _journal_has_nothing_to_watch(host: Host) -> bool:
    try:
        journal = await journals.read_journal(host, with_log=False)
    except SettingsError:
        return False
    return not any(entry.is_watched for entry in _entries_that_still_apply(journal))


def _parse_guard_status(
    stored_state: Mapping[str, Any],
    now: int,
    seen_action: str,
    boot_id: str,
    process_state: str,
    heartbeat_ages_s: Mapping[str, float],
    home: str,
    round_age_s: float | None,
) -> GuardStatus:
    running, guarding, problem = _running_guarding_and_problem(
        stored_state, boot_id, process_state, round_age_s
    )
    running_state = stored_state if running else {}
    waits = {owner: s for owner, s in running_state.get("heartbeats", {}).items() if s}
    until = running_state.get("trials_until_unix_s", {}).values()
    trial_left_s = max(0.0, min(until) - now) if until else None
    if problem and trial_left_s is not None and trial_left_s < 1:  # `now` has whole seconds
        trial_left_s = None  # `problem` says why the revert failed
    return GuardStatus(
        GuardView(
            running=running,
            pid=running_state.get("pid"),
            since_unix_s=number_for_field("unix_s", running_state.get("since_unix_s")),
            heartbeat_s=min(waits.values(), default=None),
            heartbeat_age_s=max(
                (heartbeat_ages_s[owner] for owner in waits if owner in heartbeat_ages_s),
                default=None,
            ),
            trial_left_s=trial_left_s,
            temperature_limits_c={
                uuid: limit
                for uuid, limit in stored_state.get("limits_c", {}).items()
                if number_for_field("limit_c", limit) is not None
            },
            did=stored_state.get("did"),
            did_unix_s=number_for_field("unix_s", stored_state.get("did_unix_s")),
            log=f"{home}/log",
            note=running_state.get("note"),
            problem=problem,
            guarding=guarding,
        ),
        seen_action,
        tuple(waits),
    )


def _running_guarding_and_problem(
    stored_state: Mapping[str, Any], boot_id: str, process_state: str, round_age_s: float | None
) -> tuple[bool, bool, Any]:
    """Return (whether the guard runs, whether it guards the settings, what is wrong with it, None
    if nothing is)."""
    problem, pid = stored_state.get("problem"), stored_state.get("pid")
    if not stored_state.get("running") or stored_state.get("boot_id") != boot_id:
        return False, False, problem  # after a restart, the settings are gone as well
    if process_state in ("gone", "Z", "X"):
        problem = f"the guard (process {pid}) was killed: nothing guards the settings"
        return False, False, problem
    if process_state in ("T", "t"):
        return True, False, f"it is stopped: kill -CONT {pid} resumes it"
    if stored_state.get("version", 1) < GUARD_VERSION:
        problem = (
            "it is of an earlier Workbench: it acts by the rules of that version, and only on what "
            "that version has set; the next change of a setting asks it to make way, and "
            f"`kill {pid}` ends it"
        )
        return True, False, problem
    if round_age_s is not None and round_age_s > STALLED_AFTER_S:
        problem = f"it has completed no round for {round_age_s:.0f} s; its log says why"
        return True, False, problem
    return True, True, problem


def _round_age_s(rounds: str) -> float | None:
    """Return the seconds since the guard completed its last round. `rounds` has two times since the
    boot, in seconds: now, and of that round. None if the guard has written no time, or if one of
    them is not a number."""
    now, _, then = rounds.partition(" ")
    now_s, then_s = parse_decimal(now, 0, MOST_UPTIME_S), parse_decimal(then, 0, MOST_UPTIME_S)
    if now_s is None or then_s is None:
        return None
    return max(0.0, float(now_s) - float(then_s))


async def mark_guard_action_seen(host: Host, did_unix_s: float) -> None:
    await host.run(
        shell_argv(MARK_GUARD_ACTION_SEEN_SCRIPT, await guard_directory(host), str(did_unix_s))
    )


async def confirm_setting_trials(host: Host, heartbeat_s: float | None = None) -> GuardView:
    """Confirm the running trials on this host, so that their settings stay, and return the guard's
    state. With `heartbeat_s`, the guard from now on reverts all watched settings after
    `heartbeat_s` seconds without a heartbeat of this Workbench. Raises SettingsError if no trial
    runs and `heartbeat_s` applies to no setting."""
    async with journals.locked_journal(host) as held:
        living = _entries_that_still_apply(held.journal)
        tried = [e for e in living if e.watch.get("trial")]
        watched = [e for e in living if e.is_watched]
        changed = watched if heartbeat_s else tried
        if not (tried or changed):
            raise SettingsError(
                "no trial of GPU settings runs on this host",
                host=host.name,
                next_step=await _describe_last_guard_action(host),
            )
        state = held.journal
        for entry in changed:
            ends = {"trial", "trial_s"}
            if entry.watch.get("back", {}).get("state") != KEPT_STATE:
                ends.add("back")
            watch = {k: v for k, v in entry.watch.items() if k not in ends}
            entry = replace(entry, watch=watch)
            if heartbeat_s:
                owner = journals.identity_of_this_process()
                entry = replace(
                    entry,
                    owner=owner,
                    who=journals.current_user_at_machine(),
                    watch={**watch, "heartbeat_s": heartbeat_s},
                )
            state = state.with_entry(entry)
        for entry in tried:
            state = state.with_log_line(
                "confirm", gpu_uuid=entry.gpu_uuid, setting=entry.setting, now=entry.now, ok=True
            )
        await held.save(state)
    return _add_recovery_note(
        await _poll_guard_until(host, lambda view: view.trial_left_s is None), held
    )


async def mark_all_settings_kept(host: Host) -> GuardView:
    """Mark all settings that Workbench changed on this host as kept, so that the guard does not
    revert them, and return the guard's state. The guard then ends, because no setting is left to
    watch. Raises SettingsError if Workbench has changed no setting on the host, or if all are kept
    already."""
    async with journals.locked_journal(host) as held:
        state = held.journal
        left = [e for e in _entries_that_still_apply(state) if e.state != KEPT_STATE]
        if not left:
            raise SettingsError(
                "Workbench has changed no GPU setting on this host, so there is no setting to keep",
                host=host.name,
                next_step=await _describe_last_guard_action(host),
            )
        for entry in left:
            state = state.with_entry(replace(entry, state=KEPT_STATE, watch={}))
            state = state.with_log_line(
                "keep", gpu_uuid=entry.gpu_uuid, setting=entry.setting, now=entry.now, ok=True
            )
        await held.save(state)
    return _add_recovery_note(await _poll_guard_until(host, lambda view: not view.running), held)


def _add_recovery_note(view: GuardView, held: LockedJournal) -> GuardView:
    """Return the guard's state, with a note if the journal was recovered from the register."""
    if held.recovery is None:
        return view
    return replace(view, note="; ".join(filter(None, (held.recovery.text, view.note))))


def _entries_that_still_apply(journal: Journal) -> list[JournalEntry]:
    return [e for e in journal.entries if journal.why_setting_is_lost(e) is None]


async def _describe_last_guard_action(host: Host) -> str:
    view = (await read_guard_status(host)).view
    if not view.did:
        return "`workbench gpu status` shows the altered settings"
    return f"the guard {view.did}"


async def _poll_guard_until(host: Host, is_done: Callable[[GuardView], bool]) -> GuardView:
    """Read the guard's state again and again, until `is_done(state)` is true, the state names a
    problem, or JOURNAL_REREAD_S seconds have passed. Return the last state."""
    until = time.monotonic() + JOURNAL_REREAD_S
    while True:
        view = (await read_guard_status(host)).view
        if is_done(view) or view.problem or time.monotonic() > until:
            return view
        await asyncio.sleep(0.1)
