"""The earlier result with which a benchmark compares its text: of the same load, and of a server
whose tokenizer is the same as far as that is known. The name of a model says nothing about its
tokenizer, because any server may have any name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from workbench.engines.answer_settings import collect_tokenizer_flag_texts
from workbench.model.answer_verdict import EarlierResult
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSpec, Conditions
    from workbench.server.model_fingerprint import ModelFingerprint
    from workbench.session.bench.benchmark_load import ServerUnderTest

_LOAD_FIELDS = (
    "model",
    "endpoint",
    "ignore_eos",
    "prompts_name",
    "trace_name",
    "command",
    "content",
)
_LENGTH_FIELDS = ("input_tokens", "max_tokens", "temperature")


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """What is known about the tokenizer of a server. `files` is the digest of the model's files,
    and None if they were not read. `address` is the URL of a server that Workbench did not start.
    `engine` is None if it is not known."""

    host: str
    model: str
    engine: str | None = None
    files: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    image: str | None = None
    simulated: bool = False

    def may_be_same_tokenizer(self, other: TokenizerIdentity) -> bool:
        """Return whether two servers may have the same tokenizer: nothing that is known differs. If
        the files of both are known, these decide. Otherwise a path or a name means the same only on
        one host, and a server that others started is known by its address only."""
        engines = {self.engine, other.engine} - {None}
        if len(engines) > 1:
            return False
        if (self.simulated, self.flags) != (other.simulated, other.flags):
            return False
        if self.files and other.files:
            return self.files == other.files
        place, others = ((one.host, one.model, one.address, one.image) for one in (self, other))
        return place == others


def tokenizer_of_server(
    server: ServerUnderTest, spec: BenchSpec, files: ModelFingerprint, *, simulated: bool
) -> TokenizerIdentity:
    """Return what identifies the tokenizer of the server under test."""
    status, plan = server.status, server.plan
    found = TokenizerIdentity(
        host=server.host,
        model=spec.model,
        files=files.digest,
        address=server.address,
        simulated=simulated,
    )
    if status is not None:
        found = replace(found, engine=status.engine, image=status.image)
    if plan is not None:
        flags = collect_tokenizer_flag_texts(plan.flag_values)
        found = replace(found, model=plan.model, flags=flags)
    return found


def tokenizer_of_result(conditions: Conditions) -> TokenizerIdentity:
    """Return what identifies the tokenizer of the server that a stored result measured."""
    return TokenizerIdentity(
        host=conditions.host,
        model=conditions.model,
        engine=conditions.engine,
        files=conditions.model_digest,
        flags=collect_tokenizer_flag_texts(conditions.flags),
        address=conditions.address,
        image=conditions.image,
        simulated=conditions.simulated,
    )


def find_earlier_comparable_result(
    results: Iterable[BenchResult], spec: BenchSpec, tokenizer: TokenizerIdentity
) -> EarlierResult | None:
    """Return the newest valid result of `results` (the newest first) with the same kind of load and
    tokenizer, to compare texts. One whose prompts and answers were as long comes first. None if
    there is none."""
    newest: EarlierResult | None = None
    for result in results:
        text = result.summary.text
        if text is None or result.summary.refused or result.conditions.imported:
            continue
        if not _are_fields_equal(_LOAD_FIELDS, result.spec, spec):
            continue
        if not tokenizer_of_result(result.conditions).may_be_same_tokenizer(tokenizer):
            continue
        if _are_fields_equal(_LENGTH_FIELDS, result.spec, spec):
            return EarlierResult(result.id, text.load, same_lengths=True)
        newest = newest or EarlierResult(result.id, text.load)
    return newest


def _are_fields_equal(names: Sequence[str], a: BenchSpec, b: BenchSpec) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in names)
