"""Flag values as users type them."""

from __future__ import annotations

import pytest

from workbench.engines.flag_values import parse_flag_value
from workbench.model.errors import InputError
from workbench.model.flags import FlagKind, FlagSpec


@pytest.mark.parametrize("text", ["99999999999999999999", "-99999999999999999999"])
@pytest.mark.parametrize("human", [False, True])
def test_a_number_above_64_bits_is_rejected(text: str, human: bool) -> None:
    with pytest.raises(InputError, match="seed"):
        parse_flag_value(FlagSpec("seed", FlagKind.INT, human_readable_int=human), text)


def test_64_bits_are_accepted() -> None:
    assert parse_flag_value(FlagSpec("seed", FlagKind.INT), str(2**63 - 1)) == 2**63 - 1
