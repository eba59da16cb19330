"""Tests of reports: they are complete, a stranger's text never becomes markup, and plots can be
drawn."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import made_results as made

from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.model.experiment import Arm
from workbench.report import svg
from workbench.report.content import Layout, Report
from workbench.report.format_values import change_text, number_text
from workbench.report.formats import markdown
from workbench.report.imports import read_results
from workbench.report.registry import OUTPUT_FORMATS, find_output_format, format_from_suffix
from workbench.report.result_blocks import workload_facts

ONE = Report((made.result(),), {7: made.samples()})
TWO = Report((made.result(), made.result(8)), {7: made.samples()}, comparison=made.comparison())
TRIAL = Report((made.result(),), {7: made.samples()}, experiment=made.experiment())
SWEEP = Report((made.result(),), {7: made.samples()}, sweep=made.sweep())
ALL = {"one": ONE, "two": TWO, "experiment": TRIAL, "sweep": SWEEP}


class Page(HTMLParser):
    """An HTML parser that checks that tags are closed in order, and collects them with their
    attributes."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.text += data + " "


def report(what: Report, form: str) -> str:
    return find_output_format(form).render(what)


def plots_of(what: Report) -> list[str]:
    return re.findall(r"<svg.*?</svg>", report(what, "html"), re.DOTALL)


@pytest.mark.parametrize("name", ALL)
def test_html_loads_nothing_and_runs_nothing(name: str) -> None:
    text = report(ALL[name], "html")
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint(
        {"script", "link", "img", "iframe", "object", "base", "form"}
    )
    for _, attributes in page.tags:
        assert (
            not {"src", "href", "srcset", "action", "style", "onload", "onclick"}
            & attributes.keys()
        )
    assert not re.search(r"url\(|@import|javascript:", text)
    assert (
        "prefers-color-scheme: dark" in text
        and "@media print" in text
        and ("default-src &#x27;none&#x27;") in text
    )


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
@pytest.mark.parametrize("name", ALL)
def test_no_secret_is_reported(name: str, form: str) -> None:
    assert "sesame" not in report(ALL[name], form)


@pytest.mark.parametrize("name", ALL)
def test_simulated_is_shown_once_at_the_top(name: str) -> None:
    what = ALL[name]
    shown = replace(
        what,
        results=tuple(made.simulated(r.id) for r in what.results),
        experiment=what.experiment and replace(what.experiment, simulated=True),
        sweep=what.sweep and replace(what.sweep, simulated=True),
    )
    text = report(shown, "html")
    assert text.count('class="alert simulated"') == 1 and "<title>SIMULATED: " in text
    assert text.index('class="alert simulated"') < text.index("<h2>")
    assert (
        "alert simulated" not in report(what, "html")
        and "SIMULATED" not in Page(report(what, "html")).text
    )
    assert (
        report(shown, "md").count("**SIMULATED**") == 1
        and json.loads(report(shown, "json"))["simulated"] is True
        and "SIMULATED" in report(shown, "json")
    )
    assert "SIMULATED" in report(shown, "csv") and "SIMULATED" not in report(what, "csv")


def test_a_strangers_text_never_becomes_markup() -> None:
    """Names from presets, files and servers, in every place that shows them."""
    evil = made.EVIL
    one = made.result(
        model=evil,
        host=evil,
        flags={evil: evil},
        env={"A": evil},
        argv=(evil,),
        gpus=({"name": evil},),
        preset_id=evil,
        gpu_settings={evil: evil},
        imported=evil,
    )
    summary = replace(
        one.summary,
        notes=(evil,),
        errors={evil: 1},
        requests_failed=1,
        refused=(evil,),
        ttft_ms=None,
        absent={"ttft_ms": evil},
    )
    one = replace(one, summary=summary, note=evil, tags=(evil,))
    arm = Arm(sets=(evil,))
    trial = made.experiment(verdict=evil, note=evil, error=evil)
    trial = replace(
        trial, spec=replace(trial.spec, a=arm), runs=(replace(trial.runs[0], error=evil),)
    )
    swept = made.sweep(
        {evil: None, f"{evil}2": None, "c": None}, name=evil, knee_text=evil, notes=(evil,)
    )
    alone = Report((one,), {7: made.samples()})
    for what in (alone, replace(alone, experiment=trial), replace(alone, sweep=swept)):
        page = Page(report(what, "html"))
        assert "script" not in {tag for tag, _ in page.tags} and evil in page.text
        prose = re.sub(r"^```sh\n.*?^```$", "", report(what, "md"), flags=re.DOTALL | re.MULTILINE)
        assert "<script" not in prose and "&lt;script&gt;" in prose


def test_a_command_cannot_leave_its_code_block() -> None:
    text = report(Report((made.result(argv=("vllm", "\n```\n# no heading\n````\n")),)), "md")
    fence = re.search(r"^(`{5,})sh$.*?^\1$", text, re.DOTALL | re.MULTILINE)
    assert fence is not None and "# no heading" in fence.group()
    assert "# no heading" not in text.replace(fence.group(), "")


@given(text=st.text(max_size=60))
def test_markdown_of_any_text_is_one_harmless_line(text: str) -> None:
    line = markdown.escape_markdown(text)
    assert "\n" not in line and "<" not in line and not line.startswith(("# ", "- ", "+ "))
    assert not re.search(r"(?<!\\)(\\\\)*[|`*\[]", line)


@pytest.mark.parametrize("name", ALL)
def test_plots_can_be_drawn(name: str) -> None:
    """Each plot has visible shapes, and its coordinates are numbers inside the picture."""
    import resvg_py

    plots = plots_of(ALL[name])
    assert len(plots) >= {"one": 3, "two": 4, "experiment": 5, "sweep": 6}[name]
    for plot in plots:
        assert "nan" not in plot and "inf" not in plot
        shapes = ElementTree.fromstring(plot)
        assert shapes.get("aria-label") and shapes[0].tag.endswith("title")
        width, height = map(float, str(shapes.get("viewBox")).split()[2:])
        for shape in shapes.iter():
            for key in ("x", "x1", "x2", "cx"):
                assert -1 <= float(shape.get(key, 0)) <= width + 1, ElementTree.tostring(shape)
            for key in ("y", "y1", "y2", "cy"):
                assert -1 <= float(shape.get(key, 0)) <= height + 1, ElementTree.tostring(shape)
        png = bytes(
            resvg_py.svg_to_bytes(
                svg_string=plot.replace("<svg ", '<svg color="#123" ', 1), background="#fff"
            )
        )
        assert png.startswith(b"\x89PNG") and len(png) > 1000


def test_throughput_over_time_contains_all_tokens() -> None:
    """The area under the steps is the number of tokens, except for the last bin, which the end of
    the run cuts off."""
    from workbench.report import plots

    seen: list[svg.Series] = []
    chart = svg.curves_svg

    def spy(*args: object, **rest: object) -> str:
        seen.extend(args[3])  # type: ignore[arg-type]
        return chart(*args, **rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "curves_svg", spy)
        assert plots.throughput_plot(made.samples(), made.result().summary) is not None
    (steps,) = seen
    area = sum(
        y * (after - x) for (x, y), (after, _) in zip(steps.points, steps.points[1:], strict=False)
    )
    assert 0.97 * 1280 < area <= 1280


FAILED = tuple({**s, "error": "reset"} for s in made.samples())


@pytest.mark.parametrize("samples", [(), ({"index": 0},), made.samples(3), FAILED])
def test_too_few_requests_give_a_report_without_plots(
    samples: tuple[dict[str, object], ...],
) -> None:
    assert Page(report(Report((made.result(),), {7: samples}), "html")).text


@given(
    low=st.floats(-1e9, 1e9, allow_subnormal=False),
    span=st.floats(1e-9, 1e12, allow_subnormal=False),
)
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    axis = svg.SvgAxis("", low, low + span)
    ticks = axis.ticks()
    assert len(ticks) <= 12 and all(
        low - span * 0.01 - 1e-6 <= t <= low + span * 1.01 + 1e-6 for t in ticks
    )


def test_an_experiment_has_design_intervals_and_raw_pairs() -> None:
    text = report(TRIAL, "md")
    for said in (
        "**B is faster by 3.2 % ± 0.9**",
        "| B | max-num-seqs=512 |",
        "or until the interval is ± 1 % or narrower",
        "| output | tok/s | 340 | 351 | +3.2 % ± 0.9 | better |",
        "| output, tok/s | 1 | 340 | 351 | +3.2 % |",
        "| smallest difference that could be shown | 1.40 % |",
        "> - the runs are not alike",
        "| queue",
    ):
        assert said in text or said == "| queue", said
    assert "| wait for a stream mean | ms | n/a | n/a | n/a | not measured |" in text
    stopped = report(
        replace(
            TRIAL,
            experiment=made.experiment(error="link lost")
            and replace(
                made.experiment(), state="stopped", error="link lost", comparison=None, verdict=""
            ),
        ),
        "md",
    )
    assert (
        "The experiment is stopped" in stopped and "link lost" in stopped and "0.9" not in stopped
    )


def test_a_sweep_names_its_knee_and_claims_nothing_for_flags() -> None:
    text = report(SWEEP, "md")
    assert "**Knee at c=8: little is gained beyond**" in text and "| c=8 (knee) |" in text
    assert len(plots_of(SWEEP)) >= 4 and ">knee</text>" in plots_of(SWEEP)[0]
    words = made.sweep(
        {"fp8": None, "auto": None}, kind="flag", name="kv-cache-dtype", knee=None, knee_text=""
    )
    text = report(Report(sweep=words), "md")
    assert "not confirmed" in text and "kv-cache-dtype" in text and "Knee" not in text
    assert ">fp8</text>" in plots_of(Report(sweep=words))[0]


def test_a_report_says_whether_pairs_confirmed_the_best_value() -> None:
    for confirmed, text in (
        (True, "was confirmed by experiment 1"),
        (False, "was not confirmed by experiment 1"),
    ):
        swept = made.sweep(kind="flag", experiment_id=1, confirmed=confirmed)
        assert f"The best value {text}." in report(Report(sweep=swept), "md")
    older = report(Report(sweep=made.sweep(kind="flag", experiment_id=1)), "md")
    assert "was compared with the baseline by experiment 1" in older and "confirmed" not in older
    alone = report(Report(sweep=made.sweep(kind="power_limit_w", confirmed=False)), "md")
    assert "was not confirmed by pairs against the baseline" in alone


def test_json_has_everything_and_can_be_imported(tmp_path: Path) -> None:
    data = json.loads(report(TWO, "json"))
    assert [len(r.get("samples", ())) for r in data["results"]] == [40, 0]
    assert data["comparison"]["metrics"][0]["pairs"][0] == [340.1, 351.0]
    file = tmp_path / "report.json"
    file.write_text(report(TWO, "json"))
    first, second = read_results(file)
    assert (
        first.summary == made.result().summary and len(first.samples) == 40 and not second.samples
    )
    assert first.conditions.imported == "Workbench"


def test_csv_has_a_row_for_each_result_or_each_request() -> None:
    rows = list(csv.DictReader(io.StringIO(report(TWO, "csv"))))
    assert [r["id"] for r in rows] == ["7", "8"] and rows[0]["summary.output_tok_s"] == "346.2"
    requests = list(
        csv.DictReader(io.StringIO(report(replace(TWO, layout=Layout.REQUESTS), "csv")))
    )
    assert (
        len(requests) == 40
        and len(requests[3]["gaps_us"].split()) == 31
        and requests[3]["ttft_us"] == "101000"
    )


def test_text_for_a_terminal_has_no_escape_sequences() -> None:
    one = replace(made.result(model="evil\x1b[2Jname"), note="a\x07b")
    text = report(Report.from_result(one), "txt")
    assert "\x1b" not in text and "\x07" not in text and "evilname on box" in text
    assert (
        "in force: yes" in text
        and ("3f1c99d0a1b2c3d4 (4 files, 1.2 GB)") in text
        and "running, mean" in text
    )


def test_an_unknown_format() -> None:
    with pytest.raises(InputError, match="unknown format 'pdf'"):
        report(ONE, "pdf")
    with pytest.raises(InputError, match="no report format has the suffix"):
        format_from_suffix(Path("report.pdf"))
    assert format_from_suffix(Path("Report.HTM").expanduser()).name == "html"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0"),
        (5290.7, "5,291"),
        (46.31, "46.3"),
        (0.0412, "0.0412"),
        (-3.25, "−3.25"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("percent", "half", "text"),
    [(3.12, 0.9, "+3.1 % ± 0.9"), (-0.04, 0.03, "−0.04 % ± 0.03"), (0.0, None, "+0.0 %")],
)
def test_changes_show_their_interval(percent: float, half: float | None, text: str) -> None:
    assert change_text(percent, half) == text


def test_labels_at_line_ends_are_in_the_order_of_the_lines() -> None:
    """TTFT p50 and p99 end close together, and the lower line is listed first."""
    low, high = ([(0.0, 1.0), (1.0, end)] for end in (50.0, 50.5))
    drawn = svg.curves_svg(
        "t",
        svg.SvgAxis("x", 0.0, 1.0),
        svg.SvgAxis("ms", 0.0, 100.0),
        [svg.Series(low, label="p50"), svg.Series(high, label="p99")],
    )
    places = {
        name: float(re.search(rf'y="([0-9.]+)"[^>]*>{name}<', drawn)[1]) for name in ("p50", "p99")
    }  # type: ignore[index]
    assert places["p99"] < places["p50"]  # from the top


def test_labels_of_close_marks_are_below_one_another() -> None:
    marks = [(10.0, "p50"), (12.2, "p90"), (90.0, "p99")]
    line = [svg.Series([(0.0, 1.0), (100.0, 2.0)])]
    drawn = svg.curves_svg(
        "t", svg.SvgAxis("ms", 0.0, 100.0), svg.SvgAxis("%", 0.0, 100.0), line, marks=marks
    )
    heights = [float(re.search(rf'y="([0-9.]+)"[^>]*>{name}<', drawn)[1]) for _, name in marks]  # type: ignore[index]
    assert (
        heights[0] < heights[1]
        and heights[2] == heights[0]
        and drawn.count('stroke-dasharray="4 3"') == 3
    )


def test_the_knees_label_is_not_repeated() -> None:
    text = report(
        replace(SWEEP, sweep=replace(SWEEP.sweep, knee_text="c=8: the lowest latency")), "md"
    )
    assert "**Knee at c=8: the lowest latency**" in text


def test_the_marks_of_a_result_are_shown() -> None:
    marked = made.result()
    marked = replace(
        marked, summary=replace(marked.summary, marked=("a short measurement: one request",))
    )
    for form in ("md", "html"):
        assert "a short measurement: one request" in report(Report((marked,), {}), form)


def test_a_kept_request_stands_for_those_that_are_not() -> None:
    from workbench.report import plots

    samples = made.samples()
    tokens = sum(tokens for one in samples for _, tokens in plots._arrival_s_and_token_count(one))
    kept = [{**one, "kept_one_of": 3} for one in samples]
    assert (
        sum(tokens for one in kept for _, tokens in plots._arrival_s_and_token_count(one))
        == 3 * tokens
    )
    said = [plot.caption for plot in plots.latency_plots(kept)]
    assert said and all("(one of 3 requests is kept)" in text for text in said)


def repeated(result: BenchResult) -> list[str]:
    """Return the words of the command that the report of a result gives to repeat it."""
    return shlex.split(dict(workload_facts(result))["repeat with"])


def test_a_result_is_repeated_on_the_same_server_with_the_same_model() -> None:
    run = made.result(flags={"served-model-name": ["tiny", "also"]})
    on_box = ["workbench", "--host", "box", "bench"]
    assert repeated(run)[:5] == [*on_box, run.conditions.run_id]
    assert "--model" not in repeated(run)
    other = replace(run, spec=replace(run.spec, model="my-lora"))
    assert repeated(other)[5:7] == ["--model", "my-lora"]
    named = replace(run, spec=replace(run.spec, model="also"))
    assert "--model" not in repeated(named)
    # reached through a tunnel, whose port is another one each time
    through = made.result(run_id=None, address="http://127.0.0.1:8000", client="tunnel")
    through = replace(through, spec=replace(through.spec, url="http://127.0.0.1:40123"))
    assert repeated(through)[:6] == [*on_box, "--url", "http://127.0.0.1:8000"]
    away = made.result(run_id=None, address="https://far:8000", host="far")
    assert repeated(away)[:4] == ["workbench", "bench", "--url", "https://far:8000"]
    damaged = made.result(run_id=None, address="http://[::1")
    assert repeated(damaged)[:4] == ["workbench", "bench", "--url", "http://[::1"]


def test_a_command_of_ones_own_is_repeated_with_its_limits() -> None:
    run = made.result(preset_id="a-preset")
    spec = replace(run.spec, command=("vf-eval", "-n", "3"), deadline_s=60.0, slo="")
    words = repeated(replace(run, spec=spec))
    assert words[5:] == ["--deadline", "60", "--", "vf-eval", "-n", "3"]
