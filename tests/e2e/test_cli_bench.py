"""bench, results, compare."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.store import paths

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
SHORT = ("--requests", "4", "--max-tokens", "8", "--input-tokens", "16", "--warmup", "1")
FIGURES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")


@pytest.fixture
def run(cli: Cli) -> Iterator[dict[str, Any]]:
    """A READY server on the simulated card."""
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    assert ran.code == 0, ran
    yield ran.document


def measured_with_busy_streams(cli: Cli, run_id: str) -> Any:
    """Return the first of at most five short benchmarks that is not refused for idle streams. On a
    busy machine, the stream of so short a run may be idle between two requests for too long."""
    for _ in range(5):
        ran = cli(*PRO, "bench", run_id, *SHORT, "--json")
        if not any("streams" in reason for reason in ran.document["refused"]):
            break
    return ran


@pytest.mark.slow
def test_bench_results_compare_export(cli: Cli, run: dict[str, Any]) -> None:
    ran = measured_with_busy_streams(cli, run["run_id"])
    found = ran.document
    assert (ran.code, found["refused"]) == (0, []), ran
    assert (found["requests_ok"], found["requests_failed"], found["errors"]) == (4, 0, {})
    assert (found["output_tokens"], found["warmup_output_tokens"]) == (32, 8) and found[
        "simulated"
    ] is True
    assert found["output_tok_s"] == pytest.approx(32 / found["duration_s"], rel=0.01)
    for name in FIGURES:  # on a busy machine a latency can be withheld
        withheld = "withheld" in found["absent"].get(name, "")
        assert withheld or {"mean", "p50", "p90", "p95"} <= set(found[name])
    # The whole run is shorter than the second over which the driver takes its mean power.
    assert (
        found["power_w"] is None
        and found["tok_per_joule"] is None
        and "too short for power readings" in found["absent"]["power_w"]
    )
    assert (
        found["conditions"]["argv"][0] == "vllm" and found["conditions"]["run_id"] == run["run_id"]
    )
    assert found["spec"]["max_tokens"] == 8

    levels = cli(*PRO, "bench", run["run_id"], *SHORT, "--concurrency", "1,4", "--json")
    assert [r["spec"]["concurrency"] for r in levels.document["results"]] == [1, 4]

    first, second = (r["id"] for r in levels.document["results"])

    listed = [r["id"] for r in cli("results", "list", "--json").document["results"]]
    # on a busy machine the streams of so short a run may be idle, and a sweep measures it again
    assert listed == list(range(len(listed), 0, -1)) and {first, second} <= set(listed)
    assert "SIMULATED" in cli("results", "list").out
    result_id = str(found["id"])
    shown = cli("results", "show", result_id, "--json").document
    assert {k: shown[k] for k in FIGURES} == {k: found[k] for k in FIGURES}
    assert "SIMULATED" in cli("results", "show", result_id).out

    exported = {
        form: cli("results", "export", result_id, "--format", form).out
        for form in ("json", "csv", "md")
    }
    assert json.loads(exported["json"]) and all(
        "simulated" in text.lower() for text in exported.values()
    )
    assert len(list(csv.reader(io.StringIO(exported["csv"])))) >= 2
    as_document = cli("results", "export", result_id, "--format", "md", "--json").document
    assert as_document["format"] == "md" and as_document["text"].strip() == exported["md"].strip()

    compared = cli("compare", str(first), str(second), "--json")
    assert compared.code == 0 and compared.document["simulated"]
    assert (compared.document["a"], compared.document["b"]) == (first, second)
    assert any(d["name"] == "concurrency" for d in compared.document["differences"])
    assert {m["metric"] for m in compared.document["metrics"]} >= {"output_tok_s"}
    heading = f"A #{first}  SIMULATED  vs  B #{second}  SIMULATED"
    assert cli("compare", str(first), str(second)).out.startswith(heading)


@pytest.mark.slow
# seen to fail twice beside other suites: a late client makes the result invalid
@pytest.mark.flaky(reruns=1)
@pytest.mark.long
def test_bench_waits_for_a_server_that_is_starting(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "2")
    run_id = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}").out.strip()
    ran = cli(*PRO, "bench", run_id, *SHORT)
    assert (
        ran.code == 0
        and "waiting for READY" in ran.err
        and "4 ok" in ran.out
        and "SIMULATED" in ran.out
    )


@pytest.mark.slow
def test_a_run_that_has_ended_is_neither_measured_nor_written_as_an_endpoint(
    cli: Cli, run: dict[str, Any], tmp_path: Path
) -> None:
    """`endpoint` wrote the address of a server that had failed, and returned 0."""
    cli(*PRO, "stop", run["run_id"])
    file = tmp_path / "endpoints.py"
    ran = cli(*PRO, "endpoint", run["run_id"], "--file", str(file), "--json")
    assert ran.code == 1 and "is stopped, not READY" in ran.document["error"] and not file.exists()
    ran = cli(*PRO, "bench", run["run_id"], "--json")
    assert ran.code == 1 and "is stopped, not READY" in ran.document["error"]
    assert cli("results", "list", "--json").document["results"] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_simulated_server_benchmarked_by_url_is_marked_as_simulated(
    cli: Cli, run: dict[str, Any]
) -> None:
    """The local host does not know the server; a base URL with and without /v1 is accepted."""
    found = cli("bench", "--url", f"{run['url']}/v1", *SHORT, "--json").document
    assert found["simulated"] is True and found["requests_ok"] == 4
    assert (
        found["conditions"]["model"] == "Qwen/Qwen3-0.6B" and found["conditions"]["host"] == "local"
    )
    missing = cli("bench", "--url", run["url"], "--model", "no/such-model", *SHORT, "--json")
    assert missing.code == 3 and missing.document["errors"] and missing.document["requests_ok"] == 0
    assert missing.document["output_tok_s"] in (None, 0)


def test_a_dead_url(cli: Cli) -> None:
    port = free_port()
    ran = cli("bench", "--url", f"http://127.0.0.1:{port}", "--model", "x", *SHORT, "--json")
    assert ran.code == 1 and f"127.0.0.1:{port} does not answer" in ran.document["error"]
    assert cli("results", "list", "--json").document["results"] == []


@pytest.mark.parametrize(
    "argv", [("results", "list"), ("results", "show", "1"), ("compare", "1", "2")]
)
def test_a_results_database_that_is_not_a_database(cli: Cli, argv: tuple[str, ...]) -> None:
    paths.results_db().parent.mkdir(parents=True)
    paths.results_db().write_bytes(b"this is no database, " * 400)
    ran = cli(*argv, "--json")
    assert ran.code == 1 and str(paths.results_db()) in ran.document["error"] + str(
        ran.document["next_step"]
    )
    doctor = cli("doctor", "--json")
    assert doctor.code == 0 and "results" in [f["code"] for f in doctor.document["findings"]]


def test_a_results_database_of_a_later_version(cli: Cli) -> None:
    paths.results_db().parent.mkdir(parents=True)
    with sqlite3.connect(paths.results_db()) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    ran = cli("results", "list", "--json")
    assert ran.code == 1 and ran.document["kind"] == "StoreError"


def test_a_data_directory_that_cannot_be_created(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    ran = cli("results", "list", "--json")
    assert ran.code == 1 and ran.document["kind"] == "StoreError"


@pytest.mark.slow
def test_an_slo_is_judged_shown_stored_and_repeated(cli: Cli, run: dict[str, Any]) -> None:
    slo = ("--slo", "e2e<=60s@p95, e2e<=1@p50")
    # long enough answers that a busy machine keeps the one stream in flight
    ran = cli(*PRO, "bench", run["run_id"], *SHORT[:2], *SHORT[4:], "--max-tokens", "64", *slo)
    assert ran.code == 0, ran
    assert "e2e<=60000@p95  held: 100.0 % of the requests kept it" in ran.out
    binds = r"e2e<=1@p50 +NOT HELD: 0\.0 % of the requests kept it, the limit that binds"
    assert re.search(binds, ran.out)
    assert re.search(r"requests that kept the SLO +0 %", ran.out)
    found = cli("results", "show", "1", "--json").document
    assert found["slo_pct"] == 0 and found["goodput_request_s"] == 0
    assert [each["kept_pct"] for each in found["slo"]] == [100.0, 0.0]
    shown = cli("results", "show", "1")
    assert "requests that kept the SLO" in shown.out
    assert "--slo 'e2e<=60000@p95, e2e<=1@p50'" in shown.out
    for written in ("md", "html", "csv"):
        exported = cli("results", "export", "1", "--format", written).out
        assert "goodput" in exported.lower() and "60000@p95" in exported, written
    refused = cli(*PRO, "bench", run["run_id"], *SHORT, "--slo", "ttft<=5")
    assert refused.code == 2 and "for how many requests" in refused.err
