"""The watch process of one rank of a server on several nodes. It ends the rank if another rank has
ended.

Workbench copies this file into the run directory on the node. The watch runs in the session of the
run, with Python 3.8 or newer and its standard library only.

The first rank is the head. Its watch listens at the head's address in the network of the nodes, and
the other watches connect to it. Every `beat_s` seconds, each watch sends that its rank lives. When
its rank ends, it sends that at once, and the head's watch forwards the message. A message is a line
of JSON: [rank, word, MAC]. The MAC is made with a secret key of this server, so that other users
cannot end a rank.

A rank is ended in two cases only: another rank has reported its end, or no message of another rank
has arrived for `silent_s` seconds for any reason. The second case applies only to ranks that have
sent a message before and whose watch has not announced that it exits. Before it ends its rank, a
watch waits `first_s` seconds for an open Workbench to do so, and `marked_s` seconds more if
Workbench has written stop.json.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TICK_INTERVAL_S = 0.25
_END_ANSWER_TIMEOUT_S = 3.0  # for the others to answer that they have heard of the end
_MAX_LINKS = 64


class Watch:
    """The watch process of the rank whose main process is `pid`. `orders` is the content of
    watch.json, which watched_rank.py writes: own rank, all ranks, address, port, key and times in
    seconds."""

    def __init__(self, run_dir: str, pid: int, orders: dict[str, Any]) -> None:
        self.run_dir, self.pid = run_dir, pid
        self.own: str = orders["own"]
        self.ranks: list[str] = orders["ranks"]  # the head first
        self.address: str = orders["address"]
        self.port: int = orders["port"]
        self._key: bytes = orders["key"].encode()
        self._times: dict[str, float] = orders["times"]
        self._began = _start_ticks_text(pid)
        self._links: set[asyncio.StreamWriter] = set()
        self._known: set[asyncio.StreamWriter] = set()  # those with the key
        self._heard: set[asyncio.StreamWriter] = set()  # those that know of the end of a rank
        self._silent_s: dict[str, float] = {}  # of each rank that was heard
        self._over: str | None = None  # the rank that has ended
        self._others: asyncio.Future[None] | None = None
        self._server: asyncio.AbstractServer | None = None

    @property
    def _is_head(self) -> bool:
        return self.own == self.ranks[0]

    async def run(self) -> None:
        """Exchange messages with the watch processes of the other ranks until this rank has ended.
        End it if another rank has ended."""
        self._others = asyncio.ensure_future(
            self._listen_for_ranks() if self._is_head else self._keep_connected()
        )
        try:
            await self._watch_own_rank()
        finally:
            if self._is_own_rank_alive():
                self._send_to_all_links(self.own, "leaves")
            if self._server is not None:
                self._server.close()

    async def _watch_own_rank(self) -> None:
        beat_s = 0.0
        while self._is_own_rank_alive():
            await asyncio.sleep(_TICK_INTERVAL_S)
            beat_s += _TICK_INTERVAL_S
            if beat_s >= self._times["beat_s"]:
                beat_s = 0.0
                self._send_to_all_links(self.own, "lives")
            # counted in own ticks: a machine that was suspended has heard nothing either
            for rank in self._silent_s:
                self._silent_s[rank] += _TICK_INTERVAL_S
                if self._silent_s[rank] > self._times["silent_s"]:
                    self._record_rank_end(
                        rank, f"has not been heard of for {self._times['silent_s']:.0f} s"
                    )
            if self._over is not None:
                await self._terminate_own_rank()
                return
        self._over = self.own
        self._send_to_all_links(self.own, "ended")
        until = time.monotonic() + _END_ANSWER_TIMEOUT_S
        while time.monotonic() < until:
            if self._links and self._links <= self._heard:
                return
            if self._is_head and not self._links:
                return
            await asyncio.sleep(0.02)

    # ---- the other ranks

    async def _listen_for_ranks(self) -> None:
        said = False
        while True:
            try:
                self._server = await asyncio.start_server(
                    self._exchange_heartbeats_with_rank, self.address, self.port
                )
            except OSError as error:
                if not said:
                    self._write_to_log(
                        f"cannot listen on {self.address}:{self.port} ({error.strerror}): "
                        f"{_UNWATCHED_RANKS_TEXT}"
                    )
                said = True
                await asyncio.sleep(self._times["beat_s"])
            else:
                return

    async def _keep_connected(self) -> None:
        began, said = time.monotonic(), False
        while True:
            why = ""
            try:
                connecting = asyncio.open_connection(self.address, self.port)
                reader, writer = await asyncio.wait_for(connecting, self._times["beat_s"])
            except asyncio.TimeoutError:  # noqa: UP041 (no OSError before Python 3.11)
                why = "no answer"
            except OSError as error:
                why = error.strerror or str(error)
            else:
                await self._exchange_heartbeats_with_rank(reader, writer)
            has_waited = time.monotonic() - began > self._times["connect_s"]
            if why and has_waited and not said and not self._silent_s:
                said = True
                self._write_to_log(
                    f"cannot reach the first rank at {self.address}:{self.port} ({why}): {_UNWATCHED_RANKS_TEXT}"
                )
            await asyncio.sleep(1.0)

    async def _exchange_heartbeats_with_rank(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Process the messages of another rank's watch process until the connection is lost, brings
        an invalid message, or is silent for four times `beat_s` seconds. With _MAX_LINKS
        connections, first close one that has brought no valid message."""
        if len(self._links) >= _MAX_LINKS:
            stranger = next((link for link in self._links if link not in self._known), writer)
            self._links.discard(stranger)
            stranger.close()
        if writer.is_closing():
            return
        self._links.add(writer)
        try:
            self._send_word_of_rank(writer, self.own, "lives")
            if self._over is not None:
                self._send_word_of_rank(writer, self._over, "ended")
            while True:
                line = await asyncio.wait_for(reader.readline(), 4 * self._times["beat_s"])
                if not line or not self._process_if_authentic(line, writer):
                    return
        except (OSError, ValueError, TypeError, RecursionError, asyncio.TimeoutError):  # noqa: UP041
            return
        finally:
            self._links.discard(writer)
            self._known.discard(writer)
            self._heard.discard(writer)
            writer.close()

    def _process_if_authentic(self, line: bytes, writer: asyncio.StreamWriter) -> bool:
        """Process `line`, a message of another rank's watch process, and return True. Return False
        if it is not from a rank of this server. Raises ValueError or TypeError if it has another
        form."""
        rank, word, mac = json.loads(line.decode())
        if rank not in self.ranks or not hmac.compare_digest(mac, self._message_mac(rank, word)):
            return False
        self._known.add(writer)
        if word == "heard":
            self._heard.add(writer)
        elif word == "ended":
            self._record_rank_end(rank, "has ended")
            self._send_word_of_rank(writer, self.own, "heard")
            self._heard.add(writer)
        if word == "leaves":
            self._silent_s.pop(rank, None)
        elif rank != self.own:
            self._silent_s[rank] = 0.0
        return True

    def _record_rank_end(self, rank: str, what_happened: str) -> None:
        if self._over is None and rank != self.own:
            self._over = rank
            self._write_to_log(f"{rank} {what_happened}: this rank is stopped too")
            if self._is_head:
                self._send_to_all_links(rank, "ended")

    def _send_to_all_links(self, rank: str, word: str) -> None:
        for writer in self._links:
            self._send_word_of_rank(writer, rank, word)

    def _send_word_of_rank(self, writer: asyncio.StreamWriter, rank: str, word: str) -> None:
        with suppress(OSError, RuntimeError):  # a lost connection
            writer.write(json.dumps([rank, word, self._message_mac(rank, word)]).encode() + b"\n")

    def _message_mac(self, rank: str, word: str) -> str:
        return hmac.new(self._key, f"{rank}\n{word}".encode(), hashlib.sha256).hexdigest()

    # ---- the own rank

    def _is_own_rank_alive(self) -> bool:
        return self._began is not None and _start_ticks_text(self.pid) == self._began

    async def _terminate_own_rank(self) -> None:
        marked = Path(self.run_dir, "stop.json")
        await self._wait_for_run_exit(self._times["first_s"])
        if marked.exists():
            await self._wait_for_run_exit(self._times["marked_s"])
        if self._is_own_rank_alive():
            with suppress(OSError):  # a full disk: only the mark is lost
                new = Path(f"{marked}.new")
                new.write_text(json.dumps({"unix_s": time.time()}), "ascii")
                new.replace(marked)
            _signal_processes_of_run(signal.SIGTERM)
        await self._wait_for_run_exit(self._times["grace_s"])
        _signal_processes_of_run(signal.SIGKILL)

    async def _wait_for_run_exit(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while (self._is_own_rank_alive() or _pids_of_run()) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_TICK_INTERVAL_S)

    def _write_to_log(self, text: str) -> None:
        """Write a line into the log of the run."""
        with suppress(OSError):
            os.write(1, f"workbench: {text}\n".encode())


_UNWATCHED_RANKS_TEXT = "if a rank ends while no Workbench is open, the others keep running"


def _stat_fields_from_state(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, which is behind the name; [] if the
    process does not exist or is a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].decode().split()
    except OSError:
        return []
    return [] if not words or words[0] in "ZX" else words


def _start_ticks_text(pid: int) -> str | None:
    words = _stat_fields_from_state(pid)
    return words[19] if len(words) > 19 else None


def _pids_of_run() -> list[int]:
    """Return the ids of the run's processes: those in this session, and those elsewhere whose
    variable WORKBENCH_RUN names the run. The session's leader, which records the exit code, this
    process and its parent are left out."""
    found, session = [], os.getsid(0)
    # the leader, this watch, and the shell that restarts it
    others = (session, os.getpid(), os.getppid())
    mark = b"WORKBENCH_RUN=" + os.environb.get(b"WORKBENCH_RUN", b"\0")
    for path in Path("/proc").iterdir():
        pid = int(path.name) if path.name.isdecimal() else session
        words = _stat_fields_from_state(pid) if pid not in others else []
        if not words:
            continue
        if words[3] == str(session):
            found.append(pid)
        else:
            with suppress(OSError):  # of another user
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(pid)
    return found


def _signal_processes_of_run(signal_number: int) -> None:
    for pid in _pids_of_run():
        with suppress(OSError):
            os.kill(pid, signal_number)


async def _watch_rank(watch: Watch) -> None:
    await watch.run()
    # asyncio would write an error into the log for each connection that is cut off at the end
    os._exit(0)


def main() -> None:
    """Watch a rank until it has ended. The arguments on the command line are the run directory and
    the id of the rank's main process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after its rank, and tells the others
    run_dir, pid = sys.argv[1:]
    orders = json.loads(Path(run_dir, "watch.json").read_text("utf-8"))
    asyncio.run(_watch_rank(Watch(run_dir, int(pid), orders)))


if __name__ == "__main__":
    main()
