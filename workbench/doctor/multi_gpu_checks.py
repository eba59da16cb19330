"""Checks of the paths between the GPUs of a host: what hangs, delivers wrong bytes or is slow, and
what of the host's configuration explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workbench.doctor.multi_gpu import Copy, GpuPaths, Pair, PathEnd, Reduction
from workbench.doctor.optional_text import format_unless_empty, join_nonempty
from workbench.model.findings import Finding, Level, PlanChange, by_severity
from workbench.model.known_values import known_values

NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
HANGS = (
    "https://github.com/NVIDIA/nccl/issues/1999; https://github.com/vllm-project/vllm/issues/33041; "
    "https://github.com/voipmonitor/rtx6kpro/issues/15"
)
WRONG = "https://github.com/noonghunna/club-3090/issues/922"
# Shares of the nominal bandwidth below which a path is called slow. A copy through the memory of
# the host crosses two links, one after the other in parts.
DIRECT_SHARE, STAGED_SHARE = 0.5, 0.2
UNTRIED_REDUCTION = Reduction(ranks=0, skipped="it was not tried")
# a plan that does not need peer-to-peer copies
WITHOUT_P2P: tuple[PlanChange, ...] = (
    PlanChange("NCCL_P2P_DISABLE", "1", env=True),
    PlanChange("disable-custom-all-reduce", True),
)


def is_copy_slow(paths: GpuPaths, pair: Pair, copy: Copy) -> bool:
    nominal = paths.nominal_gb_s(pair)
    if nominal is None or copy.gb_s is None:
        return False
    return copy.gb_s < nominal * (STAGED_SHARE if pair.direct is False else DIRECT_SHARE)


def check_untried_pairs(paths: GpuPaths) -> Iterator[Finding]:
    if paths.problem is not None:
        text = f"the driver does not say how the GPUs are connected: {paths.problem}"
        yield Finding(Level.ERROR, "paths.unread", text, fix="workbench doctor")
    elif len(paths.gpus) < 2:
        text = f"{len(paths.gpus)} GPU: there is no path between GPUs to try"
        yield Finding(Level.INFO, "paths.one-gpu", text)
    elif paths.untried is not None:
        text = f"nothing was copied between the GPUs: {paths.untried}"
        fix = "workbench doctor names what is wrong with the engine's packages"
        yield Finding(Level.WARN, "paths.untried", text, fix=fix)
    skipped = [pair for pair in paths.pairs if pair.skipped is not None]
    if skipped:
        named = ", ".join(f"{pair.a}-{pair.b}" for pair in skipped)
        text = f"not tried between GPUs {named}: {skipped[0].skipped}"
        fix = "mend what is named first, then try again"
        yield Finding(Level.WARN, "paths.skipped", text, fix=fix)


def check_hanging_copies(paths: GpuPaths) -> Iterator[Finding]:
    for pair in paths.pairs:
        if pair.hang:
            text = (
                f"a copy between GPU {pair.a} and GPU {pair.b} did not end within "
                f"{paths.limit_s:g} s: it hangs"
            )
            yield Finding(
                Level.ERROR,
                "paths.hang",
                text,
                fix=_fix_for_broken_path(paths, [pair]),
                source=HANGS,
                evidence=_pair_evidence_text(paths, pair),
                changes=WITHOUT_P2P,
            )


def check_wrong_bytes(paths: GpuPaths) -> Iterator[Finding]:
    """Report copies that arrived changed. A server on such GPUs answers with garbage, such as
    "!!!!"."""
    for pair in paths.pairs:
        for copy in pair.copies:
            if not copy.wrong_bytes:
                continue
            text = (
                f"{copy.wrong_bytes} bytes of a copy from GPU {copy.source} to GPU {copy.target} "
                f"arrived wrong, the first at {copy.first_wrong}: answers become garbage"
            )
            fix, changes = _fix_for_broken_path(paths, [pair]), WITHOUT_P2P
            if copy.sender_wrong_bytes:
                text = (
                    f"GPU {copy.source} gave back other bytes than it was sent: its memory or its "
                    "link to the host is faulty"
                )
                fix = "sudo dmesg | grep -iE 'xid|aer'; test the card in another slot"
                changes = ()
            yield Finding(
                Level.ERROR,
                "paths.wrong-bytes",
                text,
                fix=fix,
                source=WRONG,
                evidence=_pair_evidence_text(paths, pair),
                changes=changes,
            )


def check_slow_copies(paths: GpuPaths) -> Iterator[Finding]:
    for pair in paths.pairs:
        found = [copy for copy in pair.copies if is_copy_slow(paths, pair, copy)]
        nominal = paths.nominal_gb_s(pair)
        if not found or nominal is None:
            continue
        worst = min(found, key=lambda copy: copy.gb_s or 0.0)
        end = min((paths.gpu(pair.a), paths.gpu(pair.b)), key=lambda gpu: gpu.pcie_link_gb_s or 0.0)
        text = (
            f"from GPU {worst.source} to GPU {worst.target} {worst.gb_s:.1f} GB/s arrive, "
            f"nominal are {nominal:.1f}: the slower link is {end.pcie_link_text} (GPU {end.index}, "
            f"{end.slot_and_address_text})"
        )
        yield Finding(
            Level.WARN,
            "paths.slow",
            text,
            fix=f"check riser, seating and the slot's lanes and generation in the BIOS; "
            f"{_fix_for_broken_path(paths, [pair])}",
            source=NCCL_DOCS,
            evidence=_pair_evidence_text(paths, pair),
        )


def check_copy_errors(paths: GpuPaths) -> Iterator[Finding]:
    for pair in paths.pairs:
        if pair.error is None:
            continue
        busy = any(paths.gpu(index).busy_count for index in (pair.a, pair.b))
        text = f"a copy between GPU {pair.a} and GPU {pair.b} failed: {pair.error}"
        fix = "sudo dmesg | grep -iE 'xid|nvrm' shows the driver's own messages"
        if busy and "memory" in pair.error.lower():
            fix = "stop the servers on these GPUs, and try again: a copy needs 0.6 GiB on each"
        yield Finding(
            Level.ERROR, "paths.error", text, fix=fix, evidence=_pair_evidence_text(paths, pair)
        )


def check_unkillable_processes(paths: GpuPaths) -> Iterator[Finding]:
    cases: Sequence[Pair | Reduction] = (*paths.pairs, *paths.reductions)
    left = known_values(case.unkillable for case in cases)
    if left:
        text = (
            f"process {left[0]} hangs in the driver and cannot be killed: it keeps its GPU memory"
        )
        fix = f"grep State /proc/{left[0]}/status; if it stays in D, only a restart of the host ends it"
        yield Finding(Level.ERROR, "paths.unkillable", text, fix=fix)


def check_all_reduce(paths: GpuPaths) -> Iterator[Finding]:
    """Report an all-reduce of NCCL that hangs, fails or gives a wrong sum, and whether it works
    without peer-to-peer copies."""
    with_p2p = next((one for one in paths.reductions if one.p2p), UNTRIED_REDUCTION)
    without = next((one for one in paths.reductions if not one.p2p), UNTRIED_REDUCTION)
    if with_p2p.is_correct or with_p2p.skipped is not None:
        return
    said = f"an all-reduce of NCCL {paths.nccl or ''} over {with_p2p.ranks} GPUs".replace("  ", " ")
    code, text = _finding_code_and_text(paths, with_p2p, said)
    changes, fix = WITHOUT_P2P, _fix_for_broken_path(paths, paths.pairs)
    if without.is_correct:
        text += "; without peer-to-peer copies (NCCL_P2P_DISABLE=1) it is right"
    elif without.skipped is None:
        text += "; so it does without peer-to-peer copies"
        fix = "start with NCCL_DEBUG=INFO: its last lines name the transport that fails"
        changes = ()
    yield Finding(Level.ERROR, code, text, fix=fix, source=NCCL_DOCS, changes=changes)


def _finding_code_and_text(paths: GpuPaths, reduction: Reduction, title: str) -> tuple[str, str]:
    if reduction.hang:
        return "paths.nccl-hang", f"{title} did not end within {paths.limit_s:g} s: it hangs"
    if reduction.error is not None:
        return "paths.nccl-error", f"{title} failed: {reduction.error}"
    return "paths.nccl-wrong", f"{title} gave {reduction.wrong_bytes or 0} wrong bytes"


def check_peer_access_off(paths: GpuPaths) -> Iterator[Finding]:
    """Report pairs for which the driver offers no peer-to-peer copies."""
    refused: dict[str, list[str]] = {}
    for pair in paths.pairs:
        answers = (pair.read, pair.write)
        why = next((said for said in answers if said not in (None, "", "ok")), None)
        if why is None and pair.direct is False and pair.read == "ok":
            why = "offered by the driver and not by CUDA"
        if why is not None:
            refused.setdefault(why, []).append(f"{pair.a}-{pair.b}")
    for why, named in refused.items():
        text = (
            f"peer-to-peer copies are off between GPUs {', '.join(named)} ({why}): data passes "
            "through the memory of the host"
        )
        fix = (
            "nothing is broken: prefer replicas or pipeline parallelism where the model fits, and "
            "measure tensor parallelism before you trust it"
        )
        if "registry key" in why:
            fix = "remove the option from NVreg_RegistryDwords in /etc/modprobe.d, and restart"
        elif "chipset" in why or "topology" in why:
            fix = "put both cards below one root complex (slots of one CPU), and try again"
        yield Finding(
            Level.HINT, "paths.off", text, fix=fix, source="nvmlDeviceGetP2PStatus", evidence=why
        )


def check_iommu(paths: GpuPaths) -> Iterator[Finding]:
    mapped = _gpus_behind_iommu(paths)
    direct = [pair for pair in paths.pairs if pair.direct or pair.read == "ok"]
    if not mapped or not direct:
        return
    named = ", ".join(str(gpu.index) for gpu in mapped)
    text = (
        f"the IOMMU translates the addresses of GPU {named}: peer-to-peer copies may be slow, hang "
        "or arrive wrong"
    )
    words = " ".join(paths.cmdline) or "no word about the IOMMU"
    evidence = f"iommu_group type {mapped[0].iommu}; kernel command line: {words}"
    level = _level_of_possible_cause(paths)
    yield Finding(level, "paths.iommu", text, fix=_IOMMU, source=NCCL_DOCS, evidence=evidence)


def check_acs(paths: GpuPaths) -> Iterator[Finding]:
    found = _acs_bridges_and_flags(paths)
    if not found:
        return
    bridge, words = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = f"ACS of the PCIe bridge {bridge}{more} sends copies between GPUs up to the root complex"
    level = _level_of_possible_cause(paths)
    yield Finding(level, "paths.acs", text, fix=_ACS, source=NCCL_DOCS, evidence=words)


def _level_of_possible_cause(paths: GpuPaths) -> Level:
    return Level.WARN if _has_broken_path(paths) else Level.HINT


def check_numa(paths: GpuPaths) -> Iterator[Finding]:
    across = [f"{pair.a}-{pair.b}" for pair in paths.pairs if pair.ancestor == "several NUMA nodes"]
    if across:
        text = f"GPUs {', '.join(across)} are on different NUMA nodes: their copies cross the CPUs"
        fix = (
            "split tensor parallelism inside a node and pipeline parallelism across; NCCL copies "
            "directly across nodes only with NCCL_P2P_LEVEL=SYS"
        )
        yield Finding(Level.HINT, "paths.numa", text, fix=fix, source=NCCL_ENV)


_IOMMU = (
    "start the kernel with iommu=pt (or switch VT-d / AMD-Vi off in the BIOS), and try again; in a "
    "virtual machine the hypervisor decides"
)
_ACS = (
    "switch ACS off in the BIOS, or clear it on the bridges with setpci (NCCL's documentation has "
    "the script); a hypervisor may need it"
)


def _gpus_behind_iommu(paths: GpuPaths) -> Sequence[PathEnd]:
    return [gpu for gpu in paths.gpus if gpu.iommu and gpu.iommu.startswith("DMA")]


def _acs_bridges_and_flags(paths: GpuPaths) -> Sequence[tuple[str, str]]:
    return [(bridge, words) for gpu in paths.gpus for bridge, words in gpu.acs.items() if words]


def _has_broken_path(paths: GpuPaths) -> bool:
    for pair in paths.pairs:
        if pair.hang:
            return True
        for copy in pair.copies:
            if copy.wrong_bytes or is_copy_slow(paths, pair, copy):
                return True
    return not all(one.is_correct or one.skipped for one in paths.reductions if one.p2p)


def _fix_for_broken_path(paths: GpuPaths, pairs: Sequence[Pair]) -> str:
    """Return what to do about broken paths between `pairs`: about the IOMMU or ACS if one of them
    is in the way, otherwise the usual steps."""
    if _gpus_behind_iommu(paths):
        return _IOMMU
    if _acs_bridges_and_flags(paths):
        return _ACS
    unread = any(not gpu.acs for gpu in paths.gpus)
    root = " (as root, this test also reads ACS)" if unread else ""
    if any(pair.ancestor == "several NUMA nodes" for pair in pairs):
        return f"put the cards below one CPU, and try again{root}"
    return f"update BIOS and driver, check ACS and “Above 4G decoding” in the BIOS{root}"


def _pair_evidence_text(paths: GpuPaths, pair: Pair) -> str:
    return join_nonempty(
        pair.ancestor,
        format_unless_empty("P2P {}", pair.read),
        format_unless_empty("IOMMU {}", paths.gpu(pair.a).iommu),
        format_unless_empty("driver {}", paths.driver),
    )


CHECKS: tuple[Callable[[GpuPaths], Iterator[Finding]], ...] = (
    check_hanging_copies,
    check_wrong_bytes,
    check_all_reduce,
    check_slow_copies,
    check_copy_errors,
    check_unkillable_processes,
    check_untried_pairs,
    check_iommu,
    check_acs,
    check_peer_access_off,
    check_numa,
)


def gpu_path_findings(paths: GpuPaths) -> Sequence[Finding]:
    """Return findings about the paths between the GPUs of a host, the most severe first."""
    return by_severity(finding for check in CHECKS for finding in check(paths))
