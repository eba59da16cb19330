"""Arguments of results."""

from __future__ import annotations

from workbench.cli.arguments import Commands, add, group


def results(sub: Commands) -> None:
    actions = group(sub, "results", "stored benchmark results")
    add(actions, "list", "newest first")
    add(actions, "show", "one result with all its conditions").add_argument("id", type=int)
    export = add(actions, "export", "one result as a file's text on stdout")
    export.add_argument("id", type=int)
    export.add_argument("--format", choices=("json", "csv", "md"), default="json", dest="form")
