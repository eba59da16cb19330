"""Python programs that Workbench runs on a host. The command line contains only a short loader,
which then loads the modules of the program.

On this machine, the loader imports the installed modules, which are compiled already. Another
machine gets the sources once, and the loader stores them in Workbench's state directory, in a file
whose name is the SHA-256 of the content. The loader runs such a file only if it is a regular file
of this user that no other user can write, and if the bytes that the loader has read have that hash.
Without such a file, the loader asks for the sources on stdout and reads them from stdin. Stdin then
stays open for control lines, which `python3 -` would not allow, because it reads its program to the
end of file. A host that cannot store the sources, for example because its disk is full, gets them
each time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from workbench.hosts.base import CommandNotFound, Completed, Host, Stream
from workbench.model.lazy_dataclass import dataclass

TOO_OLD = 78  # exit status: this python3 cannot run it
MISSING = 79  # exit status: the host does not have the program, and stdin ended before it came
# what stands before it on stdin is skipped unseen: a password that sudo did not read
FRAME = b"\nworkbench frame\n"
ASKED = b'{"workbench": "the program is missing"}'  # the line that asks for the sources
KEPT_MAX_BYTES = 1 << 20
_PACKAGE = Path(__file__).resolve().parents[1]

_PROGRAM = """# workbench {title}
import sys
if sys.version_info < {least}: sys.exit({too_old})
digest, packed = {digest!r}, b""
try:
    import ctypes, json, os, stat, threading, time, types, zlib
    if digest: import hashlib
except ImportError: sys.exit({too_old})
def get(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: sys.exit({missing})
        b += c
    return b
def asked():
    said = b""
    while not said.endswith({frame!r}): said += get(1)
    return get(int(get(8)))
def kept():
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        s = os.fstat(fd)
        if stat.S_ISREG(s.st_mode) and s.st_uid == os.geteuid() and not s.st_mode & 18 and s.st_size < {most}:
            return os.read(fd, {most})
    finally: os.close(fd)
def mine(s):
    return s.st_uid == os.geteuid() and not s.st_mode & 18
def old(s):
    return stat.S_ISREG(s.st_mode) and mine(s) and s.st_size < {most} and s.st_mtime < time.time() - 30 * 86400
def keep():
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    at = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not mine(os.fstat(at)): return
        new = "%s.%d" % (digest, os.getpid())
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
        try:
            if os.write(fd, packed) == len(packed): os.replace(new, digest, src_dir_fd=at, dst_dir_fd=at)
        finally:
            os.close(fd)
            try: os.unlink(new, dir_fd=at)
            except OSError: pass
        for name in os.listdir(at):
            ours = len(name) >= 64 and not set(name[:64]) - set("0123456789abcdef")
            if ours and old(os.stat(name, dir_fd=at, follow_symlinks=False)): os.unlink(name, dir_fd=at)
    finally: os.close(at)
if digest:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"): state = os.path.expanduser("~/.local/state")
    path = state + "/workbench/programs/" + digest
    try: packed = kept() or b""
    except OSError: pass
if not digest: packed = asked()
elif hashlib.sha256(packed).hexdigest() != digest:
    os.write(1, {asks!r})
    packed = asked()
    if hashlib.sha256(packed).hexdigest() != digest: sys.exit("the program arrived changed")
    try: keep()
    except OSError: pass
elif {framed}: asked()
{first}
where, sources = json.loads(zlib.decompress(packed).decode())
if where:
    sys.path += where
    from workbench.{package} import {name} as program
else:
    for name, source in sources:
        program = sys.modules[name] = types.ModuleType(name)
        if source is None: program.__path__ = []
        else: exec(compile(source, name, "exec"), program.__dict__)
    del sources, source
del packed
program.main()
"""


@dataclass(frozen=True)
class PythonProgram:
    """A Python program that Workbench runs on a host. `modules` are its modules below the package
    workbench, in the order of their imports. The function `main` of the last one is called.
    `library` returns {name: source} of further modules that another machine needs, and `places` the
    directories that contain these modules on this machine.

    If `kept` is False, the host does not store the program and gets it at each start, as for a
    process of root, which must not trust a user's files. `first` is a line of Python that runs
    before the modules.
    """

    title: str
    modules: tuple[str, ...]
    options: tuple[str, ...] = ("-S",)
    least_python: tuple[int, int] = (3, 8)
    kept: bool = True
    first: str = ""
    library: Callable[[], Mapping[str, str]] = dict
    places: Callable[[], tuple[str, ...]] = tuple

    @cached_property
    def _compressed_sources(self) -> bytes:
        """The sources of `library` and of all modules for another machine, as compressed JSON."""
        frame: tuple[list[str], list[tuple[str, str | None]]]
        frame = ([], [*self.library().items(), *_names_and_sources_of_modules(self.modules)])
        return zlib.compress(json.dumps(frame).encode(), 9)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the sources as they are sent, in hexadecimal digits. A host stores them in
        a file with this name."""
        return hashlib.sha256(self._compressed_sources).hexdigest()

    def argv(
        self,
        python: str,
        is_local: bool,
        parameters: Mapping[str, Any],
        *,
        stdin_begins_with_frame: bool = False,
    ) -> list[str]:
        """Return the command that starts the program with the Python `python`; `is_local` says
        whether that is the Python of this process. `parameters` become the last word, as JSON. With
        `stdin_begins_with_frame`, the program takes the frame from its stdin even if the host has
        the sources. Python runs isolated, so no file on the host can change the program."""
        package, _, name = self.modules[-1].rpartition(".")
        text = _PROGRAM.format(
            title=self.title,
            package=package,
            name=name,
            least=self.least_python,
            too_old=TOO_OLD,
            missing=MISSING,
            frame=FRAME,
            most=KEPT_MAX_BYTES,
            digest=self.digest if self.kept and not is_local else "",
            asks=ASKED + b"\n",
            framed=stdin_begins_with_frame,
            first=self.first,
        )
        return [python, "-I", *self.options, "-c", text, json.dumps(parameters)]

    def stdin_frame(self, is_local: bool) -> bytes:
        """Return the frame with which the program's stdin begins: FRAME, a length of eight digits,
        and compressed JSON. If `is_local`, for the Python of this process, the JSON has the
        directories to import from, otherwise the sources."""
        if is_local:
            packed = zlib.compress(
                json.dumps(([str(_PACKAGE.parent), *self.places()], [])).encode()
            )
        else:
            packed = self._compressed_sources
        return FRAME + b"%08d" % len(packed) + packed

    def _argv_and_first_stdin(
        self, host: Host, parameters: Mapping[str, Any]
    ) -> tuple[list[str], bytes]:
        """Return (command that starts the program on `host` with `parameters`, bytes to write to
        its stdin first). There are no such bytes if the program asks for its sources."""
        python = choose_python(host)
        first = self.stdin_frame(python.is_own) if python.is_own or not self.kept else b""
        return self.argv(*python, parameters), first

    async def run(
        self,
        host: Host,
        parameters: Mapping[str, Any],
        *,
        input: bytes = b"",
        timeout_s: float = 30.0,
    ) -> Completed:
        """Run the program on `host` with `parameters`, and with `input` on its stdin. Return its
        result after its end. Raises the errors of `Host.run`."""
        argv, first = self._argv_and_first_stdin(host, parameters)
        done = await host.run(argv, input=first + input, timeout_s=timeout_s)
        if done.returncode == MISSING and not first:
            # another call may have brought the program meanwhile
            argv = self.argv(*choose_python(host), parameters, stdin_begins_with_frame=True)
            done = await host.run(argv, input=self.stdin_frame(False) + input, timeout_s=timeout_s)
            done = replace(done, stdout=done.stdout.replace(ASKED + b"\n", b"", 1))
        return done

    async def stream(self, host: Host, parameters: Mapping[str, Any]) -> Stream:
        """Start the program on `host` with `parameters`. Its stdin stays open until the stream is
        closed. Raises the errors of `Host.stream`."""
        argv, first = self._argv_and_first_stdin(host, parameters)
        stream = await host.stream(argv, input=first)
        return stream if first else ProgramStream(stream, self)


class ProgramStream:
    """A running program that may ask for its sources on stdout. Input that was written before the
    program asked is lost, so it is written again after the sources."""

    def __init__(self, stream: Stream, program: PythonProgram) -> None:
        self._stream = stream
        self._program = program
        self._early: list[bytes] | None = []  # None once the program runs

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in self._stream.lines():
            if self._early is not None and line == ASKED:
                await self._stream.write(self._program.stdin_frame(False) + b"".join(self._early))
                self._early = None
                continue
            if line.startswith(b"{"):
                self._early = None
            yield line

    def chunks(self) -> AsyncIterator[bytes]:
        return self._stream.chunks()

    async def write(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
        await self._stream.write(data)

    async def wait(self) -> int:
        return await self._stream.wait()

    async def stderr_tail(self) -> str:
        return await self._stream.stderr_tail()

    async def close(self) -> None:
        await self._stream.close()


class HostPython(NamedTuple):
    """A Python that runs programs on a host. `is_own` says whether it is the Python of this
    process, which has Workbench installed."""

    path: str
    is_own: bool


def choose_python(host: Host) -> HostPython:
    """Return the Python that runs programs on `host`: that of this process on this machine, and
    "python3" on any other."""
    if host.is_local and sys.executable:
        return HostPython(sys.executable, is_own=True)
    return HostPython("python3", is_own=False)


async def can_start_python(host: Host) -> bool:
    """Return whether the Python for programs on `host` can start at all. False if it is missing, or
    ends before it runs a program, as in the middle of an update. Raises HostError if the host does
    not answer."""
    try:
        done = await host.run([choose_python(host).path, "-I", "-S", "-c", ""])
    except CommandNotFound:
        return False
    return done.returncode == 0


def _names_and_sources_of_modules(modules: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield (full name, None) for each package that contains one of `modules`, then (full name,
    source) for each of the modules."""
    names = [f"workbench.{module}" for module in modules]
    packages = {
        name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)
    }
    yield from ((package, None) for package in sorted(packages))
    for module, name in zip(modules, names, strict=True):
        yield name, (_PACKAGE / f"{module.replace('.', '/')}.py").read_text("utf-8")
