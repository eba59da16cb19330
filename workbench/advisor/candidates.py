"""The changes of a plan that a tune tries, in the order of what they can gain, with the reason for
each; and the changes that cannot help on this hardware and load, with the reason against each. Pure:
whether a server can start with a change is checked elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.engines import registry
from workbench.engines.flag_values import format_value
from workbench.engines.plan_context import Situation
from workbench.engines.tunable_flags import PREFILL, TunableFlag
from workbench.engines.weight_bits import name_of
from workbench.model.counts import count_of
from workbench.model.findings import Finding, PlanChange
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import PARALLEL_SIZES
from workbench.model.tune import OF_GPUS, LeftOut, TuneCandidate, TuneLimits

Choice = TuneCandidate | LeftOut
_FEW_STREAMS = 8  # above, the batch fills the compute that guessed tokens would need
_GRAPHS = "CUDA graphs launch the kernels of a step at once (26 to 59 tok/s on one GB10)"
_PREFILL_OTHER = "another number of prompt tokens in one step: fewer steps or shorter waits"
_PREFILL_LESS = "fewer prompt tokens in one step: shorter waits between tokens, more steps"


@dataclass(frozen=True, slots=True)
class Work:
    """What the load of a tune asks of the server: the requests at a time, and the prompt tokens of
    these requests together; None if the prompts are the user's own."""

    streams: int
    prompt_tokens: int | None


_GPU_SETTINGS = "power limit, GPU clocks"
_POWER_SHARES = (2 / 3, 1 / 2)  # of the default limit
_POWER = "decode waits for the memory, so that less than {:g} W can keep most of the speed"
_CLOCK_SHARE = 0.75  # of the highest SM clock
_CLOCK = "a lower SM clock needs a lower voltage, and decode waits for the memory"
_LEAST_DEFAULT = 512.0  # prompt tokens in one step, of any engine
_PREFIX_FLAGS = ("enable-prefix-caching", "disable-radix-cache")
_REPLICAS, _TENSOR = "data-parallel-size", "tensor-parallel-size"


def choices(here: Situation, findings: Sequence[Finding], work: Work) -> Iterator[Choice]:
    """Yield the candidates and what is left out, the largest possible gains first. `findings` are
    those about the plan."""
    yield from _graphs(here)
    yield from _proposed(here, findings)
    yield from _parallel(here, work.streams)
    yield from _weights(here)
    yield from _sequences(here, work.streams)
    yield from _speculation(here, work.streams)
    yield from _table(here, work)
    yield from _never(here)


def _graphs(here: Situation) -> Iterator[Choice]:
    flag = here.engine.eager_flag
    if flag and here.on(flag):
        yield TuneCandidate((f"{flag}=false",), _GRAPHS)


def _proposed(here: Situation, findings: Sequence[Finding]) -> Iterator[Choice]:
    """Yield what findings about the plan propose for its speed."""
    for finding in findings:
        if not finding.changes or finding.expected_gain is None:
            continue
        sets = [_assignment(change) for change in finding.changes]
        known = tuple(one for one in sets if one is not None)
        if len(known) == len(sets):
            source = f" ({finding.source})" if finding.source else ""
            yield TuneCandidate(known, f"{finding.text}{source}")


def _assignment(change: PlanChange) -> str | None:
    """Return a change as an assignment "flag=value". None if it is none: it sets a variable, or
    removes a flag whose default is not known."""
    if change.env:
        return None
    if change.value is None:
        return f"{change.name}=1" if change.name in PARALLEL_SIZES else None
    return f"{change.name}={format_value(change.value)}"


def _parallel(here: Situation, streams: int) -> Iterator[Choice]:
    """Yield replicas and a model that is split over two GPUs, if there are several GPUs and the plan
    uses one. A request at a time has no use for a replica."""
    gpus = here.gpus_visible
    if gpus < 2 or here.gpus_needed > 1 or here.nodes > 1:
        return
    if _REPLICAS in here.catalog.flags and streams < 2:
        reason = "the load has 1 request at a time, and a second replica would have none"
        yield LeftOut(_REPLICAS, reason)
    elif _REPLICAS in here.catalog.flags:
        for replicas in sorted({2, min(gpus, streams)}, reverse=True):
            reason = f"{replicas} replicas share the requests, and need no link between the GPUs"
            yield TuneCandidate((f"{_REPLICAS}={replicas}",), reason)
    if _TENSOR in here.catalog.flags:
        reason = "each GPU reads half of the weights for a token; the link between them decides"
        yield TuneCandidate((f"{_TENSOR}=2",), reason)


def _weights(here: Situation) -> Iterator[Choice]:
    facts = here.plan.model_facts
    bits = name_of(facts.quantization) if facts is not None and facts.quantization else None
    change = here.engine.eight_bit_weights
    if not change or here.plan.flag(change.partition("=")[0]) is not None:
        return
    if bits == "BF16":
        yield TuneCandidate((change,), "8-bit weights are half the bytes of a token")
    elif bits is not None:
        yield LeftOut(change, f"the checkpoint's weights are {bits} already")


def _speculation(here: Situation, streams: int) -> Iterator[Choice]:
    flag = here.engine.speculation_flag
    if flag is None or flag not in here.catalog.flags:
        return
    config = here.plan.flag(flag)
    if streams > _FEW_STREAMS:
        reason = f"{_requests(streams)} at a time leave no compute for guessed tokens"
        yield LeftOut(f"other speculation ({flag})", reason)
        return
    if isinstance(config, dict) and isinstance(config.get("num_speculative_tokens"), int):
        depth = config["num_speculative_tokens"]
        for other in sorted({1, 2, 4} - {depth}):
            text = format_value({**config, "num_speculative_tokens": other})
            yield TuneCandidate(
                (f"{flag}={text}",), f"the best depth depends on the acceptance; now {depth}"
            )
        return
    if config is None:
        text = format_value(
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
        )
        reason = f"a step checks several guessed tokens: {_requests(streams)} at a time leave room"
        yield TuneCandidate((f"{flag}={text}",), reason)


def _sequences(here: Situation, streams: int) -> Iterator[Choice]:
    """Yield other limits on the requests at a time. A limit above the load's changes nothing."""
    flag = here.engine.concurrency_flag
    if flag is None or flag not in here.catalog.flags:
        return
    now = here.number(flag) if here.plan.flag(flag) is not None else None
    if now is not None and 0 < now < streams:
        reason = f"the load has {_requests(streams)} at a time, and {streams - now:g} of them wait"
        yield TuneCandidate((f"{flag}={streams}",), reason)
        if 2 * now < streams:
            half = "less waiting, with a KV cache for fewer requests than the load has"
            yield TuneCandidate((f"{flag}={2 * now:g}",), half)
        return
    at_most = f"{now:g}" if now is not None else "the default"
    reason = f"the load has {_requests(streams)} at a time, which {at_most} allows already"
    yield LeftOut(f"a higher {flag}", reason)


def _requests(streams: int) -> str:
    return count_of(streams, "request")


def _table(here: Situation, work: Work) -> Iterator[Choice]:
    for flag in here.engine.tunable_flags:
        spec = here.catalog.flags.get(flag.name)
        if spec is None:
            version = here.installed or here.catalog.version
            yield LeftOut(flag.name, f"{here.engine.title} {version} has no such flag")
            continue
        value = here.value(flag.name)
        now = "" if value is None else format_value(value)
        for text in flag.values:
            if text == now:
                continue
            if flag.reason == PREFILL and _holds_all(here, flag.name, text, work):
                reason = (
                    f"the prompts of {_requests(work.streams)} have {work.prompt_tokens} tokens"
                )
                yield LeftOut(f"{flag.name}={text}", f"{reason}, which one step holds already")
                continue
            yield TuneCandidate((f"{flag.name}={text}",), _reason(flag, text, here))


def _reason(flag: TunableFlag, text: str, here: Situation) -> str:
    if flag.reason != PREFILL:
        return flag.reason
    now = here.number(flag.name)
    if now is None:
        return _PREFILL_OTHER
    return _PREFILL_LESS if float(text) < now else PREFILL


def _holds_all(here: Situation, name: str, text: str, work: Work) -> bool:
    """Return whether one step takes the prompts of all requests, with the value `text` of the flag
    as well as without it."""
    if work.prompt_tokens is None:
        return False
    now = here.number(name) or _LEAST_DEFAULT
    return min(now, float(text)) >= work.prompt_tokens


def _never(here: Situation) -> Iterator[Choice]:
    for name in _PREFIX_FLAGS:
        if name in here.catalog.flags:
            reason = "it acts on prompts with a common beginning; measure it with your own prompts"
            yield LeftOut(name, reason)
    yield LeftOut(
        "memory clocks", "a lock can lower other clocks of the GPU unseen, and costs 12 to 32 %"
    )


def gpu_choices(infos: Sequence[GpuInfo], goal: str, limits: TuneLimits) -> Iterator[Choice]:
    """Yield power limits and a lower SM clock for the GPUs of a plan, if they can serve the goal or
    keep a limit. Memory clocks are never locked."""
    capped = limits.power_w is not None or limits.temperature_c is not None
    if goal != "tok_j" and not capped:
        reason = (
            "they save power and give no speed; `--goal tok_j`, or a limit on power, tries them"
        )
        yield LeftOut(_GPU_SETTINGS, reason)
        return
    known = [(i.power_min_w, i.power_default_w or i.power_max_w) for i in infos]
    bounds = [(low, high) for low, high in known if low is not None and high is not None]
    if not infos or len(bounds) < len(infos):
        yield LeftOut("power limit", "the driver reports no power limits for these GPUs")
    else:
        low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
        wanted = {_POWER_SHARES[0] * high, _POWER_SHARES[1] * high}
        if limits.power_w is not None:
            wanted.add(limits.power_w / len(infos))
        for watts in sorted({10 * (each // 10) for each in wanted}, reverse=True):
            if low <= watts < high:
                yield TuneCandidate((f"{OF_GPUS}power-limit={watts:g}",), _POWER.format(high))
    tops = [info.sm_max_mhz for info in infos if info.sm_max_mhz]
    if tops and len(tops) == len(infos):
        most = 15 * int(_CLOCK_SHARE * min(tops) // 15)
        yield TuneCandidate((f"{OF_GPUS}gpu-clocks=210-{most}",), _CLOCK)


def needs_more(failed: Sequence[str], other: Sequence[str], engine: str) -> bool:
    """Return whether a server with the assignments `other` needs at least the memory of one with
    `failed`: both set one and the same flag, which takes more memory for a higher value."""
    if len(failed) != 1 or len(other) != 1:
        return False
    (name, _, low), (same, _, high) = failed[0].partition("="), other[0].partition("=")
    return name == same and name in _growing(engine) and _number(low) <= _number(high)


def _growing(engine: str) -> frozenset[str]:
    kind = registry.get(engine)
    flags = {flag.name for flag in kind.tunable_flags if flag.grows}
    limit = kind.concurrency_flag
    return frozenset(flags | ({limit} if limit else set()))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")  # is not above any number
