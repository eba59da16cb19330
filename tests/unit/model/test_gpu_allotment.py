"""Which GPUs CUDA_VISIBLE_DEVICES makes visible."""

from __future__ import annotations

import pytest

from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import (
    UNSET,
    Allotment,
    parse_allotment,
    visible_gpus_and_first_unknown_word,
)

GPUS = tuple(GpuInfo(index, f"GPU-{index}{index}-x", "A100") for index in range(4))


@pytest.mark.parametrize(
    ("devices", "indices", "unknown"),
    [
        ("2,3", [2, 3], None),
        (" 1 , 0 ", [1, 0], None),
        ("", [], None),
        ("-1", [], None),
        ("0,-1,2", [0], None),
        ("0,9,1", [0], "9"),
        ("GPU-22", [2], None),
        ("GPU-", [], "GPU-"),  # the beginning of several UUIDs
        ("NoDevFiles", [], "NoDevFiles"),
        ("²", [], "²"),
    ],
)
def test_cuda_ignores_the_first_unknown_device_and_all_after_it(
    devices: str, indices: list[int], unknown: str | None
) -> None:
    found, word = visible_gpus_and_first_unknown_word(devices, GPUS)
    assert ([gpu.index for gpu in found], word) == (indices, unknown)


def test_an_allotment_needs_a_job_and_named_gpus() -> None:
    assert parse_allotment("PBS 1.pbs", "2,3") == Allotment("PBS 1.pbs", "2,3")
    assert parse_allotment("PBS 1.pbs", "2,3").is_from_scheduler
    assert (
        not parse_allotment("PBS 1.pbs", UNSET).is_from_scheduler
        and not parse_allotment("", "2,3").is_from_scheduler
    )
    assert parse_allotment("", "").visible == ""
