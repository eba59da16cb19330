"""The watches and their nights: one file of all watches, and one for each night. A night is written
after each step, so that a killed one goes on with what was measured."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_json, to_json
from workbench.model.untrusted_text import clean_json
from workbench.model.watch import Night, Watch
from workbench.store.numbered_files import next_record_number, record_numbers_in
from workbench.store.series_lock import hold_lock
from workbench.store.text_files import write_atomic

_NEXT_STEP = "correct or remove the file; `workbench watch list` shows the watches"


class WatchStore:
    """The files in `directory`. Methods raise StoreError, and InputError for an unknown watch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def _watches_file(self) -> Path:
        return self.directory / "watches.json"

    def watches(self) -> tuple[Watch, ...]:
        """Return the watches in the order in which they were added. Raises StoreError if their file
        is damaged."""
        text = _read_text(self._watches_file)
        if text is None:
            return ()
        try:
            return tuple(from_json(Watch, each) for each in clean_json(text)["watches"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"the watches in {self._watches_file} are damaged: {error}", next_step=_NEXT_STEP
            ) from None

    def add(self, watch: Watch) -> None:
        """Store a watch. Raises InputError if there is one of this preset, candidate and host."""
        with self._hold_change_lock():
            known = self.watches()
            if any(one.watch_name == watch.watch_name for one in known):
                raise InputError(
                    f"{watch.watch_name} is watched already",
                    next_step=f"remove it first: `{_remove_command(watch)}`",
                )
            self._save((*known, watch))

    def remove(
        self, preset: str, candidate: str | None = None, host_text: str | None = None
    ) -> tuple[Watch, ...]:
        """Remove the watches of a preset, and return them. With `candidate` or `host_text`, remove
        only those of that candidate or host. Raises InputError if there are none."""
        with self._hold_change_lock():
            known = self.watches()
            gone = tuple(
                one
                for one in known
                if one.preset == preset
                and candidate in (None, one.candidate)
                and host_text in (None, one.host_text)
            )
            if not gone:
                on_host = f"on {host_text}" if host_text else None
                raise InputError(
                    f"{' '.join(filter(None, (preset, candidate, on_host)))} is not watched",
                    next_step="`workbench watch list` shows the watches",
                )
            self._save(tuple(one for one in known if one not in gone))
            return gone

    def _save(self, watches: Sequence[Watch]) -> None:
        document = {"watches": [to_json(one) for one in watches]}
        write_atomic(self._watches_file, json.dumps(document, indent=1))

    def _hold_change_lock(self) -> AbstractContextManager[None]:
        return hold_lock(self.directory / "watches.lock", "a change of the watches")

    # ---- nights

    def hold_night_lock(self) -> AbstractContextManager[None]:
        """Return the lock of the nights as a context manager, so that only one Workbench measures
        them. Entering raises InputError if another Workbench holds the lock."""
        return hold_lock(self.directory / "night.lock", "the watches")

    def nights(self) -> tuple[Night, ...]:
        """Return the nights, newest first. Damaged ones are left out."""
        found = []
        for number in sorted(record_numbers_in(self.directory), reverse=True):
            with contextlib.suppress(StoreError):
                found.append(self.get_night(number))
        return tuple(found)

    def get_night(self, number: int) -> Night:
        """Return a stored night. Raises InputError if there is none with this number, and
        StoreError if it is damaged."""
        text = _read_text(self._path(number))
        if text is None:
            raise InputError(
                f"there is no night {number}", next_step="`workbench watch show` lists the nights"
            )
        try:
            return from_json(Night, clean_json(text))
        except ValueError as error:
            raise StoreError(
                f"night {number} in {self._path(number)} is damaged: {error}", next_step=_NEXT_STEP
            ) from None

    def add_night(self) -> Night:
        """Store a new night and return it."""
        night = Night(id=next_record_number(self.directory), unix_s=time.time())
        self.save(night)
        return night

    def save(self, night: Night) -> Night:
        write_atomic(self._path(night.id), json.dumps(to_json(night), indent=1))
        return night

    def _path(self, number: int) -> Path:
        return self.directory / f"{number}.json"


def find_unfinished_night(nights: Sequence[Night], within_s: float) -> Night | None:
    """Return the newest night if it is not done and began within the last `within_s` seconds, else
    None. `nights` are newest first."""
    if not nights:
        return None
    newest = nights[0]
    if newest.done or time.time() - newest.unix_s > within_s:
        return None
    return newest


def _remove_command(watch: Watch) -> str:
    """Return the command that removes a watch, and none of other hosts."""
    host_words = ("--host", watch.host_text)  # also of this machine and of simulated hosts
    words = ("workbench", *host_words, "watch", "remove", watch.preset, watch.candidate)
    return shlex.join(words)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}", next_step=_NEXT_STEP) from None
