"""The command `explain-log`, which explains the warnings and errors in a log file or in the log of
a run."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json, print_line, print_message
from workbench.cli.registry import command, option
from workbench.cli.servers import find_run
from workbench.model.counts import count_of
from workbench.model.errors import InputError, error_reason
from workbench.model.findings import Finding, Level, option_texts_of_changes

if TYPE_CHECKING:
    from workbench.server.explained_log import ExplainedLog

_PART_BYTES = 64 * 2**20  # of a file: its first and its last bytes are read
_READ_BYTES = 512 * 1024


@command(
    "explain-log",
    "explain the known lines of a log, and list warnings and errors that are not known",
    option("log FILE|RUN", "a log file of this machine, or a run of the host"),
    examples=("workbench explain-log server.log", "workbench explain-log RUN --json"),
)
async def explain_log(arguments: argparse.Namespace) -> int:
    from workbench.server.explained_log import ExplainedLog
    from workbench.server.log_lines import LineAssembler

    explained = ExplainedLog()
    if os.sep in arguments.log or os.path.lexists(arguments.log):
        assembler = LineAssembler()
        for data in _read_log_pieces(arguments.log):
            if data is None:
                explained.add_lines([*assembler.flush_before_gap(), _GAP])
                explained.record_unread_section(_UNREAD)
            else:
                explained.add_lines(assembler.feed(data))
        explained.add_lines(assembler.flush())
    else:
        async with connect_session(arguments) as session:
            status = await find_run(session, arguments.log)
            explained = ExplainedLog(status.engine)
            async for batch in session.servers.supervisor.read_log(status.run_id):
                explained.add_lines(batch.lines)
    document = explained.as_json()
    return (
        print_json({"log": arguments.log, **document})
        if arguments.json
        else _print_explanation(explained, document)
    )


_GAP = "… the middle of this file was not read …"  # so that no traceback goes on behind it
_UNREAD = f"only the first and last {_PART_BYTES >> 20} MiB were read"


def _read_log_pieces(path: str) -> Iterator[bytes | None]:
    """Yield the bytes of a file in pieces. If the file is large, yield only its beginning and its
    end, with None between them. Raises InputError if the file is not a regular file or cannot be
    read."""
    try:
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        text = f"cannot read {path}: {error_reason(error)}"
        raise InputError(
            text, next_step="give a log file, or a run id of `workbench servers`"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise InputError(
            f"{path} is not a regular file", next_step="give a log file that was written to disk"
        )
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            yield from _read_file_in_pieces(file, min(found.st_size, _PART_BYTES))
            if found.st_size > 2 * _PART_BYTES:
                yield None
                file.seek(found.st_size - _PART_BYTES)
            if found.st_size > _PART_BYTES:
                yield from _read_file_in_pieces(file, _PART_BYTES)
        except OSError as error:
            step = "check the disk that the file is on"
            raise InputError(f"cannot read {path}: {error_reason(error)}", next_step=step) from None


def _read_file_in_pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (data := file.read(min(size, _READ_BYTES))):
        size -= len(data)
        yield data


def _first_error_label(findings: Sequence[Finding], document: dict[str, Any]) -> str:
    """Return the label of the first error that the output names: "first error with a known cause"
    if an unexplained line stands before it in the log, otherwise "first error"."""
    lines = [finding.line for finding in findings if finding.is_error and finding.line]
    unknown = [one["line"] for one in document["unknown"] if one["line"]]
    if lines and unknown and min(unknown) < min(lines):
        return "first error with a known cause"
    return "first error"


def _print_explanation(explained: ExplainedLog, document: dict[str, Any]) -> int:
    if document["unread"]:
        print_line(f"{document['unread']}: lines after the part that was not read have no number")
    if document["phase"]:
        print_line(f"last phase of the start: {document['phase']}")
    if document["first_error"]:
        print_line(f"{_first_error_label(explained.findings, document)}: {document['first_error']}")
    findings = explained.findings
    for finding in findings:
        times = explained.count_lines_of(finding)
        place = _line_number_text(finding.line, "the log")
        place += f", {times} times" if times > 1 else ""
        print_line(f"{finding.level}: {place}: {finding.evidence}")
        print_line(f"    {finding.text}")
        if finding.fix and finding.level is not Level.INFO:
            print_line(f"    fix: {finding.fix}")
        if finding.changes:
            print_line(f"    change: {option_texts_of_changes(finding.changes)}")
    for one in document["unknown"]:
        print_line(f"no explanation for {_line_number_text(one['line'], 'a line')}: {one['text']}")
    unknown = count_of(document["unknown_lines"], "warning or error", "warnings or errors")
    more = document["unknown_lines"] - len(document["unknown"])
    hidden = f" ({more} not shown)" if more else ""
    known = count_of(len(findings), "known kind")
    print_message(
        f"{count_of(document['lines'], 'line')}, {known} of line, {unknown} not known{hidden}"
    )
    return 0


def _line_number_text(line_number: int | None, text_if_none: str) -> str:
    return text_if_none if line_number is None else f"line {line_number}"
