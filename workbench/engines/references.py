"""Speeds that others measured (references.json), and the one that is nearest to a result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from workbench.engines.gpu_table import GpuType, all_types, find, rows_of
from workbench.engines.weight_bits import BITS, name_of
from workbench.model.counts import count_of, four_digits

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult

_NORMAL = 0.15  # of the same setup: a smaller difference is normal
_SIZE = re.compile(r"\d+(?:\.\d+)?b")
_SUFFIXES = {"instruct", "it", "hf", "gguf", "awq", "gptq", "fp8", "nvfp4", "mxfp4", "int4", "fp4", "dynamic", "bf16"}
_FOUR_BITS = ("AWQ", "GPTQ", "INT4")


@dataclass(frozen=True, slots=True)
class Reference:
    """A speed that somebody measured. `gpu` is the id of a GPU type; None: not stated. `tok_s` is the range of one
    stream, `total_tok_s` the speed of all `streams` together.
    """

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

    @property
    def type(self) -> GpuType | None:
        return next((one for one in all_types() if one.id == self.gpu), None)

    @property
    def limit_tok_s(self) -> float | None:
        """The limit of one stream at the nominal bandwidth of all its GPUs. None if it is unknown."""
        known = self.type
        return known.bandwidth_gbs * self.gpus / self.gb_per_token if known and self.gb_per_token else None

    @property
    def share(self) -> float | None:
        """The best speed of one stream as a share of the limit."""
        limit = self.limit_tok_s
        return self.tok_s[1] / limit if limit and self.tok_s else None

    @property
    def setup(self) -> str:
        known = self.type
        card = known.nvml_names[0].removeprefix("NVIDIA ") if known else "GPU"
        drafts = ", speculation" if self.speculative else ""
        streams = "" if self.streams == 1 else f", {count_of(self.streams, 'stream')}"
        return f"{self.model} {self.quantization}, {self.engine}, {self.gpus} x {card}{streams}{drafts}"


@cache
def references() -> tuple[Reference, ...]:
    """Return all speeds in references.json."""
    return tuple(Reference(**row) for row in rows_of("references", "references"))


def nearest(
    model: str, quantization: str | None, gpu_names: tuple[str, ...], streams: int, speculative: bool
) -> tuple[Reference, bool] | None:
    """Return the reference that is nearest to a setup, and whether it is of the same setup: model, quantization, GPUs,
    streams and speculation. A reference is near if it is of the same type of GPU, or of the same model if its GPU is
    not stated. None if there is none.
    """
    known = find(gpu_names[0]) if gpu_names else None
    wanted, bits = _words(model), _quantization(quantization or model)

    def closeness(one: Reference) -> tuple[int, ...]:
        words = _words(one.model)
        same_bits = _quantization(one.quantization) == bits
        return (
            3 if words == wanted else 2 if _class(words) == _class(wanted) else 0,
            int(same_bits and one.speculative == speculative),
            int(one.gpus == len(gpu_names)),
            int(one.streams == streams),
            -abs(one.streams - streams),
        )

    near = [
        (closeness(one), one)
        for one in references()
        if (known and one.gpu == known.id) or (one.gpu is None and closeness(one)[0] == 3)
    ]
    if not near:
        return None
    best, found = max(near, key=lambda pair: pair[0])
    if best[0] == 0:  # another model tells only how close to the limit others come
        near = [pair for pair in near if pair[1].share and not pair[1].speculative]
        if not near:
            return None
        best, found = max(near, key=lambda pair: pair[0])
    return found, best[:4] == (3, 1, 1, 1)


def nearest_text(result: BenchResult) -> str | None:
    """Return the nearest reference of a result, and how the result compares with it. None if there is none near."""
    conditions, summary, spec = result.conditions, result.summary, result.spec
    names = tuple(str(gpu.get("name") or "") for gpu in conditions.gpus)
    speculative = "speculation" in conditions.ceiling_basis
    found = nearest(conditions.model, conditions.quantization or None, names, spec.concurrency, speculative)
    if found is None:
        return None
    one, same = found
    several = one.tok_s is None or (spec.concurrency > 1 and one.total_tok_s is not None)
    low, high = (one.total_tok_s or 0.0,) * 2 if several or one.tok_s is None else one.tok_s
    speed = four_digits(low) if low == high else f"{four_digits(low)} to {four_digits(high)}"
    text = f"{speed} tok/s{' together' if several else ' per stream'}: {one.setup} ({one.kind}, {one.source})"
    measured = summary.output_tok_s if several else summary.per_stream_tok_s
    if same and measured is not None and high:
        return f"{text}; {_verdict(measured, low, high)}"
    return text + (f"; that is {one.share:.0%} of its limit" if one.share else "")


def _verdict(measured: float, low: float, high: float) -> str:
    """Return how a measured speed compares with those of the same setup, `low` to `high`."""
    nearer = low if measured < low else high if measured > high else measured
    change = measured / nearer - 1
    if abs(change) <= _NORMAL:
        return f"{four_digits(measured)} is normal"
    return f"{four_digits(measured)} is {abs(change):.0%} {'faster' if change > 0 else 'slower'}"


def _words(model: str) -> frozenset[str]:
    """Return the words of a model's name without organization, quantization and version of the format."""
    name = model.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    return frozenset(word for word in re.split(r"[-_ ]", name) if word and word not in _SUFFIXES)


def _class(words: frozenset[str]) -> tuple[str, ...]:
    """Return family and sizes, such as ("70b", "llama"). A name without a size has only its words."""
    sizes = sorted(word for word in words if _SIZE.fullmatch(word))
    families = sorted({m[0] for word in words if (m := re.match(r"[a-z]{3,}", word))})
    return (*sizes, *families) if sizes else tuple(sorted(words))


def _quantization(text: str) -> str:
    """Return a common name of the quantization that a text names: 4-bit integers have one name. "BF16" if it names
    none.
    """
    upper = text.upper()
    named = name_of(text) or next((n for n in (*BITS, "INT4", "EXL", "GGUF", "IQ2") if n in upper), "BF16")
    return "INT4" if named in _FOUR_BITS else named
