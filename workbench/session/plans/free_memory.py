"""Compares the GPU memory that a plan needs with the memory that is free now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from workbench import engines
from workbench.engines.memory_estimate import GIB
from workbench.engines.plan_context import PlanContext
from workbench.model.counts import gpus_text
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.session.conditions import gpu_indices_of_plan

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry
    from workbench.model.server_run import ServerStatus
    from workbench.session.plans.plan_editor import PlanEditor

_UNSEEN_DIFFERENCE_GIB = 0.05  # a difference that readings of a GPU cannot show
_BYTES_PER_MIB = 2**20


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The GPUs of a plan have less free memory than it needs. `certain` says that the engine
    refuses to start then, as far as the reading is right."""

    finding: Finding
    certain: bool


def find_memory_shortage(
    editor: PlanEditor,
    telemetry: Telemetry | None,
    live_servers: Sequence[ServerStatus],
    remaining_pids: Collection[int] | None = None,
) -> MemoryShortage | None:
    """Return the shortage if the fullest GPU of the plan has less free memory now than the plan
    needs on each GPU. None if the memory suffices or is not known, if GPUs use the host's memory,
    and if the plan does not fit into empty GPUs either. `live_servers` are named in the finding.
    `remaining_pids` are the processes that keep their memory if a server is stopped before the
    start; only what they hold counts as used then. None means that no server is stopped."""
    if telemetry is None:
        return None
    plan = editor.effective_plan
    used = gpu_indices_of_plan(plan, telemetry.infos)
    samples = {sample.index: sample for sample in telemetry.gpus if sample.index in used}
    infos, free_bytes = [], []
    for info in telemetry.infos:
        if info.index not in samples:
            continue
        free = _free_bytes_at_start(info, samples[info.index], remaining_pids)
        if free is None:
            continue
        if info.unified_memory:
            return None  # the page cache of the host occupies it, and gives it back
        infos.append(info)
        free_bytes.append(free)
    if not infos:
        return None
    least_bytes = min(free_bytes)
    tightest = infos[free_bytes.index(least_bytes)]
    total_gib, free_gib = (tightest.memory_total_bytes or 0) / GIB, least_bytes / GIB
    needed_gib = _needed_gib(editor, infos, total_gib)
    if needed_gib is None or not free_gib + _UNSEEN_DIFFERENCE_GIB < needed_gib <= total_gib:
        return None
    text = (
        f"{gpus_text([info.index for info in infos])}: {free_gib:.1f} of {total_gib:.1f} GiB are "
        f"free now, and this plan needs {needed_gib:.1f} GiB on each GPU"
    )
    fix = "stop what uses the GPU memory"
    if live_servers:
        held = ", ".join(f"{s.engine} run {s.run_id} ({s.state}, :{s.port})" for s in live_servers)
        text += f"; {held} runs on this host"
        fix = f"workbench stop {live_servers[0].run_id}"
    share_flag = editor.engine.memory.share_flag
    if share_flag:
        fix += f", or lower {share_flag}"
    finding = Finding(Level.WARN, "host.memory", text, fix=fix)
    return MemoryShortage(finding, editor.engine.memory.checks_free_at_start)


def _free_bytes_at_start(
    info: GpuInfo, sample: GpuSample, remaining_pids: Collection[int] | None
) -> int | None:
    """Return the memory of a GPU that is free for the start, at least 1 MiB. None if it is not
    known."""
    total, used = info.memory_total_bytes, sample.memory_used_bytes
    if remaining_pids is not None:
        used = sum(p.memory_bytes or 0 for p in sample.known_processes if p.pid in remaining_pids)
    if total is None or used is None:
        return None
    return max(_BYTES_PER_MIB, total - used)


def _needed_gib(editor: PlanEditor, gpus: Sequence[GpuInfo], total_gib: float) -> float | None:
    """Return the memory that the engine takes on each GPU, in GiB; None if it is not known."""
    memory, plan = editor.engine.memory, editor.effective_plan
    if not memory.share_flag or memory.chooses_share:
        estimate = engines.estimate_memory_or_reason(plan, gpus)
        return None if isinstance(estimate, str) else estimate.used_gib_per_gpu
    context = PlanContext(plan, editor.catalog, editor.engine, tuple(gpus))
    return context.positive_flag_number(memory.share_flag, memory.default_share) * total_gib
