"""Reports to hand on: Markdown for a pull request, one self-contained HTML file, JSON and CSV with everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench import __version__
from workbench.model.bench import BenchResult, Comparison
from workbench.model.bench_json import result_from_json, to_json
from workbench.model.errors import InputError
from workbench.model.experiment import Experiment
from workbench.model.secrets import mask_data
from workbench.model.sweep import Sweep
from workbench.report import html, json_and_csv, markdown
from workbench.report.blocks import Block, Document, Fold, Heading
from workbench.report.experiment_blocks import comparison_blocks, experiment_blocks, sweep_blocks
from workbench.report.format_values import when
from workbench.report.result_blocks import SIMULATED, blocks_of, overview, subtitle_of, title_of

FORMATS = ("md", "html", "json", "csv")


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report is about: some results, or an experiment or a sweep with its results. `samples`: raw requests by
    result id. `comparison`: of two results or groups, where they are to be compared."""

    results: tuple[BenchResult, ...] = ()
    samples: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    comparison: Comparison | None = None
    experiment: Experiment | None = None
    sweep: Sweep | None = None

    @property
    def simulated(self) -> bool:
        whole = (self.experiment, self.sweep)
        return any(r.conditions.simulated for r in self.results) or any(w is not None and w.simulated for w in whole)


def report(what: Reported, form: str, *, requests: bool = False) -> str:
    """The text of a report in one of FORMATS. `requests`: CSV with a line per request instead of per result.
    Raises InputError."""
    makers: dict[str, Callable[[], str]] = {
        "md": lambda: markdown.render(document_of(what)),
        "html": lambda: html.render(document_of(what), f"Made by Workbench {__version__}"),
        "json": lambda: json_and_csv.as_json(what.results, what.samples, what.comparison, what.experiment, what.sweep),
        "csv": lambda: (
            json_and_csv.samples_csv(what.results, what.samples) if requests else json_and_csv.results_csv(what.results)
        ),
    }
    if form not in makers:
        raise InputError(f"unknown report format {form!r}", next_step=f"use one of {', '.join(FORMATS)}")
    return makers[form]()


def document_of(what: Reported) -> Document:
    results = tuple(_masked(r) for r in what.results)
    if what.experiment is not None:
        e = what.experiment
        subtitle = f"Experiment {e.id} · {e.host} · {when(e.unix_s)}"
        blocks = [*experiment_blocks(e, results), *_each(results, what)]
        return Document(_experiment_title(e, results), subtitle, tuple(blocks), what.simulated)
    if what.sweep is not None:
        s = what.sweep
        model = f" · {results[0].conditions.model}" if results else ""
        subtitle = f"Sweep {s.id} · {s.host}{model} · {when(s.unix_s)}"
        blocks = [*sweep_blocks(s, results), *_each(results, what)]
        return Document(f"Sweep of {s.name}", subtitle, tuple(blocks), what.simulated)
    if len(results) == 1:
        one = results[0]
        blocks = blocks_of(one, what.samples.get(one.id, ()))
        return Document(title_of(one), subtitle_of(one), tuple(blocks), what.simulated)
    several: list[Block] = [SIMULATED] if what.simulated else []
    several += [overview(results)]
    if what.comparison is not None:
        several += comparison_blocks(what.comparison)
    several += [
        block
        for one in results
        for block in (
            Heading(f"#{one.id}: {title_of(one)}"),
            *_lower(blocks_of(one, what.samples.get(one.id, ()))),
        )
    ]
    numbers = ", ".join(f"#{r.id}" for r in results)
    subtitle = f"{numbers} · {when(max((r.unix_s for r in results), default=0.0))}"
    return Document(_title_of_several(what.comparison, results), subtitle, tuple(several), what.simulated)


def _title_of_several(compared: Comparison | None, results: Sequence[BenchResult]) -> str:
    if compared is not None and len(results) > 2:
        return f"B ({compared.runs_b} runs) against A ({compared.runs_a} runs)"
    if compared is not None:
        return f"B #{compared.b} against A #{compared.a}"
    return f"{len(results)} benchmarks"


def _experiment_title(experiment: Experiment, results: Sequence[BenchResult]) -> str:
    model = results[0].conditions.model if results else str(experiment.spec.plan.get("model", ""))
    return f"A/B experiment: {model}".rstrip(": ")


def _masked(result: BenchResult) -> BenchResult:
    return result_from_json(mask_data(to_json(result)))


def _each(results: Sequence[BenchResult], what: Reported) -> list[Block]:
    """Each run folded away: whoever doubts a figure finds where it comes from."""
    return [Fold(f"Result #{r.id}", tuple(_lower(blocks_of(r, what.samples.get(r.id, ()))))) for r in results]


def _lower(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of one result within a larger report: one level down, SIMULATED said once at the top."""
    return [Heading(b.text, b.level + 1) if isinstance(b, Heading) else b for b in blocks if b is not SIMULATED]
