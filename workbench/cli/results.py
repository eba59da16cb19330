"""Stored results: list, show, export."""

from __future__ import annotations

import argparse

from workbench.cli.dispatch import Command, emit
from workbench.cli.measuring import result_json
from workbench.cli.opened import say


def listed(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    found_ = Session.of_host().results_db.list(None)
    if arguments.json:
        return emit({"results": [result_json(r) for r in found_]})
    from workbench.session.conditions import rows_of

    for row in rows_of(found_):
        rate = f"{row.output_tok_s:,.1f}" if row.output_tok_s is not None else "n/a"
        simulated = "  SIMULATED" if row.simulated else ""
        say(f"#{row.id:<5} {row.engine:<9} {row.model}  c={row.concurrency}  {rate} tok/s  {row.label}{simulated}")
    return 0


def shown(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    result = Session.of_host().results_db.get(arguments.id)
    if arguments.json:
        return emit(result_json(result))
    from workbench.store.export import export

    say(export(result, "md").rstrip("\n"))
    return 0


def exported(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session
    from workbench.store.export import export

    db = Session.of_host().results_db
    samples = db.samples(arguments.id) if arguments.form == "json" else ()
    text = export(db.get(arguments.id), arguments.form, samples)
    if arguments.json and arguments.form != "json":
        return emit({"id": arguments.id, "format": arguments.form, "text": text})
    say(text.rstrip("\n"))
    return 0


COMMANDS: dict[str, Command] = {
    "results list": listed,
    "results show": shown,
    "results export": exported,
}
