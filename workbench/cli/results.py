"""results list, search, show, note, tag: stored benchmark results."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.cli.output import emit, emit_or_say, note, say_lines
from workbench.cli.registry import command, option
from workbench.cli.result_output import result_json
from workbench.model.errors import InputError, StoreError

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.store.results_db import ResultsDb

_ID = option("id", "id of a result; `workbench results list` lists them", int)
_FILTERS = (
    option("--tag TAG", "show only results with this tag"),
    option("--limit N", "show only the newest N", int),
)


def results_db() -> ResultsDb:
    from workbench.store import paths
    from workbench.store.results_db import ResultsDb

    return ResultsDb(paths.results_db())


@command(
    "results list",
    "list stored results, newest first",
    option("--search WORDS", "show only results that contain every word (in model, command, settings, note, tags, …)"),
    *_FILTERS,
    examples=("workbench results list --limit 20", "workbench results list --tag baseline"),
)
def list_results(arguments: argparse.Namespace) -> int:
    return _print_list(arguments, arguments.search)


@command(
    "results search",
    "list results that contain every given word (in model, command, settings, note, tags, …)",
    option("words WORD", "word that a result must contain", nargs="+"),
    *_FILTERS,
    examples=("workbench results search qwen power-limit",),
)
def search_results(arguments: argparse.Namespace) -> int:
    return _print_list(arguments, " ".join(arguments.words))


def _print_list(arguments: argparse.Namespace, words: str | None) -> int:
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"--limit {arguments.limit} would show nothing", next_step="give 1 or more")
    found, damaged = results_db().read(arguments.limit, words, tag=arguments.tag)
    if damaged:
        ids = ", ".join(f"#{i}" for i in damaged)
        note(f"damaged results are left out: {ids} (`workbench results show ID` explains the damage)")
    if arguments.json:
        return emit({"results": [result_json(r) for r in found]})
    say_lines(row_lines(found))
    if not found:
        filters = [f"with {words!r}"] if words else []
        filters += [f"tagged {arguments.tag}"] if arguments.tag else []
        say_lines([" ".join(["no results", *filters])])
    return 0


def row_lines(results: Sequence[BenchResult]) -> Iterator[str]:
    """Yield one line per result: id, engine, model, load, throughput, label and marks."""
    from workbench.session.result_rows import rows_of

    for row, result in zip(rows_of(results), results, strict=True):
        rate = f"{row.output_tok_s:,.1f}" if row.output_tok_s is not None else "n/a"
        words = [
            _load(result, row.concurrency),
            f"{rate} tok/s",
            row.label,
            "REJECTED" if row.refused else "",
            "SIMULATED" if row.simulated else "",
            *(f"+{tag}" for tag in row.tags),
            row.note,
        ]
        start = f"#{row.id:<5} {row.engine or '-':<9} {row.model}"
        yield "  ".join([start, *(" ".join(word.split()) for word in words if word)])


def _load(result: BenchResult, concurrency: int) -> str:
    """Return "4/s" for a rate and "c=8" for a concurrency; "c=-" if the user's command decides."""
    known = result.conditions.known_workload
    if result.spec.rate:
        return f"{result.spec.rate:g}/s"
    if result.spec.command:
        return "c=-"
    return f"c={concurrency}" if not known or "concurrency" in known else "c=n/a"


@command("results show", "show one result with all its conditions", _ID, examples=("workbench results show 42 --json",))
def show_result(arguments: argparse.Namespace) -> int:
    result = results_db().get(arguments.id)
    if arguments.json:
        return emit(result_json(result))
    from workbench.report.content import Report
    from workbench.report.registry import output_format

    say_lines([output_format("txt").render(Report.of_result(result)).rstrip("\n")])
    return 0


@command(
    "results note",
    "write the note of a result, in place of its current note",
    _ID,
    option("text TEXT", 'text of the note; "" removes the note', nargs="+"),
    examples=('workbench results note 42 "after the reboot"',),
)
def note_result(arguments: argparse.Namespace) -> int:
    text, db = " ".join(arguments.text).strip(), results_db()
    _store(lambda: db.note(arguments.id, text), ["results", "note", str(arguments.id), text])
    return _print_annotations(arguments, db)


@command(
    "results tag",
    "add tags to a result or remove them; without a tag, show its tags",
    _ID,
    option("tags +TAG|-TAG", "+TAG or TAG adds a tag, -TAG removes it", nargs=argparse.REMAINDER),
    examples=("workbench results tag 42 +baseline",),
)
def tag_result(arguments: argparse.Namespace) -> int:
    from workbench.session.results import checked_tag

    given = [t for t in arguments.tags if t != "--json"]  # argparse takes options here as tags, because -TAG is one
    arguments.json |= len(given) < len(arguments.tags)
    add = [checked_tag(t.removeprefix("+")) for t in given if not t.startswith("-")]
    remove = [checked_tag(t[1:]) for t in given if t.startswith("-")]
    db = results_db()
    if add or remove:
        words = ["results", "tag", str(arguments.id), *given]
        _store(lambda: db.retag(arguments.id, add, remove), words)
    return _print_annotations(arguments, db)


def _store(change: Callable[[], object], words: Iterable[str]) -> None:
    """Change the database. An error quotes the command, so that the user's text is not lost."""
    try:
        change()
    except StoreError as error:
        error.command = shlex.join(["workbench", *words])
        raise


def _print_annotations(arguments: argparse.Namespace, db: ResultsDb) -> int:
    result = db.get(arguments.id)
    line = f"#{result.id}  tags: {' '.join(result.tags) or 'none'}  note: {result.note or 'none'}"
    document = {"id": result.id, "note": result.note, "tags": list(result.tags)}
    return emit_or_say(arguments.json, document, line)
