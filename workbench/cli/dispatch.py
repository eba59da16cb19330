"""From arguments to a command, and from its errors to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from workbench.cli.output import OutputLost, discard_the_rest, json_text
from workbench.cli.parser import parse, tree
from workbench.model.errors import WorkbenchError
from workbench.model.untrusted_text import clean

# command, or command and action -> module under workbench.cli whose `COMMANDS` holds the coroutine for it
MODULES = {
    "screen": "screen",
    "demo": "screen",
    "screenshots": "screen",
    "presets": "presets",
    "flags": "presets",
    "plan": "presets",
    "start": "servers",
    "servers": "servers",
    "logs": "servers",
    "stop": "servers",
    "bench": "bench",
    "results": "results",
    "compare": "compare",
    "experiment": "experiments",
    "gpu": "gpu",
    "gpu verify": "sweeps",
    "gpu sweep": "sweeps",
    "gpu sweep resume": "sweeps",
    "sweep": "sweeps",
    "doctor": "doctor",
    "version": "about",
    "config": "about",
    "completion": "completion",
}

Command = Callable[[argparse.Namespace], Awaitable[int] | int]


def run(argv: list[str]) -> int:
    """Run one command and return its exit code: 141 if the reader of stdout went away (`| head`)."""
    ours = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in ours
    try:
        code = _reported(argv, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_the_rest()
        return 141
    except OutputLost as error:
        discard_the_rest()
        report(error, as_json=False)
        return error.exit_code
    return code


def _reported(argv: list[str], as_json: bool) -> int:
    try:
        return _run(argv)
    except SystemExit as end:  # argparse after --help
        return int(end.code or 0)
    except (BrokenPipeError, OutputLost):
        raise
    except WorkbenchError as error:
        report(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        report(WorkbenchError("interrupted"), as_json)
        return 130
    except Exception as error:  # a defect of ours: say so in a line, keep the traceback in a file
        from workbench.store.crash_files import defect_text

        text, details = defect_text(error)
        report(WorkbenchError(text, next_step=details), as_json)
        return 1


def _run(argv: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # set by argcomplete's shell code when a user presses Tab
        from workbench.cli.completion import complete

        complete(tree())
    arguments = parse(argv)
    if arguments.command not in ("screen", "demo", "completion"):
        _report_config()
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


def _report_config() -> None:
    """Report on stderr what is wrong with config.toml."""
    from workbench.store import paths

    if not paths.config_file().exists():  # the check needs pydantic, which is slow to load
        return
    from workbench.store.config import ConfigStore

    store = ConfigStore()
    _ = store.config
    for finding in store.findings:
        sys.stderr.write(clean(f"workbench: {finding.level}: {finding.place}: {finding.text}") + "\n")


async def _awaited(outcome: Awaitable[int]) -> int:
    gc.enable()  # off while modules were loaded: __main__.py
    return await outcome


class _Kept(logging.Handler):
    """asyncio's own complaints go where defects go: never onto the screen or into a command's messages."""

    def emit(self, record: logging.LogRecord) -> None:
        from workbench.store.crash_files import keep_traceback

        if record.exc_info and record.exc_info[1] is not None:
            keep_traceback(record.exc_info[1])


def report(error: WorkbenchError, as_json: bool) -> None:
    """The message on stderr; with --json also as the one document on stdout."""
    if as_json:
        print(json_text(error.as_json()))
    sys.stderr.write(f"workbench: {error}\n")
    for finding in error.findings:
        fix = f" ({finding.fix})" if finding.fix else ""
        sys.stderr.write(f"  {clean(f'{finding.level}: {finding.text}{fix}')}\n")


def emit(document: Any) -> int:
    """Print one JSON document."""
    print(json_text(document, indent=2))
    return 0
