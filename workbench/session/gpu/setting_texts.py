"""Short texts about GPU settings for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.model.settings import gpu_or_host_name, label_of

if TYPE_CHECKING:
    from workbench.model.setting_records import Alteration, SettingOutcome


def alterations_text(alterations: Iterable[Alteration]) -> str:
    """Return which settings are altered, such as "GPU0 power limit, GPU1 power limit"."""
    return ", ".join(
        f"{gpu_or_host_name(altered.gpu_uuid, altered.gpu_index)} {label_of(altered.setting)}"
        for altered in alterations
    )


def setting_failure_text(failed: SettingOutcome, action: str) -> str:
    """Return which setting of which GPU was not changed, and why. `action` is "set" or
    "reverted"."""
    command = failed.command
    return f"{command.setting} of GPU{command.gpu_index} was not {action}: {failed.message}"
