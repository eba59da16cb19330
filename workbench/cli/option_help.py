"""Help for arguments that mean the same in every command. A command's own help text comes first."""

from __future__ import annotations

import argparse

_HELP = {
    "--host-profile": "simulated host; `workbench demo --list` names them (rtx-pro-6000)",
    "--mouse": "let the mouse select panes and rows",
    "--version": "version of the engine (default: the newest catalog)",
    "--set": "set a launch flag; repeat for more",
    "--unset": "remove a launch flag of the preset; repeat for more",
    "--env": "set an environment variable of the server; repeat for more",
    "--var": "value for a variable of the preset; repeat for more",
    "--timeout": "seconds that --wait waits (1800)",
    "--follow": "go on printing as the log grows; ends with the run",
    "--endpoint": "/v1/chat/completions (chat) or /v1/completions",
    "--format": "format of the text (json)",
    "--experiment": "report this experiment",
    "--sweep": "report this sweep",
    "--tag": "tag; repeat for more",
    "--concurrency": "streams at once",
    "--requests": "requests that are counted",
    "--max-tokens": "output tokens of each request",
    "--input-tokens": "prompt tokens of each request",
    "--warmup": "requests before the counted ones",
    "--rate": "requests per second, started on a schedule",
    "--seconds": "start no request after this many seconds",
    "--length-spread": "0.2: each request asks for 80 to 120 %% of --max-tokens",
    "--arrival": "spacing of the requests of --rate",
    "--until-steady": "warm up until two windows agree",
    "--shared-prefix": "send prompts that share a prefix, so that the prefix cache answers",
    "--stream": "stream the answers; without, there is no TTFT and no ITL",
    "--gpu": "GPU by index or UUID, or all of them (all)",
    "--persistence": "persistence mode of the driver",
    "--power-limit": "power limit in watts",
    "--lock-gpu-clocks": "lock the SM clock to this range in MHz",
    "--lock-memory-clocks": "lock the memory clock in MHz",
    "--reset-gpu-clocks": "remove the lock of the SM clock",
    "--reset-memory-clocks": "remove the lock of the memory clock",
    "PRESET": "id of a preset, or path of a preset file",
    "RUN": "run id; `workbench servers` lists them",
    "FILE": "file; several may be given",
    "WORD": "word; a result must contain all of them",
    "directory": "where the pictures go (screenshots)",
    "shell": "shell to complete for",
    "COMMAND": "command to explain",
    "--search": "show only what contains this text",
}
_IDS = {
    "presets show": "id of a preset; `workbench presets list` lists them",
    "experiment": "id of an experiment; `workbench experiment list` lists them",
    "sweep": "id of a sweep; `workbench sweep list` lists them",
    "results": "id of a result; `workbench results list` lists them",
}


def explain(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Give every argument of `parser` and of its commands that has no help the text that all commands share."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                explain(child, f"{name} {word}".strip())
        elif not action.help:
            action.help = _shared_text(action, name)


def _shared_text(action: argparse.Action, name: str) -> str | None:
    if action.dest == "id":
        return next((text for start, text in _IDS.items() if name.startswith(start)), None)
    keys = (*action.option_strings, str(action.metavar), action.dest)
    return next((_HELP[key] for key in keys if key in _HELP), None)
