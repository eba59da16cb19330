"""Reads shell scripts, which lie in the folder `scripts` beside the module that runs them."""

from __future__ import annotations

from pathlib import Path


def read_script(module_file: str, name: str, **constants: str) -> str:
    """Return the code of the script `name` in the folder `scripts` beside a module, whose `__file__`
    is `module_file`.

    The comment at the head of the file, up to the first blank line, is for readers and is not sent to
    hosts. `@NAME@` in the code is replaced by the constant of that name. Everything else that varies
    is an argument of the script, never a part of its text.
    """
    path = Path(module_file).parent / "scripts" / name
    _, _, code = path.read_text("utf-8").partition("\n\n")
    for constant, value in constants.items():
        code = code.replace(f"@{constant}@", value)
    return code
