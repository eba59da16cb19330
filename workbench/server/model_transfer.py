"""Sends the files of a model from one host to another: by rsync if one of the hosts can reach the
other, otherwise through this machine."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from workbench.hosts.base import Host, SshAddress
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_copy import size_text
from workbench.server.model_shipment import RemainingFiles, Shipment

# bytes of the shipment that have arrived, and what is under way
ReportProgress = Callable[[int, str], None]
_REACH_TIMEOUT_S = 20.0
_PREFIX_HASH_TIMEOUT_S = 3600.0  # to hash what is staged already
_SSH_COMMAND = (
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "ServerAliveInterval=5",
)
_RSYNC_PROGRESS = re.compile(rb"^\s*([\d,.]+)\s+\d+%", re.MULTILINE)

_SEND_FILE_SCRIPT = read_script(__file__, "send_file.sh")
_APPEND_FILE_SCRIPT = read_script(__file__, "append_file.sh")
_PREFIX_HASH_SCRIPT = 'head -c "$2" -- "$1" | sha256sum'


@dataclass(frozen=True, slots=True)
class TransferWay:
    """A way to send files from one host to another with rsync: the host that runs rsync, and the
    address at which it reaches the other host."""

    runner: Host
    address: SshAddress
    pushes: bool  # the source runs it

    @property
    def text(self) -> str:
        return (
            f"by rsync on {self.runner.name}, {'to' if self.pushes else 'from'} "
            f"{self.address.target}"
        )


async def find_rsync_way(
    source: Host, target: Host, addresses: Sequence[tuple[Host, SshAddress]]
) -> TransferWay | None:
    """Return how rsync can send from `source` to `target`; None if neither host reaches the other
    by SSH, or if one lacks rsync. `addresses` has the addresses to try, each with the host to which
    it must lead: a file with a random text, which Workbench writes there, shows whether it does.
    Raises HostError."""
    for host in (source, target):
        found = await host.run(["sh", "-c", "command -v rsync"], timeout_s=_REACH_TIMEOUT_S)
        if found.returncode:
            return None
    for far, address in addresses:
        near = source if far is target else target
        async with _temporary_path_and_secret(far) as (path, secret):
            argv = [*_ssh_arguments(address), address.target, f"cat -- {shlex.quote(path)}"]
            with suppress(HostError):
                done = await near.run(argv, timeout_s=_REACH_TIMEOUT_S)
                if done.returncode == 0 and done.stdout.strip() == secret:
                    return TransferWay(near, address, pushes=near is source)
    return None


@asynccontextmanager
async def _temporary_path_and_secret(host: Host) -> AsyncIterator[tuple[str, bytes]]:
    path = f"{await host.state_dir()}/reached-{secrets.token_hex(8)}"
    secret = secrets.token_hex(16).encode()
    await host.write_file(path, secret)
    try:
        yield path, secret
    finally:
        with suppress(HostError):
            await host.run(["rm", "-f", "--", path], timeout_s=_REACH_TIMEOUT_S)


def _ssh_arguments(address: SshAddress) -> list[str]:
    return [*_SSH_COMMAND, *(["-p", str(address.port)] if address.port else [])]


async def send_by_rsync(
    way: TransferWay, shipment: Shipment, rest: RemainingFiles, on_progress: ReportProgress
) -> None:
    """Send the files of `rest` to the staging directory with rsync, of a partly staged file only
    what is missing. `on_progress` receives the number of bytes staged so far, and a text. Raises
    HostError if rsync fails."""
    runner = way.runner
    listed = f"{await runner.state_dir()}/rsync-{secrets.token_hex(8)}"
    await runner.write_file(
        listed, b"".join(rule.encode() + b"\0" for rule in _rsync_filter_rules(rest.names))
    )
    near, far = shipment.source, shipment.staging_path
    if not way.pushes:
        near, far = far, near
    host = f"[{way.address.host}]" if ":" in way.address.host else way.address.host
    remote = f"{way.address.user}@{host}:{far}/" if way.address.user else f"{host}:{far}/"
    places = [f"{near}/", remote]
    if not way.pushes:
        places.reverse()
    options = [
        "-s",
        "-r",
        *(["-L"] if shipment.follow_links else []),
        "-t",
        "-O",
        "--append-verify",
    ]
    options += ["--info=progress2", "--from0", f"--include-from={listed}", "--exclude=*"]
    argv = ["rsync", *options, "-e", shlex.join(_ssh_arguments(way.address)), *places]
    before = sum(rest.staged.values())
    whole = before + sum(shipment.sizes[name] - rest.staged.get(name, 0) for name in rest.names)
    stream = await runner.stream(argv)
    try:
        async for chunk in stream.chunks():
            if found := _RSYNC_PROGRESS.findall(chunk.replace(b"\r", b"\n")):
                on_progress(min(whole, before + int(re.sub(rb"\D", b"", found[-1]))), way.text)
        if code := await stream.wait():
            raise HostError(
                f"rsync on {runner.name} failed with exit code {code}: "
                f"{await stream.stderr_tail()}",
                host=runner.name,
            )
    finally:
        await stream.close()
        with suppress(HostError):
            await runner.run(["rm", "-f", "--", listed], timeout_s=_REACH_TIMEOUT_S)


def _rsync_filter_rules(names: Sequence[str]) -> Sequence[str]:
    """Return rsync filter rules that select exactly the files `names` and their directories. With a
    list of files, rsync would follow a symbolic link that has replaced a directory."""
    paths: dict[str, None] = {}
    for name in names:
        parts = name.split("/")
        paths |= dict.fromkeys(f"{'/'.join(parts[:end])}/" for end in range(1, len(parts)))
        paths[name] = None
    return [f"/{_rsync_rule(path)}" for path in paths]


def _rsync_rule(path: str) -> str:
    """Return `path` as an rsync filter rule in which its characters, also *, ? and [, stand for
    themselves."""
    return re.sub(r"[*?[\\]", r"\\\g<0>", path) if re.search(r"[*?[]", path) else path


async def send_through_this_machine(
    source: Host,
    target: Host,
    shipment: Shipment,
    rest: RemainingFiles,
    on_progress: ReportProgress,
) -> None:
    """Send the files of `rest` to the staging directory through this machine, one after the other.
    A partly staged file is continued if its staged part equals the source, otherwise it is sent
    again. `on_progress` receives the number of bytes staged so far, and a text. Raises HostError if
    a file cannot be read or written."""
    done = 0
    for name in rest.names:
        size, staged = shipment.sizes[name], rest.staged.get(name, 0)
        from_path, to_path = f"{shipment.source}/{name}", f"{shipment.staging_path}/{name}"
        if staged and not await _have_equal_starts(source, target, from_path, to_path, staged):
            await target.run(["rm", "-f", "--", to_path], timeout_s=_REACH_TIMEOUT_S, check=True)
            staged = 0
        sent = done + staged
        text = f"{name.rpartition('/')[2]} through this machine"
        on_progress(sent, text)
        within = "" if shipment.follow_links else shipment.source
        async for count in _append_and_yield_byte_counts(
            source, target, from_path, to_path, staged, size, within
        ):
            sent += count
            on_progress(sent, text)
        done += size


async def _have_equal_starts(
    source: Host, target: Host, from_path: str, to_path: str, size: int
) -> bool:
    argv = [shell_argv(_PREFIX_HASH_SCRIPT, path, str(size)) for path in (from_path, to_path)]
    found = await asyncio.gather(
        source.run(argv[0], timeout_s=_PREFIX_HASH_TIMEOUT_S, check=True),
        target.run(argv[1], timeout_s=_PREFIX_HASH_TIMEOUT_S, check=True),
    )
    return found[0].stdout == found[1].stdout


async def _append_and_yield_byte_counts(
    source: Host,
    target: Host,
    from_path: str,
    to_path: str,
    offset: int,
    end: int,
    source_root: str,
) -> AsyncIterator[int]:
    """Append the bytes from `offset` to `end` of the file `from_path` on `source` to the file
    `to_path` on `target`, and yield the number of bytes of each block. The former must be below the
    directory `source_root`, unless that is "". Raises HostError if it ends early, or if the latter
    cannot be written."""
    reader = await source.stream(
        shell_argv(_SEND_FILE_SCRIPT, from_path, str(offset), str(end - offset), source_root)
    )
    try:
        writer = await target.stream(
            shell_argv(_APPEND_FILE_SCRIPT, to_path, str(offset), str(end - offset))
        )
        left, ended = end - offset, asyncio.create_task(writer.wait())
        try:
            async for chunk in reader.chunks():
                if ended.done():  # a full disk, for example
                    break
                await writer.write(chunk)
                left -= len(chunk)
                yield len(chunk)
            if left > 0 and not ended.done():
                said = (await reader.stderr_tail()).strip() if await reader.wait() else ""
                shorter = (
                    f"{from_path} on {source.name} is {size_text(left)} shorter than it "
                    "was when the copy began"
                )
                raise HostError(said or shorter, host=source.name)
            if code := await ended:
                tail = await writer.stderr_tail()
                raise HostError(
                    f"{to_path} could not be written on {target.name}: "
                    f"{tail or f'exit code {code}'}",
                    host=target.name,
                )
        finally:
            await cancel_all([ended])
            await writer.close()
    finally:
        await reader.close()


class TransferSpeed:
    """Measures the speed of a transfer over the last `window_s` seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self.window_s = window_s
        self._seen: list[tuple[float, int]] = []

    def record_and_get_bytes_per_s(self, done_bytes: int) -> float:
        """Record that `done_bytes` bytes in all have been transferred by now, and return the speed
        over the last `window_s` in bytes per second; 0.0 at the first call."""
        now = time.monotonic()
        self._seen = [seen for seen in self._seen if now - seen[0] < self.window_s] + [
            (now, done_bytes)
        ]
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
