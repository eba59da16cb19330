"""The program that reads, locks and writes the journal of GPU settings on its host.

It reads a request from stdin, a JSON object whose "do" is one of these, and prints its answer:

    read    boot id, load of the driver, text of the journal ("log": with its log?), the register
    lock    {"held": true} and what `read` answers, or {"held": false} and what `holder` answers
    holder  who has locked the journal: {"by": owner or null, "void": whether the lock counts no longer}
    save    writes the journal with fsync and publishes its entries; answers with the register, or
            with {"lost": owner or null} if another owner has the lock, and then writes nothing
    unlock  {}

An answer with "error" says why a request failed, and "answered" repeats the "do". The lock lasts
longer than this program: it names the Workbench, and only that Workbench knows whether its commands
still run.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

# ruff: noqa: PTH103, PTH123
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from workbench.gpu.process_facts import boot_id, driver_module_load_id
from workbench.gpu.settings import register
from workbench.gpu.settings.journal_file import LEASE_S, MOST_BYTES, JournalFile, read_regular_file
from workbench.model import setting_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_FILE = "the journal is a link, a FIFO or a device"
TOO_LARGE = f"the journal is larger than {MOST_BYTES >> 20} MiB, more than Workbench writes"
# errors of reading a file that Workbench cannot have written
_DAMAGE: Mapping[int | None, str] = {
    errno.ELOOP: NO_FILE,
    errno.EINVAL: NO_FILE,
    errno.ENXIO: NO_FILE,
    errno.EFBIG: TOO_LARGE,
}


_LEAST_FREE_BYTES = 4096  # a block; a journal with its log has several


class JournalProgram:
    """Answers requests about the journal in the directory `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.opened: JournalFile | None = None

    @property
    def file(self) -> JournalFile:
        """The journal, whose directory stays open from the first use on. The program has only the
        rights of its user, who may keep the directory behind a link."""
        if self.opened is None:
            self.opened = JournalFile(os.path.realpath(self.root))
        return self.opened

    def close(self) -> None:
        """Close the directory of the journal."""
        if self.opened is not None:
            os.close(self.opened.at)
            self.opened = None

    def answer_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Read, lock, save or unlock the journal, or name the holder of its lock, as `request`
        ("do") says, and return the answer. If that raises OSError, the answer has "error" and
        "errno" instead."""
        do = request["do"]
        try:
            if do == "read":
                return self.read(request["log"])
            if do == "lock":
                return self.lock_journal(request["owner"], request["dead"])
            if do == "holder":
                return self.holder()
            if do == "save":
                return self.save(request)
            self.file.release_lock(request["owner"])
        except OSError as error:
            return {"error": error.strerror or str(error), "errno": error.errno}
        return {}

    def read(self, with_log: bool) -> dict[str, Any]:
        """Return the journal's "text" and, as a JSON text, the content of the "register". "text" is
        None if there is no journal or if it is damaged; "damage" then says why. "full" is true if
        the disk is full, otherwise missing. Without `with_log`, the log in the text is empty."""
        text, damage = self.read_text_or_damage()
        if text is not None and not with_log:
            text = _without_log(text)
        sysfs = os.environ.get("WORKBENCH_SIM_SYSFS", setting_commands.SYSFS)
        return {
            "boot_id": boot_id(),
            "driver_start": driver_module_load_id(sysfs),
            "text": text,
            "damage": damage,
            **({"full": True} if self.disk_is_full() else {}),
            "register": json.dumps(register.publish_entries_and_read_register(self.root, None)),
        }

    def disk_is_full(self) -> bool:
        """Return whether the disk of the journal has no room for a new one, so that a revert cannot
        be written down."""
        try:
            disk = os.fstatvfs(self.file.at)
        except OSError:  # no directory yet
            return False
        blocks = disk.f_bavail if os.geteuid() else disk.f_bfree
        return blocks * disk.f_frsize < _LEAST_FREE_BYTES

    def read_text_or_damage(self) -> tuple[str | None, str | None]:
        """Return (text of the journal, None), or (None, why the file cannot be a journal), or
        (None, None) if there is no journal. Raises OSError if the file cannot be read for another
        reason."""
        try:
            at = self.file.at
        except FileNotFoundError:
            return None, None
        try:
            return read_regular_file(self.file.journal, at).decode("utf-8", "replace"), None
        except FileNotFoundError:
            return None, None
        except OSError as error:
            damage = _DAMAGE.get(error.errno)
            if damage is None:
                raise
            return None, damage

    def lock_journal(self, owner: str, dead_owners: Sequence[str]) -> dict[str, Any]:
        """Try to lock the journal for `owner`. Return {"held": true} and what `read` returns, or
        {"held": false} and what `holder` returns. The locks of the owners in `dead_owners` do not
        count, nor do old locks and those of processes of this host that have ended."""
        os.makedirs(self.root, 0o700, exist_ok=True)
        file = self.file
        file.owner = owner
        held = file.try_to_lock_twice(tuple(dead_owners))
        found = self.holder()
        if not held and found["void"]:
            file.release_lock(found["by"])
            held = file.try_to_lock(())
        if not held:
            return {"held": False, **found}
        try:
            return {"held": True, **self.read(True)}
        except OSError:
            file.release_lock()
            raise

    def holder(self) -> dict[str, Any]:
        """Return {"by": owner of the lock, or None if there is no lock, "void": whether the lock no
        longer counts, because it is old or its owner has ended}."""
        try:
            file = self.file
            owner = os.readlink(file.link, dir_fd=file.at)
            link = os.stat(file.link, dir_fd=file.at, follow_symlinks=False)
        except OSError:
            return {"by": None, "void": False}
        void = _is_journal_lock_outdated(link.st_mtime) or file.owner_has_ended(owner, link.st_uid)
        return {"by": owner, "void": void}

    def save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Write the request's "journal" and publish its entries, if the request's "owner" has the
        lock, and return the register. Otherwise write nothing, and return {"lost": owner of the
        lock or None}. With "aside", keep the old file, which is damaged, under another name. With
        "unlocks", release the lock at the end."""
        file, journal, owner = self.file, request["journal"], request["owner"]
        holder = file.lock_owner()
        if holder != owner:
            return {"lost": holder or None}
        if request["aside"]:
            self.replace_damaged_journal(journal)
        else:
            file.write(journal)
        found = register.publish_entries_and_read_register(self.root, journal["entries"])
        if request["unlocks"]:
            file.release_lock(owner)
        return {"register": json.dumps(found)}

    def replace_damaged_journal(self, journal: Mapping[str, Any]) -> None:
        """Write the journal, and keep the damaged file under another name. If the journal cannot be
        written, the damaged file stays in its place."""
        file, damaged = self.file, f"{self.file.journal}.damaged"
        is_moved = True
        try:
            os.replace(file.journal, damaged, src_dir_fd=file.at, dst_dir_fd=file.at)
        except FileNotFoundError:
            is_moved = False
        try:
            file.write(journal)
        except OSError:
            if is_moved:
                os.replace(damaged, file.journal, src_dir_fd=file.at, dst_dir_fd=file.at)
            raise


def _without_log(text: str) -> str:
    """Return the text of a journal with an empty log. Return it as it is if it is not valid
    JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("log"), list):
            return json.dumps({**found, "log": []})
    return text


def _is_journal_lock_outdated(made_unix_s: float) -> bool:
    """Return whether a lock is older than a plan can take, or than the host's present boot. A date
    in the future counts as old."""
    age_s = time.time() - made_unix_s
    with open("/proc/uptime") as file:
        up_s = float(file.read().split()[0])
    return not -LEASE_S <= age_s <= min(LEASE_S, up_s)


def main() -> None:
    """Answer the request on stdin. argv[1] is JSON: {"root": the journal's directory}."""
    program = JournalProgram(json.loads(sys.argv[1])["root"])
    os.umask(0o077)
    with open(0, "rb", closefd=False) as requests:
        request = json.loads(requests.readline())
        answer = {**program.answer_request(request), "answered": request["do"]}
        print(json.dumps(answer))  # noqa: T201
