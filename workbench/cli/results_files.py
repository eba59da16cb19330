"""results export, report, import: results as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.open_session import session_of
from workbench.cli.output import emit, emit_or_say, print_error, say, say_lines
from workbench.cli.registry import command, option, repeatable
from workbench.cli.result_ids import ids_of
from workbench.cli.result_output import result_json
from workbench.cli.results import results_db, row_lines
from workbench.model.errors import InputError, WorkbenchError
from workbench.report.registry import OUTPUT_FORMATS, format_of_file, imported_tools, output_format

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult


@command(
    "results export",
    "print one result in one of several formats",
    option("id", "id of a result; `workbench results list` lists them", int),
    option("--format", "format of the text (json)", choices=tuple(OUTPUT_FORMATS), default="json"),
    examples=("workbench results export 42 --format csv",),
)
def export_result(arguments: argparse.Namespace) -> int:
    from workbench.report.content import Report

    db, chosen = results_db(), output_format(arguments.format)
    samples = db.samples(arguments.id) if chosen.with_requests else ()
    text = chosen.render(Report.of_result(db.get(arguments.id), samples))
    if arguments.json and arguments.format != "json":
        return emit({"id": arguments.id, "format": arguments.format, "text": text})
    say(text.rstrip("\n"))
    return 0


@command(
    "results report",
    "write a report about results, an A/B experiment or a sweep, for other people to read",
    option("ids IDS", "results: 7, 1-3 or 1,2,5; two groups are compared, the first as A", nargs="*"),
    option("--experiment N", "report experiment N", int),
    option("--sweep N", "report sweep N", int),
    option(
        "--format",
        "format of the report (default: from the name of the output file, otherwise md)",
        choices=tuple(OUTPUT_FORMATS),
    ),
    option("--requests", "CSV with one line per request instead of one per result"),
    option("-o --output FILE", "file to create (default: stdout)"),
    examples=(
        "workbench results report 41-43 44-46 -o report.html",
        "workbench results report --experiment 3",
    ),
)
async def report_results(arguments: argparse.Namespace) -> int:
    output = Path(arguments.output).expanduser() if arguments.output else None
    form = arguments.format or (format_of_file(output).name if output else "md")
    if arguments.requests and form != "csv":
        raise InputError(
            "--requests applies to CSV only; JSON always contains every request", next_step="add --format csv"
        )
    text = await session_of(arguments).reports.text(
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
        raise InputError(f"cannot create {output}: {error.strerror}", next_step="give another name") from None
    return emit_or_say(arguments.json, {"format": form, "path": str(output)}, str(output))


@command(
    "results import",
    f"import results of {imported_tools()}",
    option("files FILE", "result file of one of these tools (JSON)", nargs="+"),
    option("--model NAME", "the served model, if the file does not contain it"),
    option("--engine NAME", "the engine that served it; the files do not contain it"),
    option("--on HOST", "the host that it ran on; the files do not contain it"),
    option("--simulated", "mark the results as simulated"),
    repeatable("--tag TAG", "tag for the results; repeatable", dest="tags"),
    examples=("workbench results import bench.json --engine vllm --on gpu-box",),
)
async def import_results(arguments: argparse.Namespace) -> int:
    """Import files. If some of several fail, report each error and exit with the code of the first."""
    from workbench.report.imports import ImportOptions

    known = ImportOptions(arguments.model, arguments.engine, arguments.on, arguments.simulated)
    session = session_of(arguments)
    stored: list[tuple[BenchResult, bool]] = []
    errors: list[WorkbenchError] = []
    for file in arguments.files:
        try:
            stored += await session.results.import_file(file, known, tags=arguments.tags)
        except WorkbenchError as error:
            errors.append(error)
    if errors and (len(arguments.files) == 1 or not stored):
        raise errors[0]
    if arguments.json:
        failed = {"failed": [error.as_json() for error in errors]} if errors else {}
        emit({"results": [{**result_json(r), "new": new} for r, new in stored], **failed})
    else:
        say_lines(row_lines([r for r, _ in stored]))
        repeated = sum(not new for _, new in stored)
        if repeated:
            say(f"{repeated} of {len(stored)} were imported before and are not stored again")
    for problem in errors:
        print_error(problem)
    return errors[0].exit_code if errors else 0
