"""Sessions for single commands. A session is connected when the command starts and closed when it
ends."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from workbench.cli.output import print_message
from workbench.cli.questions import can_prompt, prompt_for_login_secret, require_yes_answer
from workbench.hosts import split_host_and_container
from workbench.model.errors import InputError, WorkbenchError

if TYPE_CHECKING:
    from workbench.model.gpu import Telemetry
    from workbench.session.session import Session
    from workbench.session.state import SessionState


def create_session(arguments: argparse.Namespace) -> Session:
    """Return a session for the host that the command line names. The session is not connected
    yet."""
    from workbench.session.session import Session

    return Session.of_host(read_selected_host_name(arguments), arguments.simulate)


def read_selected_host_name(arguments: argparse.Namespace) -> str | None:
    """Return the name of the host that the command line selects; None for this machine. With
    --cluster, it is the name of the cluster; with --container, the name of a container on the host.
    Raises InputError for a kind of container that does not exist, and for options that exclude each
    other."""
    host: str | None = getattr(arguments, "target", None) or arguments.host
    if arguments.cluster is not None:
        from workbench.session.hosts.names import CLUSTER_PREFIX

        if host is not None:
            raise InputError(
                "--host and --cluster are both given", next_step="use either --host or --cluster"
            )
        if arguments.container is not None:
            step = "name the containers of its nodes in hosts.toml"
            raise InputError("--cluster and --container are both given", next_step=step)
        return f"{CLUSTER_PREFIX}{arguments.cluster}"
    if arguments.container is None:
        return host
    name = f"{host}/{arguments.container}" if host else arguments.container
    if split_host_and_container(name)[1] is None:
        from difflib import get_close_matches

        from workbench.hosts.container_kinds import KINDS

        kind = arguments.container.partition(":")[0]
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"--container {arguments.container!r} does not name a container",
            next_step=f"{hint}write --container KIND:NAME; the kinds are {', '.join(KINDS)}",
        )
    return name


def create_local_session() -> Session:
    """Return a session for commands that use only stored results and presets. It is not connected
    to a host."""
    from workbench.session.session import Session

    return Session.of_host()


def select_recorded_host(arguments: argparse.Namespace, host: str) -> None:
    """Select the host on which a stored experiment or sweep ran, unless the command line names a
    host."""
    from workbench.cli.host_words import format_host_options

    if not format_host_options(arguments):
        arguments.host = None if host == "local" else host


@asynccontextmanager
async def connect_session(arguments: argparse.Namespace) -> AsyncIterator[Session]:
    """Connect to the host that the command line names, and yield the session. The session is closed
    when the context manager ends. If the host key is unknown, ask the user on the terminal whether
    to trust the key."""
    from workbench.hosts.base import HostKeyUnknown

    session = create_session(arguments)
    session.subscribe(_make_link_reporter())
    if chosen := getattr(arguments, "if_measured", None):
        from workbench.gpu.measurement_lock import IfHeld  # takes 50 ms to load

        session.measurement_lock.if_held, session.measurement_lock.tell = (
            IfHeld(chosen),
            print_message,
        )
    if can_prompt(arguments):
        session.link.ask = prompt_for_login_secret
    try:
        try:
            await session.link.connect()
        except HostKeyUnknown as error:
            if not can_prompt(arguments):
                raise
            await require_yes_answer(f"{error.message}\nTrust this key and continue?")
            session.link.trust_host_key()
            await session.link.connect()
        yield session
    finally:
        await session.close()


def warn_of_unreached_nodes(session: Session) -> bool:
    """Say on stderr which nodes of the session's cluster could not be reached. Return whether there
    are such nodes; False for a single host."""
    unreached = getattr(session.host, "unreached", {})
    for name, why in unreached.items():
        print_message(f"warning: node {name} cannot be reached, and is left out: {why}")
    return bool(unreached)


@asynccontextmanager
async def read_gpus_in_background(session: Session) -> AsyncIterator[Awaitable[Telemetry]]:
    """Start to read the GPUs of the session's host. Yield an awaitable that returns the reading.
    The program that reads takes 0.1 s to start; a command can import modules meanwhile with
    `asyncio.to_thread`. The reading is cancelled when the context manager ends."""
    import asyncio

    from workbench.gpu.telemetry.source_of_host import read_telemetry_once

    reading = asyncio.create_task(read_telemetry_once(session.host))
    try:
        yield reading
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError, WorkbenchError):
            await reading


async def warn_if_benchmark_runs(session: Session) -> None:
    """Warn on stderr if somebody else measures on this host now, because a change to the host would
    distort the result. If that cannot be read, say so in a warning; no error is raised."""
    try:
        if session.gpu.alterations.register_dir is None:
            await session.gpu.alterations.read_altered_settings()
        await session.measurement_lock.refresh_other_lock_owner()
        by = session.state.host.measured_by
        text = f"{session.host.name} is being measured: {by}." if by is not None else ""
    except Exception as error:
        problem = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        print_message(
            f"warning: it is unknown whether others measure on {session.host.name}: {problem}"
        )
        return
    if text:
        print_message(f"warning: {text} A change here disturbs that measurement.")


def _make_link_reporter() -> Callable[[SessionState, frozenset[str]], None]:
    link = "connecting"

    def report(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal link
        host, before, link = state.host, link, state.host.link
        if link == "lost" != before:
            print_message(
                f"{host.name}: connection lost ({host.message}); reconnecting. Servers on the "
                "host keep running."
            )
        elif before == "lost" != link:
            print_message(
                f"{host.name}: {'connection restored' if link == 'connected' else host.message}"
            )

    return report
