"""The command `explain`: what a word of the screen, a flag or an environment variable means."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.cli.output import print_json, print_line
from workbench.cli.registry import command, option

if TYPE_CHECKING:
    from workbench.model.flags import FlagSpec


@command(
    "explain",
    "explain a word of the screen, or a launch flag",
    option("word WORD", "a word such as TTFT or lock, or a flag such as max-num-seqs", nargs="+"),
    examples=(
        "workbench explain ttft",
        "workbench explain max-num-seqs",
        "workbench explain like for like",
    ),
)
def explain_term_or_flag(arguments: argparse.Namespace) -> int:
    from workbench.store import glossary

    word = " ".join(arguments.word)
    found = glossary.find_terms(word)
    flags = list(_find_flags_by_name(word))
    if not found and not flags:
        raise _unknown_term_error(word)
    if arguments.json:
        return print_json(
            {
                "word": word,
                "terms": [{"term": t.term, "means": t.means} for t in found],
                "flags": flags,
            }
        )
    for term in found:
        print_line(f"{term.term}: {term.means}")
    for flag in flags:
        print_line(
            f"--{flag['flag']} ({flag['engine']} {flag['version']}, {flag['group']}): "
            f"{flag['help']}"
        )
    return 0


def _find_flags_by_name(word: str) -> Iterator[dict[str, Any]]:
    """Yield the flag called `word` of each engine that has such a flag. Each item has the flag's
    name, engine, engine version, group and help text."""
    from workbench import engines

    for name in engines.engine_names():
        catalog = engines.get_engine(name).catalog()
        spec: FlagSpec | None = engines.look_up_flag(catalog, word).spec
        if spec is not None and word.strip("-").replace("_", "-") in (
            spec.name,
            *(a.strip("-") for a in spec.aliases),
        ):
            yield {
                "flag": spec.name,
                "engine": name,
                "version": catalog.version,
                "group": spec.area,
                "help": spec.help,
            }


def _unknown_term_error(word: str) -> Exception:
    """Return the error for a word that is no glossary term, flag or environment variable. The error
    suggests the most similar terms."""
    from difflib import get_close_matches

    from workbench.model.errors import InputError
    from workbench.store import glossary

    known = {
        spelling.lower(): spelling
        for term in glossary.read_all_terms()
        for spelling in term.spellings
    }
    near = [known[match] for match in get_close_matches(word.lower(), known, n=3, cutoff=0.75)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return InputError(
        f"no explanation of “{word}”",
        next_step=f"{hint}`workbench flags ENGINE --search TEXT` searches flags",
    )
