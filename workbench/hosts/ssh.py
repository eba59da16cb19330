"""A host behind ssh. Only this module imports asyncssh.

Commands share one connection, which is restored after a loss. The user's ssh configuration applies:
aliases, User, Port, IdentityFile, ProxyJump, known_hosts, agent. The remote side needs only a POSIX
sh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import asyncssh

from workbench.hosts import files_via_shell, host_facts, known_hosts, shell_scripts, ssh_names
from workbench.hosts.base import (
    LOOPBACK,
    AuthFailed,
    BaseHost,
    Completed,
    HostFacts,
    HostKeyUnknown,
    HostUnreachable,
    LinkEvent,
    SshAddress,
    command_not_found_error,
    command_timeout_error,
    output_too_large_error,
    raise_if_argv_invalid,
)
from workbench.hosts.known_hosts import HostKeys
from workbench.hosts.line_splitter import (
    CHUNK_BYTES,
    OUTPUT_MAX_BYTES,
    CommandOutput,
    Tail,
    TooMuch,
    split_lines,
)
from workbench.hosts.login_question import Ask, LoginQuestion, clean_server_lines, quote_server_line
from workbench.hosts.port_relay import Reader, Relay, Writer
from workbench.hosts.reconnecting_link import PATIENCE_S, Link
from workbench.hosts.shared_answers import SharedAnswer
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError, error_reason

# OpenSSH allows 10 sessions per connection (MaxSessions), and a slot is free only once its process
# has ended.
SESSIONS_MAX = 8
MORE_MAX = 3  # further connections: enough for a benchmark where MaxSessions is 2
# fewer than SESSIONS_MAX, so that a command can always be run; a benchmark has up to four
STREAMS_MAX = 6
KEEPALIVE_S = 3.0  # a dead link is noticed after KEEPALIVE_S * (KEEPALIVE_MISSES + 1) = 9 s
KEEPALIVE_MISSES = 2
CONNECT_S = 15.0  # for each host on the way, login included; sshd may look up a name for 10 s
TYPING_S = 300.0  # for a user who is asked; not part of CONNECT_S
CLOSE_S = 2.5  # the guard ends its command within 2 s
JUMPS_MAX = 8
EARLY_MAX_BYTES = 4 << 20  # of a login shell, before a command starts
# Of the questions of one login: as in ssh, three tries. A try with a password and a code has two
# rounds.
TRIES_MAX = 3
ROUNDS_MAX = 6
PROMPTS_MAX = 4  # of one round
LASTING_S = 60.0  # a connection that ends earlier may exist only to ask the user once more

_MARK = shell_scripts.MARK.encode()
_Process = asyncssh.SSHClientProcess[bytes]

# otherwise its warnings appear on the screen
logging.getLogger("asyncssh").addHandler(logging.NullHandler())


class _Client(asyncssh.SSHClient):
    """The callbacks of asyncssh for one login: they check the host key, and ask the user for
    passwords and codes. `server` is the name of the machine that the user logs in to."""

    def __init__(
        self,
        keys: HostKeys,
        ask: Ask | None,
        report_lost_connection: Callable[[Exception | None], None],
        methods: set[str],
        server: str,
    ) -> None:
        self._keys = keys
        self._ask = ask
        self._lost = report_lost_connection
        self._methods = methods  # collects the login methods that need the user
        self._server = server
        self._password_tried = False
        self._tries = self._rounds = self._rounds_of_try = 0  # of keyboard-interactive

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        return self._keys.accepts(host, port, key)

    async def password_auth_requested(self) -> str | None:
        self._methods.add("password")
        if self._ask is None or self._password_tried:
            return None
        self._password_tried = True
        return await self._ask(LoginQuestion("Password", self._server))

    def kbdint_auth_requested(self) -> str | None:
        self._methods.add("password or code")
        self._tries += 1
        self._rounds_of_try = 0
        return "" if self._ask is not None and self._tries <= TRIES_MAX else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> Sequence[str] | None:
        self._rounds += 1
        self._rounds_of_try += 1
        too_many = self._rounds_of_try > TRIES_MAX or self._rounds > ROUNDS_MAX
        if self._ask is None or too_many or len(prompts) > PROMPTS_MAX:
            return None
        answers: list[str] = []
        for number, (prompt, _echo) in enumerate(prompts):
            around = (name, instructions) if number == 0 else ()
            said = clean_server_lines(*around, prompt)
            wanted = "Your answer" if said else "Password"
            answer = await self._ask(LoginQuestion(wanted, self._server, said))
            if answer is None:
                return None
            answers.append(answer)
        return answers


class SshStream:
    """A running command on the host. It runs under `shell_scripts.GUARD`, which ends the command
    when its channel or the connection ends.
    """

    def __init__(self, host: SshHost, process: _Process, release: Callable[[], None]) -> None:
        self._host = host
        self._process = process
        self._release = release
        self._early = b""
        self._closing = False
        self._tail = Tail()
        self._errors = asyncio.create_task(self._drain_stderr())

    async def _drain_stderr(self) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self._process.stderr.read(CHUNK_BYTES):
                self._tail.append(data)

    async def wait_for_command_start(self, argv: Sequence[str]) -> None:
        """Read and drop what the login shell prints before the command `argv` starts. Raises
        HostError if the command is never started."""
        end = _MARK + b"\n"
        seen, count = b"", 0  # the newest bytes, which may contain the mark, and all before
        while end not in seen:
            data = await self._read_output()
            if not data:
                await asyncio.wait([self._errors], timeout=CLOSE_S)
                raise self._host.command_not_started_error(argv, self._tail.text())
            count += len(data)
            if count > EARLY_MAX_BYTES:
                raise self._host.noisy_shell_error()
            seen = seen[-len(end) :] + data
        self._early = seen.partition(end)[2]

    async def _read_output(self) -> bytes:
        try:
            data = await self._process.stdout.read(CHUNK_BYTES)
        except (asyncssh.Error, OSError):
            if self._closing:
                return b""
            raise self._host.connection_lost_error() from None
        if (
            not data
            and not self._closing
            and self._process.channel.is_closing()
            and self._process.returncode is None
        ):
            raise self._host.connection_lost_error()
        return data

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._early:
            early, self._early = self._early, b""
            yield early
        while data := await self._read_output():
            yield data

    def lines(self) -> AsyncIterator[bytes]:
        return split_lines(self.chunks())

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):  # it ended: `wait` says how
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def wait(self) -> int:
        await self._process.wait_closed()
        if self._process.returncode is None:
            raise self._host.connection_lost_error()
        return self._process.returncode

    async def stderr_tail(self) -> str:
        if self._process.returncode is not None:
            await asyncio.wait([self._errors], timeout=1.0)
        return shell_scripts.remove_text_before_mark(self._tail.text())

    async def close(self) -> None:
        """End the command: close its stdin, and wait up to CLOSE_S seconds for its end, which frees
        its ssh session."""
        self._closing = True
        try:
            with contextlib.suppress(asyncssh.Error, OSError):
                self._process.stdin.write_eof()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait_closed(), CLOSE_S)
            self._process.close()
            await cancel_all([self._errors])
        finally:
            self._release()


class _ArgumentsAsInSsh:
    """What asyncssh's parser of configuration files uses in place of the module shlex, which takes
    the words of a comment at the end of a line for further arguments."""

    split = staticmethod(ssh_names.split_arguments)


vars(asyncssh.config)["shlex"] = _ArgumentsAsInSsh


class SshHost(BaseHost):
    """A host behind ssh. `address` is an alias of the ssh configuration, HOST or USER@HOST.
    `display_name` is the name that the user sees, if it differs from `address`. `ssh_config` is
    read instead of ~/.ssh/config. `ask` asks the user for a passphrase or password; without it, a
    login that needs one fails."""

    kind = "ssh"

    def __init__(
        self,
        address: str,
        *,
        display_name: str | None = None,
        ssh_config: str | Path | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.address = ssh_names.require_host_name(address)
        self.name = display_name or address
        self._config = [str(Path(ssh_config).expanduser())] if ssh_config is not None else ()
        self.login_prompt = ask
        self._passphrases: dict[str, str | None] = {}
        self._methods: set[str] = set()
        self._answered = False  # the user has answered a question of the server in this login
        self._short_logins = 0  # in a row: the user answered, and the connection soon ended
        self._logged_in_s = 0.0  # monotonic time
        self._limit = asyncio.Timeout(None)  # of the connection attempt
        self._accepted: set[str] = set()
        self._unknown: dict[str, tuple[str, str]] = {}
        self._link: Link[asyncssh.SSHClientConnection] = Link(self.name, self._open_connection)
        # where sshd allows too few sessions on one
        self._more: list[asyncssh.SSHClientConnection] = []
        self._more_from_s = 0.0  # monotonic time from which another one may be tried
        self._opening = asyncio.Lock()
        self._sessions = asyncio.Semaphore(SESSIONS_MAX)
        self._streams = asyncio.Semaphore(STREAMS_MAX)
        self._relays: list[Relay] = []
        self._state_dir: str | None = None
        self._asked_state_dir = SharedAnswer(lambda: files_via_shell.state_dir_via_shell(self))
        self._asked_facts = SharedAnswer(self._read_facts)

    @property
    def connected(self) -> bool:
        return self._link.connected

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        return self._link.on_link(listener)

    async def connect(self) -> None:
        await self._link.connect()

    def accept_host_key(self, fingerprint: str) -> None:
        if fingerprint not in self._unknown:
            return super().accept_host_key(fingerprint)
        file, line = self._unknown.pop(fingerprint)
        self._accepted.add(fingerprint)
        try:
            known_hosts.append_line(file, line)
        except OSError as error:
            raise HostError(
                f"cannot add the host's key to {file}: {error_reason(error)}", host=self.name
            ) from None

    async def close(self) -> None:
        await self._asked_state_dir.close()
        await self._asked_facts.close()
        for relay in self._relays:
            await relay.close()
        for connection in (*self._more, await self._link.stop_and_detach_connection()):
            if connection is not None:
                connection.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(connection.wait_closed(), CLOSE_S)

    async def _open_connection(self) -> asyncssh.SSHClientConnection:
        user, _, host = self.address.rpartition("@")
        self._methods.clear()
        self._answered = False
        self._raise_if_server_keeps_disconnecting()
        try:
            connection = await self._connect_via_jump_hosts(
                host, {"username": user} if user else {}, None, JUMPS_MAX
            )
        except HostError:
            raise
        except Exception as error:  # no error of asyncssh may end the screen or the retries
            failed = self._host_error_from_login_error(error)
            # it may have been mistyped; a host that does not answer says nothing
            if isinstance(failed, AuthFailed):
                self._passphrases.clear()
            raise failed from None
        if self._answered:
            self._short_logins += 1
            self._logged_in_s = time.monotonic()
        return connection

    def _raise_if_server_keeps_disconnecting(self) -> None:
        """Raise AuthFailed if the server ended the last TRIES_MAX connections soon after the user
        had answered its questions. It could ask for ever, because a lost connection is restored."""
        if time.monotonic() - self._logged_in_s > LASTING_S:
            self._short_logins = 0
        if self._short_logins < TRIES_MAX:
            return
        self._short_logins = 0
        raise AuthFailed(
            f"the host ended {TRIES_MAX} connections soon after it had accepted your answers",
            host=self.name,
            next_step=f"see what it does: ssh {self.address}",
        )

    def _host_error_from_login_error(self, error: Exception) -> HostError:
        if not isinstance(error, asyncssh.PermissionDenied):
            failed = _host_error_from_ssh_error(error, self.name, self.address)
            if not self._answered:
                return failed
            # not tried again by itself: the server would ask the user again, without an end
            return AuthFailed(
                f"the login ended after your answer: {failed.message}",
                host=self.name,
                next_step="connect again and answer again, if you trust this host",
            )
        if not self._methods:
            typed = [file for file, passphrase in self._passphrases.items() if passphrase]
            if typed:
                message = (
                    "the host accepted none of your keys, or the passphrase of "
                    f"{' or '.join(typed)} is wrong"
                )
                return AuthFailed(
                    message, host=self.name, next_step="connect again and retype the passphrase"
                )
            return _host_error_from_ssh_error(error, self.name, self.address)
        kinds = " or a ".join(sorted(self._methods))
        if self.login_prompt is None:
            step = (
                f"run the command in a terminal, or make `ssh {self.address} true` work "
                "without a question"
            )
            message = f"the host asks for a {kinds}, and there is no terminal to ask the user"
            return AuthFailed(message, host=self.name, next_step=step)
        return AuthFailed(
            f"the host did not accept the {kinds}",
            host=self.name,
            next_step=f"connect again and retype the {kinds}",
        )

    async def _make_connection_options(
        self, host: str, given: Mapping[str, Any]
    ) -> asyncssh.SSHClientConnectionOptions:
        """Return the connection options for `host`: those in `given`, then those of the user's ssh
        configuration. No key file is loaded."""
        options: asyncssh.SSHClientConnectionOptions = (
            await asyncssh.SSHClientConnectionOptions.construct(
                host=host, config=self._config, client_keys=None, **given
            )
        )
        return options

    def _make_asyncssh_key_arguments(
        self, options: asyncssh.SSHClientConnectionOptions
    ) -> dict[str, Any]:
        # Unlocking a key file with a passphrase needs bcrypt; without it, only the agent can use
        # that key.
        unlocks = self.login_prompt is not None and find_spec("bcrypt") is not None
        arguments: dict[str, Any] = {"ignore_encrypted": not unlocks}
        if unlocks:
            arguments["passphrase"] = self._cached_or_asked_passphrase
        files = [Path(f).expanduser() for f in cast(Any, options.config.get("IdentityFile", ()))]
        if files:  # as in ssh, missing files are skipped
            arguments["client_keys"] = [str(f) for f in files if f.is_file()]
        return arguments

    async def _cached_or_asked_passphrase(self, file: str) -> str | None:
        """Return the passphrase of the key file `file`. The user is asked at the first call only,
        and again if the answer is wrong. None if the user declines or cannot be asked."""
        if file not in self._passphrases and self.login_prompt is not None:
            self._passphrases[file] = await self._ask_passphrase(file)
        return self._passphrases.get(file)

    async def _ask_passphrase(self, file: str) -> str | None:
        wanted, answer = f"Passphrase for {file}", None
        for _ in range(TRIES_MAX):
            answer = await self._ask_user(LoginQuestion(wanted, self.name, stays_here=True))
            if not answer or await asyncio.to_thread(_passphrase_unlocks, file, answer):
                return answer
            wanted = f"Wrong. Passphrase for {file}"
        return answer

    async def _ask_user(self, question: LoginQuestion) -> str | None:
        """Ask the user, and return the answer; None if the user declines. The time limit of the
        connection attempt pauses meanwhile."""
        assert self.login_prompt is not None
        with contextlib.suppress(RuntimeError):  # given up already
            self._limit.reschedule(None)
        try:
            answer = await self.login_prompt(question)
            self._answered |= answer is not None and not question.stays_here
            return answer
        finally:
            with contextlib.suppress(RuntimeError):
                self._limit.reschedule(asyncio.get_running_loop().time() + CONNECT_S)

    async def _connect_via_jump_hosts(
        self,
        host: str,
        given_options: Mapping[str, Any],
        tunnel: asyncssh.SSHClientConnection | None,
        most_jumps: int,
    ) -> asyncssh.SSHClientConnection:
        """Connect to `host` with the options `given_options`, and return the connection. It leads
        through the connection `tunnel`; if that is None, through the ProxyJump hosts of the
        configuration, at most `most_jumps` in a row. Raises HostError or an error of asyncssh."""
        options = await self._make_connection_options(host, given_options)
        jump = options.tunnel if tunnel is None and isinstance(options.tunnel, str) else ""
        for hop in filter(None, jump.split(",")):
            if most_jumps == 0:
                raise HostUnreachable(
                    "the ProxyJump hosts of this host form a circle", host=self.name
                )
            hop_host, hop_given = ssh_names.parse_jump_host_and_options(hop)
            if hop_host != host:
                tunnel = await self._connect_via_jump_hosts(
                    hop_host, hop_given, tunnel, most_jumps - 1
                )
        keys = self._make_host_keys(host, options)
        final = host == self.address.rpartition("@")[2]
        server = self.name if final else f"{host} (on the way to {self.name})"
        made: list[asyncssh.SSHClientConnection] = []

        def report_lost_connection(error: Exception | None) -> None:
            if made:
                self._link.report_lost(
                    made[0],
                    "closed by the other side" if error is None else quote_server_line(str(error)),
                )

        try:
            async with asyncio.timeout(CONNECT_S) as self._limit:
                connection = await asyncssh.connect(
                    host,
                    config=self._config,
                    # None, unlike (), goes past the configuration's ProxyJump
                    tunnel=cast(Any, tunnel),
                    client_factory=lambda: _Client(
                        keys,
                        self._ask_user if self.login_prompt else None,
                        report_lost_connection,
                        self._methods,
                        server,
                    ),
                    known_hosts=keys.known_keys_of_host,
                    keepalive_interval=KEEPALIVE_S,
                    keepalive_count_max=KEEPALIVE_MISSES,
                    connect_timeout=None,
                    login_timeout=TYPING_S,
                    agent_forwarding=False,
                    x11_forwarding=False,
                    **given_options,
                    **self._make_asyncssh_key_arguments(options),
                )
                made.append(connection)
                connection.set_tunnel(tunnel)  # closed with it
        except asyncssh.HostKeyNotVerifiable as error:
            if isinstance(keys.problem, HostKeyUnknown):
                self._unknown[keys.problem.fingerprint] = keys.accepting
            raise keys.problem or keys.key_changed_error(error.reason) from None
        except asyncssh.KeyExchangeFailed as error:
            if keys.known and "host key" in error.reason:
                raise keys.key_changed_error(
                    "the host offers no key of the types in known_hosts"
                ) from None
            raise
        finally:
            if tunnel is not None and not made:
                tunnel.close()
        return made[0]

    def _make_host_keys(self, host: str, options: asyncssh.SSHClientConnectionOptions) -> HostKeys:
        config = cast(Any, options.config)
        user_files = [str(f) for f in config.get("UserKnownHostsFile", known_hosts.DEFAULT_USER)]
        files = [*user_files, *config.get("GlobalKnownHostsFile", known_hosts.DEFAULT_GLOBAL)]
        known = known_hosts.read_known_hosts(files, asyncssh.import_known_hosts)
        file = user_files[0] if user_files else known_hosts.DEFAULT_USER[0]
        aliased = options.host_key_alias is not None
        return HostKeys(
            self.name,
            known,
            address=self.address,
            file=file,
            aliased=aliased,
            accepted=self._accepted,
        )

    def connection_lost_error(self) -> HostUnreachable:
        """Return the error for a command during which the connection was lost."""
        step = "check the host once the connection is back: the operation may have continued there"
        return HostUnreachable("the connection was lost", host=self.name, next_step=step)

    def noisy_shell_error(self) -> HostError:
        """Return the error for a login shell that prints so much that no command starts."""
        return HostError(
            f"the user's login shell printed more than {EARLY_MAX_BYTES >> 20} MiB before any command"
            " started",
            host=self.name,
            next_step=f"see what it prints: ssh {self.address} true | head",
        )

    def command_not_started_error(self, argv: Sequence[str], output: str) -> HostError:
        """Return the error for the command `argv` that the host's login shell never started.
        `output` is what that shell printed on stderr."""
        if f"{shell_scripts.MARK} missing" in output:
            return command_not_found_error(argv, self.name)
        last = quote_server_line("".join(output.splitlines()[-1:]))
        return HostError(f"the user's login shell does not run commands: {last}", host=self.name)

    async def _start_process_and_stdin_prefix(
        self, argv: Sequence[str], env: Mapping[str, str] | None, ends_with_stdin: bool
    ) -> tuple[_Process, bytes]:
        """Start a shell for `argv` on the host. Return (its process, bytes to write to its stdin
        first, after which it runs `argv`). Wait up to PATIENCE_S seconds for a lost connection, and
        as long for a free ssh session, then raise HostError."""
        raise_if_argv_invalid(argv, self.name)
        try:
            first = shell_scripts.shell_command_line(argv, env, ends_with_stdin)
        except ValueError as error:
            raise HostError(str(error), host=self.name) from None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            connection = await self._link.wait_for_connection()
            try:
                return await self._start_shell(connection), first
            except (asyncssh.Error, OSError) as error:
                if connection.is_closed():
                    self._link.report_lost(connection, quote_server_line(str(error)))
                elif time.monotonic() > deadline:
                    step = "raise MaxSessions in the host's sshd_config, or close other sessions"
                    raise HostError(
                        f"cannot open an SSH session: {quote_server_line(str(error))}",
                        host=self.name,
                        next_step=step,
                    ) from None
                await asyncio.sleep(0.1)

    async def _start_shell(self, connection: asyncssh.SSHClientConnection) -> _Process:
        """Start a shell in an ssh session of `connection`, or of an additional connection to the
        same host if sshd allows no more sessions on this one (MaxSessions). Raises
        asyncssh.ChannelOpenError if there is no additional connection."""
        tried: asyncssh.SSHClientConnection | None = connection
        number = 0
        while True:
            assert tried is not None
            try:
                return await tried.create_process(
                    shell_scripts.LINE, encoding=None, request_pty=False
                )
            except asyncssh.ChannelOpenError:
                if connection.is_closed():
                    raise
                tried = await self._get_or_open_additional_connection(number)
                if tried is None:
                    raise
                number += 1

    async def _get_or_open_additional_connection(
        self, index: int
    ) -> asyncssh.SSHClientConnection | None:
        """Return the additional connection number `index`, from 0, to the same host; open it if
        necessary. None if there are MORE_MAX already, if one could not be opened just before, or if
        the user would be asked for a password again."""
        async with self._opening:
            self._more = [one for one in self._more if not one.is_closed()]
            if index < len(self._more):
                return self._more[index]
            if self._methods or index >= MORE_MAX or time.monotonic() < self._more_from_s:
                return None
            try:
                self._more.append(await self._open_connection())
            except HostError:
                self._more_from_s = time.monotonic() + PATIENCE_S
                return None
            return self._more[-1]

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        async with self._sessions:
            process, first = await self._start_process_and_stdin_prefix(
                argv, env, ends_with_stdin=False
            )
            output = CommandOutput()
            try:
                # the command may have ended without reading
                with contextlib.suppress(asyncssh.Error, OSError):
                    process.stdin.write(first + input)
                    process.stdin.write_eof()
                async with asyncio.timeout(timeout_s):
                    await output.read_both_streams(process.stdout, process.stderr)
                    await process.wait_closed()
            except TimeoutError:
                await self._end_command_processes(output, process)
                raise command_timeout_error(argv, timeout_s, self.name) from None
            except TooMuch:
                await self._end_command_processes(output, process)
                raise output_too_large_error(argv, self.name) from None
            except asyncio.CancelledError:
                await asyncio.shield(self._end_command_processes(output, process))
                raise
            except (asyncssh.Error, OSError):
                raise self.connection_lost_error() from None
            finally:
                process.close()
        if process.returncode is None:
            raise self.connection_lost_error()
        out, err = bytes(output.out), bytes(output.err)
        if _MARK + b"\n" not in out:
            raise self.command_not_started_error(argv, err.decode("utf-8", "replace"))
        errors = shell_scripts.remove_text_before_mark(
            err.decode("utf-8", "surrogateescape")
        ).encode("utf-8", "surrogateescape")
        own_out = out.partition(_MARK + b"\n")[2]
        return Completed(tuple(argv), process.returncode, own_out, errors)

    async def _end_command_processes(self, output: CommandOutput, process: _Process) -> None:
        """Kill the processes of a command for which nobody waits any more. Their process group is
        in `output`, the command's output until now, or comes within CLOSE_S seconds. Do nothing if
        it does not, or without a connection."""
        pid = await self._read_process_id(output, process)
        if pid is None or not self.connected:
            return
        connection = await self._link.wait_for_connection()
        with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
            # login shells: see script.LINE
            killer = f"exec sh -c 'kill -s KILL -- -{pid} || kill -s KILL {pid}'"
            await asyncio.wait_for(connection.run(killer, encoding=None), CLOSE_S)

    async def _read_process_id(self, output: CommandOutput, process: _Process) -> int | None:
        """Return the process id of the command whose output until now is `output`. A command that
        has only just been started has not printed it yet: read its stderr for up to CLOSE_S
        seconds. None if the id does not come."""
        pid = shell_scripts.parse_pid_after_mark(output.err.decode("utf-8", "replace"))
        with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while pid is None and len(output.err) < OUTPUT_MAX_BYTES:
                    part = await process.stderr.read(CHUNK_BYTES)
                    if not part:
                        break
                    output.err += part
                    pid = shell_scripts.parse_pid_after_mark(output.err.decode("utf-8", "replace"))
        return pid

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> SshStream:
        await self._streams.acquire()
        await self._sessions.acquire()

        def release_session_slots() -> None:
            self._sessions.release()
            self._streams.release()

        try:
            process, first = await self._start_process_and_stdin_prefix(
                argv, env, ends_with_stdin=True
            )
        except BaseException:
            release_session_slots()
            raise
        stream = SshStream(self, process, release_session_slots)
        try:
            await stream.write(first + input)
            await stream.wait_for_command_start(argv)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def ssh_address(self) -> SshAddress:
        user, _, host = self.address.rpartition("@")
        try:
            options = await self._make_connection_options(host, {"username": user} if user else {})
        except Exception as error:  # no error of asyncssh may end a listing
            raise _host_error_from_ssh_error(error, self.name, self.address) from None
        through = options.tunnel if isinstance(options.tunnel, str) else ""
        port = options.port or known_hosts.DEFAULT_PORT
        return SshAddress(options.host or host, options.username, port, through, self.address)

    async def state_dir(self) -> str:
        if self._state_dir is None:
            self._state_dir = await self._asked_state_dir.get()
        return self._state_dir

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await files_via_shell.read_file_via_shell(self, path, offset, limit)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        await files_via_shell.write_file_via_shell(self, path, data, mode)

    async def forward(self, port: int, address: str = LOOPBACK) -> Relay:
        """Open a local port whose connections lead to `address`:`port` as the host reaches it. If
        the connection to the host is lost, the port stays open and works again once the connection
        is restored.
        """

        async def open_remote_connection() -> tuple[Reader, Writer]:
            connection = await self._link.wait_for_connection()
            return await connection.open_connection(address.strip("[]"), port, encoding=None)

        relay = Relay(open_remote_connection, (asyncssh.Error, HostError))
        self._relays.append(relay)
        await relay.listen()
        return relay

    async def facts(self) -> HostFacts:
        return await self._asked_facts.get()

    async def _read_facts(self) -> HostFacts:
        return await host_facts.query_host_facts(self)


def _passphrase_unlocks(file: str, passphrase: str) -> bool:
    """Return whether `passphrase` unlocks the key file `file`. Also True for a file that cannot be
    read: another passphrase would not help."""
    try:
        asyncssh.read_private_key(file, passphrase)
    except asyncssh.KeyEncryptionError:
        return False
    except (OSError, ValueError):
        return True
    return True


def _host_error_from_ssh_error(error: Exception, name: str, address: str) -> HostError:
    if isinstance(error, asyncssh.PermissionDenied):
        step = (
            f"make `ssh {address} true` work without a question: ssh-add, or ssh-copy-id {address}"
        )
        return AuthFailed("the host accepted none of your keys", host=name, next_step=step)
    if isinstance(error, asyncssh.KeyImportError):
        return AuthFailed(
            f"a key is not usable: {error}",
            host=name,
            next_step="unlock the key first: ssh-add KEYFILE",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed) and "No matching" in error.reason:
        kind = error.reason.removeprefix("No matching ").partition(" algorithm found")[0]
        offered = quote_server_line(error.reason.rpartition(" received ")[2])
        return HostUnreachable(
            f"the host offers no {kind} algorithm that is still in use; it offers {offered}",
            host=name,
            next_step="update OpenSSH on the host, or allow one of these algorithms in your ssh "
            "configuration",
        )
    if isinstance(error, asyncssh.ConfigParseError):
        return HostError(f"cannot read your ssh configuration: {error}", host=name)
    if isinstance(error, TimeoutError):
        return HostUnreachable(
            "the host does not answer",
            host=name,
            next_step=f"check the connection with: ssh {address} true",
        )
    reason = (
        getattr(error, "reason", "")
        or getattr(error, "strerror", None)
        or str(error)
        or type(error).__name__
    )
    if isinstance(error, ConnectionError) and error.errno:
        reason = os.strerror(error.errno)  # asyncio's own text is "Connect call failed" and a tuple
    if isinstance(error, UnicodeError):
        reason = "DNS allows no such name"  # Python's own text is about a codec
    if isinstance(error, asyncssh.Error):
        reason = quote_server_line(str(reason))  # it may be the reason that the server gave
    return HostUnreachable(
        f"no connection: {reason}",
        host=name,
        next_step=f"check the connection with: ssh {address} true",
    )
