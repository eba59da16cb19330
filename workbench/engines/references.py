"""References: published speeds of other people (references.json), and the search for the one
nearest to a result."""

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
_SUFFIXES = {
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

    @property
    def type(self) -> GpuType | None:
        return next((one for one in all_types() if one.id == self.gpu), None)

    @property
    def limit_tok_s(self) -> float | None:
        """The highest speed in tok/s that one stream could reach on the GPUs of this published
        result, given their nominal memory bandwidth. None if it is unknown."""
        known = self.type
        return (
            known.bandwidth_gbs * self.gpus / self.gb_per_token
            if known and self.gb_per_token
            else None
        )

    @property
    def share(self) -> float | None:
        """The published speed of one stream divided by the speed limit that the GPU's memory
        bandwidth sets. If the source gives a range, its highest speed counts. None if the speed or
        the limit is unknown."""
        limit = self.limit_tok_s
        return self.tok_s[1] / limit if limit and self.tok_s else None

    @property
    def setup(self) -> str:
        known = self.type
        card = known.nvml_names[0].removeprefix("NVIDIA ") if known else "GPU"
        drafts = ", speculation" if self.speculative else ""
        streams = "" if self.streams == 1 else f", {count_of(self.streams, 'stream')}"
        return (
            f"{self.model} {self.quantization}, {self.engine}, {self.gpus} x "
            f"{card}{streams}{drafts}"
        )


@cache
def references() -> tuple[Reference, ...]:
    """Return all speeds in references.json."""
    return tuple(Reference(**row) for row in rows_of("references", "references"))


def nearest(
    model: str,
    quantization: str | None,
    gpu_names: tuple[str, ...],
    streams: int,
    speculative: bool,
) -> tuple[Reference, bool] | None:
    """Return the published speed whose setup is most similar to the given model, GPUs and load, and
    whether both setups agree in everything that the arguments describe. Only speeds measured on the
    same GPU type are considered, and speeds of the same model on an unknown GPU. None if there are
    none."""
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
    """Return a sentence with the published speed that is nearest to a result and how the result
    compares with this speed. None if there is no such speed."""
    conditions, summary, spec = result.conditions, result.summary, result.spec
    names = tuple(str(gpu.get("name") or "") for gpu in conditions.gpus)
    speculative = "speculation" in conditions.ceiling_basis
    found = nearest(
        conditions.model, conditions.quantization or None, names, spec.concurrency, speculative
    )
    if found is None:
        return None
    one, same = found
    several = one.tok_s is None or (spec.concurrency > 1 and one.total_tok_s is not None)
    low, high = (one.total_tok_s or 0.0,) * 2 if several or one.tok_s is None else one.tok_s
    speed = four_digits(low) if low == high else f"{four_digits(low)} to {four_digits(high)}"
    text = (
        f"{speed} tok/s{' together' if several else ' per stream'}: {one.setup} ({one.kind}, "
        f"{one.source})"
    )
    measured = summary.output_tok_s if several else summary.per_stream_tok_s
    if same and measured is not None and high:
        return f"{text}; {_verdict(measured, low, high)}"
    return text + (f"; that is {one.share:.0%} of its limit" if one.share else "")


def _verdict(measured: float, low: float, high: float) -> str:
    """Return how the speed `measured` compares with the published range from `low` to `high`, such
    as "52.1 is 9 % slower". All speeds are in tok/s."""
    nearer = low if measured < low else high if measured > high else measured
    change = measured / nearer - 1
    if abs(change) <= _NORMAL:
        return f"{four_digits(measured)} is normal"
    return f"{four_digits(measured)} is {abs(change):.0%} {'faster' if change > 0 else 'slower'}"


def _words(model: str) -> frozenset[str]:
    """Return the words of a model's name in lower case, without the organization, quantization and
    file format."""
    name = model.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    return frozenset(word for word in re.split(r"[-_ ]", name) if word and word not in _SUFFIXES)


def _class(words: frozenset[str]) -> tuple[str, ...]:
    """Return the model sizes and model families among the words of a name, such as ("70b",
    "llama"). Names with the same result count as similar models. If no word is a size, return all
    words."""
    sizes = sorted(word for word in words if _SIZE.fullmatch(word))
    families = sorted({m[0] for word in words if (m := re.match(r"[a-z]{3,}", word))})
    return (*sizes, *families) if sizes else tuple(sorted(words))


def _quantization(text: str) -> str:
    """Return the quantization that `text` names, in a form for comparisons: all 4-bit integer
    methods become "INT4". "BF16" if `text` names no quantization."""
    upper = text.upper()
    named = name_of(text) or next(
        (n for n in (*BITS, "INT4", "EXL", "GGUF", "IQ2") if n in upper), "BF16"
    )
    return "INT4" if named in _FOUR_BITS else named
