"""What is measured of the answers of A and B, one server at a time, whoever starts the servers: the
comparison of answers itself, or an experiment whose servers run anyway.

The steps: A twice, which is the floor of one session; B; A again on a server that was started anew;
and how probable A finds the answers of both, once B has written its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import NOT_MEASURED, GreedyAnswer, QualityParts, ScoredText
from workbench.quality.instrument import (
    ANSWER_TOKENS,
    Instrument,
    count_answer_requests,
    count_scored_positions,
    count_scoring_requests,
)
from workbench.quality.verdict import Margins, ScoredAnswers, compute_quality_result

if TYPE_CHECKING:
    from workbench.model.quality import QualityResult, Token
    from workbench.quality.texts import TextSet
    from workbench.quality.token_texts import TokenTexts
    from workbench.session.quality.own_scores import OwnMeasureCommand
    from workbench.session.quality.scored_server import ScoredServer

ANSWERS_WRITTEN_TOGETHER = 8  # answers that are written together
FIRST_STEP, AGAIN_STEP, CHANGED_STEP, JUDGED_STEP = (
    "A",
    "A, started again",
    "B",
    "A, answers",
)  # the steps

_JUDGED_ANSWERS_PER_TEXT = 3  # to each text: two of A, one of B

ReportLine = Callable[[str], None]
ReportStep = Callable[[str, int, int], None]  # what is being done, and how many of how many


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """How two servers are compared. `concurrency` is the number of answers that are written
    together, `restart` says whether A is measured again after a restart, and `anyway` whether a
    server that serves others is measured. `judged` says whether A scores the answers of B if it
    costs no start. `own` is the command of the user's own measure."""

    texts: TextSet
    concurrency: int = ANSWERS_WRITTEN_TOGETHER
    restart: bool = True
    anyway: bool = False
    judged: bool = True
    margins: Margins = field(default_factory=Margins)
    own: OwnMeasureCommand | None = None


class Measuring:
    """Measures the steps of a comparison of answers. `parts` has what was measured so far. With
    `each_text`, `report_line` is called for each text, else only for the last one. `on_step` is
    called for each text in any case."""

    def __init__(
        self,
        options: QualityOptions,
        report_line: ReportLine,
        parts: QualityParts | None = None,
        *,
        each_text: bool = False,
        on_step: ReportStep = lambda step, done, total: None,
    ) -> None:
        self._on_step = on_step
        self.options, self._report_line, self._each_text = options, report_line, each_text
        self.parts = parts or QualityParts()
        self.parts.text_version = options.texts.version

    def end_measuring_early(self, problem: str) -> None:
        """End the measurement early. `problem` is a sentence without a full stop."""
        self.parts.problems += (problem,)

    async def check_no_other_clients(self, server: ScoredServer, *, anyway: bool) -> None:
        """Raise InputError if a server serves others. With `anyway`, add a note to the result
        instead."""
        if not anyway:
            await server.check_no_other_clients()
            return
        serving = await server.describe_other_clients_now()
        if serving and serving not in self.parts.notes:
            self._report_line(serving)
            self.parts.notes += (serving,)

    async def measure_step(self, step: str, server: ScoredServer, *, may_be_shared: bool) -> None:
        """Measure one step on its server. If `may_be_shared`, count the requests of other clients
        meanwhile, and add a note about them to the result. Those of a server that Workbench has
        started for this are not counted, because Workbench itself asks it whether it is well."""
        began = time.monotonic()
        side = CHANGED_STEP if step == CHANGED_STEP else FIRST_STEP
        await server.start_counting_requests()
        parts = self.parts
        parts.simulated |= server.simulated
        parts.conditions.setdefault(side, server.conditions)
        instrument = self._make_instrument(server, step)
        if step == FIRST_STEP:
            await self._measure_a_twice(instrument)
        elif step == AGAIN_STEP:
            await self._score_restarted_a(instrument)
        elif step == JUDGED_STEP:
            await self._score_both_answers(instrument)
        else:
            await self._measure_b(instrument)
        texts = {
            token: text for token, text in instrument.token_texts.items() if isinstance(token, int)
        }
        parts.pieces[side] = {**parts.pieces.get(side, {}), **texts}
        if not parts.problems:
            others = await server.describe_other_clients_requests() if may_be_shared else ""
            if others and others not in parts.notes:  # A is asked once more after B
                parts.notes += (others,)
            parts.runs[step] = server.title
        parts.took_s += time.monotonic() - began

    # ---- the steps

    async def _measure_a_twice(self, instrument: Instrument) -> None:
        proven = await self._prove_instrument(instrument, FIRST_STEP)
        if proven:
            began = time.monotonic()
            self.parts.a = await self._score_texts(instrument, "A")
            took_s = time.monotonic() - began
            if not self.parts.problems:
                self._report_line(f"A: one scoring took {took_s:.0f} s")
            self.parts.floors += (await self._score_texts(instrument, "A, again"),)
        self.parts.answers_a = await self._write_answers(instrument, "A")
        self.parts.answers_again = await self._write_answers(instrument, "A, again")

    async def _score_restarted_a(self, instrument: Instrument) -> None:
        if all(proof.usable for proof in self.parts.proofs):
            self.parts.floors += (await self._score_texts(instrument, AGAIN_STEP),)

    async def _measure_b(self, instrument: Instrument) -> None:
        proven = await self._prove_instrument(instrument, CHANGED_STEP)
        unusable = FIRST_STEP in self.parts.runs and not self.parts.a
        if proven and not unusable:
            self.parts.b = await self._score_texts(instrument, "B")
        self.parts.answers_b = await self._write_answers(instrument, "B")

    def can_score_answers_of_b(self) -> bool:
        """Return whether A can still score the answers of B: its instrument is proven, both wrote
        after the same tokens, and it was not tried yet."""
        parts = self.parts
        proven = any(proof.side == FIRST_STEP and proof.usable for proof in parts.proofs)
        of_a, of_b = (
            {(one.name, one.prompt) for one in answers}
            for answers in (parts.answers_a, parts.answers_b)
        )
        return (
            self.options.judged and proven and bool(of_a & of_b) and JUDGED_STEP not in parts.runs
        )

    async def _score_both_answers(self, instrument: Instrument) -> None:
        """Let A score the answers of A and of B. If it cannot, a note says why, and the comparison
        has no such scores."""
        parts = self.parts
        every = (parts.answers_a, parts.answers_again, parts.answers_b)
        scored = await instrument.score_answers(
            self.options.texts.texts, [one for answers in every for one in answers]
        )
        if scored.problem:
            self._report_line(f"{JUDGED_STEP}: {scored.problem}")
            self.record_unscored_answers(scored.problem)
            return
        left = iter(scored.scores)
        parts.scores_a, parts.scores_again, parts.scores_b = (
            tuple(islice(left, len(answers))) for answers in every
        )

    def record_unscored_answers(self, reason: str) -> None:
        """Add a note on why A has not scored the answers of B, and prevent another try."""
        self.parts.notes += (f"A did not score the answers of B: {reason}",)
        self.parts.runs.setdefault(JUDGED_STEP, "")

    def _make_instrument(self, server: ScoredServer, title: str) -> Instrument:
        def show_progress(what: str, done: int, total: int) -> None:
            self._on_step(f"{title}: {what}", done, total)
            if done == total:
                self._report_line(f"{title}: {total} {what}")
            elif self._each_text:
                self._report_line(f"{title}: {done} of {total} {what}")

        return server.make_instrument(show_progress)

    async def _prove_instrument(self, instrument: Instrument, side: str) -> bool:
        proof = await instrument.check_scores_agree(self.options.texts.texts, side)
        self.parts.proofs += (proof,)
        if proof.usable:
            self._report_line(
                f"{side}: the instrument is proven, {proof.positions} positions scored in two ways "
                f"differ by at most {proof.largest:.2g}"
            )
        else:
            self._report_line(f"{side}: instrument not usable: {proof.reason}")
        return proof.usable

    async def _score_texts(self, instrument: Instrument, title: str) -> tuple[ScoredText, ...]:
        if self.parts.problems:
            return ()
        scores = await instrument.score_texts(self.options.texts.texts)
        if scores.problem:
            self.end_measuring_early(f"{title}: {scores.problem}")
        return scores.texts

    async def _write_answers(self, instrument: Instrument, title: str) -> tuple[GreedyAnswer, ...]:
        if self.parts.problems:
            return ()
        written = await instrument.write_answers(
            self.options.texts.texts, concurrency=self.options.concurrency
        )
        if written.problem:
            self.end_measuring_early(f"{title}: {written.problem}")
        return written.answers

    # ---- the verdict

    def quality_result(self, names: tuple[str, str]) -> QualityResult:
        """Return the result of the comparison so far, which is not stored yet. `names` are the
        names of A and of B in it."""
        parts, options = self.parts, self.options
        if self.can_score_answers_of_b():
            self.record_unscored_answers("no server of A ran any more after B had written them")
        result = compute_quality_result(
            parts.a,
            parts.b,
            floors=parts.floors,
            greedy_a=parts.answers_a,
            greedy_b=parts.answers_b,
            greedy_floor=parts.answers_again,
            scored_answers=ScoredAnswers(
                a=parts.scores_a,
                again=parts.scores_again,
                b=parts.scores_b,
                concurrency=options.concurrency,
            ),
            proofs=parts.proofs,
            names=names,
            text_set=(options.texts.name, options.texts.version),
            margins=options.margins,
            simulated=parts.simulated,
            pieces=(
                _token_texts_of_side(parts, FIRST_STEP),
                _token_texts_of_side(parts, CHANGED_STEP),
            ),
        )
        if parts.problems and result.verdict == NOT_MEASURED:
            result = replace(result, summary=f"{NOT_MEASURED}: {parts.problems[0]}")
        return replace(
            result,
            notes=(*parts.problems, *parts.notes, *result.notes),
            conditions_a=parts.conditions.get(FIRST_STEP, {}),
            conditions_b=parts.conditions.get(CHANGED_STEP, {}),
        )


def _token_texts_of_side(parts: QualityParts, side: str) -> TokenTexts:
    found: dict[Token, str] = {}
    for token, text in parts.pieces.get(side, {}).items():
        found[token] = text
    return found


def comparison_cost_lines(
    prefill: bool | None, options: QualityOptions, *, restarted: bool, judged: bool
) -> Sequence[str]:
    """Return lines on what a comparison of answers will measure, and in how many requests.
    `prefill` says whether the engine of A scores a whole prompt in one request; None if the engine
    is not known yet. `restarted` says whether A is measured again after a restart, and `judged`
    whether A scores the answers of B."""
    texts = options.texts.texts
    short = sum(not text.is_long for text in texts)
    times = 3 if restarted else 2

    def request_count_text(count: Callable[..., int], factor: int = 1) -> str:
        if prefill is not None:
            return count_of(factor * count(texts, prefill=prefill), "request")
        few, many = (factor * count(texts, prefill=way) for way in (True, False))
        return f"{few} to {many} requests"

    lines = [
        f"{count_of(len(texts), 'text')} of the set {options.texts.name}, version "
        f"{options.texts.version}: {request_count_text(count_scoring_requests)} each time, one at a time",
        f"{count_of(short, 'answer')} of at most {ANSWER_TOKENS} tokens each time, "
        f"{options.concurrency} together",
        f"A is measured {times} times, B once",
    ]
    if judged:
        where = ", on the server that is started again" if restarted else ""
        lines.append(
            f"then A scores the answers of both{where}: at most "
            f"{request_count_text(count_answer_requests, _JUDGED_ANSWERS_PER_TEXT)}, one at a time"
        )
    return lines


def comparison_cost_text(
    prefill: bool,
    options: QualityOptions,
    changed_settings: Sequence[str],
    last_took_s: float | None = None,
) -> str:
    """Return in a sentence how many requests comparing the answers adds to the runs of an
    experiment, and about how much time. `prefill` says whether the engines score a whole prompt in
    one request, `changed_settings` names the settings in which A and B differ, and
    `options.restart` says whether A is measured on a second server. `last_took_s` is how long the
    last comparison like it took, None if not known."""
    texts = options.texts.texts
    requests, positions = (
        count(texts, prefill=prefill) for count in (count_scoring_requests, count_scored_positions)
    )
    long = "usually takes seconds, and minutes on a slow server" if prefill else "takes minutes"
    times = "three times" if options.restart else "twice"
    more = _JUDGED_ANSWERS_PER_TEXT * count_answer_requests(texts, prefill=prefill)
    judged = ""
    if options.judged:
        judged = f", and a run of A after B scores the answers in at most {more:,} requests"
    return (
        f"A and B differ in {', '.join(changed_settings)}, so their answers are compared too: "
        f"{positions:,} positions in {requests:,} requests, A {times} and B once, beside the "
        f"runs{judged}; {f'this {long}' if last_took_s is None else _last_duration_text(last_took_s)}"
    )


def _last_duration_text(took_s: float) -> str:
    took = f"{took_s:.0f} s" if took_s < 90 else f"{took_s / 60:.0f} min"
    return f"the last one of this model here took {took}"
