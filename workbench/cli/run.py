"""Running of one command, from the command line to the exit code. Every error becomes a message."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from workbench.cli.output import print_error
from workbench.cli.parser import parse_command_line
from workbench.cli.streams import OutputLost, redirect_stdout_to_null
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    from workbench.model.findings import Finding


def run(argv: list[str]) -> int:
    """Run one command and return its exit code. The exit code is 141 if the program that reads
    stdout has ended, as in `workbench … | head`."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    try:
        code = _run_command_and_report_errors(argv, as_json="--json" in own)
        sys.stdout.flush()
    except BrokenPipeError:
        redirect_stdout_to_null()
        return 141
    except OutputLost as error:
        redirect_stdout_to_null()
        print_error(error)
        return error.exit_code
    return code


def _run_command_and_report_errors(argv: list[str], as_json: bool) -> int:
    try:
        return _run_command(argv)
    except SystemExit as end:  # argparse exits after --help
        return int(end.code or 0)
    except (BrokenPipeError, OutputLost):
        raise
    except WorkbenchError as error:
        print_error(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        print_error(WorkbenchError("interrupted"), as_json)
        return 130
    except (
        Exception
    ) as error:  # a defect of Workbench: print one line and keep the traceback in a file
        from workbench.store.crash_files import internal_error_message_and_details

        text, details = internal_error_message_and_details(error)
        print_error(WorkbenchError(text, next_step=details), as_json)
        return 1


def _run_command(argv: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # set by argcomplete's shell code when a user presses Tab
        from workbench.cli.completion import print_completions

        print_completions()
    arguments = parse_command_line(argv)
    if arguments.command not in ("screen", "demo", "completion"):
        _report_config_errors()
    if arguments.host and getattr(arguments, "target", None):
        raise InputError(
            "the command line names two hosts",
            next_step="use either `workbench NAME` or `--host NAME`",
        )
    try:
        outcome: Awaitable[int] | int = arguments.handler(arguments)
        return outcome if isinstance(outcome, int) else _run_async(outcome)
    except WorkbenchError as error:
        from workbench.cli.host_words import add_host_options_to_error

        add_host_options_to_error(error, arguments)
        raise


def _report_config_errors() -> None:
    from workbench.store import paths

    findings: list[Finding] = []
    if paths.config_file().exists():
        from workbench.store.config import ConfigStore

        store = ConfigStore()
        _ = store.config
        findings += store.findings
    if paths.hosts_file().exists():
        from workbench.store.hosts_file import HostsStore

        findings += HostsStore().findings
    for finding in findings:
        sys.stderr.write(
            clean_text(f"workbench: {finding.level}: {finding.file_and_line_text}: {finding.text}")
            + "\n"
        )


def _run_async(outcome: Awaitable[int]) -> int:
    import asyncio
    import logging

    from workbench.store.crash_files import store_traceback_file

    class TracebackKeeper(logging.Handler):
        """A log handler for errors that asyncio reports. It writes them to crash files, and not to
        the screen or stderr."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                store_traceback_file(record.exc_info[1])

    async def await_exit_code() -> int:
        gc.enable()  # __main__.py disables it while modules load
        return await outcome

    logging.getLogger("asyncio").addHandler(TracebackKeeper())
    return asyncio.run(await_exit_code())
