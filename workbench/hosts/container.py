"""A container as a host: a host whose commands run inside a container of another host.

Each command is run on the host around the container, as `docker exec -i NAME sh …` or the
equivalent for another kind of container (container_kinds). The command itself, its environment and
its input are sent on stdin, as over ssh. A container that is stopped, paused, removed or renamed
counts as a lost connection: Workbench searches for it until it runs again.

If the program that entered the container, such as `docker exec`, is killed, no process stays
behind: a streamed command ends with its stdin, and Workbench kills the processes of any other
command, which have the command's token in their environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from workbench.hosts import files_via_shell, host_facts, shell_scripts
from workbench.hosts.base import (
    LOOPBACK,
    BaseHost,
    CommandNotFound,
    CommandTimeout,
    Completed,
    ContainerHostProcess,
    Forward,
    Host,
    HostFacts,
    HostUnreachable,
    LinkEvent,
    Stream,
    command_not_found_error,
    command_timeout_error,
    container_program_timeout_error,
    raise_if_argv_invalid,
)
from workbench.hosts.container_kinds import (
    ABSENT,
    KINDS,
    RUNNING,
    ContainerKind,
    ContainerState,
    is_permission_error_message,
)
from workbench.hosts.container_listing import list_containers
from workbench.hosts.container_ports import ContainerPorts
from workbench.hosts.line_splitter import split_lines
from workbench.hosts.login_question import Ask
from workbench.hosts.reconnecting_link import Link
from workbench.hosts.shared_answers import SharedAnswer
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError, InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.process_container import parse_container_of_process
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import NAME_CHARS, clean_text

__all__ = ["KINDS", "ContainerHost", "list_containers", "open_container"]

LOOK_S = 20.0  # for one look at the state; a busy daemon takes seconds
SILENT_S = 4.0  # without output of a streamed command, before the state is looked at
END_S = 10.0
_MARK = shell_scripts.INSIDE.encode()
# by the shell in the container: nothing began
_REFUSED = re.compile(f"{shell_scripts.INSIDE} (missing|setsid)")
# runc, crun, docker and lxc-attach say in these words that the container has no `sh`
_NO_SHELL = re.compile(
    r"[\s\"'`/]sh[\"'`]?:? (?:executable file )?(?:not found|no such file)|exec [\"'`]sh[\"'`]",
    re.IGNORECASE,
)


def open_container(
    outer_host: Host, kind: str, name: str, *, sudo: bool | None = None
) -> ContainerHost:
    """Return the container `name` on the host `outer_host` as a host, not yet connected. `kind` is
    a key of KINDS. With `sudo` False, sudo is never used on `outer_host`; otherwise it is, if the
    user's own rights are not enough. Raises InputError for a kind or a name that no container can
    have."""
    known = KINDS.get(kind)
    if known is None:
        step = f"use one of {', '.join(KINDS)}"
        raise InputError(
            f"{kind!r} is not a kind of container that Workbench can enter", next_step=step
        )
    if not known.pattern.fullmatch(name):
        raise InputError(f"{name!r} is not the name of a {known.noun} of {known.program}")
    return ContainerHost(outer_host, known, name, sudo)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A container that was found running. `id` is the container's id, "" if it has none.
    `sudo_words` must precede commands that enter it; () if the user's own rights suffice."""

    sudo_words: tuple[str, ...]
    id: str


class _StateUnknown(Exception):
    """Raised if a program such as docker does not report the state of a container. The text of the
    exception is the program's message."""


class ContainerStream:
    """A running command in the container. It runs under `shell_scripts.GUARD`, which ends the
    command when the program that entered the container ends."""

    def __init__(
        self, host: ContainerHost, running: _Running, inner: Stream, done: Callable[[], None]
    ) -> None:
        self._host = host
        self._running = running
        self.inner = inner
        self._output = inner.chunks()
        self._early = b""
        self._closing = self._closed = False
        self._done = done

    async def wait_for_command_start(self, argv: Sequence[str]) -> None:
        """Read and drop the output up to the mark that the shell in the container prints before it
        starts the command `argv`. Raises HostError if the command is never started."""
        seen = b""
        while _MARK + b"\n" not in seen:
            data = await self._read_output()
            if not data:
                await self._wait_for_stream_end()
                raise await self._host.command_not_started_error(
                    self._running, argv, await self.inner.stderr_tail()
                )
            seen += data
        self._early = seen.partition(_MARK + b"\n")[2]

    async def _read_output(self) -> bytes:
        try:
            data = await anext(self._output, b"")
        except HostUnreachable as error:
            self._host.end_streams_and_reconnect(self._running, error)
            raise
        self._host.heard_s = time.monotonic()
        return data

    async def _wait_for_stream_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.inner.wait(), 2.0)

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._early:
            early, self._early = self._early, b""
            yield early
        while data := await self._read_output():
            yield data
        if not self._closing:
            await self.wait()

    def lines(self) -> AsyncIterator[bytes]:
        return split_lines(self.chunks())

    async def write(self, data: bytes) -> None:
        await self.inner.write(data)

    async def wait(self) -> int:
        """Wait for the command's end, and return its exit code. Raises HostError if the command was
        cut off: the program that entered the container was killed, or the container stopped."""
        ended = await self.inner.wait()
        _, code = shell_scripts.split_stderr_and_exit_code(await self.inner.stderr_tail())
        if code is None and not self._closing:
            raise await self._host.command_cut_off_error(self._running)
        return ended if code is None else code

    async def stderr_tail(self) -> str:
        errors, _ = shell_scripts.split_stderr_and_exit_code(await self.inner.stderr_tail())
        return shell_scripts.remove_text_before_mark(errors, shell_scripts.INSIDE).strip()

    async def close(self) -> None:
        self._closing = True
        self._done()
        await self.end_command()

    async def end_command(self) -> None:
        """End the command. Unless `close` was called before, a reader of its output then gets the
        error of a lost connection. Do nothing if the command was ended before."""
        if not self._closed:
            self._closed = True
            await self.inner.close()


class ContainerHost(BaseHost):
    """A container of the host `inner` as a host. `open_container` makes it."""

    kind = "container"

    def __init__(
        self, inner: Host, kind: ContainerKind, container: str, sudo: bool | None = None
    ) -> None:
        self.inner = inner
        self.container_kind = kind
        self.container = container
        around = "" if inner.is_local else f"{inner.name}/"
        self._link: Link[_Running] = Link(
            f"{around}{kind.name}:{container}", self._start_connection, longest_retry_s=kind.look_s
        )
        self._sudo = sudo
        self._id = ""  # of the container that was entered last
        self._why: HostError | None = None  # why the container cannot be entered
        self._state_dir: str | None = None
        self._asked_state_dir = SharedAnswer(lambda: files_via_shell.state_dir_via_shell(self))
        self._asked_facts = SharedAnswer(lambda: host_facts.query_host_facts(self))
        self._ports = ContainerPorts(self, inner)
        self._streams: set[ContainerStream] = set()
        self._checking = asyncio.Lock()
        self.heard_s = 0.0  # when a streamed command last printed something (time.monotonic)
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self._link.host

    @name.setter
    def name(self, name: str) -> None:
        self._link.host = name

    @property
    def login_prompt(self) -> Ask | None:
        return self.inner.login_prompt

    @login_prompt.setter
    def login_prompt(self, ask: Ask | None) -> None:
        self.inner.login_prompt = ask

    @property
    def connected(self) -> bool:
        return self._link.connected

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        return self._link.on_link(listener)

    def accept_host_key(self, fingerprint: str) -> None:
        self.inner.accept_host_key(fingerprint)

    async def connect(self) -> None:
        await self._link.connect()

    async def close(self) -> None:
        await cancel_all([self._watching])
        self._watching = None
        await self._asked_state_dir.close()
        await self._asked_facts.close()
        await self._ports.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
        await self._link.stop_and_detach_connection()
        await self.inner.close()

    # ---- the state of the container

    async def _start_connection(self) -> _Running:
        await self.inner.connect()
        try:
            running = await self._find_running_container()
        except HostError as error:
            self._why = error
            raise
        if running.id != self._id:
            self._id, self._state_dir = running.id, None
        self._why = None
        return running

    async def _find_running_container(self) -> _Running:
        """Return the container if it runs. Raises HostUnreachable if it does not run, or if the
        container program, such as docker, does not report its state."""
        kind, other, problem = self.container_kind, None, ""
        for sudo_words in ((), shell_scripts.SUDO):
            if sudo_words and not await self._should_try_sudo():
                break
            try:
                state = await self._read_container_state(sudo_words, self.container)
            except (CommandNotFound, _StateUnknown) as error:
                problem = problem or str(getattr(error, "message", error))
                continue
            if state.state == RUNNING:
                return _Running(sudo_words, state.id)
            if other is None or other.state == ABSENT:
                other = state
        if other is None:
            step = f"check on {self.inner.name}: {' '.join(kind.look(self.container))}"
            if is_permission_error_message(problem):
                step = kind.rights
            message = (
                f"{kind.program} on {self.inner.name} does not report the state of the "
                f"{kind.noun}: {problem}"
            )
            raise HostUnreachable(message, host=self.name, next_step=step)
        if other.state == ABSENT:
            raise await self._container_absent_error()
        step = (
            f"on {self.inner.name}: {kind.command_to_start_or_examine(other.state, self.container)}"
        )
        raise HostUnreachable(f"the {kind.noun} is {other.state}", host=self.name, next_step=step)

    async def _read_container_state(
        self, sudo_words: tuple[str, ...], container: str
    ) -> ContainerState:
        """Return the state of the container that has the name or id `container`. `sudo_words`, ()
        or sudo, is put before the command that asks for the state. Raises _StateUnknown, with the
        text that this command printed, if it reports no state."""
        argv = [*sudo_words, *self.container_kind.look(container)]
        try:
            done = await self.inner.run(argv, timeout_s=LOOK_S)
        except CommandTimeout:
            silent = container_program_timeout_error(
                self.container_kind.listing[0], LOOK_S, self.name
            )
            raise HostUnreachable(
                silent.message,
                host=self.name,
                command=shlex.join(argv),
                next_step=silent.next_step,
            ) from None
        state = self.container_kind.state(done)
        if state is None:
            raise _StateUnknown(done.problem)
        return state

    async def _should_try_sudo(self) -> bool:
        """Return whether sudo may help: its use is not forbidden, the container is no job, and the
        user on the host around it is not root."""
        if self._sudo is False or self.container_kind.elsewhere:
            return False
        return (await self.inner.run(["id", "-u"])).out.strip() != "0"

    async def _container_absent_error(self) -> HostUnreachable:
        """Return the error for a container that does not exist. If it was renamed, the error names
        the new name."""
        kind = self.container_kind
        for sudo_words in ((), shell_scripts.SUDO) if self._id else ():
            with contextlib.suppress(HostError, _StateUnknown):
                now = await self._read_container_state(sudo_words, self._id)
                if now.name and now.name != self.container:
                    step = f"correct {self.name} in hosts.toml"
                    if self.name.endswith(self.container):
                        around = self.name.removesuffix(self.container)
                        step = f"work on the host {around}{now.name}"
                    return HostUnreachable(
                        f"the {kind.noun} is called {now.name} now", host=self.name, next_step=step
                    )
        gone = "does not exist"
        if self._id:
            gone = "has ended" if kind.elsewhere else "was removed"
        step = f"`{' '.join(kind.listing[:2])}` on {self.inner.name} lists the running {kind.noun}s"
        return HostUnreachable(
            f"the {kind.noun} {self.container} {gone}", host=self.name, next_step=step
        )

    async def _reconnect_unless_still_running(self, running: _Running) -> None:
        """Check whether the container still runs. If it does not, or if a new one has its name,
        end the streamed commands and search for the container again."""
        async with self._checking:
            if not self._link.connected:
                return
            try:
                found = await self._find_running_container()
            except HostError as error:
                self.end_streams_and_reconnect(running, error)
                return
            if found.id != running.id:
                self.end_streams_and_reconnect(
                    running, HostUnreachable(self._why_container_was_replaced(), host=self.name)
                )

    def _why_container_was_replaced(self) -> str:
        if self.container_kind.elsewhere:
            return "the job was put back into the queue, and runs again"
        return "the container was replaced by a new one"

    async def _why_no_longer_running(self, running: _Running) -> HostError | None:
        """Check whether the container still runs, as `_reconnect_unless_still_running` does. Return
        why it can no longer be entered; None if it runs."""
        await self._reconnect_unless_still_running(running)
        return None if self._link.connected else self._why

    def end_streams_and_reconnect(self, running: _Running, why: HostError) -> None:
        """End all streamed commands of the container `running`, and begin to search for it again.
        It can no longer be entered, for the reason `why`."""
        self._why = why
        self._link.report_lost(running, why.message)
        for stream in tuple(self._streams):
            self._start_background_task(stream.end_command)

    async def command_cut_off_error(self, running: _Running) -> HostError:
        """Return the error for a command whose output ended without an exit code: the program that
        entered the container, such as docker, was killed, or the container stopped."""
        if (why := await self._why_no_longer_running(running)) is not None:
            return why
        noun = self.container_kind.noun
        step = f"check the {noun}: the operation may have continued there"
        message = f"{self.container_kind.program} ended before the command in the {noun}"
        return HostUnreachable(message, host=self.name, next_step=step)

    async def command_not_started_error(
        self, running: _Running, argv: Sequence[str], errors: str
    ) -> HostError:
        """Return the error for the command `argv` that never started in the container `running`.
        `errors` is what was printed on stderr."""
        noun = self.container_kind.noun
        if f"{shell_scripts.INSIDE} missing" in errors:
            return command_not_found_error(argv, self.name)
        if f"{shell_scripts.INSIDE} setsid" in errors:
            step = f"install util-linux or busybox in the {noun}"
            return HostUnreachable(
                f"the {noun} has no setsid, without which no command can be run in it",
                host=self.name,
                next_step=step,
            )
        if (why := await self._why_no_longer_running(running)) is not None:
            return why
        last = clean_text(errors, lines=True).strip().splitlines()[-1:] or ["no output"]
        by_hand = " ".join((*self.container_kind.enter(self.container), "sh"))
        step = f"the cause shows on {self.inner.name} with: {by_hand}"
        if _NO_SHELL.search(errors):
            step = f"the {noun} needs a POSIX sh"
        return HostUnreachable(
            f"no command can be run in the {noun}: {last[0]}", host=self.name, next_step=step
        )

    def _start_background_task(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(_run_ignoring_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_container(self) -> None:
        """Check whether the container still runs each time no streamed command has printed anything
        for some seconds: a paused container keeps every connection open."""
        while self._streams:
            await asyncio.sleep(1.0)
            if time.monotonic() - self.heard_s < max(SILENT_S, self.container_kind.look_s):
                continue
            self.heard_s = time.monotonic()
            running = self._link.current
            if self._streams and running is not None:
                await self._reconnect_unless_still_running(running)

    # ---- commands

    async def _get_running_container(self) -> _Running:
        try:
            return await self._link.wait_for_connection()
        except HostUnreachable:
            if self._why is not None:
                raise self._why from None
            raise

    def _encode_command_line(
        self, argv: Sequence[str], env: Mapping[str, str] | None, ends_with_stdin: bool
    ) -> bytes:
        raise_if_argv_invalid(argv, self.name)
        try:
            return shell_scripts.shell_command_line(
                argv, env, ends_with_stdin, shell_scripts.PRELUDE_INSIDE
            )
        except ValueError as error:
            raise HostError(str(error), host=self.name) from None

    def _argv_that_enters_container(self, running: _Running, token: str) -> tuple[str, ...]:
        kind = self.container_kind
        shell = ("sh", "-c", shell_scripts.ENTER, f"workbench-{token}", shell_scripts.READ_ORDER)
        return (*kind.environment, *running.sudo_words, *kind.enter(self.container), *shell)

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        first = self._encode_command_line(argv, env, ends_with_stdin=False)
        running, token = await self._get_running_container(), secrets.token_hex(8)
        try:
            done = await self.inner.run(
                self._argv_that_enters_container(running, token),
                input=first + input,
                timeout_s=timeout_s,
            )
        except HostUnreachable as error:
            self.end_streams_and_reconnect(running, error)
            raise
        except CommandTimeout:
            self._start_background_task(partial(self._end_command_processes, running, token))
            raise command_timeout_error(argv, timeout_s, self.name) from None
        except (HostError, asyncio.CancelledError):
            self._start_background_task(partial(self._end_command_processes, running, token))
            raise
        errors, code = shell_scripts.split_stderr_and_exit_code(
            done.stderr.decode("utf-8", "surrogateescape")
        )
        if code is None and not _REFUSED.search(errors):
            self._start_background_task(partial(self._end_command_processes, running, token))
        if _MARK + b"\n" not in done.stdout:
            raise await self.command_not_started_error(running, argv, errors)
        if code is None:
            raise await self.command_cut_off_error(running)
        out = done.stdout.partition(_MARK + b"\n")[2]
        err = shell_scripts.remove_text_before_mark(errors, shell_scripts.INSIDE).encode(
            "utf-8", "surrogateescape"
        )
        return Completed(tuple(argv), code, out, err)

    async def _end_command_processes(self, running: _Running, token: str) -> None:
        """Kill the processes in the container that have `token` in their environment: those of one
        command, for which nobody waits any more. A container that cannot be entered is ignored."""
        order = self._encode_command_line(
            shell_scripts.shell_argv(shell_scripts.END, token), None, ends_with_stdin=False
        )
        with contextlib.suppress(HostError):
            await self.inner.run(
                self._argv_that_enters_container(running, secrets.token_hex(8)),
                input=order,
                timeout_s=END_S,
            )

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ContainerStream:
        first = self._encode_command_line(argv, env, ends_with_stdin=True)
        running = await self._get_running_container()
        words = self._argv_that_enters_container(running, secrets.token_hex(8))
        inner = await self.inner.stream(words, input=first + input)
        stream = ContainerStream(self, running, inner, lambda: self._streams.discard(stream))
        self._streams.add(stream)
        self.heard_s = time.monotonic()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch_container())
        try:
            await stream.wait_for_command_start(argv)
        except BaseException:
            await stream.close()
            raise
        return stream

    # ---- files, ports, facts

    async def state_dir(self) -> str:
        elsewhere = self.container_kind.elsewhere
        if self._state_dir is None:
            shared = await self._asked_state_dir.get()
            # The host around a job often has the same files, and its runs must not look like those
            # of this machine.
            self._state_dir = (
                f"{shared}/{self.container_kind.name}-{self.container}" if elsewhere else shared
            )
        return self._state_dir

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await files_via_shell.read_file_via_shell(self, path, offset, limit)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        await files_via_shell.write_file_via_shell(self, path, data, mode)

    async def forward(self, port: int, address: str = LOOPBACK) -> Forward:
        """Open a local port that leads to `address`:`port` as the container reaches it. If the
        container shares the network of the host around it, the local port leads to the port of that
        host."""
        return await self._ports.forward(await self._get_running_container(), port, address)

    async def facts(self) -> HostFacts:
        facts = await self._asked_facts.get()
        return replace(facts, container=facts.container or self.container_kind.runtime or None)

    async def read_job_gpus(self) -> tuple[str, ...] | None:
        if not self.container_kind.elsewhere:
            return None
        done = await self.run(shell_scripts.shell_argv(shell_scripts.GPUS_OF_JOB), check=True)
        given = tuple(filter(None, done.out.strip().split(",")))
        return None if given == ("all",) else given

    async def read_container_host_processes(
        self, pids: Collection[int]
    ) -> Mapping[int, ContainerHostProcess]:
        if self.container_kind.elsewhere:
            return {}  # the driver counts processes as the node does
        done = await self.inner.run(
            shell_scripts.shell_argv(shell_scripts.AROUND, *(str(pid) for pid in pids))
        )
        return dict(
            self._parse_pid_and_host_process(block) for block in f"\n{done.out}".split("\npid ")[1:]
        )

    def _parse_pid_and_host_process(self, block: str) -> tuple[int, ContainerHostProcess]:
        pid, _, rest = block.partition("\n")
        number = parse_whole_number(pid) or 0
        lines = shell_scripts.parse_last_values(
            rest.replace("inside\t", "inside ").splitlines(), " "
        )
        place = parse_container_of_process(rest)
        kind, _, name = place.partition(":")
        same = (
            name == self.container
            if kind in ("lxc", "pct")
            else bool(name) and self._id.startswith(name)
        )
        inside = lines.get("inside", pid).split()[-1:]
        title = clean_text(lines.get("name", ""), NAME_CHARS) or None
        if same and inside:
            return number, ContainerHostProcess(parse_whole_number(inside[0]), title)
        return number, ContainerHostProcess(None, title, place or self.inner.name)


async def _run_ignoring_errors(work: Callable[[], Awaitable[None]]) -> None:
    """Await what `work` returns, and ignore its errors. The task may be cancelled before it begins,
    and a coroutine that was made before would then never be awaited."""
    with contextlib.suppress(Exception):  # it ends what nobody awaits
        await work()
