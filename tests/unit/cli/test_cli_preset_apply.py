"""What `presets apply` says when it has ended."""

from __future__ import annotations

from workbench.cli.preset_apply import LASTING, _applied_part_lines
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_records import SettingsReport
from workbench.session.plans.preset_apply import AppliedPreset


def test_only_a_preset_that_set_something_names_the_revert() -> None:
    status = ServerStatus("r1", "vllm", ServerState.READY, "here", url="http://127.0.0.1:8000")
    plain = list(_applied_part_lines(AppliedPreset("p", "r1", status, ())))
    assert "workbench stop" in plain[-1] and "revert" not in plain[-1]
    changed = AppliedPreset("p", "r1", status, (), SettingsReport((), ()))
    assert list(_applied_part_lines(changed))[-1] == LASTING
