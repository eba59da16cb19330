"""The host's register of GPU settings: each Workbench publishes the entries of its journal there.

The register has one file for each journal, in a directory of root that every user can write to and
that is sticky, such as /var/tmp. There, only root can change or remove another user's file, so the
owner of a file is the user who makes its claims. Files of other users are read with care (only
regular files of limited size, no links, no FIFOs), checked, and used as information only.

A file is never changed. A new file with a name that nobody can guess is written first, then the old
one is removed. Of two files of one journal, the newer one counts. If the disk is full, the old one
is removed first: a claim that is no longer true misleads other users more than none.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH116, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import stat
import time
from collections.abc import Iterator, Mapping, Sequence

from workbench.gpu.process_facts import boot_id, start_ticks_of_process, uids_of_process
from workbench.model import setting_commands
from workbench.model.untrusted_numbers import (
    MOST_GPUS,
    integer_or_none,
    number_for_field,
    parse_strict_json,
)

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

PLACES = ("/run/lock", "/var/tmp")  # the first usable one is the same for every user of a host
PREFIX = setting_commands.REGISTER_PREFIX
MOST_BYTES = 256 * 1024
MOST_FILES = 32  # of one user
RECENT_S = 60.0  # an older change by a process of another machine is over
LEASE_S = 600.0  # an older change by a process of this machine is over: no plan takes that long
MOST_VERSION = 1000
MOST_CLAIMS = 640  # of one user
MOST_ENTRIES = 320  # of one file: five settings of 64 GPUs
TRIES = 20
WRITE_RETRIES_S = 2.0  # no user can delay the others by files that come and go
OVERFLOW_UID = 65_534  # of files whose owner has no id in this container
# of settings that were set and reverted: longer than any measurement
CHANGES_KEPT, CHANGES_KEPT_S = 64, 4 * 3600.0


def find_or_create_register_directory(named: str | None = None) -> str:
    """Return the directory of the register: the first usable one of PLACES, or `named` if it is
    given, which is created if it is missing. Raises OSError if no directory is usable."""
    if named:
        with contextlib.suppress(FileExistsError):
            os.mkdir(named)
            os.chmod(named, 0o1777)
        found = os.stat(named)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, "Not a directory", named)
        if not _only_file_owner_can_change(found):
            raise OSError(1, "users other than root can change the files of others there", named)
        return named
    for path in PLACES:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if (
                stat.S_ISDIR(found.st_mode)
                and found.st_uid == 0
                and found.st_mode & 0o1777 == 0o1777
            ):
                return path
    raise OSError(
        2, f"none of {', '.join(PLACES)} is a sticky directory of root that every user can write to"
    )


def _only_file_owner_can_change(found: os.stat_result) -> bool:
    """Return whether only the owner of a file can change or remove it in the directory `found`, so
    that users can trust the names of owners there. The directory must belong to root, to this user,
    or to the root of a host around this container."""
    trusted = found.st_uid in (0, os.geteuid(), OVERFLOW_UID)
    shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return stat.S_ISDIR(found.st_mode) and trusted and not shared


def register_file_name(root: str) -> str:
    """Return the name under which the register knows the journal in the directory `root`: 16
    hexadecimal digits of a hash, which do not reveal the directory."""
    return _sha256(root.rstrip("/").encode())[:16]


def _sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal digits. hashlib would load OpenSSL, which takes 1
    MiB of a guard that runs for days, so it is used only if this Python has no SHA-256 of its own.
    """
    for module in ("_sha2", "_sha256"):  # since Python 3.12, and before
        with contextlib.suppress(ImportError):
            return str(__import__(module).sha256(data).hexdigest())
    import hashlib

    return hashlib.sha256(data).hexdigest()


# ---- reading


def read_register(directory: str, boot_id: str) -> list[dict[str, Any]]:
    """Return a dict for each journal in the register that records a change since the boot
    `boot_id`: "uid" and "user" (its owner), "journal" (its name), "entries" (its changed settings)
    and "changes" (recent times at which it set or reverted a setting)."""
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    until = time.monotonic() + WRITE_RETRIES_S
    for _ in range(TRIES):  # a file that vanished meanwhile has a newer one in its place
        names, newest = _register_file_names(directory), {}
        for path, uid in _register_paths_and_uids(directory, names):
            found = _load_register_file(path, uid)
            if found is not None and found["boot_id"] == boot_id:
                key = (uid, found["journal"])
                if key not in newest or newest[key]["made_ns"] < found["made_ns"]:
                    newest[key] = found
        if set(names) <= set(_register_file_names(directory)) or time.monotonic() > until:
            break
    kept = _limit_files_per_user(list(newest.values()))
    return sorted(kept, key=lambda one: (one["uid"], one["journal"]))


def _limit_files_per_user(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the newest files of each user, as long as they have at most MOST_CLAIMS entries
    together, so that one user's flood of files does not delay others. A file is a dict that
    `_load_register_file` returned."""
    count: dict[int, int] = {}
    for one in sorted(found, key=lambda one: one["made_ns"], reverse=True):
        count[one["uid"]] = count.get(one["uid"], 0) + len(one["entries"])
        if count[one["uid"]] <= MOST_CLAIMS:
            yield one


def _register_file_names(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))


def _register_paths_and_uids(directory: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the path and the owner's uid of each file of the register, newest first, at most
    MOST_FILES of each user."""
    seen: list[tuple[float, str, int]] = []
    for name in names:
        path = directory + "/" + name
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                seen.append((found.st_mtime, path, found.st_uid))
    count: dict[int, int] = {}
    for _, path, uid in sorted(seen, reverse=True):
        count[uid] = count.get(uid, 0) + 1
        if count[uid] <= MOST_FILES:
            yield path, uid


def _load_register_file(path: str, uid: int) -> dict[str, Any] | None:
    """Return the contents of a register file, with "changing" in each entry. None if the file
    cannot be read, or cannot have been written by Workbench for the user `uid`. A FIFO, a link, a
    device or a file of more than MOST_BYTES is not read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                return None
            if (found.st_uid, found.st_nlink) != (uid, 1):
                return None
            text = os.read(handle, MOST_BYTES + 1)
        finally:
            os.close(handle)
        said = parse_strict_json(text.decode())
        if not register_document_is_valid(said):
            return None
    except (OSError, ValueError, RecursionError):
        return None
    changes, version = said.get("changes", []), said.get("version", 1)
    now = [
        _limit_times_to_write_time(
            {**entry, "changing": _is_setting_being_changed(entry, found)}, found.st_ctime
        )
        for entry in said["entries"]
    ]
    journal, boot_id, made_ns = said["journal"][:16], said["boot_id"], said["made_ns"]
    return {
        "uid": uid,
        "user": user_name(uid),
        "journal": journal,
        "boot_id": boot_id,
        "made_ns": made_ns,
        "entries": now,
        "changes": changes,
        "version": version,
    }


def register_document_is_valid(said: Any) -> bool:
    """Return whether `said`, the JSON document of a register file, can have been written by
    Workbench."""
    try:
        entries, changes, version = said["entries"], said.get("changes", []), said.get("version", 1)
        return (
            all(isinstance(said[name], str) for name in ("journal", "boot_id"))
            and integer_or_none(said["made_ns"], 0, 2**63) is not None
            and integer_or_none(version, 1, MOST_VERSION - 1) is not None
            and isinstance(changes, list)
            and len(changes) <= CHANGES_KEPT
            and all(map(_change_is_valid, changes))
            and isinstance(entries, list)
            and len(entries) <= MOST_ENTRIES
            and not any(map(_entry_is_invalid, entries))
        )
    except (AttributeError, KeyError, TypeError, RecursionError):
        return False


def _change_is_valid(change: Any) -> bool:
    """Return whether `change`, from another user's file, is a valid record of a changed setting.
    Raises KeyError or TypeError if a field is missing."""
    known = change["setting"] in setting_commands.SETTINGS
    gpu = integer_or_none(change["gpu_index"], -1, MOST_GPUS - 1)
    at = number_for_field("unix_s", change["unix_s"])
    return known and gpu is not None and at is not None


def _entry_is_invalid(entry: Any) -> bool:
    if (
        setting_commands.describe_invalid_part_of_entry(entry) is not None
        or entry.get("since_unix_s") is None
    ):
        return True
    texts = [entry.get(name, "") for name in ("state", "who", "gpu_name", "before_known", "origin")]
    texts.append(entry.get("driver_start") or "")
    return not all(isinstance(t, str) and len(t) <= 200 and t.isprintable() for t in texts)


def _limit_times_to_write_time(entry: dict[str, Any], written_unix_s: float) -> dict[str, Any]:
    """Return the journal entry with its times limited to the time at which its file was written,
    which the kernel records, because no change in the file can be later."""
    for name in ("since_unix_s", "set_unix_s"):
        if entry.get(name) is not None:
            entry[name] = min(float(entry[name]), written_unix_s)
    return entry


def _is_setting_being_changed(entry: Mapping[str, Any], file: os.stat_result) -> bool:
    """Return whether a Workbench is changing the setting of `entry` at this moment: the entry is
    pending, and the process that made it runs for the owner of `file`. A process of another machine
    counts as running for RECENT_S seconds after the file was written."""
    if entry.get("state") != setting_commands.PENDING:
        return False
    owner, age_s = entry["owner"], abs(time.time() - file.st_ctime)
    if owner.get("machine") == os.uname().nodename:
        return age_s < LEASE_S and _process_lives(owner.get("pid"), owner.get("start"), file.st_uid)
    return age_s < RECENT_S


def _process_lives(pid: Any, start: Any, uid: int) -> bool:
    return (
        isinstance(pid, int)
        and bool(start)
        and start_ticks_of_process(pid) == start
        and uid in uids_of_process(pid)
    )


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


# ---- writing


def publish_entries(
    directory: str, journal: str, boot_id: str, entries: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the published entries of the journal named `journal` by `entries`, and record which
    settings were set or reverted. Raises OSError if the file cannot be written."""
    # What is left to another user is no claim: that user's revert must not set this value again.
    entries = [entry for entry in entries if not setting_commands.user_setting_is_left_to(entry)]
    mine = os.geteuid()
    old, of_this_boot = [], []
    for path, uid in _register_paths_and_uids(directory, _register_file_names(directory)):
        found = _load_register_file(path, mine) if uid == mine else None
        if found and found["journal"] == journal:
            old.append(path)
            if found["boot_id"] == boot_id:
                of_this_boot.append(found)
    changes = _recent_setting_changes(of_this_boot, entries)
    if entries or changes:
        said: dict[str, Any] = {
            "journal": journal,
            "boot_id": boot_id,
            "made_ns": time.monotonic_ns(),
            "version": setting_commands.JOURNAL_VERSION,
        }
        said.update(entries=list(entries), changes=changes)
        text = json.dumps(said).encode()
        if len(text) > MOST_BYTES:
            raise OSError(27, "the changed GPU settings do not fit into one file of the register")
        try:
            _create_file(directory, mine, text)
        except OSError as error:
            if not old or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # an old claim that stays would be taken for a value to restore
            _remove_files(old)
            _create_file(directory, mine, text)
    _remove_files(old)


def _create_file(directory: str, uid: int, text: bytes) -> None:
    path = f"{directory}/{PREFIX}{uid}.{os.urandom(8).hex()}.json"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        if os.write(handle, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fchmod(handle, 0o644)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(handle)


def _remove_files(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _recent_setting_changes(
    published_files: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the journal's recent changes, each as {"gpu_index", "setting", "unix_s"}, the newest
    last: those in the newest of the journal's `published_files`, and one for each difference
    between its entries and the new `entries`. Older ones than CHANGES_KEPT_S seconds are left out.
    """
    nothing: dict[str, Any] = {"entries": [], "changes": []}
    last = max(published_files, key=lambda one: one["made_ns"], default=nothing)
    was, now = _values_by_gpu_and_setting(last["entries"]), _values_by_gpu_and_setting(entries)
    at = round(time.time(), 3)
    fresh = [
        {"gpu_index": gpu, "setting": setting, "unix_s": at}
        for gpu, setting in sorted({*was, *now})
        if was.get((gpu, setting)) != now.get((gpu, setting))
    ]
    recent = [change for change in last["changes"] if abs(at - change["unix_s"]) < CHANGES_KEPT_S]
    return [*recent, *fresh][-CHANGES_KEPT:]


def _values_by_gpu_and_setting(entries: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], Any]:
    return {(entry["gpu_index"], entry["setting"]): entry["now"] for entry in entries}


def publish_entries_and_read_register(
    root: str, new_entries: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Read the register. With `new_entries`, first replace the published entries of the journal in
    the directory `root`. Return {"directory", "uid", "journal", "found", "unpublished"}, where
    "found" has the journals of all users, "journal" is the name of this one, and "unpublished" says
    why its entries could not be published, or {"problem": text}. The changes of other users can be
    read even if the disk is full."""
    journal, unpublished = register_file_name(root), None
    try:
        directory = find_or_create_register_directory(os.environ.get("WORKBENCH_GPU_REGISTER"))
        if new_entries is not None:
            try:
                publish_entries(directory, journal, boot_id(), new_entries)
            except OSError as error:
                unpublished = _file_error_text(error)
        found = read_register(directory, boot_id())
    except OSError as error:
        return {"problem": _file_error_text(error)}
    return {
        "directory": directory,
        "uid": os.geteuid(),
        "journal": journal,
        "found": found,
        "unpublished": unpublished,
    }


def _file_error_text(error: OSError) -> str:
    return f"{error.filename or 'the register'}: {error.strerror}"
