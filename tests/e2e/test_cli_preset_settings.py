"""GPU settings of a preset that are not in force are reported in the plan and in the result."""

from __future__ import annotations

import pytest
from support.serving import free_port
from test_cli_sweeps import BRIEF, PRO, Cli, settings_end

__all__ = ["settings_end"]
PRESET = "rtx-pro-6000-power-400w"
OFF = "GPU0 power limit 400 W (now 600 W), GPU0 persistence mode on (now off)"
OFF_NOW = f"settings of the preset are not applied: {OFF}"


@pytest.mark.long
@pytest.mark.slow
def test_a_preset_whose_power_limit_is_not_applied_is_reported(
    cli: Cli, settings_end: None
) -> None:
    plan = cli(*PRO, "plan", PRESET)
    assert (
        OFF_NOW in plan.out + plan.err
        and (f"workbench {' '.join(PRO)} presets apply {PRESET}") in plan.out + plan.err
    )
    ran = cli(*PRO, "start", PRESET, "--set", f"port={free_port()}", "--wait", "--json")
    before = cli(*PRO, "bench", ran.document["run_id"], *BRIEF, "--json").document
    assert f"GPU settings of the preset were not applied: {OFF}" in before["notes"]
    assert cli(*PRO, "gpu", "set", "--preset", PRESET, "--yes", "--json").document["ok"]
    after = cli(*PRO, "bench", ran.document["run_id"], *BRIEF, "--json").document
    assert not [n for n in after["notes"] if "not applied" in n]
    again = cli(*PRO, "plan", PRESET)
    assert "not applied" not in again.out + again.err
