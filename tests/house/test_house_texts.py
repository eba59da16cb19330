"""Texts for people contain no name of a function: a rename in bulk once put three into messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "workbench"
# names of functions that are also words of an engine, of a file format or of an option
FOREIGN = frozenset(
    [
        "api_key",
        "container_name",
        "known_hosts",
        "max_tokens",
        "model_path",
        "run_as",
        "run_options",
        "tok_s",
    ]
)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


@pytest.mark.slow
def test_no_text_for_people_contains_the_name_of_a_function() -> None:
    names: set[str] = set()
    texts: list[tuple[str, str]] = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        nodes = list(ast.walk(tree))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        names |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        if path.name == "__init__.py":  # its texts list the names that it exports
            continue
        for node in nodes:
            if is_text(node) and id(node) not in docstrings:
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                texts.append((place, node.value))
    suspects = {name for name in names if "_" in name.strip("_")} - FOREIGN
    found = [
        (place, sorted(suspects.intersection(re.findall(r"\w+", text))))
        for place, text in texts
        if "\n" not in text and "a subclass of" not in text
    ]
    assert [one for one in found if one[1]] == []
