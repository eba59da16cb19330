"""The command `results`, which lists, searches, shows, annotates, tags, exports, reports and
imports stored benchmark results, and verifies proofs."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.cli.open_session import create_session
from workbench.cli.output import (
    items_as_json,
    print_error,
    print_json,
    print_json_list,
    print_json_or_lines,
    print_line,
    print_lines,
    print_message,
    simulated_suffix,
)
from workbench.cli.registry import command, option, repeatable_option
from workbench.cli.result_output import result_json
from workbench.model.counts import count_of
from workbench.model.errors import InputError, StoreError, WorkbenchError, error_reason
from workbench.report.registry import (
    EXPORT_FORMATS,
    OUTPUT_FORMATS,
    find_output_format,
    format_from_suffix,
    importable_tool_names_text,
)

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.quality import QualityResult
    from workbench.session.results.proofs import VerifiedProof
    from workbench.store.results_db import Page, ResultsDb

_ID = option("id", "id of a result; `workbench results list` lists them", int)
_MOST_IN_GROUP = 1000
_NEWEST = 50
_HOST_CELLS = 16  # a longer name of a host moves what follows it
_MODEL_CHARS = 48  # of a model's name in a list
_MOST_DIFFERENCES = 20
_FILTERS = (
    option("--tag TAG", "show only results with this tag"),
    option("--before ID", "show only results that are older than result ID", int),
    option("--limit N", f"show only the newest N ({_NEWEST})", int),
    option("--all", "show all results instead of the newest ones"),
)


def open_results_db() -> ResultsDb:
    from workbench.store import paths
    from workbench.store.results_db import ResultsDb

    return ResultsDb(paths.results_db())


@command(
    "results list",
    "list stored results, newest first",
    option(
        "--search WORDS",
        "show only results that contain every word (in model, command, settings, note, tags, …)",
    ),
    *_FILTERS,
    examples=("workbench results list --limit 20", "workbench results list --tag baseline"),
)
def list_results(arguments: argparse.Namespace) -> int:
    return _print_result_list(arguments, arguments.search)


@command(
    "results search",
    "list results that contain every given word (in model, command, settings, note, tags, …)",
    option("words WORD", "word that a result must contain", nargs="+"),
    *_FILTERS,
    examples=("workbench results search qwen power-limit",),
)
def search_results(arguments: argparse.Namespace) -> int:
    return _print_result_list(arguments, " ".join(arguments.words))


def _print_result_list(arguments: argparse.Namespace, words: str | None) -> int:
    """Print the newest results that contain `words`, and note on stderr if there are older ones.
    Results are read in pages, so that the first results are printed early."""
    limit, asked = _read_limit(arguments), None
    if not arguments.all:
        asked = limit + 1  # one more, to know whether there are older ones
    db = open_results_db()
    known = _load_quality_comparisons(db)
    pages = db.pages(asked, words, tag=arguments.tag, before_id=arguments.before)
    shown = _ShownResults(pages, limit)
    if arguments.json:
        print_json_list(
            "results",
            (_result_json_with_comparisons(r, known) for page in shown.pages() for r in page),
            lambda: {"more": shown.more},
        )
    else:
        for page in shown.pages():
            print_lines(result_row_lines(page, known))
        if not shown.count:
            filters = ["no results"]
            if words:
                filters.append(f"with {words!r}")
            if arguments.tag:
                filters.append(f"tagged {arguments.tag}")
            print_line(" ".join(filters))
    if shown.damaged:
        ids = ", ".join(f"#{i}" for i in shown.damaged)
        print_message(
            f"damaged results are left out: {ids} (`workbench results show ID` explains the damage)"
        )
    if shown.more:
        print_message(
            f"the newest {limit} are shown; --all shows all, --before {shown.last} the older ones"
        )
    return 0


def _read_limit(arguments: argparse.Namespace) -> int:
    """Return how many results a list may show. Raises InputError for --limit below 1, and for
    --limit together with --all."""
    if arguments.limit is None:
        return sys.maxsize if arguments.all else _NEWEST
    if arguments.limit < 1:
        raise InputError(
            f"--limit {arguments.limit} is not a valid number of results",
            next_step="give --limit 1 or more",
        )
    if arguments.all:
        raise InputError(
            "--limit and --all cannot be combined", next_step="give either --limit or --all"
        )
    limit: int = arguments.limit
    return limit


class _ShownResults:
    """Counts and ids of the results that a list has printed: their `count`, the id of the `last`
    one, and the ids of `damaged` results, which were left out. `limit` is the highest allowed
    count. `more` is True if there are older results."""

    def __init__(self, pages: Iterable[Page], limit: int) -> None:
        self._pages, self._limit = pages, limit
        self.count, self.last = 0, 0
        self.more = False
        self.damaged: list[int] = []

    def pages(self) -> Iterator[Sequence[BenchResult]]:
        for page in self._pages:
            room = self._limit - self.count
            self.more = len(page.results) + len(page.damaged) > room
            results = page.results[:room]
            self.count += len(results)
            self.damaged += page.damaged
            if results:
                self.last = results[-1].id
                yield results


def _load_quality_comparisons(db: ResultsDb) -> tuple[QualityResult, ...]:
    from workbench.store.quality_db import QualityDb

    return QualityDb(db.path).newest_comparisons()


def _result_json_with_comparisons(
    result: BenchResult, comparisons: Sequence[QualityResult]
) -> dict[str, Any]:
    """Return a result of a list as a JSON object. The field `quality_comparisons` has the id, side,
    verdict and summary of each comparison of answers in which its server was a side. Without such a
    comparison the field is missing."""
    from workbench.engines.answer_settings import find_sides_in_quality_comparisons

    found = [
        {"id": one.id, "side": side, "verdict": one.verdict, "summary": one.summary}
        for side, one in find_sides_in_quality_comparisons(result.conditions, comparisons)
    ]
    document = result_json(result)
    if found:
        document["quality_comparisons"] = found
    return document


def result_row_lines(
    results: Sequence[BenchResult], comparisons: Sequence[QualityResult] = ()
) -> Iterator[str]:
    """Yield one line for each result: id, host, engine, model, load, throughput, label, and marks
    such as "rejected". `comparisons` are comparisons of answers, whose verdicts are among the
    marks."""
    from workbench.session.bench.result_rows import rows_of_results

    for row, result in zip(rows_of_results(results), results, strict=True):
        speed, unit = row.output_tok_s, "tok/s"
        if result.spec.endpoint == "embeddings":
            speed, unit = result.summary.request_s, "requests/s"
        rate = f"{speed:,.1f}" if speed is not None else "n/a"
        words = [
            _format_load(result, row.concurrency),
            f"{rate} {unit}",
            row.label,
            "REJECTED" if row.refused else "",
            "SIMULATED" if row.simulated else "",
            _format_answers_verdict(result, comparisons),
            *(f"+{tag}" for tag in row.tags),
            row.note,
        ]
        host = f"{result.conditions.host or '-':<{_HOST_CELLS}}"
        start = f"#{row.id:<5} {host} {row.engine or '-':<9} {_shorten_model_name(row.model)}"
        yield "  ".join([start, *(" ".join(word.split()) for word in words if word)])


def _shorten_model_name(model: str) -> str:
    """Return a model's name. Of a long one, which is mostly a path, only its end."""
    if len(model) <= _MODEL_CHARS:
        return model
    return f"…{model[1 - _MODEL_CHARS :]}"


def _format_answers_verdict(result: BenchResult, comparisons: Sequence[QualityResult]) -> str:
    """Return the verdict of the newest comparison of answers in which the result's server was side
    B, after the word "answers:". "" if there is none."""
    from workbench.engines.answer_settings import find_sides_in_quality_comparisons

    for side, one in find_sides_in_quality_comparisons(result.conditions, comparisons):
        if side == "B":
            return f"answers: {one.verdict}"
    return ""


def _format_load(result: BenchResult, concurrency: int) -> str:
    """Return the load of a result as short text: "4/s" for a rate, "c=8" for a concurrency,
    "trace". The text is "c=-" if the user's own command decides the load.
    """
    if result.spec.rate:
        return f"{result.spec.rate:g}/s"
    if result.spec.trace_name:
        return "trace"
    if result.spec.command:
        return "c=-"
    if not result.conditions.knows_workload_field("concurrency"):
        return "c=n/a"
    return f"c={concurrency}"


@command(
    "results show",
    "show one result with all its conditions",
    _ID,
    examples=("workbench results show 42 --json",),
)
def show_result(arguments: argparse.Namespace) -> int:
    from workbench.engines.answer_settings import find_sides_in_quality_comparisons

    db = open_results_db()
    result, timeline = db.get(arguments.id), _timeline_path_of(db, arguments.id)
    known = _load_quality_comparisons(db)
    if arguments.json:
        from workbench.report.formats.json_data import answers_json

        document = result_json(result)
        if answers := answers_json(find_sides_in_quality_comparisons(result.conditions, known)):
            document["quality_comparisons"] = answers
        return print_json({**document, "timeline": timeline})
    from workbench.report.content import Report

    report = Report.from_result(result, comparisons=known)
    print_lines([find_output_format("txt").render(report).rstrip("\n")])
    line = "none was kept with this result"
    if timeline:
        line = shlex.join(["workbench", "replay", timeline])
    print_line(f"timeline: {line}")
    return 0


def _timeline_path_of(db: ResultsDb, result_id: int) -> str | None:
    """Return the path of the recording with the readings from around a benchmark. None if there is
    none."""
    from workbench.store.result_timelines import timeline_path

    path = timeline_path(db.path.parent, db.uid(result_id))
    return str(path) if path.exists() else None


@command(
    "results note",
    "write the note of a result, in place of its current note",
    _ID,
    option("text TEXT", 'text of the note; "" removes the note', nargs="+"),
    examples=('workbench results note 42 "after the reboot"',),
)
def set_result_note(arguments: argparse.Namespace) -> int:
    text, db = " ".join(arguments.text).strip(), open_results_db()
    _run_store_change(
        lambda: db.set_note(arguments.id, text), ["results", "note", str(arguments.id), text]
    )
    return _print_annotations(arguments, db)


@command(
    "results tag",
    "add tags to a result or remove them; without a tag, show its tags",
    _ID,
    option("tags +TAG|-TAG", "+TAG or TAG adds a tag, -TAG removes it", nargs=argparse.REMAINDER),
    examples=("workbench results tag 42 +baseline",),
)
def tag_result(arguments: argparse.Namespace) -> int:
    from workbench.session.results.results import validated_tag

    # argparse takes options here as tags, because -TAG is one
    given = [t for t in arguments.tags if t != "--json"]
    arguments.json |= len(given) < len(arguments.tags)
    add, remove = [], []
    for tag in given:
        if tag.startswith("-"):
            remove.append(validated_tag(tag[1:]))
        else:
            add.append(validated_tag(tag.removeprefix("+")))
    db = open_results_db()
    if add or remove:
        words = ["results", "tag", str(arguments.id), *given]
        _run_store_change(lambda: db.change_tags(arguments.id, add, remove), words)
    return _print_annotations(arguments, db)


def _run_store_change(change: Callable[[], object], command_words: Iterable[str]) -> None:
    """Call `change`, which writes to the database. If it raises StoreError, the error quotes the
    command line (`command_words`), so that the user can repeat it."""
    try:
        change()
    except StoreError as error:
        error.command = shlex.join(["workbench", *command_words])
        raise


def _print_annotations(arguments: argparse.Namespace, db: ResultsDb) -> int:
    result = db.get(arguments.id)
    line = f"#{result.id}  tags: {' '.join(result.tags) or 'none'}  note: {result.note or 'none'}"
    document = {"id": result.id, "note": result.note, "tags": list(result.tags)}
    return print_json_or_lines(arguments.json, document, line)


@command(
    "results export",
    "print one result in one of several formats",
    _ID,
    option("--format", "format of the text (json)", choices=tuple(EXPORT_FORMATS), default="json"),
    examples=(
        "workbench results export 42 --format csv",
        "workbench results export 42 --format aiperf > profile_export_aiperf.json",
    ),
)
def export_result(arguments: argparse.Namespace) -> int:
    from workbench.report.content import Report

    db, chosen = open_results_db(), find_output_format(arguments.format)
    samples = db.samples(arguments.id) if chosen.with_requests else ()
    text = chosen.render(
        Report.from_result(db.get(arguments.id), samples, _load_quality_comparisons(db))
    )
    return _print_formatted_text(arguments, arguments.format, text, {"id": arguments.id})


def _print_formatted_text(
    arguments: argparse.Namespace, form: str, text: str, more_fields: Mapping[str, Any]
) -> int:
    """Print `text`, which has the format `form`. With --json, a text that is not JSON itself is a
    field of a JSON object, beside `more_fields`. Return the exit code 0."""
    if arguments.json and form != "json":
        return print_json({**more_fields, "format": form, "text": text})
    print_line(text.rstrip("\n"))
    return 0


@command(
    "results report",
    "write a report about results, an A/B experiment or a sweep, for other people to read",
    option(
        "ids IDS", "results: 7, 1-3 or 1,2,5; two groups are compared, the first as A", nargs="*"
    ),
    option("--experiment N", "report experiment N", int),
    option("--sweep N", "report sweep N", int),
    option(
        "--format",
        "format of the report (default: from the name of the output file, otherwise md)",
        choices=tuple(OUTPUT_FORMATS),
    ),
    option("--requests", "CSV with one line per request instead of one per result"),
    option(
        "--proof",
        "a proof of an experiment or of two groups: one HTML page, or JSON, with plan, raw pairs, "
        "intervals and conditions, which `results verify` computes again",
    ),
    option("-o --output FILE", "file to create (default: stdout)"),
    examples=(
        "workbench results report 41-43 44-46 -o report.html",
        "workbench results report --experiment 3",
        "workbench results report --experiment 3 --proof -o proof.html",
    ),
)
async def report_results(arguments: argparse.Namespace) -> int:
    output, form = None, arguments.format
    if arguments.output:
        output = Path(arguments.output).expanduser()
        form = form or format_from_suffix(output).name
    form = form or "md"
    if arguments.requests and form != "csv":
        raise InputError(
            "--requests applies to CSV only; JSON always contains every request",
            next_step="add --format csv",
        )
    groups = [parse_result_ids(text) for text in arguments.ids]
    reports = create_session(arguments).reports
    if arguments.proof:
        form = _choose_proof_format(arguments, form)
        text = await reports.proof_text(form, groups, experiment_id=arguments.experiment)
    else:
        text = await reports.report_text(
            form,
            groups,
            experiment_id=arguments.experiment,
            sweep_id=arguments.sweep,
            with_requests=arguments.requests,
        )
    if output is None:
        return _print_formatted_text(arguments, form, text, {})
    try:
        with output.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"cannot create {output}: {error_reason(error)}", next_step="give another name"
        ) from None
    return print_json_or_lines(arguments.json, {"format": form, "path": str(output)}, str(output))


def _choose_proof_format(arguments: argparse.Namespace, form: str) -> str:
    """Return the format of a proof, "html" or "json": `form` if --format or --output chose it,
    otherwise "json". Raises InputError for any other format, and for a sweep, of which there is no
    proof."""
    if arguments.sweep is not None:
        raise InputError(
            "a sweep compares nothing, so there is no proof of it",
            next_step="give the experiment that compares its values",
        )
    chosen = "json"
    if arguments.format or arguments.output:
        chosen = form
    if chosen not in ("html", "json"):
        raise InputError(
            f"a proof cannot be written as {chosen}",
            next_step="use --format html or --format json",
        )
    return chosen


@command(
    "results verify",
    "compute everything that a proof says again from its raw pairs, and say what differs",
    option("file FILE", "proof that `results report --proof` wrote (HTML or JSON)"),
    examples=("workbench results verify proof.html",),
)
def verify_proof(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench.session.results import proofs

    found = proofs.verify_proof(Path(arguments.file).expanduser())
    holds = not found.differences
    document = {"file": arguments.file, "holds": holds, **asdict(found)}
    print_json_or_lines(arguments.json, document, _proof_check_lines(found))
    return 0 if holds else 1


def _proof_check_lines(found: VerifiedProof) -> Iterator[str]:
    simulated = simulated_suffix(found.simulated)
    version = found.workbench_version
    written = version or "of an unknown version"
    yield f"{found.title}, written by Workbench {written}{simulated}"
    yield f"recomputed: {found.verdict}"
    if not found.differences:
        yield f"the proof holds; computed again: {', '.join(found.checked)}"
    else:
        yield f"THE PROOF DOES NOT HOLD: {count_of(len(found.differences), 'difference')}"
        for difference in found.differences[:_MOST_DIFFERENCES]:
            yield f"  {difference.description}"
        if len(found.differences) > _MOST_DIFFERENCES:
            yield f"  {len(found.differences) - _MOST_DIFFERENCES} more; --json lists all"
        if version != __version__:
            yield (
                f"  this is Workbench {__version__}: sentences may be worded differently, and "
                "metrics may be new; figures may not differ"
            )
    yield "A proof is not signed: the arithmetic is checked, not who measured or on what."


@command(
    "results import",
    f"import results of {importable_tool_names_text()}",
    option("files FILE", "result file of one of these tools (JSON)", nargs="+"),
    option("--model NAME", "the served model, if the file does not contain it"),
    option("--engine NAME", "the engine that served it; the files do not contain it"),
    option("--on HOST", "the host that it ran on; the files do not contain it"),
    option("--simulated", "mark the results as simulated"),
    repeatable_option("--tag TAG", "tag for the results; repeatable", dest="tags"),
    examples=("workbench results import bench.json --engine vllm --on gpu-box",),
)
async def import_results(arguments: argparse.Namespace) -> int:
    """Import the result files that the command line names, and print what was imported. If some of
    several files fail, print each error and return the exit code of the first error."""
    from workbench.report.imports import ImportOptions

    known = ImportOptions(arguments.model, arguments.engine, arguments.on, arguments.simulated)
    session = create_session(arguments)
    stored: list[tuple[BenchResult, bool]] = []
    errors: list[WorkbenchError] = []
    for file in arguments.files:
        try:
            stored += await session.results.import_results(file, known, tags=arguments.tags)
        except WorkbenchError as error:
            errors.append(error)
    if errors and (len(arguments.files) == 1 or not stored):
        raise errors[0]
    if arguments.json:
        document: dict[str, Any] = {
            "results": [{**result_json(result), "new": new} for result, new in stored]
        }
        if errors:
            document["failed"] = items_as_json(errors)
        print_json(document)
    else:
        print_lines(result_row_lines([r for r, _ in stored]))
        repeated = sum(not new for _, new in stored)
        if repeated:
            print_line(f"{repeated} of {len(stored)} were imported before and are not stored again")
    for problem in errors:
        print_error(problem)
    if errors:
        return errors[0].exit_code
    return 0


def parse_result_ids(text: str) -> tuple[int, ...]:
    """Return the ids in a text such as "7", "1-3" or "1,2,5-7", without duplicates. Raises
    InputError for any other text.
    """
    found: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,18}(-[0-9]{1,18})?\s*", part):
            raise InputError(
                f"{text!r} is not a list of result ids",
                next_step="give ids of results, for example 7, 1-3 or 1,2,5-7",
            )
        first, _, last = part.strip().partition("-")
        last = last or first
        if not 0 <= int(last) - int(first) < _MOST_IN_GROUP:
            raise InputError(
                f"{part.strip()!r} is not a range of result ids",
                next_step=f"give the lower id first, and at most {_MOST_IN_GROUP} results",
            )
        found += range(int(first), int(last) + 1)
    return tuple(dict.fromkeys(found))
