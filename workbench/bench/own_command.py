"""The user's own command as the load of a benchmark. Workbench runs the command once on this
machine, and records its duration, exit code and last lines of output.

The command comes only from the user's own command line. A preset cannot contain one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from workbench.bench import own_command_watcher
from workbench.bench.endpoint_file import add_or_replace_endpoint_entry
from workbench.bench.runner import BenchCancelled, wait_until_done_or_cancelled
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.model.bench import BenchSummary, EngineDuring
from workbench.model.errors import BenchError
from workbench.model.known_values import ratio_or_none
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_argv, mask_text
from workbench.model.untrusted_text import clean_text

ENDPOINTS_PLACEHOLDER = "{endpoints}"
MAX_KEPT_LINES = 20
_COMMAND_TITLE = "benchmark command"
_MAX_LINE_BYTES = 4096  # bytes: a progress bar or a dump without line ends must not fill the memory
_MAX_SHOWN_CHARACTERS = 500
_KILL_AFTER_TERM_S = 5.0  # from TERM to KILL
_END_WAIT_S = 5.0
_LAST_LINES_WAIT_S = 0.5  # to read the last lines, if children of the command keep its output open


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of the user's command. Times are Unix seconds. `exit_code` is negative if a
    signal ended the command. `output` contains its last lines, with secrets masked."""

    exit_code: int
    t0_unix: float
    t1_unix: float
    output: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.t1_unix - self.t0_unix


@contextmanager
def replace_server_placeholders(
    argv: Sequence[str], base_url: str, model: str
) -> Iterator[tuple[str, ...]]:
    """Yield `argv` with {base_url} and {model} replaced by the arguments of these names.
    {endpoints} is replaced by the path of a temporary endpoint file, which is deleted when the
    context manager ends."""
    words = tuple(a.replace("{base_url}", base_url).replace("{model}", model) for a in argv)
    if not any(ENDPOINTS_PLACEHOLDER in word for word in words):
        yield words
        return
    with tempfile.TemporaryDirectory(prefix="workbench-") as directory:
        path = Path(directory, "endpoints.py")
        path.write_text(
            add_or_replace_endpoint_entry(
                "", model, model=model, url=base_url, key="OPENAI_API_KEY"
            ),
            "utf-8",
        )
        yield tuple(word.replace(ENDPOINTS_PLACEHOLDER, str(path)) for word in words)


def command_environment(base_url: str, model: str, key: str | None) -> dict[str, str]:
    """Return the environment variables with the server's address, model and API key, under the
    names that OpenAI clients read."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,  # clients before 1.0
        "OPENAI_API_KEY": key or "none",  # the clients require one
        "OPENAI_MODEL": model,
        "WORKBENCH_BASE_URL": base_url,
        "WORKBENCH_MODEL": model,
    }


async def run_command(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    on_line: Callable[[str, float], None] | None = None,
    cancel: asyncio.Event | None = None,
    deadline_s: float | None = None,
    title: str = _COMMAND_TITLE,
) -> CommandOutcome:
    """Run `argv` to its end in a session of its own. `on_line(line, seconds since the start)`
    receives each line of its stdout and stderr. `title` names the command in messages.

    The command and everything that it started are ended on `cancel` (then BenchCancelled is
    raised), after `deadline_s` seconds, when this task is cancelled, and when this process ends for
    any reason (own_command_watcher.py). Raises BenchError if the command cannot be started or does
    not end in time. An exit code other than 0 raises nothing.
    """
    secrets = tuple(v for k, v in env.items() if k.endswith("_KEY") and v not in ("", "none"))
    shown = shlex.join(mask_argv(argv, secrets))
    watcher, output_fd, t0_unix = await _start_watched_command(argv, env, shown, title)
    began = time.monotonic()
    kept: deque[str] = deque(maxlen=MAX_KEPT_LINES)

    def record_output_line(line: bytes) -> None:
        text = clean_text(mask_text(line.decode("utf-8", "replace"), secrets)).rstrip()[
            :_MAX_SHOWN_CHARACTERS
        ]
        if text:
            kept.append(text)
            if on_line is not None:
                on_line(text, time.monotonic() - began)

    ended = asyncio.ensure_future(
        _wait_for_exit_code_and_duration_s(watcher, output_fd, record_output_line, title)
    )
    try:
        await wait_until_done_or_cancelled(ended, cancel, deadline_s)
        if not ended.done():
            if cancel is not None and cancel.is_set():
                raise BenchCancelled(
                    "the benchmark command was cancelled, and no result was stored",
                    next_step="run the benchmark again",
                )
            raise BenchError(f"the {title} did not end within {deadline_s:g} s", command=shown)
        code, seconds = ended.result()
        return CommandOutcome(code, t0_unix, t0_unix + seconds, tuple(kept))
    finally:
        ended.cancel()
        await asyncio.shield(_end_watched_command(watcher))


class _WatchedCommand(NamedTuple):
    """The process that watches the user's command, the read end of a pipe with the command's
    output, and the Unix time at which the command began."""

    watcher: LocalProcess
    output_fd: int
    began_unix_s: float


async def _start_watched_command(
    argv: Sequence[str], env: Mapping[str, str], shown_command: str, title: str
) -> _WatchedCommand:
    """Start the watcher (own_command_watcher.py), which runs the user's command and ends it
    together with Workbench. `shown_command` is the command's name for messages. Raises
    BenchError if the command cannot be started.

    The pipe does not come from asyncio, because asyncio would wait until the pipe is closed, and
    children of the command may hold it open.
    """
    read_end, write_end = os.pipe()
    try:
        program = (sys.executable, "-I", "-S", own_command_watcher.__file__)
        watcher = await start_process(
            (*program, str(write_end), str(_KILL_AFTER_TERM_S), *argv),
            stdin=PIPE,
            stderr=DEVNULL,
            pass_fds=(write_end,),
            env={**os.environ, **env},
        )
        try:
            started = await _read_watcher_message(watcher)
        except BaseException:
            await asyncio.shield(_end_watched_command(watcher))
            raise
        if "unix_s" in started:
            return _WatchedCommand(watcher, read_end, started["unix_s"])
        await _end_watched_command(watcher)
        code = int(started.get("error", errno.EIO))
        why = "not found on this machine's PATH" if code == errno.ENOENT else os.strerror(code)
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        why = str(error)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    os.close(read_end)
    raise BenchError(
        f"the {title} {argv[0]} did not start: {why}",
        command=shown_command,
        next_step="name a program that is installed on this machine",
    )


async def _read_watcher_message(watcher: LocalProcess) -> dict[str, Any]:
    assert watcher.stdout is not None
    line = await watcher.stdout.readline()
    message: dict[str, Any] = json.loads(line) if line else {}
    return message


async def _wait_for_exit_code_and_duration_s(
    watcher: LocalProcess, output_fd: int, on_line_bytes: Callable[[bytes], None], title: str
) -> tuple[int, float]:
    """Wait until the user's command ends. Return its exit code and its duration in seconds.
    `watcher` is the watcher process of the command, `output_fd` a pipe with the command's output,
    and `on_line_bytes` receives each line of it. Children of the command that keep the pipe open
    are not waited for."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output_fd, "rb", buffering=0)
    )
    reading = asyncio.ensure_future(_read_lines(reader, on_line_bytes))
    try:
        ended = await _read_watcher_message(watcher)
        if "exit" not in ended:
            raise BenchError(
                f"the process that watches the {title} was killed, so the command was ended too",
                next_step="run it again",
            )
        await asyncio.wait([reading], timeout=_LAST_LINES_WAIT_S)
        return ended["exit"], ended["seconds"]
    finally:
        reading.cancel()
        transport.close()


async def _end_watched_command(watcher: LocalProcess) -> None:
    assert watcher.stdin is not None
    watcher.stdin.close()
    try:
        await asyncio.wait_for(watcher.wait(), 2 * _KILL_AFTER_TERM_S + _END_WAIT_S)
    except TimeoutError:
        watcher.kill()  # the kernel then kills the command
        await watcher.wait()
    finally:
        watcher.kill()  # if this was cancelled
        watcher.close_pipes()


async def _read_lines(stream: asyncio.StreamReader, on_line_bytes: Callable[[bytes], None]) -> None:
    """Call `on_line_bytes` with each line of `stream`. A carriage return ends a line too, because
    progress bars use it."""
    rest = b""
    while piece := await stream.read(65536):
        *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            on_line_bytes(line[:_MAX_LINE_BYTES])
        rest = rest[-_MAX_LINE_BYTES:]
    on_line_bytes(rest)


def summary_of_command(done: CommandOutcome) -> BenchSummary:
    """Return the summary of the command's run: its duration, exit code and output. The numbers of
    requests are 0 and all other metrics None; `add_engine_counts` adds the numbers of requests and
    tokens."""
    why = "the load was a command of the user, which reports latencies itself"
    absent = dict.fromkeys(
        ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "tokens_per_chunk", "per_stream_tok_s"), why
    )
    refused = (
        (f"the benchmark command {_exit_code_text(done.exit_code)}",) if done.exit_code else ()
    )
    return BenchSummary(
        requests_ok=0,
        requests_failed=0,
        errors={},
        prompt_tokens=None,
        output_tokens=None,
        cached_tokens=None,
        duration_s=round(done.seconds, 6),
        output_tok_s=None,
        request_s=None,
        ttft_ms=None,
        itl_ms=None,
        tpot_ms=None,
        e2e_ms=None,
        tokens_per_chunk=None,
        per_stream_tok_s=None,
        power_w=None,
        energy_j=None,
        tok_per_joule=None,
        absent=absent,
        refused=refused,
        window_s=round(done.seconds, 6),
        command_exit=done.exit_code,
        command_output=done.output,
    )


def add_engine_counts(summary: BenchSummary, engine: EngineDuring) -> BenchSummary:
    """Return the summary with the numbers of requests and tokens that the engine counted while the
    command ran. They include the requests of all clients of the engine. `requests_ok` is 0 if the
    engine does not count requests; `absent` then has the reason under "request_s"."""
    absent = dict(summary.absent)
    for name, counter in (
        ("prompt_tokens", "prompt_tokens"),
        ("output_tokens", "generation_tokens"),
        ("cached_tokens", "prefix_hit_tokens"),
        ("request_s", "requests_finished"),
    ):
        if getattr(engine, counter) is None:
            absent[name] = f"the engine's counters: {engine.absent.get(counter, 'not read')}"
    rates: dict[str, Any] = {}
    for name, count in (
        ("output_tok_s", engine.generation_tokens),
        ("request_s", engine.requests_finished),
    ):
        rates[name] = ratio_or_none(count, summary.duration_s, 4)
        if rates[name] is None:
            nothing = "the engine counted nothing during the run"
            absent.setdefault(name, absent.get("output_tokens", nothing))
    notes = (
        "requests and tokens are the engine's own counts, which include those of any other clients",
    )
    return replace(
        summary,
        requests_ok=engine.requests_finished or 0,
        prompt_tokens=engine.prompt_tokens,
        output_tokens=engine.generation_tokens,
        cached_tokens=engine.prefix_hit_tokens,
        engine=engine,
        absent=absent,
        notes=(*summary.notes, *notes),
        **rates,
    )


def _exit_code_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"exited with {code}"
