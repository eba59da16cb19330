"""The client of the program that reads, locks and writes the journal on its host
(journal_program.py). A host without python3 has a shell script in its place
(journal_without_python3.sh), which cannot read the host's register."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any

from workbench.gpu import remote_programs
from workbench.gpu.settings.journal_file import LEASE_S, MOST_BYTES
from workbench.gpu.settings.journal_program import NO_FILE, TOO_LARGE, JournalProgram
from workbench.hosts.base import CommandNotFound, Completed, Host
from workbench.hosts.local import LocalHost
from workbench.hosts.python_programs import TOO_OLD, can_start_python
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import HostError
from workbench.model.untrusted_numbers import parse_strict_json, parse_whole_number

ANSWER_TIMEOUT_S = 30.0
_NO_PYTHON_STATUSES = frozenset({TOO_OLD, 126, 127})
_EMPTY_LOG_END = ' "log": []\n}'  # the end of a journal whose log was not sent
_NO_PYTHON3 = "this host has no python3"
_BROKEN_PYTHON3 = "the python3 of this host does not start"

JournalAnswer = Mapping[str, Any]


async def request_journal_operation(
    host: Host, root: str, operation: str, **arguments: Any
) -> JournalAnswer:
    """Carry out `operation` on the journal in the directory `root` of the host, and return the
    answer. journal_program.py lists the operations and their answers; an answer with "error" is
    returned too. Raises HostError if there is no answer."""
    if operation == "read" and isinstance(host, LocalHost) and host.is_local:
        return await _read_on_this_machine(host, root, arguments)
    request = json.dumps({"do": operation, **arguments}).encode() + b"\n"
    try:
        done = await remote_programs.JOURNAL_PROGRAM.run(
            host, {"root": root}, input=request, timeout_s=ANSWER_TIMEOUT_S
        )
    except CommandNotFound:
        return await ShellJournal(host, root).run_operation(operation, arguments)
    if done.returncode in _NO_PYTHON_STATUSES:
        return await ShellJournal(host, root).run_operation(operation, arguments)
    try:
        answer = parse_strict_json(done.out.splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        answer = None
    if isinstance(answer, dict) and answer.pop("answered", None) == operation:
        return answer
    # the same request may be carried out twice: each of them may
    if done.returncode and not await can_start_python(host):
        return await ShellJournal(host, root, _BROKEN_PYTHON3).run_operation(operation, arguments)
    why = done.problem if done.returncode else "it gave no valid answer"
    raise HostError(
        f"the program that reads and writes the journal of GPU settings failed: {why}",
        host=host.name,
        next_step="run `python3 -c 1` on that host: it must end without an error",
    )


async def _read_on_this_machine(host: Host, root: str, arguments: JournalAnswer) -> JournalAnswer:
    def read_journal() -> JournalAnswer:
        with closing(JournalProgram(root)) as program:
            return program.answer_request({"do": "read", **arguments})

    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.to_thread(read_journal)
    except TimeoutError:
        raise HostError(
            f"the journal of GPU settings in {root} could not be read within {ANSWER_TIMEOUT_S:.0f} s",
            host=host.name,
            next_step="look whether the disk of that directory answers",
        ) from None


@cache
def _journal_script() -> str:
    return read_script(__file__, "journal_without_python3.sh")


class ShellJournal:
    """Answers the requests of journal_program.py with a shell script on a host without python3."""

    def __init__(self, host: Host, root: str, why: str = _NO_PYTHON3) -> None:
        """Use the journal in the directory `root`. `why` says why python3 is not used."""
        self.host, self.path = host, f"{root}/journal.json"
        self.no_register = json.dumps({"problem": why})

    async def run_operation(self, operation: str, arguments: JournalAnswer) -> JournalAnswer:
        """Carry out `operation` and return its answer, as journal_program.py lists them."""
        if operation == "read":
            return await self._read_journal(with_log=arguments["log"])
        if operation == "lock":
            return await self._lock_journal(arguments["owner"], arguments["dead"])
        if operation == "holder":
            return _parse_journal_lock_holder(await self._run_journal_script("holder"))
        if operation == "save":
            return await self._save_journal(arguments)
        await self._run_journal_script("unlock", arguments["owner"])
        return {}

    async def _save_journal(self, arguments: JournalAnswer) -> JournalAnswer:
        journal, owner = arguments["journal"], arguments["owner"]
        holder = _parse_journal_lock_holder(await self._run_journal_script("holder"))["by"]
        if holder != owner:
            return {"lost": holder}
        if arguments["aside"]:
            await self.host.run(["mv", "-f", "--", self.path, f"{self.path}.damaged"])
        await self.host.write_file(self.path, json.dumps(journal, indent=1).encode())
        if arguments["unlocks"]:
            await self._run_journal_script("unlock", owner)
        return {"register": self.no_register}

    async def _run_journal_script(self, operation: str, *arguments: str) -> Completed:
        return await self.host.run(shell_argv(_journal_script(), operation, self.path, *arguments))

    async def _read_journal(self, *, with_log: bool) -> JournalAnswer:
        done = await self._run_journal_script(
            "read", str(MOST_BYTES + 1), "log" if with_log else ""
        )
        if done.returncode not in (0, 3, 4):
            return {"error": done.err.strip()}
        boot_id, driver_start, text = [*done.out.split("\n", 2), "", ""][:3]
        if not with_log and not text.rstrip().endswith("}"):
            text += _EMPTY_LOG_END
        damage = NO_FILE if done.returncode == 4 else None
        if len(text) > MOST_BYTES:
            damage = TOO_LARGE
        return {
            "boot_id": boot_id.strip(),
            "driver_start": driver_start.strip() or None,
            "text": None if done.returncode or damage else text,
            "damage": damage,
            "register": self.no_register,
        }

    async def _lock_journal(self, owner: str, dead_owners: list[str]) -> JournalAnswer:
        done = await self._run_journal_script("lock", owner)
        if done.returncode != 0:
            return {"error": done.err.strip()}
        if done.out.startswith("ok"):
            return {"held": True, **await self._read_journal(with_log=True)}
        found = _parse_journal_lock_holder(done)
        by = found["by"] or ""
        if found["void"] or by.rpartition(":")[0] in dead_owners:
            await self._run_journal_script("unlock", by)  # the next try can succeed
        return {"held": False, **found}


def _parse_journal_lock_holder(done: Completed) -> dict[str, Any]:
    """Return {"by": owner of the lock or None, "void": whether the lock no longer counts}, from
    what the script printed."""
    lines = done.out.split("\n")
    owner = lines[0].removeprefix("held ")
    age, up, *_ = [*lines[1:], "", ""]
    age_s = parse_whole_number(age.removeprefix("-")) or 0
    up_s = parse_whole_number(up)
    older_than_boot = up_s is not None and not age.startswith("-") and age_s > up_s
    return {"by": owner or None, "void": age_s > LEASE_S or older_than_boot}
