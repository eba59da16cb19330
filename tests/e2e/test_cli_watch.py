"""watch add, list, remove, run, show and install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.serving import free_port

from workbench.bench import watch_rule
from workbench.cli import watch as cli_watch
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec, RunState
from workbench.model.plan import LaunchPlan
from workbench.model.watch import (
    ALARM,
    FAILED,
    MEMORY,
    QUIET,
    SPEED,
    START,
    Loss,
    NightEntry,
    Watch,
)
from workbench.report.watch_night import format_loss, night_junit_xml
from workbench.session.series.night_watch import (
    candidate_plan,
    changed_setting_names_and_values,
    compute_log_losses_by_measure,
    validated_candidate,
)
from workbench.sim import engine_server
from workbench.store import paths
from workbench.store.watches import WatchStore

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
EVIL = '<script>"&\x1b[31m'
WATCH = Watch("vllm-any", "venv:/opt/new", "03:00", simulate="rtx-pro-6000")


@pytest.fixture
def store(clean_environment: None) -> WatchStore:
    return WatchStore(paths.watches_dir())


def stored_night(
    store: WatchStore, state: str = QUIET, version: str = "0.34.0", **changes: Any
) -> None:
    entry = NightEntry(
        WATCH,
        state,
        first_id=1,
        version=version,
        pinned_version="0.33.0",
        pinned_speed=100.0,
        speed=96.0,
        verdict="B is slower by 4.0 %",
        simulated=True,
    )
    entry = replace(entry, **changes)
    store.save(replace(store.add_night(), entries=(entry,), done=True))


def test_watches_are_added_listed_and_removed(cli: Cli, store: WatchStore) -> None:
    add = (*PRO, "watch", "add", "vllm-any", "--var", "model=org/m", "--candidate")
    assert cli(*add, "venv:/opt/new", "--nightly", "02:30").code == 0
    assert cli(*add, "venv:/opt/other").code == 0
    ran = cli(*add, "venv:/opt/new")
    assert ran.code == 2 and "is watched already" in ran.err
    listed = cli("watch", "list")
    assert "02:30  sim:rtx-pro-6000  SIMULATED  vllm-any venv:/opt/new" in listed.out
    assert cli("watch", "remove", "vllm-any", "venv:/opt/new").code == 0
    assert [one.candidate for one in store.watches()] == ["venv:/opt/other"]
    assert cli("watch", "remove", "vllm-any").code == 0 and store.watches() == ()
    ran = cli("watch", "remove", "vllm-any")
    assert ran.code == 2 and "is not watched" in ran.err


def test_each_host_has_watches_of_its_own(cli: Cli, store: WatchStore) -> None:
    words = ("watch", "add", "vllm-any", "--candidate", "venv:/opt/new")
    for host in ((), PRO, ("--host", "gpu-a"), ("--container", "podman:box")):
        ran = cli(*host, *words)
        assert ran.code == 0, ran
    listed = cli("watch", "list").out
    for host_text in ("local", "sim:rtx-pro-6000  SIMULATED", "gpu-a", "podman:box"):
        assert f"  {host_text}  vllm-any venv:/opt/new" in listed
    for host, host_text in (
        ((), "local"),
        (PRO, "sim:rtx-pro-6000"),
        (("--host", "gpu-a"), "gpu-a"),
    ):
        ran = cli(*host, *words)
        assert ran.code == 2 and f"on {host_text} is watched already" in ran.err
        removal = re.search(r"`workbench (.* watch remove .*)`", ran.err)
        assert removal is not None, ran
        ran = cli(*removal[1].split())
        assert ran.code == 0 and f"on {host_text} is no longer watched" in ran.out
    assert [one.host_text for one in store.watches()] == ["podman:box"]


def test_a_night_names_the_host_of_each_watch(cli: Cli, store: WatchStore, tmp_path: Path) -> None:
    hosts = [replace(WATCH, simulate=None, host=name) for name in ("gpu-a", "gpu-b")]
    speeds = {"gpu-a": 96.0, "gpu-b": 50.0}
    for _ in range(2):
        entries = [
            NightEntry(one, QUIET, pinned_speed=100.0, speed=speeds[one.host_text], version="1")
            for one in hosts
        ]
        store.save(replace(store.add_night(), entries=tuple(entries), done=True))
    xml = tmp_path / "night.xml"
    shown = cli("watch", "show", "--junit", str(xml)).out
    for name in speeds:
        assert f"History: vllm-any venv:/opt/new on {name}" in shown
    history_a, history_b = shown.split("History: ")[1:]
    assert "50.0 %" not in history_a and "96.0 %" not in history_b
    cases = [case.get("name") for case in ElementTree.fromstring(xml.read_text())]
    assert cases == ["venv:/opt/new on gpu-a", "venv:/opt/new on gpu-b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vllm-any", "--candidate", "latest"), "is no candidate"),
        (("vllm-any", "--candidate", "venv:here"), "is no candidate"),
        (("vllm-any", "--candidate", "image:a b"), "is no candidate"),
        (("vllm-any", "--candidate", "image:vllm:nightly"), "starts no container"),
        (("nothing", "--candidate", "venv:/x"), "there is no preset"),
        (("vllm-any", "--candidate", "venv:/x", "--nightly", "24:00"), "no time of the day"),
        (("vllm-any", "--candidate", "venv:/x", "--var", "model"), "not of the form"),
        (("vllm-any", "--candidate", "venv:/x", "--set", "api-key=sesame"), "is a secret"),
    ],
)
def test_what_cannot_be_watched_is_refused_at_once(
    cli: Cli, store: WatchStore, words: Sequence[str], said: str
) -> None:
    ran = cli(*PRO, "watch", "add", *words)
    assert ran.code == 2 and said in ran.err, ran
    assert store.watches() == ()


def test_a_candidate_replaces_the_image_or_the_program_of_the_pinned_plan() -> None:
    pinned = LaunchPlan(
        "vllm", "org/m", image="vllm:0.33", run_as="docker", run_options={"image": "vllm:0.33"}
    )
    nightly = candidate_plan(pinned, "image:vllm:nightly")
    assert (nightly.image, nightly.run_options) == ("vllm:nightly", {})
    assert nightly.model == pinned.model and nightly.run_as == "docker"
    own = candidate_plan(LaunchPlan("vllm", "org/m"), "venv:/opt/new env/".replace(" ", "-"))
    assert own.executable[0] == "/opt/new-env/bin/vllm"
    sglang = candidate_plan(LaunchPlan("sglang", "org/m"), "venv:/opt/new")
    assert sglang.executable[0].startswith("/opt/new/bin/")
    with pytest.raises(InputError, match="starts no container"):
        candidate_plan(LaunchPlan("vllm", "org/m"), "image:vllm:nightly")
    assert validated_candidate("image:repo/vllm@sha256:12") == "image:repo/vllm@sha256:12"


def test_losses_are_of_pairs_in_which_both_runs_know_them() -> None:
    def run(
        place: int, arm: str, value: float, seconds: float | None, tokens: str
    ) -> ExperimentRun:
        made = ExperimentRun(place, place // 2, arm, RunState.DONE, value=value)
        chosen = {
            "KV cache, tokens": tokens,
            "attention backend": "MARLIN" if arm == "A" else "CUTLASS",
        }
        return replace(made, ready_after_s=seconds, chosen=chosen)

    runs = (
        run(0, "A", 100.0, 20.0, "1,000"),
        run(1, "B", 97.0, 30.0, "900"),
        run(2, "B", 97.0, None, "900"),
        run(3, "A", 100.0, 20.0, "1000"),
    )
    experiment = Experiment(1, 0.0, "h", ExperimentSpec(Arm(), Arm(), {}), runs)
    losses = compute_log_losses_by_measure(experiment)
    assert sorted(losses) == sorted((SPEED, MEMORY)), "one start has no time"
    assert losses[SPEED] == pytest.approx([0.03046, 0.03046], abs=1e-4)
    assert losses[MEMORY][0] > 0
    assert changed_setting_names_and_values(experiment)[-1] == (
        "attention backend",
        "MARLIN",
        "CUTLASS",
    )
    silent = replace(runs[1], chosen={}), replace(runs[2], chosen={})
    unsaid = replace(experiment, runs=(runs[0], *silent, runs[3]))
    assert changed_setting_names_and_values(unsaid)[-1] == ("attention backend", "MARLIN", "n/a")


def test_nothing_is_measured_without_a_watch_or_a_confirmation(cli: Cli, store: WatchStore) -> None:
    ran = cli("watch", "run", "--yes")
    assert ran.code == 2 and "no watch is chosen" in ran.err
    ran = cli("watch", "show")
    assert ran.code == 2 and "no night yet" in ran.err
    ran = cli("watch", "install", "--yes")
    assert ran.code == 2 and "nothing is watched" in ran.err
    store.add(WATCH)
    ran = cli("watch", "run")
    assert ran.code == 2 and "nobody can be asked" in ran.err and store.nights() == ()
    ran = cli("watch", "run", "--at", "04:00", "--yes")
    assert ran.code == 2 and "no watch is chosen" in ran.err


def test_a_night_is_shown_with_its_history_and_written_for_ci(
    cli: Cli, store: WatchStore, tmp_path: Path
) -> None:
    stored_night(store, version="0.33.1")
    loss = Loss(SPEED, 4.0, 24, 0.0001, repeated=True, alarm=True)
    chosen = (("attention backend", "MARLIN", "CUTLASS"),)
    stored_night(store, ALARM, losses=(loss,), chosen=chosen, verdict=EVIL)
    xml, markdown = tmp_path / "n.xml", tmp_path / "n.md"
    ran = cli("watch", "show", "--junit", str(xml), "--markdown", str(markdown))
    assert ran.code == 0 and "1 alarm" in ran.out and "SIMULATED" in ran.out, ran
    assert "speed -4.0 % (24 pairs)" in ran.out and "96.0 %" in ran.out
    assert "new version" in ran.out and "MARLIN" in ran.out and "\x1b" not in ran.out
    suite = ElementTree.fromstring(xml.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    assert "speed -4.0 %" in str(suite[0][0].get("message"))
    assert "<script" not in markdown.read_text() and "1 alarm" in markdown.read_text()
    assert cli("watch", "show", "1").out.count("no alarm") == 1
    ran = cli("watch", "show", "9")
    assert ran.code == 2 and "there is no night 9" in ran.err
    ran = cli("watch", "show", "--junit", "/no/such/place.xml")
    assert ran.code == 2 and "cannot be written" in ran.err


@pytest.mark.parametrize(
    ("age_s", "goes_on"), [(60.0, True), (24 * 3600.0, False)], ids=["last night", "days ago"]
)
def test_the_list_names_a_night_that_is_not_finished(
    cli: Cli, store: WatchStore, age_s: float, goes_on: bool
) -> None:
    stored_night(store)
    assert "not finished" not in cli("watch", "list").out
    begun = replace(store.add_night(), unix_s=time.time() - age_s, entries=(NightEntry(WATCH),))
    night = store.save(begun)
    ran = cli("watch", "list")
    assert f"night {night.id} is not finished" in ran.out, ran
    assert ("`workbench watch run` goes on" in ran.out) == goes_on
    assert json.loads(cli("watch", "list", "--json").out)["unfinished_night"] == night.id


def test_a_failed_watch_is_an_error_of_the_suite(store: WatchStore) -> None:
    stored_night(store, FAILED, error=f"it did not start {EVIL}")
    suite = ElementTree.fromstring(night_junit_xml(store.nights()[0]))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert "did not start" in str(suite[0][0].get("message"))


def test_a_longer_start_is_said_as_more() -> None:
    assert format_loss(Loss(START, 100 * (1 - 1 / 1.5), 8)) == "start time +50.0 % (8 pairs)"


def test_damaged_files_are_named(cli: Cli, store: WatchStore) -> None:
    store.add(WATCH)
    stored_night(store)
    (store.directory / "watches.json").write_text('{"watches": [{}]}')
    ran = cli("watch", "list")
    assert ran.code == 1 and "watches.json" in ran.err and "damaged" in ran.err
    for text in ("", "[]", "{", "[" * 100_000, '{"id": "x"}', '{"id": NaN}'):
        (store.directory / "1.json").write_text(text)
        ran = cli("watch", "show", "1")
        assert ran.code == 1 and "1.json" in ran.err, (text[:20], ran)
    assert store.nights() == ()


def test_the_units_are_shown_before_they_are_written(
    cli: Cli, store: WatchStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.add(WATCH)
    ran = cli("watch", "install")
    assert ran.code == 2 and "OnCalendar=*-*-* 03:00:00" in ran.err, ran
    directory = Path(os.environ["XDG_CONFIG_HOME"], "systemd", "user")
    assert not directory.exists()
    asked: list[list[str]] = []

    def systemctl(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(cli_watch.subprocess, "run", systemctl)
    ran = cli("watch", "install", "--yes")
    assert ran.code == 0 and "is enabled" in ran.out, ran
    assert asked[-1] == ["systemctl", "--user", "enable", "--now", "workbench-watch-0300.timer"]
    service = (directory / "workbench-watch-0300.service").read_text()
    assert re.search(r'"watch" "run" "--at" "03:00" "--yes"', service), service

    def missing(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError

    monkeypatch.setattr(cli_watch.subprocess, "run", missing)
    ran = cli("watch", "install", "--yes")
    assert ran.code == 1 and "no systemctl" in ran.err and "by hand" in ran.err, ran


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nights of few pairs and short requests, so that a test can wait for them."""
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "4")
    monkeypatch.setattr(watch_rule, "FIRST_PAIRS", 2)
    monkeypatch.setattr(watch_rule, "MOST_FIRST_PAIRS", 2)
    monkeypatch.setattr(watch_rule, "SECOND_PAIRS", 3)


def program(directory: Path, words: str) -> str:
    """Return a candidate whose vLLM is the simulated one with more words."""
    simulated = Path(engine_server.__file__).with_name("bin") / "vllm"
    made = directory / "bin" / "vllm"
    made.parent.mkdir(parents=True)
    made.write_text(f'#!/bin/sh\nexec {simulated} "$@" {words}\n')
    made.chmod(0o755)
    return f"venv:{directory}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_night_finds_a_slow_candidate_and_says_what_failed(
    cli: Cli, store: WatchStore, brief: None, tmp_path: Path
) -> None:
    """The slow candidate runs eagerly, which costs the simulated engine most of its speed."""
    add = (*PRO, "watch", "add", "vllm-any", "--set", f"port={free_port()}", "--requests", "8")
    add = (*add, "--no-quality", "--var", "model=Qwen/Qwen3-0.6B", "--candidate")
    assert cli(*add, program(tmp_path / "slow", "--enforce-eager")).code == 0
    assert cli(*add, "venv:/no/such/place").code == 0
    xml = tmp_path / "night.xml"
    ran = cli("watch", "run", "--yes", "--junit", str(xml))
    slow, absent = store.nights()[0].entries
    assert absent.state == FAILED and absent.error, ran
    assert slow.first_id is not None and slow.second_id is not None, ran
    speed = next(loss for loss in slow.losses if loss.measure == SPEED)
    assert speed.loss_pct > 20 and speed.pairs == 5, ran
    assert ran.code == (4 if slow.state == ALARM else 1), ran
    assert json.loads(json.dumps(ElementTree.fromstring(xml.read_text()).attrib))["errors"] == "1"
    assert ("CUDA graphs", "none: eager mode") in [(name, b) for name, _, b in slow.chosen]
