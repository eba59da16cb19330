"""Reads shell scripts, which lie in the folder `scripts` beside the module that runs them."""

from __future__ import annotations

from pathlib import Path


def read_script(module_file: str, name: str, **constants: str) -> str:
    """Return the code of the script `name` in the folder `scripts` beside the module whose
    `__file__` is `module_file`. The comment at the head of the file, up to the first blank line, is
    left out. Each `@NAME@` in the code becomes the value of the constant NAME. Everything else that
    varies is an argument of the script, never a part of its text."""
    path = Path(module_file).parent / "scripts" / name
    _, _, code = path.read_text("utf-8").partition("\n\n")
    for constant, value in constants.items():
        code = code.replace(f"@{constant}@", value)
    return code
