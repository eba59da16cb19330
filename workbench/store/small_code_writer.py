"""A program that writes bytecode without docstrings and columns for `small_code.py`.

Its parameter is the directory, and its input the source files, one per line. A screen starts it
when it has been open for a minute. It takes the bytecode that Python has of each source, so it is
done in a second or two.
"""

from __future__ import annotations

import dis
import marshal
import os
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import CodeType

from workbench.store.small_code import header_of, small_file

_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_STORE_NAME = dis.opmap["STORE_NAME"]
_USES_CONSTANT = frozenset(dis.hasconst)
_FUNCTION = CO_OPTIMIZED | CO_NEWLOCALS
# of an entry of the table of lines, see Objects/locations.md of CPython
_ENTRY, _LINE_ONLY, _NO_LINE = 0x80, 13, 15
_ENTRY_UNITS = 8  # the most instructions of one entry


def small_code(code: CodeType) -> CodeType:
    """Return `code` and all that it contains without docstrings and without columns."""
    constants = list(code.co_consts)
    for place in _docstring_places(code):
        constants[place] = None
    inner = [small_code(one) if isinstance(one, CodeType) else one for one in constants]
    smaller = code.replace(co_consts=tuple(inner), co_linetable=line_table(code))
    same = list(smaller.co_lines()) == list(code.co_lines())
    return smaller if same else code.replace(co_consts=tuple(inner))


def line_table(code: CodeType) -> bytes:
    """Return the table of lines of `code` without columns, with one entry for each line."""
    table, line = bytearray(), code.co_firstlineno
    for begin, end, number in code.co_lines():
        units = (end - begin) // 2
        while units > 0:
            most = min(units, _ENTRY_UNITS)
            units -= most
            kind = _NO_LINE if number is None else _LINE_ONLY
            table.append(_ENTRY | kind << 3 | most - 1)
            if number is not None:
                table += _signed_number(number - line)
                line = number
    return bytes(table)


def _signed_number(number: int) -> bytes:
    """Return a signed number in groups of six bits, the lowest group first."""
    rest = (-number << 1) | 1 if number < 0 else number << 1
    found = bytearray()
    while rest >= 64:
        found.append(64 | rest & 63)
        rest >>= 6
    found.append(rest)
    return bytes(found)


def _docstring_places(code: CodeType) -> list[int]:
    """Return the places of docstrings in the constants of `code`: none or one. A constant that an
    instruction uses otherwise is no docstring, or not only."""
    steps = _steps(code.co_code)
    uses = Counter(argument for operation, argument in steps if operation in _USES_CONSTANT)
    if code.co_flags & _FUNCTION == _FUNCTION:
        # the first constant of a function is its docstring; no instruction loads it
        is_named = not code.co_name.startswith("<")
        first = code.co_consts[0] if code.co_consts else None
        return [0] if is_named and isinstance(first, str) and not uses[0] else []
    for (load, place), (store, name) in pairwise(steps):
        if store != _STORE_NAME or code.co_names[name] != "__doc__":
            continue
        is_text = load in _USES_CONSTANT and isinstance(code.co_consts[place], str)
        return [place] if is_text and uses[place] == 1 else []
    return []


def _steps(instructions: bytes) -> list[tuple[int, int]]:
    """Return (operation, argument) of each instruction."""
    found, above = [], 0
    for operation, low in zip(instructions[::2], instructions[1::2], strict=True):
        argument = above << 8 | low
        if operation == _EXTENDED_ARG:
            above = argument
            continue
        above = 0
        found.append((operation, argument))
    return found


def write_small_code(cache: str, source: str) -> None:
    """Write the small bytecode of the module in the file `source` into the directory `cache`. Do
    nothing if the file has gone, or if the cache cannot be written."""
    target = Path(small_file(cache, source))
    new = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        header = header_of(Path(source).stat())
        code = SourceFileLoader("module", source).get_code("module")
        if code is None:
            return
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_bytes(header + marshal.dumps(small_code(code)))
        new.replace(target)
    except (OSError, SyntaxError):
        return


def main() -> None:
    os.nice(19)
    sys.dont_write_bytecode = True
    for source in sys.stdin.read().splitlines():
        write_small_code(sys.argv[1], source)


if __name__ == "__main__":
    main()
