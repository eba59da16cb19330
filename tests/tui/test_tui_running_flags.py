"""The flags of the running server stand below the panes: those that were changed first, and where some
have no room, how many. The model is always named."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.engines import get_engine, list_changed_flags
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import LaunchPlan
from workbench.tui.cells import Row, row_width
from workbench.tui.widgets.running_rows import running_command_rows, running_flags_row

COMMAND = (
    "vllm serve Qwen/Qwen3-VL-2B-Instruct --host 127.0.0.1 --port 8111 --tensor-parallel-size 4"
)
MODEL = "Qwen/Qwen3-VL-2B-Instruct"
SIGN = (" ● running with", "good")
ENDS: tuple[Row, ...] = ((("   v full command   y copy", "dim"),), (("   v more", "dim"),))


def plan(*edited: tuple[str, Any], **preset: Any) -> LaunchPlan:
    flags = [
        FlagSetting(name.replace("_", "-"), value, Origin.PRESET) for name, value in preset.items()
    ]
    flags += [FlagSetting(name, value, Origin.EDITED) for name, value in edited]
    return LaunchPlan("vllm", MODEL, flags=tuple(flags))


def text(row: Row) -> str:
    return "".join(part for part, _ in row)


SHARED = {
    "port": 8111,
    "gpu_memory_utilization": 0.9,
    "tensor_parallel_size": 4,
    "data_parallel_size": 1,
}
RUNNING = plan(("enforce-eager", False), max_num_batched_tokens=2048, **SHARED)
FLAGS = list_changed_flags(RUNNING, get_engine("vllm").catalog())


def test_the_edited_flag_is_first_and_defaults_and_the_address_are_left_out() -> None:
    names = [row.name for row in FLAGS]
    assert names == [
        "enforce-eager",  # it has the default, but somebody set it
        "tensor-parallel-size",
        "gpu-memory-utilization",
        "max-num-batched-tokens",
    ]


def test_a_flag_that_was_removed_from_the_preset_is_told() -> None:
    before = plan(max_num_seqs=8, **SHARED)
    removed, *_ = list_changed_flags(plan(**SHARED), get_engine("vllm").catalog(), before)
    row = text(running_flags_row(("● running with", "good"), [removed], ENDS, 80))
    assert row.startswith("● running with max-num-seqs=default ")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_flag_of_a_usual_server_is_in_sight(width: int) -> None:
    first, second = running_command_rows(COMMAND, MODEL, SIGN, FLAGS, ENDS, width)
    assert "Qwen3-VL-2B-Instruct" in text(first)
    assert "● running with enforce-eager=off" in text(first)
    shown = text(first) + text(second)
    for value in ("=off", "=4", "gpu-memory-utilization=0.9", "max-num-batched-tokens=2048"):
        assert value in shown
    assert "more " not in shown.replace("v more", "")
    assert row_width(first) <= width and row_width(second) == width


def test_what_has_no_room_is_counted() -> None:
    names = ("max-num-seqs", "max-model-len", "block-size", "swap-space", "seed", "max-logprobs")
    edited = tuple((name, 123456789) for name in (*names, "max-num-batched-tokens"))
    many = list_changed_flags(plan(*edited), get_engine("vllm").catalog())
    first, second = running_command_rows(COMMAND, MODEL, SIGN, many, ENDS, 80)
    assert text(first).startswith("$ … Qwen3-VL-2B-Instruct ● running with ")
    shown = (text(first) + text(second)).count("=123456789")
    assert 0 < shown < len(many) and f"+{len(many) - shown} more" in text(second)
    assert text(second).endswith("v more") and row_width(second) == 80


def test_the_screen_shows_the_flags_of_a_server_beside_an_edited_plan(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.session.servers.start()
        await d.until(lambda: "● running with" in d.text)
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        await d.until(lambda: "○ not running" in d.text)
        row = next(line for line in d.text.splitlines() if line.startswith("● running with "))
        assert "max-num-seqs=512" in row and "kv-cache-dtype=fp8" in row

    drive(scenario, stage="ready", size=(120, 40))
