"""The registry of file formats: those that Workbench writes and those that it imports.

A new format is one module and its entry here. The module of an output format has `render(report:
Report) -> str`. The module of an import format has `recognizes(document)` and `read(fields,
options)`. Modules are imported at the first use of their formats, so that the command line can list
the formats without loading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.report.content import Report
    from workbench.report.imports.checked_fields import Fields, Imported, ImportOptions


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format in which reports are written. `name` is what users type, `title` is what menus show,
    and `module` is in the package `report.formats`.
    """

    name: str
    title: str
    module: str
    suffixes: tuple[str, ...]  # of file names
    with_requests: bool = False  # whether it contains, draws or needs the raw requests of a result

    def render(self, report: Report) -> str:
        """Return the report as text in this format, with secrets masked."""
        text: str = import_module(f"workbench.report.formats.{self.module}").render(
            report.with_masked_secrets()
        )
        return text


@dataclass(frozen=True, slots=True)
class ImportFormat:
    """A format of result files that can be imported. `tool` is the program that writes the files,
    and `module` is in the package `report.imports`.
    """

    tool: str
    module: str

    def recognizes(self, document: Mapping[str, Any]) -> bool:
        """Return whether a JSON object comes from a result file of this tool."""
        recognized: bool = import_module(f"workbench.report.imports.{self.module}").recognizes(
            document
        )
        return recognized

    def read(self, fields: Fields, options: ImportOptions) -> list[Imported]:
        """Return the results in a JSON object. Raises InputError that names the invalid field."""
        results: list[Imported] = import_module(f"workbench.report.imports.{self.module}").read(
            fields, options
        )
        return results


OUTPUT_FORMATS = {
    each.name: each
    for each in (
        OutputFormat("md", "Markdown", "markdown", (".md", ".markdown")),
        OutputFormat("html", "HTML page with plots", "html", (".html", ".htm"), with_requests=True),
        OutputFormat(
            "json", "JSON with all conditions", "json_data", (".json",), with_requests=True
        ),
        OutputFormat("csv", "CSV", "csv_tables", (".csv",)),
        OutputFormat("txt", "plain text", "terminal", (".txt",)),
    )
}
# Forms of other tools, which hold one result and only what the tool has a name for
TOOL_FORMATS = {
    each.name: each
    for each in (
        OutputFormat("aiperf", "AIPerf's JSON", "aiperf_json", (".aiperf.json",)),
        OutputFormat(
            "guidellm", "GuideLLM's JSON", "guidellm_json", (".guidellm.json",), with_requests=True
        ),
    )
}
EXPORT_FORMATS = {**OUTPUT_FORMATS, **TOOL_FORMATS}  # of one result
IMPORT_FORMATS = (  # in the order in which they are tried
    ImportFormat("Workbench", "workbench_json"),
    ImportFormat("llama-benchy", "llama_benchy"),
    ImportFormat("AIPerf or GenAI-Perf", "aiperf"),
    ImportFormat("vllm bench serve", "vllm_bench"),
    ImportFormat("sglang.bench_serving", "sglang_bench"),
    ImportFormat("GuideLLM", "guidellm"),
)


def find_output_format(name: str) -> OutputFormat:
    """Return the output format called `name`. Raises InputError, with a list of the names, if there
    is none."""
    if name not in EXPORT_FORMATS:
        raise InputError(
            f"unknown format {name!r}", next_step=f"use one of {', '.join(EXPORT_FORMATS)}"
        )
    return EXPORT_FORMATS[name]


def format_from_suffix(path: Path) -> OutputFormat:
    """Return the output format for the suffix of a file name, such as ".html". Raises InputError
    for any other suffix.
    """
    for each in OUTPUT_FORMATS.values():
        if path.suffix.lower() in each.suffixes:
            return each
    raise InputError(
        f"no report format has the suffix of {path}",
        next_step=f"give --format {', '.join(OUTPUT_FORMATS)}",
    )


def importable_tool_names_text() -> str:
    """Return the names of the tools whose result files can be imported, as text for help and
    messages."""
    return ", ".join(each.tool for each in IMPORT_FORMATS)
