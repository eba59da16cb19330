"""The commands `record`, which writes the history of a host to a file, and `replay`, which shows
such a file on the screen."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from workbench.cli.open_session import connect_session, create_session
from workbench.cli.output import print_json_or_lines, print_message
from workbench.cli.registry import command, make_exclusive_options, option
from workbench.cli.shared_options import make_seconds_parser
from workbench.cli.stop_signals import format_termination_message, wait_for_termination_signal

_MOST_S = 86_400
_FIRST_S = 20.0  # for the first reading


_seconds = make_seconds_parser(1, _MOST_S)


def _parse_speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0.25 <= speed <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed from 0.25 to 64")
    return speed


@command(
    "record",
    "record the GPUs, the engine and the events of a host to a file, for `workbench replay`",
    option("file", "new file for the recording", metavar="FILE"),
    make_exclusive_options(
        option(
            "--seconds N", "end after this time; without it, Ctrl-C ends the recording", _seconds
        ),
        option(
            "--last N",
            "write the last N seconds that the screen of this host has kept, and end",
            _seconds,
        ),
    ),
    examples=(
        "workbench record slow.jsonl --seconds 60",
        "workbench --host gpu-box record lunch.jsonl --last 3600",
    ),
)
async def record_host_telemetry(arguments: argparse.Namespace) -> int:
    from workbench.session.history.recorder import Recorder, export_history_and_count_lines

    path = Path(arguments.file)
    if arguments.last is not None:
        cells = await asyncio.to_thread(
            export_history_and_count_lines, create_session(arguments).host, path, arguments.last
        )
        return _print_written_recording(arguments, path, cells)
    async with connect_session(arguments) as session:
        recorder = Recorder(session, path)
        await session.open()
        with suppress(TimeoutError):
            await asyncio.wait_for(recorder.begun.wait(), _FIRST_S)
        if arguments.seconds is None:
            print_message("recording; Ctrl-C ends it")
        try:
            ended_by = await wait_for_termination_signal(arguments.seconds or _MOST_S)
        finally:
            recorder.close()
    code = _print_written_recording(arguments, path, recorder.seconds)
    if ended_by is None:
        return code
    print_message(format_termination_message(ended_by, f"{path} has what was recorded"))
    return 128 + ended_by


def _print_written_recording(arguments: argparse.Namespace, path: Path, line_count: int) -> int:
    document = {"written": str(path), "lines": line_count}
    return print_json_or_lines(
        arguments.json,
        document,
        f"{path}: {line_count} lines of readings; workbench replay {path} shows it",
    )


@command(
    "replay",
    "show a recording on the screen; nothing can be run or changed",
    option("file", "a recording, also the timeline of a stored result", metavar="FILE"),
    option("--speed X", "times as fast, from 0.25 to 64 (1)", _parse_speed, default=1.0),
    examples=("workbench replay slow.jsonl", "workbench replay slow.jsonl --speed 8"),
)
def replay_recording(arguments: argparse.Namespace) -> int:
    from workbench import tui
    from workbench.session.replay import Replay

    return tui.run_screen(Replay(Path(arguments.file), arguments.speed))
