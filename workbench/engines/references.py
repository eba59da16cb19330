"""References: published speeds of other people (references.json), and the search for the one
nearest to a result."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from workbench.engines import registry
from workbench.engines.gpu_table import (
    GpuType,
    find_gpu_type,
    load_gpu_types,
    load_packaged_table_rows,
)
from workbench.engines.weight_bits import BITS, normalize_quantization
from workbench.model.counts import count_of, format_four_digits
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import PARALLEL_SIZES

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult

_NORMAL_PCT = 15.0  # of the same setup: a smaller difference is normal
_SUFFIXES = {
    "exl2",
    "exl3",
    "instruct",
    "it",
    "hf",
    "gguf",
    "awq",
    "gptq",
    "fp8",
    "nvfp4",
    "mxfp4",
    "int4",
    "fp4",
    "dynamic",
    "bf16",
}
_BITS_PER_WEIGHT = re.compile(r"\d+(?:\.\d+)?bpw")
_FOUR_BITS = ("AWQ", "GPTQ", "INT4")


@dataclass(frozen=True, slots=True)
class Reference:
    """A published speed in tok/s. `gpu` is the id of a GPU type; None if the source does not state
    the GPU. `tok_s` is (lowest, highest) speed of one stream, `total_tok_s` the speed of all
    `streams` together."""

    id: str
    model: str
    quantization: str
    engine: str
    gpu: str | None
    gpus: int
    streams: int
    tok_s: tuple[float, float] | None
    total_tok_s: float | None
    power_w: float | None
    speculative: bool
    gb_per_token: float | None
    kind: str  # who says so: "third party", "vendor", "claimed in a write-up", …
    source: str
    eager: bool = False
    parallel: tuple[int, ...] = ()  # tensor, pipeline, data; (): tensor parallel over all GPUs

    @property
    def gpu_type(self) -> GpuType | None:
        return next((one for one in load_gpu_types() if one.id == self.gpu), None)

    @property
    def parallel_sizes(self) -> tuple[int, ...]:
        """The sizes of tensor, pipeline and data parallelism; by default, tensor parallelism over
        all GPUs."""
        return tuple(self.parallel) or (self.gpus, 1, 1)

    @property
    def stream_limit_tok_s(self) -> float | None:
        """The highest speed in tok/s that one stream could reach on the GPUs of this published
        result, given their nominal memory bandwidth. None if it is unknown."""
        known = self.gpu_type
        if known is None or not self.gb_per_token:
            return None
        return known.bandwidth_gbs * self.gpus / self.gb_per_token

    @property
    def speed_fraction_of_limit(self) -> float | None:
        """The published speed of one stream divided by the speed limit that the GPU's memory
        bandwidth sets. If the source gives a range, its highest speed counts. None if the speed or
        the limit is unknown."""
        limit = self.stream_limit_tok_s
        if not limit or not self.tok_s:
            return None
        return self.tok_s[1] / limit

    @property
    def setup_text(self) -> str:
        """The published setup as text: model, quantization, engine, GPUs, streams and
        speculation."""
        known = self.gpu_type
        card = "GPU"
        if known is not None:
            card = known.nvml_names[0].removeprefix("NVIDIA ")
        parts = [f"{self.model} {self.quantization}", self.engine, f"{self.gpus} x {card}"]
        if self.eager:
            parts.insert(2, "eager")
        if self.streams != 1:
            parts.append(count_of(self.streams, "stream"))
        if self.speculative:
            parts.append("speculation")
        return ", ".join(parts)


@cache
def load_references() -> tuple[Reference, ...]:
    """Return all speeds in references.json."""
    return tuple(Reference(**row) for row in load_packaged_table_rows("references", "references"))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a published speed must have in common with a result: model, engine, quantization, GPUs,
    the sizes of tensor, pipeline and data parallelism, speculation and eager mode. `streams` is the
    number of requests at the same time, in which both may differ."""

    model: str
    engine: str  # the engine's title
    quantization: str | None
    gpu_names: tuple[str, ...]
    parallel: tuple[int, ...] | None  # None: not known
    streams: int
    speculative: bool
    eager: bool


def nearest_reference_and_has_same_streams(setup: Setup) -> tuple[Reference, bool] | None:
    """Return the published speed of this setup whose number of streams is nearest, and whether that
    number is the same. None if nobody has published a speed of this setup. A source that does not
    name its GPU counts for every GPU."""
    names = setup.gpu_names
    words = _words_of_model_name(setup.model)
    if not names or not words:
        return None
    quantization = _comparable_quantization(setup.quantization or setup.model)
    wanted = (words, setup.engine, quantization, len(names), setup.speculative, setup.eager)
    known = find_gpu_type(names[0])
    gpus = (None, known.id) if known else (None,)
    near = []
    for one in load_references():
        published = (
            _words_of_model_name(one.model),
            one.engine,
            _comparable_quantization(one.quantization),
            one.gpus,
            one.speculative,
            one.eager,
        )
        same_sizes = setup.parallel in (None, one.parallel_sizes)
        if published == wanted and same_sizes and one.gpu in gpus:
            near.append(one)
    if not near:
        return None
    nearest = min(near, key=lambda one: abs(one.streams - setup.streams))
    return nearest, nearest.streams == setup.streams


def _used_speculation(result: BenchResult) -> bool:
    """Return whether the server of a result drafted tokens, by its flags or its counters."""
    conditions, engine = result.conditions, result.summary.engine
    if engine is not None and engine.spec_accepted_pct is not None:
        return True
    if "speculation" in conditions.ceiling_basis:
        return True
    known = registry.find_engine(conditions.engine)
    if known is None:
        return False
    return known.drafted_tokens_per_step(conditions.flags, conditions.engine_version) != 0


def _setup_from_result(result: BenchResult) -> Setup:
    conditions = result.conditions
    setup = Setup(
        model=conditions.model,
        engine="",
        quantization=conditions.quantization,
        gpu_names=tuple(str(gpu.get("name") or "") for gpu in conditions.gpus),
        parallel=None,
        streams=result.spec.concurrency,
        speculative=_used_speculation(result),
        eager=False,
    )
    engine, flags = registry.find_engine(conditions.engine), conditions.flags
    if engine is None:
        return setup
    if not engine.uses_all_gpus:
        sizes = tuple(_parallel_size_or_one(flags.get(name)) for name in PARALLEL_SIZES)
        setup = replace(setup, parallel=sizes)
    return replace(setup, engine=engine.title, eager=flags.get(engine.eager_flag) is True)


def _parallel_size_or_one(value: Any) -> int:
    return value if type(value) is int and value > 0 else 1


def nearest_reference_text(result: BenchResult) -> str | None:
    """Return a sentence with the published speed of the result's setup and how the result compares
    with this speed. None if there is no such speed."""
    found = nearest_reference_and_has_same_streams(_setup_from_result(result))
    if found is None:
        return None
    one, same = found
    summary = result.summary
    together = result.spec.concurrency > 1 and one.total_tok_s is not None
    if one.tok_s is None or together:
        low = high = one.total_tok_s or 0.0
        of, measured = "together", summary.output_tok_s
    else:
        low, high = one.tok_s
        of, measured = "per stream", summary.per_stream_tok_s
    speed = format_four_digits(low)
    if low != high:
        speed += f" to {format_four_digits(high)}"
    text = f"{speed} tok/s {of}: {one.setup_text} ({one.kind}, {one.source})"
    if same and measured is not None and high:
        return f"{text}; {_comparison_with_range_text(measured, low, high)}"
    if fraction := one.speed_fraction_of_limit:
        text += f"; that is {100 * fraction:.0f} % of its limit"
    return text


def _comparison_with_range_text(measured: float, low: float, high: float) -> str:
    """Return how the speed `measured` compares with the published range from `low` to `high`, such
    as "this result, 52.1, is 9 % slower". All speeds are in tok/s."""
    nearer = min(max(measured, low), high)
    change_pct = 100 * (measured / nearer - 1)
    result = f"this result, {format_four_digits(measured)}, is"
    if abs(change_pct) <= _NORMAL_PCT:
        return f"{result} within {_NORMAL_PCT:.0f} % of that"
    return f"{result} {abs(change_pct):.0f} % {'faster' if change_pct > 0 else 'slower'}"


def _words_of_model_name(model: str) -> frozenset[str]:
    """Return the words of a model's name in lower case, without the organization, quantization and
    file format."""
    name = model.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    words = set(re.split(r"[-_ ]", name)) - _SUFFIXES - {""}
    return frozenset(word for word in words if not _BITS_PER_WEIGHT.fullmatch(word))


def _comparable_quantization(text: str) -> str:
    """Return the quantization that `text` names, in a form for comparisons: all 4-bit integer
    methods become "INT4". "BF16" if `text` names no quantization."""
    upper = text.upper()
    named = normalize_quantization(text)
    if named is None:
        known = (name for name in (*BITS, "INT4", "EXL", "GGUF", "IQ2") if name in upper)
        named = next(known, "BF16")
    return "INT4" if named in _FOUR_BITS else named
