"""The commands `models`, which list, check, copy and download the files of models on hosts."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from workbench.cli.open_session import connect_session, create_local_session
from workbench.cli.output import items_as_json, print_json_or_lines, print_message
from workbench.cli.questions import can_prompt, prompt_for_login_secret
from workbench.cli.registry import command, option, repeatable_option
from workbench.model.model_copy import size_text
from workbench.model.untrusted_text import clean_text

_MODEL = option("model MODEL", "hub id, path, or the last part of the path of a model")
_DIRECTORY = option(
    "--to-dir DIR",
    "directory that gets the model (as on the source; of a hub id: the hub's cache)",
    default="",
)
_EVERY_S = 10.0  # between two lines about progress where stderr is not a terminal


@command(
    "models list",
    "list the models that a host has: in the hub's cache and in the directories of hosts.toml",
    option(
        "model MODEL",
        "only this model: a hub id, a path, or the last part of a path",
        nargs="?",
        default="",
    ),
    option("--all-hosts", "look on this machine and on every host of hosts.toml"),
    examples=("workbench models list", "workbench models list Qwen/Qwen3-0.6B --all-hosts"),
)
async def list_models(arguments: argparse.Namespace) -> int:
    """Print the copies of models on the hosts. Return 1 if a host could not be read, otherwise
    0."""
    async with connect_session(arguments) as session:
        found = await session.models.find_copies(
            arguments.model, session.models.host_names_to_search(everywhere=arguments.all_hosts)
        )
    document = {"hosts": items_as_json(found)}
    print_json_or_lines(
        arguments.json,
        document,
        [line for host in found for line in host.report_lines(arguments.model)],
    )
    return 1 if any(host.problem for host in found) else 0


@command(
    "models check",
    "check whether the copies of a model are complete, and the same on several hosts",
    _MODEL,
    repeatable_option(
        "--on HOST", "host to look on; repeatable (the host of the command)", dest="on"
    ),
    option("--hash", "hash every byte of every file, on its host"),
    examples=(
        "workbench models check Qwen/Qwen3-0.6B",
        "workbench models check Qwen/Qwen3-0.6B --on spark-01 --on spark-02 --hash",
    ),
)
async def check_models(arguments: argparse.Namespace) -> int:
    """Check the copies of a model on the hosts. Return 0 if every host has a complete and identical
    copy, otherwise 1."""
    shown = _Progress(arguments.json)
    async with connect_session(arguments) as session:
        hosts = tuple(dict.fromkeys(arguments.on)) or session.models.host_names_to_search()
        check = await session.models.compare_copies(
            arguments.model, hosts, full=arguments.hash, on_progress=shown
        )
    shown.clear_progress_line()
    document = {
        "ok": check.ok,
        "hosts": items_as_json(check.hosts),
        "differences": check.differences,
        "compared_by_size": check.unhashed,
    }
    print_json_or_lines(arguments.json, document, list(check.report_lines(arguments.model)))
    return 0 if check.ok else 1


@command(
    "models copy",
    "copy a model's files from one host to another; run again, an interrupted copy goes on",
    _MODEL,
    option(
        "--from HOST",
        "host that has the model; local is this machine",
        dest="source",
        required=True,
    ),
    option("--to HOST", "host that gets the model", dest="target", required=True),
    _DIRECTORY,
    option("--replace", "replace different files of the same names"),
    option(
        "--follow-links", "copy also the files to which links lead out of the model's directory"
    ),
    examples=("workbench models copy Qwen/Qwen3-0.6B --from spark-01 --to spark-02",),
)
async def copy_model(arguments: argparse.Namespace) -> int:
    shown, session = _Progress(arguments.json), create_local_session()
    session.link.ask = prompt_for_login_secret if can_prompt(arguments) else None
    try:
        report = await session.models.copy_to_host(
            arguments.model,
            arguments.source,
            arguments.target,
            directory=arguments.to_dir,
            replace_different=arguments.replace,
            follow_links=arguments.follow_links,
            on_progress=shown,
        )
    finally:
        shown.clear_progress_line()
        await session.close()
    for text in report.notes:
        print_message(text)
    return print_json_or_lines(arguments.json, asdict(report), report.report_text)


@command(
    "models download",
    "download a model with the hub's own program on the host (hf or huggingface-cli)",
    option("model MODEL", "id of a model on the Hugging Face hub"),
    option("--revision REVISION", "branch, tag or commit (main)", default=""),
    _DIRECTORY,
    examples=("workbench --host spark-01 models download Qwen/Qwen3-0.6B",),
)
async def download_model(arguments: argparse.Namespace) -> int:
    shown = _Progress(arguments.json)
    async with connect_session(arguments) as session:
        try:
            found = await session.models.download(
                arguments.model,
                revision=arguments.revision,
                directory=arguments.to_dir,
                on_progress=lambda text: shown(0, 0, text),
            )
        finally:
            shown.clear_progress_line()
    return print_json_or_lines(
        arguments.json, found.as_json(), list(found.report_lines(arguments.model))
    )


class _Progress:
    """Prints the progress of a copy on stderr. On a terminal it redraws one line; otherwise it
    prints a new line every few seconds."""

    def __init__(self, as_json: bool) -> None:
        from workbench.server.model_transfer import TransferSpeed

        self._terminal, self._silent = sys.stderr.isatty(), as_json and not sys.stderr.isatty()
        self._speed, self._last_s, self._drawn = TransferSpeed(), time.monotonic(), False

    def __call__(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        speed = self._speed.record_and_get_bytes_per_s(done)
        if self._silent or now - self._last_s < (0.2 if self._terminal else _EVERY_S):
            return
        self._last_s = now
        line = clean_text(text)
        if total:
            left = f", {(total - done) / speed:.0f} s left" if speed > 0 and done < total else ""
            line = (
                f"{done / total:4.0%}  {size_text(done)} of {size_text(total)}, "
                f"{size_text(speed)}/s{left}  {line}"
            )
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{line[:110]}")
            sys.stderr.flush()
            self._drawn = True
        else:
            print_message(line)

    def clear_progress_line(self) -> None:
        """Remove the line with the progress of the copy from the terminal."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
