"""Checks of a plan that concern several flags, variables, GPUs or versions. Each rule is a function
that yields findings.

These rules apply to all engines. A rule for a single engine is in that engine's module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from workbench.engines import trap_rules, tuning_rules
from workbench.engines.catalog import version_satisfies
from workbench.engines.memory_estimate import MemoryFit, estimate_memory_or_reason
from workbench.engines.plan_context import PlanContext
from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.loopback import is_loopback
from workbench.model.secrets import is_secret_name

Rule = Callable[[PlanContext], Iterator[Finding]]
# Cards without NVLink to more than one neighbour: GeForce and RTX workstation cards, L and A series
# for servers, and the PCIe forms of V100, A100 and H100.
_PCIE_ONLY = re.compile(r"\b(?:GeForce|RTX|L4|L40S?|A10G?|A2|A16|T4|PCIE|PCIe)\b")
_SECRET_FLAGS = ("api-key", "hf-token", "admin-api-key", "ssl-keyfile-password")
_KEY_FLAGS = ("api-key", "api-key-file", "admin-api-key")
_SAFE_SHARE = 0.85  # of memory that the GPU shares with the system


def apply_all_rules(context: PlanContext) -> Iterator[Finding]:
    """Yield the findings of all rules: first those that apply to every engine, then those of the
    plan's engine."""
    for rule in (*_RULES, *context.engine.rules):
        yield from rule(context)


def report_too_few_gpus(context: PlanContext) -> Iterator[Finding]:
    """Report that the parallel sizes of the plan need more GPUs than are visible to the server, or
    leave GPUs unused."""
    if not context.gpus or context.effective_flag_value("distributed-executor-backend") == "ray":
        return
    need, have = context.gpus_needed_per_node, context.visible_gpu_count
    each = " on each node" if context.node_count > 1 else ""
    if need > have:
        text = (
            f"the plan needs {count_of(need, 'GPU')}{each} (tensor x pipeline x data "
            f"parallel), {have} visible"
        )
        fix = f"lower tensor-parallel-size or data-parallel-size, or {_explain_how_to_get_more_gpus(context)}"
        changes = _propose_fewer_gpus(context)
        yield Finding(
            Level.ERROR, "gpus.too-few", text, "tensor-parallel-size", fix, changes=changes
        )
    elif need < have and not context.engine.uses_all_gpus:
        text = f"the plan uses {need} of {have} visible GPUs{each}"
        proposed, changes = _idle_gpus_text_and_changes(context)
        yield Finding(Level.INFO, "gpus.idle", text, fix=proposed, changes=changes)


def _idle_gpus_text_and_changes(context: PlanContext) -> tuple[str | None, tuple[PlanChange, ...]]:
    """Return how more replicas would use the GPUs that the plan leaves unused, as a text and as
    changes. (None, ()) if there is no room for more."""
    need, have = context.gpus_needed_per_node, context.visible_gpu_count
    if have < 2 * need:
        return None, ()
    estimate = estimate_memory_or_reason(context.plan, context.gpus)
    if isinstance(estimate, MemoryFit) and not estimate.fits:  # replicas need the memory again
        return None, ()
    replicas = context.flag_count_or_one("data-parallel-size") * (have // need)
    text = f"data-parallel-size {replicas} would use {have // need * need}"
    if context.node_count > 1:
        return text, ()
    return text, (PlanChange("data-parallel-size", replicas),)


def _explain_how_to_get_more_gpus(context: PlanContext) -> str:
    """Return how the plan gets more GPUs, as a part of a fix: from the job scheduler that limits
    it, by naming more in CUDA_VISIBLE_DEVICES, or on another host."""
    listed = context.environment_value(VISIBLE_TO_CUDA)
    if context.allotment.job is not None:
        return f"request more GPUs from the scheduler: {context.allotment.job} has {context.visible_gpu_count}"
    if listed is not None and listed != context.allotment.visible:
        return f"name more GPUs of this host in {VISIBLE_TO_CUDA}"
    return "start the plan on a host with more GPUs, or on a cluster: workbench cluster start"


def _propose_fewer_gpus(context: PlanContext) -> tuple[PlanChange, ...]:
    """Return the changes after which the plan uses no more GPUs than are visible: first fewer
    replicas, then a smaller tensor-parallel size. () if no GPU is visible or if the plan spans
    several nodes."""
    have = context.visible_gpu_count
    if not have or context.node_count > 1:
        return ()
    split = context.ranks_per_replica
    if split <= have:
        return (PlanChange("data-parallel-size", have // split),)
    unset = context.changes_to_unset("pipeline-parallel-size", "data-parallel-size")
    return (*unset, PlanChange("tensor-parallel-size", 2 ** (have.bit_length() - 1)))


def report_missing_api_key(context: PlanContext) -> Iterator[Finding]:
    """Report a server without an API key. Every user of the host can use such a server, and
    everybody on the network if the server listens on another address than loopback."""
    host, engine = context.plan.flag("host"), context.engine
    if _has_api_key(context) or str(host or "").startswith("/"):  # a Unix socket has permissions
        return
    how = "set an API key"
    if engine.api_key_env:
        how = f"set {engine.api_key_env} in the environment"
    if host is None or is_loopback(str(host)):
        text = (
            "the server has no API key: every user of the host can use the server through loopback"
        )
        yield Finding(Level.HINT, "bind.local", text, "api-key", how)
        return
    text = (
        f"the server listens on {host} without an API key: anyone who reaches the port can use it"
    )
    yield Finding(Level.WARN, "bind.open", text, "host", f"set host to 127.0.0.1, or {how}")


def _has_api_key(context: PlanContext) -> bool:
    engine = context.engine
    if engine.no_key_flag:
        return not context.is_switched_on(engine.no_key_flag)
    if any(context.plan.flag(name) for name in _KEY_FLAGS):
        return True
    return bool(engine.api_key_env and context.environment_value(engine.api_key_env))


def report_visible_secrets(context: PlanContext) -> Iterator[Finding]:
    """Report secrets that are on the command line or in a preset file, where other people can read
    them."""
    variables = {"api-key": context.engine.api_key_env, "hf-token": "HF_TOKEN"}
    for setting in context.plan.flags:
        if setting.name in _SECRET_FLAGS and setting.value not in (None, True):
            fix = None
            if variable := variables.get(setting.name):
                fix = f"unset it and set {variable} in the environment"
            text = (
                f"{setting.name} on the command line is visible to every user of the host, "
                "for example with ps"
            )
            yield Finding(Level.WARN, "secret.argv", text, setting.name, fix)
    if not context.plan.preset_id:
        return
    for setting in context.plan.env:
        if is_secret_name(setting.name) and setting.origin == "preset":
            text = (
                f"{setting.name} comes from the preset file: everybody who has the file knows "
                "this key"
            )
            yield Finding(
                Level.HINT,
                "secret.preset",
                text,
                setting.name,
                "replace the value by a variable of the preset, ${name}",
            )


def report_version_out_of_range(context: PlanContext) -> Iterator[Finding]:
    """Report that the preset was not written for the installed version of the engine."""
    wanted, have = context.plan.engine_versions, context.installed
    if have and not version_satisfies(have, wanted):
        text = f"the preset is for {context.engine.title} {wanted}, but {have} is installed"
        yield Finding(Level.WARN, "version.range", text)


def report_allocator_conflict(context: PlanContext) -> Iterator[Finding]:
    """Report conflicting options in the environment variable for PyTorch's allocator."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = context.environment_value(name)
        if not settings:
            continue
        expandable = re.search(r"expandable_segments:\s*true", settings, re.IGNORECASE)
        if expandable and "max_split_size_mb" in settings:
            text = "max_split_size_mb has no effect together with expandable_segments:True"
            without = ",".join(
                part for part in settings.split(",") if "max_split_size_mb" not in part
            )
            change = (PlanChange(name, without, env=True),)
            yield Finding(
                Level.HINT,
                "allocator.split-size",
                text,
                name,
                "remove max_split_size_mb",
                changes=change,
            )
        if expandable and context.plan.flag("kv-transfer-config"):
            text = "vLLM rejects expandable_segments:True together with a KV connector"
            yield Finding(Level.ERROR, "allocator.kv-connector", text, name, f"unset {name}")


def report_unified_memory_share(context: PlanContext) -> Iterator[Finding]:
    """Report that the engine takes a large share of memory that the GPU shares with the system."""
    flag = context.engine.memory.share_flag
    if not flag or not context.has_unified_memory:
        return
    share = context.effective_flag_number(flag)
    value, evidence = "is chosen at start", "unset"
    if share is not None:
        value, evidence = f"is {share:g}", f"{share:g}"
        if share <= _SAFE_SHARE:
            return
    text = (
        f"{flag} {value}, but this GPU shares its memory with the system, which may run out of it"
    )
    yield Finding(
        Level.WARN,
        "memory.unified",
        text,
        flag,
        f"set {flag} to 0.8 or less",
        "NVIDIA's own vLLM command for two DGX Sparks uses 0.8",
        evidence=f"{flag} {evidence}, unified memory",
        changes=(PlanChange(flag, 0.8),),
    )


def report_memory_estimate(context: PlanContext) -> Iterator[Finding]:
    """Report the estimated GPU memory of the plan: as a warning if it does not fit, otherwise as
    information. Report nothing if no estimate is possible."""
    estimate = estimate_memory_or_reason(context.plan, context.gpus)
    if not isinstance(estimate, MemoryFit):
        return
    if estimate.fits:
        yield Finding(Level.INFO, "memory.estimate", estimate.text)
        return
    fix = "a smaller length, a quantized KV cache, more GPUs, or a smaller model"
    yield Finding(Level.WARN, "memory.too-large", f"{estimate.text} ({estimate.basis})", fix=fix)


def report_missing_metrics_flag(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan does not switch the engine's metrics page on, without which Workbench
    cannot read the engine's counters."""
    flag = context.engine.metrics_flag
    if flag and not context.is_switched_on(flag):
        text = (
            f"without {flag} the engine has no metrics: running requests and tokens cannot be shown"
        )
        yield Finding(
            Level.HINT, "metrics.off", text, flag, f"set {flag}", changes=(PlanChange(flag, True),)
        )


def report_custom_all_reduce(context: PlanContext) -> Iterator[Finding]:
    """Report that the all-reduce of more than two GPUs without NVLink goes through NCCL, and not
    through the engine's own faster kernel.
    """
    variable = context.engine.pcie_all_reduce_env
    if variable is None or context.flag_count_or_one("tensor-parallel-size") <= 2:
        return
    if context.is_switched_on("disable-custom-all-reduce"):
        return
    if context.gpus and all(_PCIE_ONLY.search(g.name) for g in context.gpus):
        text = "custom all-reduce is off on more than two GPUs without NVLink; the engine uses NCCL"
        fix = (
            f"data parallelism avoids the traffic; {variable}=1 enables a PCIe path in recent "
            "versions"
        )
        yield Finding(Level.INFO, "parallel.all-reduce", text, "tensor-parallel-size", fix)


def report_eager_mode(context: PlanContext) -> Iterator[Finding]:
    """Report that the engine runs without compiled code and CUDA graphs, which slows decoding."""
    if flag := context.enabled_eager_flag:
        text = (
            f"{flag} turns {context.engine.compiled_parts} off: the server starts faster and "
            "decodes slower"
        )
        yield Finding(
            Level.HINT,
            "speed.eager",
            text,
            flag,
            f"unset {flag}",
            "gpt-oss-120b on a GB10: 26 tok/s in eager mode, 59 tok/s otherwise (conselara.dev, "
            "2026-05-02)",
            evidence=f"{flag} is on",
            changes=(PlanChange(flag, None),),
            expected_gain="up to 2.3x tok/s per request, most for small models",
        )


_RULES: tuple[Rule, ...] = (
    report_too_few_gpus,
    report_missing_api_key,
    report_visible_secrets,
    report_version_out_of_range,
    report_allocator_conflict,
    report_unified_memory_share,
    report_memory_estimate,
    report_missing_metrics_flag,
    report_custom_all_reduce,
    report_eager_mode,
    *tuning_rules.RULES,
    *trap_rules.RULES,
)
