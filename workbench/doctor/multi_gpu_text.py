"""The paths between the GPUs of a host as texts: a matrix of what arrived, and lines about each GPU
and pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.doctor.multi_gpu import Copy, GpuPaths, Pair, PathEnd, Reduction
from workbench.doctor.multi_gpu_checks import is_copy_slow
from workbench.doctor.optional_text import format_unless_empty, join_nonempty


def copy_matrix_rows(paths: GpuPaths) -> Sequence[tuple[str, ...]]:
    """Return the rows of the matrix, one for each GPU that sends: its name, then what arrived at
    each GPU, as GB/s or as what went wrong. Without a trial there are no rows."""
    if not paths.was_copy_tried:
        return ()
    order = [gpu.index for gpu in paths.gpus]
    return [
        (f"GPU {one}", *(_copy_matrix_cell(paths, one, other) for other in order)) for one in order
    ]


def _copy_matrix_cell(paths: GpuPaths, source: int, target: int) -> str:
    if source == target:
        return "·"
    wanted = {source, target}
    untried = Pair(source, target, skipped="it was not tried")
    pair = next((pair for pair in paths.pairs if {pair.a, pair.b} == wanted), untried)
    if pair.skipped is not None:
        return "not tried"
    if pair.hang:
        return "HANGS"
    copy = next((copy for copy in pair.copies if copy.source == source), None)
    if copy is None:
        return "failed"
    return _copy_outcome_text(paths, pair, copy)


def _copy_outcome_text(paths: GpuPaths, pair: Pair, copy: Copy) -> str:
    rate = f"{copy.gb_s:.1f}" if copy.gb_s is not None else "?"
    if copy.wrong_bytes:
        return f"{rate} WRONG"
    return f"{rate} slow" if is_copy_slow(paths, pair, copy) else rate


def labels_and_trial_texts(paths: GpuPaths) -> Iterator[tuple[str, str]]:
    """Yield (label, text) about the trial, each GPU, each pair of GPUs and each all-reduce."""
    if paths.torch:
        yield "tried with", _software_stack_text(paths)
    elif paths.driver:
        yield "driver", paths.driver
    for gpu in paths.gpus:
        yield f"GPU {gpu.index}", _gpu_text(gpu)
    for pair in paths.pairs:
        yield f"{pair.a}-{pair.b}", _pair_text(paths, pair)
    for reduction in paths.reductions:
        yield "all-reduce", _all_reduce_text(reduction)


def _software_stack_text(paths: GpuPaths) -> str:
    return join_nonempty(
        paths.engine,
        f"torch {paths.torch}",
        format_unless_empty("CUDA {}", paths.cuda),
        format_unless_empty("NCCL {}", paths.nccl),
        format_unless_empty("driver {}", paths.driver),
    )


def _gpu_text(gpu: PathEnd) -> str:
    rate = format_unless_empty(" ({:.1f} GB/s)", gpu.pcie_link_gb_s)
    return join_nonempty(
        gpu.slot_and_address_text,
        f"{gpu.pcie_link_text}{rate}",
        format_unless_empty("{} NVLinks", gpu.nvlinks),
        "" if gpu.numa_node is None else f"NUMA node {gpu.numa_node}",
        format_unless_empty("IOMMU {}", gpu.iommu),
        _acs_text(gpu),
        format_unless_empty("divided with MIG", gpu.mig),
        format_unless_empty("used by {} processes", gpu.busy_count),
    )


def _acs_text(gpu: PathEnd) -> str:
    if not gpu.acs:
        return "ACS unread: it needs root and a real PCIe bus"
    redirects = sorted(set(filter(None, gpu.acs.values())))
    return f"ACS {', '.join(redirects) or 'no redirect'}"


def _pair_text(paths: GpuPaths, pair: Pair) -> str:
    return join_nonempty(
        pair.ancestor,
        f"P2P {pair.read or 'unknown'}",
        format_unless_empty("NVLink", pair.nvlink == "ok"),
        _copy_path_text(pair),
        format_unless_empty("nominal {:.1f} GB/s", paths.nominal_gb_s(pair)),
        pair.error,
    )


def _copy_path_text(pair: Pair) -> str | None:
    if pair.direct is None or not pair.copies:
        return None
    return "copied directly" if pair.direct else "copied through the host's memory"


def _all_reduce_text(one: Reduction) -> str:
    how = "" if one.p2p else " without peer-to-peer copies"
    if one.skipped:
        outcome = f"not tried: {one.skipped}"
    elif one.hang:
        outcome = "HANGS"
    elif one.error:
        outcome = one.error
    elif one.wrong_bytes:
        outcome = f"{one.wrong_bytes} bytes WRONG"
    else:
        outcome = f"{one.mean_us or 0:.0f} µs, every byte right"
    return f"1 MiB over {one.ranks} GPUs{how}: {outcome}"
