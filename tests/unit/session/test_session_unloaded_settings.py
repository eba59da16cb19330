"""Settings of GPUs that the server does not use are named in the words of the screen."""

from __future__ import annotations

import pytest

from workbench.model.setting_records import Alteration
from workbench.session.gpu.proof import unused_gpu_text


@pytest.mark.parametrize(
    ("setting", "label"), [("power_limit_w", "power limit"), ("gpu_clocks", "GPU clocks")]
)
def test_a_setting_that_was_not_checked_is_named_by_its_label(setting: str, label: str) -> None:
    """`gpu verify` said "GPU1: power_limit_w was not checked"."""
    said = unused_gpu_text(Alteration(1, "GPU-1", setting, 250.0, 200.0, 1.0))
    assert said.startswith(f"GPU1: {label} was not checked, because ")
