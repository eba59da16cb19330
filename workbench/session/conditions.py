"""The conditions under which a result was measured. All functions are pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench import __version__, engines
from workbench.engines.memory_estimate import kv_bits_per_value
from workbench.engines.roofline import ONE_STREAM, Load, SpeedLimits, compute_speed_limits
from workbench.engines.speculation import UNKNOWN_DRAFTS, tokens_per_step
from workbench.model.answer_probe import ECHO
from workbench.model.bench import BenchSpec, Conditions
from workbench.model.declared_options import DIGEST
from workbench.model.load_spec import OPTIONS
from workbench.model.plan import PARALLEL_SIZES
from workbench.model.settings import SETTINGS, value_to_store

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, Telemetry
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import Alteration
    from workbench.server.model_fingerprint import ModelFingerprint
    from workbench.server.run_directory import RunRecord
    from workbench.session.bench.benchmark_load import ServerUnderTest
    from workbench.session.bench.measurement import MeasuredLoad

# Fields whose values stand in a digest without their names, also if they are defaults. All other
# options that are work follow with their names. A new option needs no entry here: stored digests
# stay equal.
_UNNAMED_DIGEST_FIELDS = (
    "endpoint",
    "concurrency",
    "rate",
    "input_tokens",
    "max_tokens",
    "prompts_name",
    "shared_prefix",
    "command",
)
_GPU_FIELDS = (
    *("index", "name", "uuid", "sm_max_mhz", "memory_max_mhz", "power_default_w", "power_max_w"),
    *("memory_total_bytes", "temperature_slowdown_c", "virtualization"),
)


def gpu_indices_of_plan(plan: LaunchPlan | None, infos: Sequence[GpuInfo]) -> tuple[int, ...]:
    """Return the indices of the GPUs that a server with this plan uses; all GPUs if the plan is
    None. The GPUs are those of CUDA_VISIBLE_DEVICES, or else the first GPUs of the host, as many as
    the plan's parallel sizes require. On a cluster, each node of the plan provides an equal number
    of GPUs, and CUDA_VISIBLE_DEVICES counts from 0 on each node."""
    if plan is None or not any(info.node for info in infos):
        return _gpu_indices_on_node(plan, infos, 1)
    names = dict.fromkeys(node.name for node in plan.nodes) or [infos[0].node]
    found: list[int] = []
    for name in names:
        own = [info for info in infos if info.node == name]
        first = min((info.index for info in own), default=0)
        numbered = [replace(info, index=info.index - first) for info in own]
        found += [first + index for index in _gpu_indices_on_node(plan, numbered, len(names))]
    return tuple(found)


def _gpu_indices_on_node(
    plan: LaunchPlan | None, infos: Sequence[GpuInfo], nodes: int
) -> tuple[int, ...]:
    all_gpus = tuple(info.index for info in infos)
    if plan is None:
        return all_gpus
    devices = plan.env_texts.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        visible = {part.strip() for part in devices.split(",")}
        chosen = [info.index for info in infos if _visible_device_names(info) & visible]
        return tuple(chosen) or all_gpus
    engine = engines.find_engine(plan.engine)
    if engine is not None and engine.uses_all_gpus:
        return all_gpus
    return all_gpus[: -(-plan.gpu_count // nodes)]


def _visible_device_names(info: GpuInfo) -> set[str]:
    """Return the names by which CUDA_VISIBLE_DEVICES can choose a GPU, or a part of it."""
    return {str(info.index), info.uuid, *(instance.uuid for instance in info.instances)}


def gpu_settings_by_key(
    telemetry: Telemetry | None, locks: Sequence[Alteration], gpus: Sequence[int]
) -> dict[str, Any]:
    """Return the present settings of `gpus`, by keys such as "gpu0.persistence". Drivers do not
    report clock locks, so these come from `locks`, the locks that Workbenches have set. Without
    `telemetry`, a reading of the GPUs, return only the locks."""
    found: dict[str, Any] = {}
    of_gpus = [setting for setting in SETTINGS if not setting.of_host]
    for sample in telemetry.gpus if telemetry else ():
        if sample.index in gpus:
            for setting in of_gpus:
                value = setting.value_in_force(sample)
                if value is not None:
                    found[f"gpu{sample.index}.{setting.key}"] = value
    for lock in locks:
        if lock.gpu_index in gpus:
            found[f"gpu{lock.gpu_index}.{lock.setting}"] = value_to_store(lock.now)
    return found


def digest_of_load(spec: BenchSpec, server: ServerUnderTest) -> str:
    """Return a digest of the work: the server's plan, the model and the shape of the load. Two
    benchmarks of the same work have the same digest."""
    plan = server.plan
    served: Any = spec.url
    if plan is not None:
        flags = {f.name: str(f.value) for f in plan.flags if f.name != "port"}
        served = (plan.engine, flags)
    shape = [getattr(spec, name) for name in _UNNAMED_DIGEST_FIELDS]
    if spec.has_real_text:
        shape.append(spec.content)
    if spec.trace_name:
        shape += [spec.trace_name, spec.speed]
    shape += _non_default_digest_fields(spec)
    text = json.dumps([served, spec.model, *shape], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _non_default_digest_fields(spec: BenchSpec) -> list[tuple[str, Any]]:
    """Return (field, value) of each option that belongs to the digest, does not stand in it without
    its name, and does not have its default value."""
    unnamed = {*_UNNAMED_DIGEST_FIELDS, "content", "trace_name", "speed"}
    found = []
    for option in OPTIONS:
        if not option.is_work or DIGEST in option.left_out_of or option.field in unnamed:
            continue
        value = getattr(spec, option.field)
        if value != option.default:
            found.append((option.field, value))
    return found


def conditions_of_measurement(
    client_location: str,
    spec: BenchSpec,
    server: ServerUnderTest,
    measured: MeasuredLoad,
    locks: Sequence[Alteration],
    *,
    simulated: bool,
    model: ModelFingerprint,
) -> Conditions:
    """Return the conditions of a measurement. `client_location` says where the load client ran
    ("local", "host" or "tunnel"), `locks` are the clock locks on the GPUs, and `model` identifies
    the files that the server was started with."""
    fields: dict[str, Any] = {
        "engine": measured.engine,
        "engine_version": None,
        "model": spec.model,
        **_plan_conditions(server.plan),
        **_record_conditions(server.record),
        **_status_conditions(server.status, spec),
    }
    fields |= _gpu_conditions(spec, server.plan, measured, locks, fields["engine_version"])
    in_force: dict[str, str] = {}
    findings: dict[str, str] = {}
    for proof in measured.proofs:
        key = f"{proof.storage_key_prefix}.{proof.setting}"
        in_force[key], findings[key] = str(proof.in_force), proof.text
    return Conditions(
        host=server.host,
        in_force=in_force,
        findings=findings,
        client=client_location,
        workbench_version=__version__,
        simulated=simulated,
        model_digest=model.digest,
        model_bytes=model.basis,
        address=server.address,
        **fields,
    )


def _plan_conditions(plan: LaunchPlan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    facts = plan.model_facts
    return {
        "model": plan.model,
        "flags": plan.flag_values,
        "quantization": (facts.quantization or "") if facts is not None else "",
        "model_facts": facts,
    }


def _record_conditions(record: RunRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    command = record.command
    return {
        "engine_version": record.engine_version,
        "argv": command.argv,
        "env": dict(command.env),
    }


def _status_conditions(status: ServerStatus | None, spec: BenchSpec) -> dict[str, Any]:
    """Return the conditions that the server's status knows; {} without a status. They take
    precedence over those of the record of its start. For a load on /v1/completions, a server that
    only repeats its prompts is not reported: it may be a base model."""
    if status is None:
        return {}
    found: dict[str, Any] = {
        "engine": status.engine,
        "preset_id": status.preset_id,
        "run_id": status.run_id,
        "nodes": tuple(f"{rank.host} ({rank.label})" for rank in status.ranks),
        "server_started_unix_s": status.started_unix_s,
        "image": status.image,
        "run_as": status.run_as,
    }
    if status.engine_version:
        found["engine_version"] = status.engine_version
    text = status.suspect_text
    if text is None:
        return found
    is_base_model = spec.endpoint == "completions" and text.code == ECHO
    if not is_base_model:
        found["server_text"] = text.summary
    return found


def _gpu_conditions(
    spec: BenchSpec,
    plan: LaunchPlan | None,
    measured: MeasuredLoad,
    locks: Sequence[Alteration],
    engine_version: str | None,
) -> dict[str, Any]:
    """Return the driver, the GPUs with their settings, and the highest speeds that they allow. The
    speeds are absent if they cannot be computed; if it is unknown how many tokens a step drafts,
    "ceiling_basis" says so. Without a reading of the GPUs, return only the clock locks."""
    telemetry, gpus = measured.telemetry, measured.gpus
    if telemetry is None:
        return {"gpu_settings": gpu_settings_by_key(None, locks, gpus)}
    infos = [info for info in telemetry.infos if info.index in gpus]
    found = {
        "driver_version": telemetry.driver.driver_version,
        "cuda_version": telemetry.driver.cuda_version,
        "gpus": tuple(map(_gpu_properties, infos)),
        "gpu_settings": gpu_settings_by_key(telemetry, locks, gpus),
    }
    during = measured.summary.gpu
    memory_mhz = during.memory_mhz if during is not None else None
    load = _roofline_load(spec, plan, measured, engine_version)
    if load is None:
        return {**found, "ceiling_basis": UNKNOWN_DRAFTS}
    limit = speed_ceiling_of_plan(plan, infos, memory_mhz, load)
    if limit is None:
        return found
    return {
        **found,
        "ceiling_tok_s": limit.tok_s_per_stream,
        "ceiling_basis": limit.label,
        "ceiling_total_tok_s": limit.total_tok_s,
        "ceiling_total_bound": limit.total_bound,
    }


def _gpu_properties(info: GpuInfo) -> dict[str, Any]:
    """Return the properties of a GPU that results contain. On a cluster they include "node", the
    name of the GPU's node."""
    found = {name: getattr(info, name) for name in _GPU_FIELDS}
    if info.node:
        found["node"] = info.node
    return found


def _roofline_load(
    spec: BenchSpec, plan: LaunchPlan | None, measured: MeasuredLoad, engine_version: str | None
) -> Load | None:
    """Return what a benchmark's load adds to the computation of the highest possible speed:
    streams, mean context in tokens, bits of a KV cache value, tokens per step. The mean context is
    the prompt and half of the output. None if the tokens per step are unknown."""
    engine = measured.summary.engine
    accepted_pct = engine.spec_accepted_pct if engine else None
    drafted: int | None = 0
    bits = 16.0
    if plan is not None:
        served_by = engines.get_engine(plan.engine)
        drafted = served_by.drafted_tokens_per_step(plan.flag_values, engine_version)
        bits = kv_bits_per_value(plan)
    per_step = tokens_per_step(drafted, accepted_pct)
    if per_step is None:
        return None
    return Load(
        streams=max(1, spec.concurrency),
        context_tokens=0.0 if spec.command else spec.input_tokens + spec.max_tokens / 2,
        kv_bits=bits,
        tokens_per_step=per_step,
    )


def speed_ceiling_of_plan(
    plan: LaunchPlan | None,
    gpus: Sequence[GpuInfo],
    memory_mhz: float | None = None,
    load: Load = ONE_STREAM,
) -> SpeedLimits | None:
    """Return the highest speeds that the GPUs allow for the plan's model under `load`, with the
    memory clock `memory_mhz`. None if the plan is None, the model's size is not known, or `gpus` is
    empty."""
    if plan is None or plan.model_facts is None or not gpus:
        return None
    tp, pp, dp = map(plan.parallel_size_of_flag, PARALLEL_SIZES)
    return compute_speed_limits(
        plan.model_facts,
        gpus,
        tp=tp,
        pp=pp,
        dp=dp,
        load=load,
        memory_mhz=memory_mhz,
    )
