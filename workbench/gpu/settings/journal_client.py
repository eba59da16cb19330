"""The client of the program that reads, locks and writes the journal on its host
(journal_program.py). A host without python3 has a shell script in its place
(journal_without_python3.sh), which cannot read the host's register."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from workbench.gpu import remote_programs
from workbench.gpu.settings.journal_file import LEASE_S, MOST_BYTES
from workbench.gpu.settings.journal_program import NO_FILE, TOO_LARGE
from workbench.hosts.base import CommandNotFound, Completed, Host, Stream
from workbench.hosts.python_programs import TOO_OLD
from workbench.hosts.shell_scripts import sh
from workbench.model.errors import HostError
from workbench.model.untrusted_numbers import strict_json, whole_number

ANSWER_S = 20.0
_NO_PYTHON = frozenset({TOO_OLD, 126, 127})
_NO_LOG = ' "log": []\n}'  # the end of a journal whose log was not sent
_NO_REGISTER = json.dumps({"problem": "this host has no python3"})

Answer = Mapping[str, Any]


class JournalClient:
    """Asks one running program about the journal in the directory `root`, until `close`."""

    def __init__(self, host: Host, root: str) -> None:
        self.host, self.root = host, root
        self._stream: Stream | None = None
        self._lines: AsyncIterator[bytes] | None = None
        self._shell: ShellJournal | None = None

    async def ask(self, do: str, **more: Any) -> Answer:
        """Return the answer to a request. Raises HostError if there is none."""
        if self._shell is None:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await self._ask_program(do, more)
            except CommandNotFound:
                self._shell = ShellJournal(self.host, self.root)
            except TimeoutError:
                raise _no_answer(self.host, f"it did not answer within {ANSWER_S:g} s") from None
        return await self._shell.ask(do, **more)

    async def _ask_program(self, do: str, more: Answer) -> Answer:
        if self._stream is None:
            self._stream = await remote_programs.JOURNAL.stream(self.host, {"root": self.root})
            self._lines = self._stream.lines()
        assert self._lines is not None
        await self._stream.write(_request(do, more))
        line = b""
        async for piece in self._lines:
            line += piece  # a long line comes in pieces
            if line.endswith(b"}"):
                return _answer(self.host, line)
        code = await self._stream.wait()
        if code in _NO_PYTHON:
            raise CommandNotFound("this host has no python3", host=self.host.name)
        said = (await self._stream.stderr_tail()).splitlines()[-1:]
        raise _no_answer(self.host, said[0] if said else f"exit code {code}")

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()


@asynccontextmanager
async def opened(host: Host, root: str) -> AsyncIterator[JournalClient]:
    """Yield a client that the end of the block closes."""
    client = JournalClient(host, root)
    try:
        yield client
    finally:
        await client.close()


async def ask_once(host: Host, root: str, do: str, **more: Any) -> Answer:
    """Return the answer to one request, from a program that ends then."""
    try:
        done = await remote_programs.JOURNAL.run(
            host, {"root": root}, input=_request(do, more), timeout_s=ANSWER_S
        )
    except CommandNotFound:
        return await ShellJournal(host, root).ask(do, **more)
    if done.returncode in _NO_PYTHON:
        return await ShellJournal(host, root).ask(do, **more)
    if not done.stdout.strip():
        raise _no_answer(host, done.problem)
    return _answer(host, done.stdout.splitlines()[-1])


def _request(do: str, more: Answer) -> bytes:
    return json.dumps({"do": do, **more}).encode() + b"\n"


def _answer(host: Host, line: bytes) -> Answer:
    try:
        answer = strict_json(line.decode())
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _no_answer(host, "it gave no valid answer")
    return answer


def _no_answer(host: Host, why: str) -> HostError:
    return HostError(
        f"the program that reads and writes the journal of GPU settings failed: {why}",
        host=host.name,
        next_step="run `python3 -c 1` on that host: it must end without an error",
    )


@cache
def _script() -> str:
    return Path(__file__).with_name("journal_without_python3.sh").read_text("utf-8")


class ShellJournal:
    """Answers the requests of journal_program.py with a shell script on a host without python3."""

    def __init__(self, host: Host, root: str) -> None:
        self.host, self.path = host, f"{root}/journal.json"
        self.owner = ""

    async def ask(self, do: str, **more: Any) -> Answer:
        if do == "read":
            return await self._read(with_log=more["log"])
        if do == "lock":
            return await self._lock(more["owner"], more["dead"])
        if do == "holder":
            return _holder(await self._run("holder"))
        if do == "save":
            if more["aside"]:
                await self.host.run(["mv", "-f", "--", self.path, f"{self.path}.damaged"])
            await self.host.write_file(self.path, json.dumps(more["journal"], indent=1).encode())
            return {"register": _NO_REGISTER}
        await self._run("unlock", self.owner)
        return {}

    async def _run(self, do: str, *words: str) -> Completed:
        return await self.host.run(sh(_script(), do, self.path, *words))

    async def _read(self, *, with_log: bool) -> Answer:
        done = await self._run("read", str(MOST_BYTES + 1), "log" if with_log else "")
        if done.returncode not in (0, 3, 4):
            return {"error": done.err.strip()}
        boot_id, driver_start, text = [*done.out.split("\n", 2), "", ""][:3]
        if not with_log and not text.rstrip().endswith("}"):
            text += _NO_LOG
        damage = NO_FILE if done.returncode == 4 else None
        if len(text) > MOST_BYTES:
            damage = TOO_LARGE
        return {
            "boot_id": boot_id.strip(),
            "driver_start": driver_start.strip() or None,
            "text": None if done.returncode or damage else text,
            "damage": damage,
            "register": _NO_REGISTER,
        }

    async def _lock(self, owner: str, dead: list[str]) -> Answer:
        self.owner = owner
        done = await self._run("lock", owner)
        if done.returncode != 0:
            return {"error": done.err.strip()}
        if done.out.startswith("ok"):
            return {"held": True}
        found = _holder(done)
        by = found["by"] or ""
        if found["void"] or by.rpartition(":")[0] in dead:
            await self._run("unlock", by)  # the next try can succeed
        return {"held": False, **found}


def _holder(done: Completed) -> dict[str, Any]:
    """Return the owner of the lock, and whether the lock no longer counts, from what the script
    printed."""
    lines = done.out.split("\n")
    owner = lines[0].removeprefix("held ")
    age, up, *_ = [*lines[1:], "", ""]
    age_s = whole_number(age.removeprefix("-")) or 0
    up_s = whole_number(up)
    older_than_boot = up_s is not None and not age.startswith("-") and age_s > up_s
    return {"by": owner or None, "void": age_s > LEASE_S or older_than_boot}
