"""Print, as JSON, the imports of the Python files given as arguments."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def imports(tree: ast.AST) -> list[str]:
    names: set[str] = set()
    for_type_checkers = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            names |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return sorted(names)


found = {}
for path in sys.argv[1:]:
    tree = ast.parse(Path(path).read_text())
    found[path] = {"imports": imports(tree)}
print(json.dumps(found))
