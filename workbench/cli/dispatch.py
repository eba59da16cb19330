"""From arguments to a command, and from its errors to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from workbench.cli.parser import parse
from workbench.model.errors import WorkbenchError

# command, or command and action -> module under workbench.cli whose `COMMANDS` holds the coroutine for it
MODULES = {
    "screen": "screens",
    "demo": "screens",
    "screenshots": "screens",
    "presets": "library",
    "flags": "library",
    "plan": "library",
    "start": "servers",
    "servers": "servers",
    "logs": "servers",
    "stop": "servers",
    "bench": "measuring",
    "results": "results",
    "compare": "measuring",
    "experiment": "experiments",
    "gpu": "gpu",
    "gpu verify": "sweeping",
    "gpu sweep": "sweeping",
    "sweep": "sweeping",
    "doctor": "doctor",
}

Command = Callable[[argparse.Namespace], Awaitable[int] | int]


def run(argv: list[str]) -> int:
    """The exit code; also for a reader that went away (`| head`), in whatever moment."""
    try:
        ours = argv[: argv.index("--")] if "--" in argv else argv
        code = _reported(argv, "--json" in ours)
        sys.stdout.flush()
    except BrokenPipeError:
        # Point stdout at nothing, so that the interpreter's last flush is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _reported(argv: list[str], as_json: bool) -> int:
    try:
        return _run(argv)
    except WorkbenchError as error:
        report(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        report(WorkbenchError("interrupted"), as_json)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:  # a defect of ours: say so in a line, keep the traceback in a file
        from workbench.store.crash import defect_text

        text, details = defect_text(error)
        report(WorkbenchError(text, next_step=details), as_json)
        return 1


def _run(argv: list[str]) -> int:
    arguments = parse(argv)
    if getattr(arguments, "host", None) and getattr(arguments, "target", None):
        from workbench.model.errors import InputError

        raise InputError("the host is given twice", next_step="`workbench NAME` or `--host NAME`")
    name = " ".join(filter(None, (arguments.command, getattr(arguments, "action", None))))
    module = importlib.import_module(f"workbench.cli.{MODULES.get(name) or MODULES[arguments.command]}")
    command: Command = module.COMMANDS[name]
    outcome = command(arguments)
    if isinstance(outcome, int):
        return outcome
    logging.getLogger("asyncio").addHandler(_Kept())
    return asyncio.run(_awaited(outcome))


async def _awaited(outcome: Awaitable[int]) -> int:
    gc.enable()  # off while modules were loaded: __main__.py
    return await outcome


class _Kept(logging.Handler):
    """asyncio's own complaints go where defects go: never onto the screen or into a command's messages."""

    def emit(self, record: logging.LogRecord) -> None:
        from workbench.store.crash import keep_traceback

        if record.exc_info and record.exc_info[1] is not None:
            keep_traceback(record.exc_info[1])


def report(error: WorkbenchError, as_json: bool) -> None:
    """The message on stderr; with --json also as the one document on stdout."""
    if as_json:
        print(json.dumps(error.as_json(), ensure_ascii=False, default=str))
    sys.stderr.write(f"workbench: {error}\n")
    for finding in error.findings:
        fix = f" ({finding.fix})" if finding.fix else ""
        sys.stderr.write(f"  {finding.level}: {finding.text}{fix}\n")


def emit(document: Any) -> int:
    """Print one JSON document."""
    print(json.dumps(document, ensure_ascii=False, indent=2, default=str))
    return 0
