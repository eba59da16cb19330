"""Commands that a message proposes name the host of the command line."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from workbench.cli.host_words import (
    add_host_options,
    add_host_options_to_fixes,
    add_options_of_recorded_host,
    format_host_options,
)
from workbench.cli.parser import parse_command_line
from workbench.cli.registry import FIRST_WORDS
from workbench.cli.run import run
from workbench.cli.sweeps import print_sweep
from workbench.cli.tune import print_tune
from workbench.model.bisection import Bisection
from workbench.model.findings import Finding, Level
from workbench.model.host_commands import HOST_COMMANDS
from workbench.model.series_state import SeriesState
from workbench.model.sweep import (
    CONCURRENCY,
    FLAGS,
    RATES,
    TUNES,
    USERS,
    Sweep,
    SweepKind,
    SweepPoint,
    SweepSpec,
    make_gpu_setting_sweep_kind,
)
from workbench.model.tune import TuneSpec
from workbench.session.hosts.names import command_options_for_host
from workbench.store import paths
from workbench.store.bisections import BisectionStore
from workbench.store.sweeps import SweepStore

SIMULATED = ("--simulate", "rtx-pro-6000")


def test_the_commands_that_run_on_a_host_exist() -> None:
    assert FIRST_WORDS.keys() > HOST_COMMANDS


@pytest.mark.parametrize(
    ("words", "text", "named"),
    [
        (
            SIMULATED,
            "workbench gpu set --persistence on",
            "workbench --simulate rtx-pro-6000 gpu set --persistence on",
        ),
        (
            ("--host", "gpu-box", "--container", "podman:a b"),
            "`workbench stop 7`, or `workbench servers`",
            "`workbench --host gpu-box --container 'podman:a b' stop 7`, or "
            "`workbench --host gpu-box --container 'podman:a b' servers`",
        ),
        ((), "workbench gpu revert", "workbench gpu revert"),
        (SIMULATED, "workbench --host NODE doctor", "workbench --host NODE doctor"),
        (SIMULATED, "`workbench demo` needs no GPU", "`workbench demo` needs no GPU"),
        (SIMULATED, "workbench hosts check node-2", "workbench hosts check node-2"),
        (SIMULATED, "workbench models copy M --from A", "workbench models copy M --from A"),
        (SIMULATED, "/etc/workbench start", "/etc/workbench start"),
        (SIMULATED, "workbench starts it again", "workbench starts it again"),
    ],
)
def test_a_command_names_the_host(words: tuple[str, ...], text: str, named: str) -> None:
    assert add_host_options(text, parse_command_line([*words, "doctor"])) == named


def test_a_fix_names_the_host_and_a_finding_without_one_is_unchanged() -> None:
    """The fix of `workbench --host gpu-box doctor`, copied, changed the GPUs of this machine."""
    arguments = parse_command_line(["--host", "gpu-box", "doctor"])
    bare = Finding(Level.WARN, "a.b", "text")
    fixed = Finding(Level.WARN, "a.c", "text", fix="workbench gpu revert")
    named = add_host_options_to_fixes((bare, fixed), arguments)
    assert [each.fix for each in named] == [None, "workbench --host gpu-box gpu revert"]


def test_the_next_step_of_an_error_names_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATED, "doctor", "--engine", "vllm"]) == 2
    next_step = "next: workbench --simulate rtx-pro-6000 doctor --multi-gpu"
    assert next_step in capsys.readouterr().err


# of stored series

SPEC = SweepSpec(("1", "2"), tune=TuneSpec("tok_s", 30, ()))
HOSTS = {
    "local": "",
    "gpu-box": "--host gpu-box",
    "gpu-box/podman:vllm": "--host gpu-box/podman:vllm",
    "sim:rtx-pro-6000": "--simulate rtx-pro-6000",
    "sim:four-pcie@2": "--simulate four-pcie@2",
    "gpu-box/sim:gb10": "--host gpu-box --simulate gb10",
    "cluster:two sparks": "--cluster 'two sparks'",
}


@pytest.mark.parametrize(("host", "words"), HOSTS.items())
def test_a_recorded_host_is_named_so_that_the_command_runs_there(host: str, words: str) -> None:
    assert command_options_for_host(host) == words
    line = add_options_of_recorded_host("workbench sweep resume 2", host)
    arguments = parse_command_line(shlex.split(line)[1:])
    assert format_host_options(arguments) == words and arguments.id == 2


def stopped(kind: SweepKind, host: str) -> Sweep:
    return Sweep(
        *(3, 1.0, host, kind.name, "load", "", (SweepPoint("1", 1.0),), SeriesState.STOPPED),
        spec=SPEC,
        kind_facts=kind,
        error="interrupted; run r-1 may still be on (workbench stop r-1)",
    )


@pytest.mark.parametrize(
    "kind", [FLAGS, CONCURRENCY, USERS, RATES, make_gpu_setting_sweep_kind("power_limit_w")]
)
def test_the_commands_that_a_shown_sweep_proposes_run_as_printed(
    kind: SweepKind, capsys: pytest.CaptureFixture[str]
) -> None:
    """`workbench stop RUN` and the command to resume lacked the host: copied, they meant this
    machine."""
    print_sweep(stopped(kind, "sim:gb10"), as_json=False)
    proposed(capsys.readouterr().out, f"{kind.command} resume 3", "stop r-1")


def test_the_commands_that_a_shown_tune_proposes_run_as_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_tune(stopped(TUNES, "sim:gb10"), as_json=False)
    proposed(capsys.readouterr().out, "tune resume 3")


def test_the_commands_that_a_shown_bisection_proposes_run_as_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Bisection(0, 1.0, "sim:gb10", "vllm-any", ("venv:/a", "venv:/b"))
    store = BisectionStore(paths.bisections_dir())
    number = store.add(replace(found, state=SeriesState.STOPPED, error="interrupted")).id
    assert run(["bisect", "show", str(number)]) == 0
    proposed(capsys.readouterr().out, f"bisect resume {number}")


def proposed(out: str, *commands: str) -> None:
    """Assert that the output proposes the commands, each with its host."""
    for words in commands:
        assert f"workbench --simulate gb10 {words}" in out
        assert parse_command_line(["--simulate", "gb10", *words.split()]).simulate == "gb10"
    assert "workbench stop" not in out and "workbench tune" not in out


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("capacity", (USERS, RATES)),
        ("tune", (TUNES,)),
        ("sweep", (FLAGS, USERS, TUNES, RATES, CONCURRENCY)),
    ],
)
def test_each_series_lists_and_shows_its_own(
    words: str, kinds: tuple[SweepKind, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """`capacity` had no list, and `capacity list` searched for a run of that name."""
    assert run([words, "list"]) == 0
    assert capsys.readouterr().err.startswith("no "), "an empty list said nothing"
    store = SweepStore(paths.sweeps_dir())
    for kind in (FLAGS, USERS, TUNES, RATES, CONCURRENCY):
        store.add(stopped(kind, "local"))
    assert run([words, "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["sweeps"]
    assert {one["kind"] for one in listed} == {kind.name for kind in kinds}
    for one in listed:
        assert run([words, "show", str(one["id"]), "--json"]) in (0, 1)
        assert json.loads(capsys.readouterr().out)["id"] == one["id"]
    if words != "sweep":
        assert run([words, "show", "1"]) == 2
        assert "`workbench sweep show 1` shows it" in capsys.readouterr().err
