"""Programs that stand in strings of the tests and benchmarks use names of Workbench that exist.

Such a program runs in a process of its own, so that mypy does not read it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MISSING = object()


def programs_in_strings(path: Path) -> Iterator[ast.Module]:
    """Yield the strings of a file that are Python programs and import Workbench."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if "import" not in node.value or "workbench" not in node.value:
            continue
        try:
            yield ast.parse(dedent(node.value))
        except SyntaxError:  # text, or a program with gaps to fill in
            continue


def module_or_attribute(module: str, name: str) -> Any:
    """Return what `from module import name` imports; MISSING if there is no such thing."""
    try:
        package = importlib.import_module(module)
    except ImportError:
        return MISSING
    found = getattr(package, name, MISSING)
    if found is not MISSING:
        return found
    try:
        return importlib.import_module(f"{module}.{name}")
    except ImportError:
        return MISSING


def missing_names(program: ast.Module) -> list[str]:
    """Return the names of Workbench that the program imports, or reads from a module that it
    imports, and that do not exist."""
    missing: list[str] = []
    imported: dict[str, Any] = {}
    for node in ast.walk(program):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.split(".")[0] != "workbench":
            continue
        for alias in node.names:
            found = module_or_attribute(node.module, alias.name)
            imported[alias.asname or alias.name] = found
            if found is MISSING:
                missing.append(f"{node.module}.{alias.name}")
    for node in ast.walk(program):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        owner = imported.get(node.value.id, MISSING)
        if owner is not MISSING and not hasattr(owner, node.attr):
            missing.append(f"{node.value.id}.{node.attr}")
    return missing


def test_programs_in_strings_use_names_that_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__).resolve()
        for program in programs_in_strings(path)
        for name in missing_names(program)
    ]
    assert missing == []


def test_a_name_that_is_gone_is_found() -> None:
    program = ast.parse("from workbench.gpu import remote_programs\nremote_programs.GONE.argv()\n")
    assert missing_names(program) == ["remote_programs.GONE"]
    assert missing_names(ast.parse("from workbench.gpu import gone")) == ["workbench.gpu.gone"]
