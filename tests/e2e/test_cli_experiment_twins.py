"""experiment --twins on two simulated hosts with the same GPUs: A and B swap their hosts, and the
machine is told from the change."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support.serving import free_port

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

Cli = Callable[..., Any]
ONE, TWO = "sim:four-pcie@one", "sim:four-pcie@two"
TWINS = ("--twins", f"{ONE},{TWO}")
SHAPE = (
    "--no-quality",
    "--requests",
    "6",
    "--max-tokens",
    "24",
    "--input-tokens",
    "16",
    "--warmup",
    "2",
    "--concurrency",
    "2",
)


def words(*more: str) -> tuple[str, ...]:
    port = str(free_port())
    return (
        "experiment",
        "vllm-any",
        "--set",
        f"port={port}",
        "--set",
        "gpu-memory-utilization=0.3",
        *SHAPE,
        *more,
    )


@pytest.mark.slow
@pytest.mark.long
def test_both_arms_run_on_both_hosts_and_the_verdict_has_two_parts(cli: Cli) -> None:
    ran = cli(*words("--b", "enforce-eager=true", *TWINS, "--pairs", "4", "--json"))
    assert ran.code == 0, ran
    one = ran.document
    assert (one["state"], one["pairs_done"], one["restarts"], one["host"]) == ("done", 4, True, ONE)
    done = [(run["pair"], run["arm"], run["host"]) for run in one["runs"] if run["state"] == "done"]
    for arm in "AB":
        assert sorted(host for _, its, host in done if its == arm) == [ONE, ONE, TWO, TWO]
    for pair in range(4):
        assert {host for at, _, host in done if at == pair} == {ONE, TWO}
    assert {run["host"] for run in one["runs"] if run["state"] == "discarded"} == {ONE, TWO}, (
        "each machine is cold"
    )
    compared = one["comparison"]
    assert compared["like_for_like"], compared["warnings"]
    assert (
        compared["metrics"][0]["change_pct"] < 0 and compared["machine"]["interval_pct"] is not None
    )
    assert "machine" in one["verdict"] or TWO in one["verdict"]
    shown = cli("experiment", "show", str(one["id"])).out
    assert "The machines, with the same configuration" in shown and f"{TWO} against {ONE}" in shown
    report = cli("results", "report", "--experiment", str(one["id"])).out
    assert "A and B swapped in half of the pairs" in report and f"{TWO} against {ONE}" in report
    for host in (ONE, TWO):
        states = [s["state"] for s in cli("--host", host, "servers", "--json").document["servers"]]
        assert states and set(states) == {"stopped"}, "nothing is left on either host"
    more = cli("experiment", "resume", str(one["id"]), "--pairs", "6", "--yes", "--json").document
    assert (more["state"], more["pairs_done"]) == ("done", 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--twins", ONE), "twins are two different hosts"),
        (("--twins", f"{ONE},{ONE}"), "twins are two different hosts"),
        ((*TWINS, "--pairs", "3"), "an even number of pairs, at least 4, got 3"),
        ((*TWINS, "--host-b", TWO), "so it cannot be combined with --host-a and --host-b"),
    ],
    ids=str,
)
def test_a_wrong_design_is_refused_before_anything_runs(
    cli: Cli, options: tuple[str, ...], said: str
) -> None:
    ran = cli(*words("--b", "max-num-seqs=2", *options, "--json"))
    assert ran.code == 2 and said in ran.document["error"], ran
    assert cli("experiment", "list", "--json").document == {"experiments": []}


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("other", "differs"),
    [("sim:gb10-x2", "GPUs of A"), ("sim:rtx-5060ti-old-stack", "driver")],
)
@pytest.mark.slow
def test_hosts_that_are_not_twins_are_refused_with_what_differs(
    cli: Cli, other: str, differs: str
) -> None:
    first = "sim:rtx-5060ti-x2"
    ran = cli(*words("--b", "max-num-seqs=2", "--twins", f"{first},{other}", "--json"))
    assert ran.code == 2, ran
    assert (
        f"{first} and {other} are not twins" in ran.document["error"]
        and differs in ran.document["error"]
    )
    assert cli("experiment", "list", "--json").document == {"experiments": []}


@pytest.mark.slow
def test_a_server_that_runs_already_cannot_be_on_two_hosts(cli: Cli) -> None:
    ran = cli(
        "experiment",
        "--a",
        "http://127.0.0.1:9",
        "--b",
        "http://127.0.0.1:9",
        *TWINS,
        *SHAPE,
        "--json",
    )
    assert ran.code == 2 and "on twins each run starts its own server" in ran.document["error"]


@pytest.mark.slow
@pytest.mark.long
def test_a_slower_machine_is_not_taken_for_the_change(cli: Cli) -> None:
    """Somebody has locked the clocks of the second host low, for good."""
    cli("--host", TWO, "gpu", "status")  # makes the host
    state = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/four-pcie@two/driver"
    driver = SimState(state, profiles.get_profile("four-pcie"))
    for gpu in range(4):
        driver.change_setting(gpu, gpu_lock_mhz=(210, 300))
    shape = (
        "--concurrency",
        "8",
        "--requests",
        "32",
        "--max-tokens",
        "64",
        "--input-tokens",
        "256",
    )
    ran = cli(
        *words(
            "--a",
            "max-num-seqs=256",
            "--b",
            "max-num-seqs=255",
            *TWINS,
            "--pairs",
            "4",
            *shape,
            "--json",
        )
    )
    assert ran.code == 0, ran
    compared = ran.document["comparison"]
    assert compared["machine"]["verdict"] == "worse" and compared["machine"]["change_pct"] < -2, (
        ran.document["verdict"]
    )
    assert abs(compared["metrics"][0]["change_pct"]) < abs(compared["machine"]["change_pct"])
