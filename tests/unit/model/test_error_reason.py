"""The reason of a failed read or write, as messages show it."""

from __future__ import annotations

import errno

import pytest

from workbench.model.errors import error_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file or directory"),
        (OSError("the archive ends early"), "the archive ends early"),  # was "None"
        (ValueError("not UTF-8 text"), "not UTF-8 text"),
    ],
)
def test_the_reason_is_never_none(error: Exception, reason: str) -> None:
    assert error_reason(error) == reason
