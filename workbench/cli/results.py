"""Stored results: list, search, show, note, tag, export, report, import."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.bench import result_json
from workbench.cli.compare import ids_of
from workbench.cli.dispatch import Command, emit, report
from workbench.cli.open_session import note, say, session_of
from workbench.model.errors import InputError, StoreError, WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workbench.model.bench import BenchResult
    from workbench.store.results_db import ResultsDb


def _db() -> ResultsDb:
    from workbench.store import paths
    from workbench.store.results_db import ResultsDb

    return ResultsDb(paths.results_db())


def listed(arguments: argparse.Namespace) -> int:
    words = arguments.search if arguments.action == "list" else " ".join(arguments.words)
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"--limit {arguments.limit} shows nothing", next_step="1 or more")
    found, damaged = _db().read(arguments.limit, words, tag=arguments.tag)
    if damaged:
        note(f"damaged and left out: {', '.join(f'#{i}' for i in damaged)} (workbench results show ID says how)")
    if arguments.json:
        return emit({"results": [result_json(r) for r in found]})
    _say_rows(found)
    if not found:
        asked = [*([f"with {words!r}"] if words else []), *([f"tagged {arguments.tag}"] if arguments.tag else [])]
        say(" ".join(["no results", *asked]))
    return 0


def _say_rows(found: Sequence[BenchResult]) -> None:
    from workbench.session.conditions import rows_of

    for row, result in zip(rows_of(found), found, strict=True):
        rate = f"{row.output_tok_s:,.1f}" if row.output_tok_s is not None else "n/a"
        known = result.conditions.known_workload
        streams = f"c={row.concurrency}" if not known or "concurrency" in known else "c=n/a"
        streams = "c=-" if result.spec.command else streams  # its own command's, whatever that asks for
        load = f"{result.spec.rate:g}/s" if result.spec.rate else streams  # at a rate the streams are but a cap
        words = [
            f"#{row.id:<5} {row.engine or '-':<9} {row.model}",
            load,
            f"{rate} tok/s",
            row.label,
            *(["REJECTED"] if row.refused else []),
            *(["SIMULATED"] if row.simulated else []),
            *(f"+{tag}" for tag in row.tags),
            *([row.note] if row.note else []),
        ]
        say("  ".join(" ".join(word.split()) if i else word for i, word in enumerate(words)))


def shown(arguments: argparse.Namespace) -> int:
    result = _db().get(arguments.id)
    if arguments.json:
        return emit(result_json(result))
    from workbench.report.content import Report
    from workbench.report.registry import output_format

    say(output_format("txt").render(Report.of_result(result)).rstrip("\n"))
    return 0


def noted(arguments: argparse.Namespace) -> int:
    """The note must not be lost where the database cannot take it: the error has it again."""
    text, db = " ".join(arguments.text).strip(), _db()
    _again(lambda: db.note(arguments.id, text), ["results", "note", str(arguments.id), text])
    return _said(arguments, db.get(arguments.id))


def tagged(arguments: argparse.Namespace) -> int:
    from workbench.session.history import checked_tag

    given = [t for t in arguments.tags if t != "--json"]  # argparse leaves options alone here: -TAG looks like one
    arguments.json |= len(given) < len(arguments.tags)
    add = [checked_tag(t.removeprefix("+")) for t in given if not t.startswith("-")]
    remove = [checked_tag(t[1:]) for t in given if t.startswith("-")]
    db = _db()
    if add or remove:
        words = ["results", "tag", str(arguments.id), *given]
        _again(lambda: db.retag(arguments.id, add, remove), words)
    return _said(arguments, db.get(arguments.id))


def _again(work: Any, words: Iterable[str]) -> None:
    import shlex

    try:
        work()
    except StoreError as error:
        error.command = shlex.join(["workbench", *words])
        raise


def _said(arguments: argparse.Namespace, result: BenchResult) -> int:
    if arguments.json:
        return emit({"id": result.id, "note": result.note, "tags": list(result.tags)})
    say(f"#{result.id}  tags: {' '.join(result.tags) or 'none'}  note: {result.note or 'none'}")
    return 0


def exported(arguments: argparse.Namespace) -> int:
    from workbench.report.content import Report
    from workbench.report.registry import output_format

    db, chosen = _db(), output_format(arguments.form)
    samples = db.samples(arguments.id) if chosen.with_requests else ()
    text = chosen.render(Report.of_result(db.get(arguments.id), samples))
    if arguments.json and arguments.form != "json":
        return emit({"id": arguments.id, "format": arguments.form, "text": text})
    say(text.rstrip("\n"))
    return 0


async def reported(arguments: argparse.Namespace) -> int:
    from workbench.report.registry import format_of_file

    output = Path(arguments.output).expanduser() if arguments.output else None
    form = arguments.form or (format_of_file(output).name if output else "md")
    if arguments.requests and form != "csv":
        raise InputError("--requests is for CSV: JSON has every request, the others none", next_step="--format csv")
    text = await session_of(arguments).report(
        form,
        [ids_of(text) for text in arguments.ids],
        experiment_id=arguments.experiment,
        sweep_id=arguments.sweep,
        requests=arguments.requests,
    )
    if output is None:
        if arguments.json and form != "json":
            return emit({"format": form, "text": text})
        say(text.rstrip("\n"))
        return 0
    try:
        with output.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{output} was not written: {error.strerror}", next_step="give another name") from None
    return emit({"format": form, "path": str(output)}) if arguments.json else _done(str(output))


def _done(text: str) -> int:
    say(text)
    return 0


async def imported(arguments: argparse.Namespace) -> int:
    from workbench.report.imports import ImportOptions

    options = ImportOptions(arguments.model, arguments.engine, arguments.on, arguments.simulated)
    session = session_of(arguments)
    stored: list[tuple[BenchResult, bool]] = []
    errors: list[WorkbenchError] = []
    for file in arguments.files:
        try:
            stored += await session.import_results(file, options, tags=arguments.tags)
        except WorkbenchError as error:
            errors.append(error)
    if errors and (len(arguments.files) == 1 or not stored):
        raise errors[0]
    if arguments.json:
        failed = {"failed": [error.as_json() for error in errors]} if errors else {}
        emit({"results": [{**result_json(r), "new": new} for r, new in stored], **failed})
    else:
        _say_rows([r for r, _ in stored])
        before = sum(not new for _, new in stored)
        if before:
            say(f"{before} of {len(stored)} were imported before: nothing was added for them")
    for problem in errors:
        report(problem, as_json=False)
    return errors[0].exit_code if errors else 0


COMMANDS: dict[str, Command] = {
    "results list": listed,
    "results search": listed,
    "results show": shown,
    "results note": noted,
    "results tag": tagged,
    "results export": exported,
    "results report": reported,
    "results import": imported,
}
