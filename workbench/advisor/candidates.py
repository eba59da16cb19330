"""The changes of a plan that a tune tries, in the order of what they can gain, with the reason for
each; and the changes that cannot help on this hardware and load, with the reason against each.
Pure: whether a server can start with a change is checked elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.engines import gpu_table, registry
from workbench.engines.flag_values import format_flag_value
from workbench.engines.plan_context import PlanContext
from workbench.engines.tunable_flags import GUESSES, PREFILL, TunableFlag
from workbench.engines.weight_bits import normalize_quantization
from workbench.model.counts import count_of
from workbench.model.findings import Finding, PlanChange
from workbench.model.gpu import GpuInfo
from workbench.model.host_cores import HostCores
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import PARALLEL_SIZES
from workbench.model.tune import OF_GPUS, LeftOut, TuneCandidate, TuneLimits
from workbench.model.untrusted_text import as_table

CandidateOrLeftOut = TuneCandidate | LeftOut
_FEW_STREAMS = 8  # above, the batch fills the compute that guessed tokens would need
_GRAPHS = "CUDA graphs launch the kernels of a step at once (26 to 59 tok/s on one GB10)"
_COMPILED = "torch.compile joins the operations of a step"
_NO_GPU = "it acts on GPUs, and {} computes on the CPU"
_PREFILL_OTHER = "another number of prompt tokens in one step: fewer steps or shorter waits"
_PREFILL_LESS = "fewer prompt tokens in one step: shorter waits between tokens, more steps"


@dataclass(frozen=True, slots=True)
class TuneLoad:
    """What the load of a tune asks of the server: the requests at a time, None if the tune searches
    how many there can be, and the prompt tokens of these requests together, None if the prompts
    are the user's own. `for_latency` says that the goal of the tune is a latency."""

    streams: int | None
    prompt_tokens: int | None
    for_latency: bool = False

    @property
    def why_no_compute_is_spare(self) -> str:
        """Why the load leaves no compute for guessed tokens. "" if it leaves some, or if the tune
        searches how many requests there can be."""
        if self.streams is None or self.streams <= _FEW_STREAMS:
            return ""
        return f"{_request_count_text(self.streams)} at a time leave no compute for guessed tokens"


_GPU_SETTINGS = "power limit, GPU clocks"
_POWER_SHARES = (2 / 3, 1 / 2)  # of the default limit
_POWER = "decode waits for the memory, so that less than {:g} W can keep most of the speed"
_CLOCK_SHARE = 0.75  # of the highest SM clock
_CLOCK = "a lower SM clock needs a lower voltage, and decode waits for the memory"
_LEAST_DEFAULT = 512.0  # prompt tokens in one step, of any engine
_PREFIX_FLAGS = ("enable-prefix-caching", "disable-radix-cache")
_OF_PREFIXES = "it acts on prompts with a common beginning; measure it with your own prompts"
_REPLICAS, _TENSOR = "data-parallel-size", "tensor-parallel-size"
_NO_REPLICA = "the load has 1 request at a time, and a second replica would have none"


def list_candidates_and_left_out(
    context: PlanContext, findings: Sequence[Finding], load: TuneLoad
) -> Iterator[CandidateOrLeftOut]:
    """Yield the changes to try and those that are left out, each with its reason, the largest
    possible gains first. `findings` are those about the plan."""
    yield from _cuda_graph_choices(context)
    yield from _make_choices_from_findings(context, findings, load.streams)
    yield from _parallelism_choices(context, load)
    yield from _weight_precision_choices(context)
    yield from _concurrent_sequence_choices(context, load.streams)
    yield from _thread_choices(context)
    yield from _speculation_choices(context, load)
    yield from _tunable_flag_choices(context, load)
    yield from _untried_flag_choices(context)


def _cuda_graph_choices(context: PlanContext) -> Iterator[CandidateOrLeftOut]:
    if flag := context.enabled_eager_flag:
        reason = _COMPILED if context.computes_all_layers_on_cpu else _GRAPHS
        yield TuneCandidate((f"{flag}=false",), reason)


def _make_choices_from_findings(
    context: PlanContext, findings: Sequence[Finding], streams: int | None
) -> Iterator[CandidateOrLeftOut]:
    """Yield the changes that findings about the plan propose for its speed. A finding without an
    expected gain proposes none."""
    for finding in findings:
        if not finding.changes or finding.expected_gain is None:
            continue
        assignments = [_format_assignment(change) for change in finding.changes]
        if None in assignments:
            continue
        known = tuple(filter(None, assignments))
        if streams == 1 and _REPLICAS in {change.name for change in finding.changes}:
            yield LeftOut(" ".join(known), _NO_REPLICA)
            continue
        reason = finding.text
        if finding.source:
            reason += f" ({finding.source})"
        yield TuneCandidate(known, reason)


def _format_assignment(change: PlanChange) -> str | None:
    """Return a change as an assignment "flag=value". None if it cannot be written so: it sets an
    environment variable, or removes a flag whose default is not known."""
    if change.env:
        return None
    if change.value is not None:
        return f"{change.name}={format_flag_value(change.value)}"
    if change.name in PARALLEL_SIZES:
        return f"{change.name}=1"
    return None


def _parallelism_choices(context: PlanContext, load: TuneLoad) -> Iterator[CandidateOrLeftOut]:
    """Yield replicas and a tensor-parallel size of 2, if there are several GPUs and the plan uses
    one. Replicas are left out for one request at a time, and the split for several if the GPUs have
    no NVLink."""
    gpus, streams = context.visible_gpu_count, load.streams
    if gpus < 2 or context.gpus_needed_per_node > 1 or context.node_count > 1:
        return
    if _REPLICAS in context.catalog.flags:
        yield from _replica_choices(gpus, streams)
    if _TENSOR not in context.catalog.flags:
        return
    if streams != 1 and not load.for_latency and not _may_gpus_have_nvlink(context):
        reason = "the model is on one GPU, and replicas need no link; these GPUs have no NVLink"
        yield LeftOut(f"{_TENSOR}=2", reason)
        return
    reason = "each GPU reads half of the weights for a token; the link between them decides"
    yield TuneCandidate((f"{_TENSOR}=2",), reason)


def _replica_choices(gpus: int, streams: int | None) -> Iterator[CandidateOrLeftOut]:
    """Yield numbers of replicas on this number of GPUs, at most one for each request at a time."""
    if streams == 1:
        yield LeftOut(_REPLICAS, _NO_REPLICA)
        return
    most = gpus if streams is None else min(gpus, streams)
    for replicas in sorted({2, most}, reverse=True):
        reason = f"{replicas} replicas share the requests, and need no link between the GPUs"
        yield TuneCandidate((f"{_REPLICAS}={replicas}",), reason)


def _may_gpus_have_nvlink(context: PlanContext) -> bool:
    """Return whether the GPUs can have NVLink. A GPU of an unknown type can."""
    known = filter(None, (gpu_table.find_gpu_type(gpu.name) for gpu in context.gpus))
    return all(one.nvlink for one in known)


def _weight_precision_choices(context: PlanContext) -> Iterator[CandidateOrLeftOut]:
    bits = normalize_quantization(context.model_facts.quantization)
    change = context.engine.eight_bit_weights
    if not change or context.plan.flag(change.partition("=")[0]) is not None:
        return
    if context.computes_all_layers_on_cpu:
        yield LeftOut(change, _explain_gpu_flag_on_cpu(context))
    elif bits == "BF16":
        yield TuneCandidate((change,), "8-bit weights are half the bytes of a token")
    elif bits is not None:
        yield LeftOut(change, f"the checkpoint's weights are {bits} already")


def _speculation_choices(context: PlanContext, load: TuneLoad) -> Iterator[CandidateOrLeftOut]:
    flag = context.engine.speculation_flag
    if flag not in context.catalog.flags:
        return
    config = context.plan.flag(flag)
    if load.why_no_compute_is_spare:
        yield LeftOut(f"other speculation ({flag})", load.why_no_compute_is_spare)
        return
    depth = as_table(config).get("num_speculative_tokens")
    if isinstance(depth, int):
        for other in sorted({1, 2, 4} - {depth}):
            text = format_flag_value({**as_table(config), "num_speculative_tokens": other})
            yield TuneCandidate(
                (f"{flag}={text}",), f"the best depth depends on the acceptance; now {depth}"
            )
        return
    if (short := context.plan.flag("spec-tokens")) is not None:
        for other in sorted({1, 2, 4} - {short}):
            yield TuneCandidate(
                (f"spec-tokens={other}",), f"the best depth depends on the acceptance; now {short}"
            )
        return
    if context.engine.drafted_tokens_per_step(context.plan.flag_values) == 0:
        text = format_flag_value(
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
        )
        reason = f"{GUESSES}: {_spare_compute_text(load.streams)}"
        yield TuneCandidate((f"{flag}={text}",), reason)


def _spare_compute_text(streams: int | None) -> str:
    if streams is None:
        return "few users leave room"
    verb = "leaves" if streams == 1 else "leave"
    return f"{_request_count_text(streams)} at a time {verb} room"


def _concurrent_sequence_choices(
    context: PlanContext, streams: int | None
) -> Iterator[CandidateOrLeftOut]:
    """Yield other limits on the requests at a time. A limit above the load's changes nothing."""
    flag = context.engine.concurrency_flag
    if flag not in context.catalog.flags:
        return
    now = _find_concurrent_request_limit(context, flag)
    if streams is None:
        yield from _higher_concurrency_choices(context, flag, now)
        return
    if now is not None and 0 < now < streams:
        reason = f"the load has {_request_count_text(streams)} at a time, and {streams - now:g} of them wait"
        yield TuneCandidate(
            context.engine.flag_assignments_for_concurrency(context, streams), reason
        )
        if 2 * now < streams:
            half = "less waiting, with a KV cache for fewer requests than the load has"
            yield TuneCandidate(
                context.engine.flag_assignments_for_concurrency(context, int(2 * now)), half
            )
        return
    at_most = "the default" if now is None else f"{now:g}"
    reason = (
        f"the load has {_request_count_text(streams)} at a time, which {at_most} allows already"
    )
    yield LeftOut(f"a higher {flag}", reason)


def _find_concurrent_request_limit(context: PlanContext, flag: str) -> float | None:
    """Return how many requests the server processes at a time. None if that is not known."""
    given = context.flag_number_in_plan(flag)
    if given is None or given < 0:
        return context.engine.default_concurrency
    return given


def _higher_concurrency_choices(
    context: PlanContext, flag: str, current_limit: float | None
) -> Iterator[CandidateOrLeftOut]:
    """Yield higher limits for a search for users, which can go above any limit."""
    if current_limit is None or current_limit <= 0:
        yield LeftOut(
            f"a higher {flag}", "the default of the engine is not known to limit the users"
        )
        return
    reason = f"the requests of more than {count_of(int(current_limit), 'user')} wait"
    for times in (4, 2):
        yield TuneCandidate(
            context.engine.flag_assignments_for_concurrency(context, int(times * current_limit)),
            reason,
        )


def _thread_choices(context: PlanContext) -> Iterator[CandidateOrLeftOut]:
    """Yield other numbers of threads, if the CPU computes layers: one for each core, and half of
    that, because decode waits for the memory."""
    flag = context.engine.threads_flag
    if flag not in context.catalog.flags:
        return
    if not context.engine.may_compute_layers_on_cpu(context):
        yield LeftOut(flag, "the GPUs compute all layers")
        return
    if context.cores is None:
        yield LeftOut(flag, "the number of the host's cores is not known")
        return
    cores = context.cores.cores
    given = context.flag_number_in_plan(flag)
    now = _count_started_threads(context.cores, given)
    reasons = {
        cores: f"one thread for each of {count_of(cores, 'core')}; now {now}",
        cores
        // 2: f"decode waits for the memory, and {count_of(cores // 2, 'thread')} may fill it",
    }
    tried = [count for count in reasons if count not in (0, now)]
    for count in tried:
        yield TuneCandidate((f"{flag}={count}",), reasons[count])
    if cores not in tried:
        yield LeftOut(f"more {flag}", f"each of {count_of(cores, 'core')} has a thread already")


def _count_started_threads(host_cores: HostCores, thread_flag_value: float | None) -> int:
    """Return how many threads llama.cpp starts: without the flag one for each core, and for a
    number below 1 one for each CPU (llama.cpp#20020)."""
    if thread_flag_value is None:
        return host_cores.cores
    return int(thread_flag_value) if thread_flag_value > 0 else host_cores.cpus


def _request_count_text(streams: int) -> str:
    return count_of(streams, "request")


def _tunable_flag_choices(context: PlanContext, load: TuneLoad) -> Iterator[CandidateOrLeftOut]:
    for flag in context.engine.tunable_flags:
        spec = context.catalog.flags.get(flag.name)
        if spec is None:
            yield LeftOut(
                flag.name, f"{context.engine.title} {context.engine_version} has no such flag"
            )
            continue
        if (why := _reason_not_tried(context, flag, load)) is not None:
            yield LeftOut(f"{flag.name}={','.join(flag.values)}", why)
            continue
        now = format_flag_value(context.effective_flag_value(flag.name))
        for text in flag.values:
            if text == now:
                continue
            if flag.reason == PREFILL and _can_step_process_all_prompts(
                context, flag.name, text, load
            ):
                reason = f"the requests at a time have {load.prompt_tokens} prompt tokens together"
                yield LeftOut(f"{flag.name}={text}", f"{reason}, which one step holds already")
                continue
            yield TuneCandidate(
                _make_assignments(flag, text, context),
                _reason_to_try(flag, text, context, load),
            )


def _make_assignments(flag: TunableFlag, text: str, context: PlanContext) -> tuple[str, ...]:
    """Return the assignments that give a flag the value `text`. If another flag caps it, that flag
    is raised too, since the engine would silently take less. So are the flags set without which it
    does not work."""
    cap = context.effective_flag_number(flag.within)
    assignments = [f"{flag.name}={text}"]
    if cap is not None and float(text) > cap:
        assignments.insert(0, f"{flag.within}={text}")
    missing = [one for one in flag.together if not _is_assignment_in_effect(one, context)]
    return (*assignments, *missing)


def _is_assignment_in_effect(assignment: str, context: PlanContext) -> bool:
    name, _, text = assignment.partition("=")
    return format_flag_value(context.effective_flag_value(name)) == text


def _reason_not_tried(context: PlanContext, flag: TunableFlag, load: TuneLoad) -> str | None:
    """Return why no value of a flag is tried on these GPUs and this load; None if its values are
    tried. Prompts that Workbench makes have no common beginning, so flags for such prompts are
    tried with the user's own prompts only."""
    if flag.of_gpus and context.computes_all_layers_on_cpu:
        return _explain_gpu_flag_on_cpu(context)
    if flag.of_prefixes and load.prompt_tokens is not None:
        return _OF_PREFIXES
    if flag.guesses:
        if load.why_no_compute_is_spare:
            return load.why_no_compute_is_spare
        given = context.plan.flag(flag.name)
        if given not in (None, "none"):
            return f"the plan has {flag.name} {given}"
    if flag.of_numa and not _may_several_numa_nodes_compute_layers(context):
        return "it acts where the CPUs of several NUMA nodes compute layers"
    limit = context.engine.concurrency_flag
    if flag.of_batches and limit and _find_concurrent_request_limit(context, limit) == 1:
        return f"with {limit} 1 there is no batch"
    return _why_capability_excludes_flag(context, flag)


def _why_capability_excludes_flag(context: PlanContext, flag: TunableFlag) -> str | None:
    """Return why a flag is not for GPUs of this compute capability; None if it is."""
    if not flag.capabilities:
        return None
    for capability in filter(None, (gpu.compute_capability for gpu in context.gpus)):
        if int(capability.partition(".")[0]) not in flag.capabilities:
            least, most = min(flag.capabilities), max(flag.capabilities)
            return (
                f"it needs a GPU of compute capability {least}.x to {most}.x, and this has "
                f"{capability}"
            )
    return None


def _may_several_numa_nodes_compute_layers(context: PlanContext) -> bool:
    """Return whether the CPUs of several NUMA nodes can compute layers. False if the host's CPUs
    are unknown."""
    if not context.engine.may_compute_layers_on_cpu(context):
        return False
    return context.cores.numa_nodes > 1 if context.cores else False


def _explain_gpu_flag_on_cpu(context: PlanContext) -> str:
    return _NO_GPU.format(f"{context.engine.title} {context.installed}")


def _reason_to_try(flag: TunableFlag, text: str, context: PlanContext, load: TuneLoad) -> str:
    if flag.guesses:
        return f"{GUESSES}: {_spare_compute_text(load.streams)}"
    if flag.reason != PREFILL:
        return flag.reason
    now = context.effective_flag_number(flag.name)
    if now is None:
        return _PREFILL_OTHER
    if float(text) < now:
        return _PREFILL_LESS
    return PREFILL


def _can_step_process_all_prompts(
    context: PlanContext, flag_name: str, flag_value: str, load: TuneLoad
) -> bool:
    """Return whether one step can process the prompts of all requests at a time, both with the
    plan's value of the flag and with `flag_value`. False if the load's prompts or requests are
    unknown."""
    if load.prompt_tokens is None or load.streams is None:
        return False
    now = context.effective_flag_number(flag_name) or _LEAST_DEFAULT
    return min(now, float(flag_value)) >= load.prompt_tokens


def _untried_flag_choices(context: PlanContext) -> Iterator[CandidateOrLeftOut]:
    for name in _PREFIX_FLAGS:
        if name in context.catalog.flags:
            yield LeftOut(name, _OF_PREFIXES)
    for name, reason in context.engine.untried_flags.items():
        if name in context.catalog.flags:
            yield LeftOut(name, reason)
    yield LeftOut(
        "memory clocks", "a lock can lower other clocks of the GPU unseen, and costs 12 to 32 %"
    )


def gpu_setting_choices(
    infos: Sequence[GpuInfo], goal: str, limits: TuneLimits
) -> Iterator[CandidateOrLeftOut]:
    """Yield power limits and a lower SM clock for the GPUs of a plan, if they can serve the goal or
    keep a limit. Memory clocks are never locked."""
    keeps_limit = limits.power_w is not None or limits.temperature_c is not None
    if goal != "tok_j" and not keeps_limit:
        reason = (
            "they save power and give no speed; `--goal tok_j`, or a limit on power, tries them"
        )
        yield LeftOut(_GPU_SETTINGS, reason)
        return
    lowest, highest = [], []
    for info in infos:
        most_w = info.power_default_w or info.power_max_w
        if info.power_min_w is not None and most_w is not None:
            lowest.append(info.power_min_w)
            highest.append(most_w)
    if not infos or len(lowest) < len(infos):
        yield LeftOut("power limit", "the driver reports no power limits for these GPUs")
    else:
        low, high = max(lowest), min(highest)
        wanted = {_POWER_SHARES[0] * high, _POWER_SHARES[1] * high}
        if limits.power_w is not None:
            wanted.add(limits.power_w / len(infos))
        for watts in sorted({10 * (each // 10) for each in wanted}, reverse=True):
            if low <= watts < high:
                yield TuneCandidate((f"{OF_GPUS}power-limit={watts:g}",), _POWER.format(high))
    tops = [info.sm_max_mhz or 0 for info in infos]
    if min(tops, default=0):
        most = 15 * int(_CLOCK_SHARE * min(tops) // 15)
        yield TuneCandidate((f"{OF_GPUS}gpu-clocks=210-{most}",), _CLOCK)


def needs_at_least_same_memory(failed: Sequence[str], other: Sequence[str], engine: str) -> bool:
    """Return whether a server with the assignments `other` surely needs at least the memory of one
    with `failed`. This is known only if both set one and the same flag, which takes more memory for
    a higher value, and the value in `other` is not lower."""
    if len(failed) != 1 or len(other) != 1:
        return False
    (name, _, low), (same, _, high) = failed[0].partition("="), other[0].partition("=")
    if name != same or name not in _list_flags_that_grow_memory(engine):
        return False
    return _parse_number_or_nan(low) <= _parse_number_or_nan(high)


def _list_flags_that_grow_memory(engine: str) -> frozenset[str | None]:
    kind = registry.get_engine(engine)
    grows = (flag.name for flag in kind.tunable_flags if flag.grows)
    return frozenset((*grows, kind.concurrency_flag))


def _parse_number_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")  # is not above any number
