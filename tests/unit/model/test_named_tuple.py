"""The named tuples of programs that are sent to a host are those of the module typing."""

from __future__ import annotations

import copy
import typing

from workbench.gpu.settings.claims import SettingClaim
from workbench.model import named_tuple


class Own(named_tuple.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


class Typed(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


def test_it_is_what_the_module_typing_makes() -> None:
    for kind in (Own, Typed):
        one = kind(1)
        assert one == (1, 2) and (one.x, one.y, one.sum) == (1, 2, 3)
        assert one._replace(y=5).sum == 6 and kind(y=0, x=1) == (1, 0)
        assert copy.copy(one) == one and repr(one) == f"{kind.__name__}(x=1, y=2)"
    for name in ("_fields", "_field_defaults", "__doc__", "__module__", "__slots__"):
        assert getattr(Own, name) == getattr(Typed, name), name


def test_a_claim_of_the_register_has_its_defaults_and_methods() -> None:
    claim = SettingClaim("ada", "GPU-1", 0, "power_limit_w", 600.0, 450.0, 0.0)
    assert claim.gpu_and_setting == ("GPU-1", "power_limit_w") and claim.state == "applied"
    assert claim.value_and_origin_text.startswith("450 W, set by ada with Workbench at ")
