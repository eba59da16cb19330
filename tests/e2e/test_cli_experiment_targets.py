"""experiment with targets as arms: URLs, runs, presets of two engines, two hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.serving import free_port

from workbench.gpu.measurement_lock import locked_for_measurement
from workbench.session.hosts.names import open_host_by_name

Cli = Callable[..., Any]
FOUR = ("--simulate", "four-pcie")
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
SMALL = ("--set", "gpu-memory-utilization=0.3")


def server(cli: Cli, *words: str) -> tuple[str, str]:
    """Start a server. Return its READY run and URL."""
    port = str(free_port())
    ran = cli(
        *FOUR, "start", "vllm-any", "--set", f"port={port}", *SMALL, *words, "--wait", "--json"
    )
    assert ran.code == 0, ran
    return ran.document["run_id"], f"http://127.0.0.1:{port}"


def states(cli: Cli, *host: str) -> list[str]:
    return [s["state"] for s in cli(*(host or FOUR), "servers", "--json").document["servers"]]


@pytest.mark.long
@pytest.mark.slow
def test_two_urls_and_two_runs_are_measured_as_they_are(cli: Cli) -> None:
    (run_a, url_a), (run_b, url_b) = server(cli), server(cli, "--set", "enforce-eager=true")
    ran = cli(*FOUR, "experiment", "--a", url_a, "--b", url_b, *SHAPE, "--pairs", "2", "--json")
    assert ran.code == 0, ran
    one = ran.document
    assert (one["state"], one["restarts"], one["pairs_done"]) == ("done", False, 2)
    assert [r["state"] for r in one["runs"]] == ["discarded", *["done"] * 4]
    compared = one["comparison"]
    assert compared["like_for_like"], compared["warnings"]
    assert {"kind": "server", "name": "address", "a": url_a, "b": url_b} in compared["differences"]
    assert compared["metrics"][0]["change_pct"] < 0
    alone = cli("compare", str(one["runs"][1]["result_id"]), str(one["runs"][2]["result_id"]))
    assert "the configurations are the same" not in alone.out and "server  address" in alone.out
    again = cli(
        *FOUR, "experiment", "--a", run_a, "--b", run_b, *SHAPE, "--pairs", "2", "--json"
    ).document
    assert again["state"] == "done" and {r["run_id"] for r in again["runs"]} == {run_a, run_b}
    assert states(cli) == ["ready", "ready"], "nothing was started or stopped"
    assert f"A: {run_a}" in cli("experiment", "show", "2").out
    report = cli("results", "report", "--experiment", "1").out
    assert url_a in report and url_b in report
    refused = cli(
        *FOUR, "experiment", "--a", f"{run_a} max-num-seqs=2", "--b", url_b, *SHAPE, "--json"
    )
    assert refused.code == 2 and f"stops run {run_a}" in refused.document["error"]


@pytest.mark.slow
@pytest.mark.long
def test_the_same_setting_goes_to_the_gpu_of_each_of_two_runs(cli: Cli) -> None:
    """Equal words for two arms are two settings if each arm has its own GPUs."""
    (run_a, _), (run_b, _) = (server(cli, "--env", f"CUDA_VISIBLE_DEVICES={gpu}") for gpu in (0, 1))
    arms = ("--a", run_a, "--b", run_b, "--gpu-a", "power-limit=150", "--gpu-b", "power-limit=150")
    ran = cli(*FOUR, "experiment", *arms, *SHAPE, "--pairs", "2", "--yes", "--json")
    assert ran.code == 0, ran
    for run in ran.document["runs"]:
        made = cli("results", "show", str(run["result_id"]), "--json").document["conditions"][
            "gpu_settings"
        ]
        assert [value for name, value in made.items() if name.endswith("power_limit_w")] == [150], (
            run["arm"],
            made,
        )
    assert cli(*FOUR, "gpu", "status", "--json").document["altered"] == []


@pytest.mark.slow
@pytest.mark.long
def test_arms_with_two_engines_and_models_are_compared_without_a_warning(cli: Cli) -> None:
    port = str(free_port())
    arms = ("--a", f"vllm-any port={port}", "--b", f"sglang-any port={port} model=Qwen/Qwen3-1.7B")
    ran = cli(*FOUR, "experiment", *arms, *SHAPE, "--pairs", "2", "--json")
    assert ran.code == 0, ran
    one = ran.document
    assert one["restarts"] and one["state"] == "done"
    differences = {d["kind"] for d in one["comparison"]["differences"]}
    assert {"engine", "model"} <= differences
    assert one["comparison"]["like_for_like"], one["comparison"]["warnings"]
    assert not one["verdict"].startswith("no claim")
    assert len(set(states(cli))) == 1


@pytest.mark.long
def test_two_hosts(cli: Cli) -> None:
    port = str(free_port())
    host = ("--host-b", "sim:rtx-pro-6000", "--gpu-b", "power-limit=400", "--yes")
    words = (
        "experiment",
        "vllm-any",
        "--set",
        f"port={port}",
        *SMALL,
        *host,
        *SHAPE,
        "--pairs",
        "2",
        "--json",
    )
    ran = cli(*FOUR, *words)
    assert ran.code == 0, ran
    one = ran.document
    assert one["comparison"]["like_for_like"], one["comparison"]["warnings"]
    hosts = {
        cli("results", "show", str(r["result_id"]), "--json").document["conditions"]["host"]
        for r in one["runs"]
    }
    assert hosts == {"sim:four-pcie", "sim:rtx-pro-6000"}
    other = ("--simulate", "rtx-pro-6000")
    assert set(states(cli)) | set(states(cli, *other)) == {"stopped"}
    assert cli(*other, "gpu", "status", "--json").document["altered"] == []
    more = cli(*FOUR, "experiment", "resume", "1", "--pairs", "3", "--yes", "--json").document
    assert (more["state"], more["pairs_done"], more["extensions"]) == ("done", 3, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--a", "max-num-seqs=2", "--b", "vllm-any"), "--a does not begin with a target"),
        (("--a", "vllm-any"), "--b does not begin with a target"),
        (
            ("--a", "http://127.0.0.1:9", "--b", "http://127.0.0.1:9/v1"),
            "A: http://127.0.0.1:9 does not answer",
        ),
        (
            ("--a", "http://127.0.0.1:9 port=1", "--b", "vllm-any"),
            "it cannot change that server's flags",
        ),
        (("--a", "ftp://x", "--b", "vllm-any"), "is not a base URL"),
        (("--a", "vllm-any", "--b", "nothing-called-so"), "nothing-called-so"),
        (("vllm-any", "--gpu-b", "power-limit=9999", "--yes"), "B: "),
        (("vllm-any", "--metric", "ttft_ms.p50", "--no-stream"), "have no first token"),
        (("vllm-any", "--metric", "tok_per_joule", "--seconds", "1"), "has no power reading"),
        (("vllm-any", "--host-b", "sim:none"), "none"),
    ],
)
def test_impossible_targets_are_rejected_before_anything_starts(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    ran = cli(*FOUR, "experiment", *words, *SHAPE, "--json")
    assert ran.code in (1, 2) and said in ran.document["error"], ran
    assert cli("experiment", "list", "--json").document == {"experiments": []}
    assert states(cli) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("no-such=1,2",), "no server can be started with any of the values: vLLM"),
        (
            ("max-num-seqs=1", "tensor-parallel-size=2", "dtype=auto"),
            "a sweep needs one or two flags, not 3",
        ),
    ],
)
def test_an_impossible_sweep_is_rejected_before_anything_starts(
    cli: Cli, flags: tuple[str, ...], said: str
) -> None:
    words = [word for flag in flags for word in ("--flag", flag)]
    ran = cli(*FOUR, "sweep", "vllm-any", *words, *SHAPE, "--json")
    assert ran.code == 2 and said in ran.document["error"] and "takes" not in ran.err, ran
    assert states(cli) == [] and cli("sweep", "list", "--json").document["sweeps"] == []


def while_another_measures(cli: Cli, *words: str) -> Any:
    """Run a command while another Workbench holds the measurement lock of the host."""

    async def go() -> Any:
        async with locked_for_measurement(
            open_host_by_name(None, "four-pcie"), "experiment 7", report=print
        ):
            return await asyncio.to_thread(cli, *FOUR, *words, "--json")

    return asyncio.run(go())


@pytest.mark.long
@pytest.mark.slow
def test_a_command_that_changes_a_host_on_which_another_user_measures_warns(cli: Cli) -> None:
    """Each command does what it is asked to do; the person who gave it decides."""
    warning = "is being measured: experiment 7, by "
    ran = while_another_measures(cli, "start", "vllm-any", "--set", f"port={free_port()}", "--wait")
    assert ran.code == 0 and warning in ran.err and "disturbs that measurement" in ran.err, ran
    for words in (
        ("gpu", "set", "--power-limit", "200", "--yes"),
        ("gpu", "revert"),
        ("stop", ran.document["run_id"]),
    ):
        ran = while_another_measures(cli, *words)
        assert ran.code == 0 and warning in ran.err, (words, ran)
    ran = cli(*FOUR, "gpu", "set", "--power-limit", "200", "--yes", "--json")
    assert ran.code == 0 and "being measured" not in ran.err
    assert cli(*FOUR, "gpu", "revert").code == 0


@pytest.mark.slow
def test_a_host_on_which_another_user_measures_is_rejected(cli: Cli) -> None:
    """The command is rejected before anything is stored or started."""
    for words in (
        ("experiment", "vllm-any", "--b", "max-num-seqs=2"),
        ("sweep", "vllm-any", "--flag", "max-num-seqs=2"),
    ):
        ran = while_another_measures(cli, *words, *SHAPE)
        assert (
            ran.code == 1 and ("is being measured: experiment 7, by ") in ran.document["error"]
        ), ran
    assert cli("experiment", "list", "--json").document == {"experiments": []}
    assert states(cli) == []
