"""The readings of a GPU that are possible. A driver can answer a call with success and a value that
no GPU can have: NaN, "not available" as the highest number of 32 or 64 bits, or -128 °C.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

from workbench.model.untrusted_numbers import range_of_field, why_number_is_impossible

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

_NUMBERS = (int, float)  # bool is a type of its own
# A GPU that shares the host's memory reports a link of generation 1 with one lane, whatever
# connects it (nvtop #426), and 0 for its memory, whatever the load and the heat (home-ops #13238).
_ALWAYS = ("pcie_gen", "pcie_width", "pcie_gen_max", "pcie_width_max")
_IF_ZERO = ("memory_util_pct", "memory_temperature_c")
PLACEHOLDER = "the driver's answer is a placeholder: unified memory"


def why_value_is_impossible(field: str, value: Any) -> str:
    """Return why no GPU can have `value` in `field`, as the reason of a missing value; "" if a GPU
    can have it. `field` is one of GpuSample or GpuInfo in model/gpu.py."""
    why = why_number_is_impossible(value, *range_of_field(field))
    return f"the driver's answer is {why}" if why else ""


def possible_value(field: str, value: Any) -> Any:
    """Return `value`, or None if no GPU can have it in `field`."""
    return None if why_value_is_impossible(field, value) else value


def remove_impossible_values(values: dict[str, Any], absent: dict[str, str]) -> None:
    """Remove from `values` each number that no GPU can have in its field, and put the reason into
    `absent` under that field."""
    for field, value in list(values.items()):
        if type(value) not in _NUMBERS:
            continue
        lowest, highest = range_of_field(field)
        if not lowest <= value <= highest:
            del values[field]
            absent[field] = why_value_is_impossible(field, value)


def remove_placeholder_values(values: dict[str, Any], absent: dict[str, str]) -> None:
    """Remove from `values` what a GPU that shares the host's memory answers in place of a value,
    and put the reason into `absent` under the same field."""
    zeros = [field for field in _IF_ZERO if values.get(field) == 0]
    for field in (*_ALWAYS, *zeros):
        if field in values:
            del values[field]
            absent[field] = PLACEHOLDER
