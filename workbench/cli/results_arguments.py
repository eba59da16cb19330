"""Arguments of results."""

from __future__ import annotations

import argparse

from workbench.cli.arguments import Commands, add, group
from workbench.report.registry import OUTPUT_FORMATS, imported_tools


def results(sub: Commands) -> None:
    actions = group(sub, "results", "stored benchmark results: every run with its conditions")
    listed = add(actions, "list", "newest first")
    listed.add_argument("--search", metavar="WORDS", help="only those that have all these words")
    _narrowed(listed)
    search = add(actions, "search", "results that have all these words in model, command, settings, note, tags, …")
    search.add_argument("words", nargs="+", metavar="WORD")
    _narrowed(search)
    add(actions, "show", "one result with all its conditions").add_argument("id", type=int)
    note = add(actions, "note", "write a note to a result, in place of the one before")
    note.add_argument("id", type=int)
    note.add_argument("text", nargs="+", metavar="TEXT", help='"" takes the note away')
    tag = add(actions, "tag", "add and remove tags; without any, show them")
    tag.add_argument("id", type=int)
    tag.add_argument("tags", nargs=argparse.REMAINDER, metavar="+TAG|-TAG", help="TAG is +TAG")
    _exports(actions)
    _imports(actions)


def _narrowed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tag", metavar="TAG", help="only those with this tag")
    parser.add_argument("--limit", type=int, metavar="N", help="the newest N")


def _exports(actions: Commands) -> None:
    export = add(actions, "export", "one result as a file's text on stdout")
    export.add_argument("id", type=int)
    export.add_argument("--format", choices=tuple(OUTPUT_FORMATS), default="json", dest="form")
    report = add(actions, "report", "a document to hand on: results, an A/B experiment, or a sweep")
    report.add_argument("ids", nargs="*", metavar="IDS", help="7, 1-3 or 1,2,5; two are compared, the first as A")
    report.add_argument("--experiment", type=int, metavar="N")
    report.add_argument("--sweep", type=int, metavar="N")
    report.add_argument(
        "--format",
        choices=tuple(OUTPUT_FORMATS),
        dest="form",
        help="default: by the name of the output, else md",
    )
    report.add_argument("--requests", action="store_true", help="CSV with a line per request instead of per result")
    report.add_argument("-o", "--output", metavar="FILE", help="a new file; without it, stdout")


def _imports(actions: Commands) -> None:
    what = f"import results of {imported_tools()}"
    parser = add(actions, "import", what)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--model", metavar="NAME", help="what was served, where the file does not say so")
    parser.add_argument("--engine", metavar="NAME", help="what served it: the files do not say")
    parser.add_argument("--on", metavar="HOST", help="the host on which it ran: the files do not say")
    parser.add_argument("--simulated", action="store_true", help="the server was a simulated one")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", dest="tags")
