"""Directories in which each record is a file with a number for a name, such as 12.json."""

from __future__ import annotations

from pathlib import Path


def record_numbers_in(directory: Path) -> list[int]:
    """Return the numbers of the records in a directory, in no order."""
    return [int(path.stem) for path in directory.glob("*.json") if path.stem.isdecimal()]


def next_record_number(directory: Path) -> int:
    """Return the first number after those of the records in a directory."""
    return max(record_numbers_in(directory), default=0) + 1
