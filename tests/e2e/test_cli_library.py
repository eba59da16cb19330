"""presets, flags and plan: commands that start nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.procs import with_argument

from workbench.store import paths

Cli = Callable[..., Any]
SPARKS = "vllm-llama-3.3-70b-2x-spark"


@pytest.mark.parametrize(
    "argv", [("--help",), ("--version",), ("bench", "--help"), ("gpu", "set", "--help")]
)
def test_help_and_version_are_on_stdout(cli: Cli, argv: tuple[str, ...]) -> None:
    ran = cli(*argv)
    assert ran.code == 0 and "workbench" in ran.out and ran.err == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("benhc", "x"), "Did you mean `workbench bench`"),
        (("nosuchcommand", "with", "arguments"), "'nosuchcommand' is not a command"),
        (("presets",), "ACTION"),
        (("presets", "lits"), "invalid choice"),
        (("flags",), "ENGINE"),
        (("plan", "vllm-any", "--nosuch"), "--nosuch"),
        (
            ("--simulate", "gb10", "gpu", "status", "--simulate", "h100"),
            "--simulate is given twice",
        ),
        (("local", "servers"), "`workbench --host local servers`"),
        (("frobnicate",), "nor ssh knows a host of that name"),
        (("results", "show", "three"), "whole number"),
        (("compare", "1"), "there is no result 1"),
        (("--simulate", "h100", "gpu", "status"), "no simulated host is called 'h100'"),
        (("--simulate",), "expected one argument"),
        (("--host", "box", "other.example"), "the command line names two hosts"),
        (("demo", "--json"), "no JSON"),
        (("demo", "--host-profile", "nosuch"), "no simulated host is called 'nosuch'"),
        (("demo",), "needs a terminal"),
        ((), "needs a terminal"),
    ],
)
def test_bad_usage_is_exit_2_with_a_next_step_and_nothing_on_stdout(
    cli: Cli, argv: tuple[str, ...], said: str
) -> None:
    ran = cli(*argv)
    assert ran.code == 2, ran
    assert said in ran.err
    if "--json" not in argv:
        assert ran.out == ""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("presets", "show", "nosuch"), 2),
        (("flags", "nosuch"), 2),
        (("plan", "nosuch"), 2),
        (("plan", "vllm-any", "--var", "nosuch=1"), 2),
        (("plan", "vllm-any", "--var", "novalue"), 2),
        (("plan", "vllm-any", "--env", "novalue"), 2),
        (("plan", "vllm-any", "--set", "max-num-seqs=many"), 2),
        (("plan", "sglang-mistral-large-awq-baseline"), 2),
        (("start", "nosuch"), 2),
        (("logs", "nosuch"), 2),
        (("stop", "nosuch"), 2),
        (("bench",), 2),
        (("bench", "nosuch"), 2),
        (("bench", "nosuch", "--url", "http://127.0.0.1:1"), 2),
        (("bench", "--url", "garbage"), 2),
        (("bench", "--url", "http://127.0.0.1:99999"), 2),
        (("bench", "--url", "http://me:secretword@127.0.0.1:1"), 2),
        (("bench", "--url", "http://127.0.0.1:1", "--api-key-env", "NOT_SET_HERE"), 2),
        (("bench", "--url", "http://127.0.0.1:1", "--concurrency", "0"), 2),
        (("bench", "--url", "http://127.0.0.1:1", "--requests", "0"), 2),
        (("bench", "--url", "http://127.0.0.1:1", "--warmup", "-1"), 2),
        (("bench", "--url", "http://127.0.0.1:1"), 1),
        (("results", "show", "7"), 2),
        (("results", "export", "7"), 2),
        (("compare", "7", "8"), 2),
        (("gpu", "set"), 2),
        (("gpu", "set", "--lock-gpu-clocks", "fast", "--dry-run"), 2),
        (("--host", "no-such-host.invalid", "servers"), 1),
    ],
)
def test_an_error_is_one_json_document_and_a_message(
    cli: Cli, argv: tuple[str, ...], code: int
) -> None:
    ran = cli(*argv, "--json")
    assert ran.code == code, ran
    assert ran.document["error"] and ran.document["kind"]
    assert set(ran.document) == {"error", "kind", "host", "command", "next_step", "findings"}
    assert ran.err.startswith("workbench: ") and "secretword" not in ran.out + ran.err
    assert ran.document["next_step"] is not None


def test_presets_list_show_path(cli: Cli) -> None:
    presets = cli("presets", "list", "--json").document["presets"]
    assert {"id", "title", "engine", "hardware", "status"} <= set(presets[0])
    ids = [p["id"] for p in presets]
    assert SPARKS in ids and len(ids) == len(set(ids))
    assert all(i in cli("presets", "list").out for i in ids)
    shown = cli("presets", "show", SPARKS, "--json").document
    assert shown["id"] == SPARKS and shown["engine"]["name"] == "vllm"
    assert "Variables:" in cli("presets", "show", SPARKS).out
    where = cli("presets", "path", "--json").document
    assert where["own"].startswith(os.environ["XDG_CONFIG_HOME"])
    assert Path(where["shipped"], f"{SPARKS}.toml").is_file()


def test_words_filter_the_list_of_presets(cli: Cli) -> None:
    ids = [
        p["id"] for p in json.loads(cli("presets", "list", "Spark", "70b", "--json").out)["presets"]
    ]
    assert "vllm-llama-3.3-70b-2x-spark" in ids
    assert all("70b" in one for one in ids) and "vllm-any" not in ids
    assert cli("presets", "list", "no-such-word").out == ""


def test_a_broken_user_preset_is_listed_with_its_error(cli: Cli) -> None:
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    (own / "mine.toml").write_text("schema = 1\nid = 'mine'\ntitle = [\n")
    ran = cli("presets", "list")
    assert ran.code == 0 and "! " in ran.out and "mine.toml" in ran.out
    ran = cli("plan", "mine")
    assert ran.code == 2 and "mine.toml" in ran.err


def test_a_list_of_presets_says_which_own_preset_replaces_a_shipped_one(cli: Cli) -> None:
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    shutil.copy(paths.shipped_presets_dir() / "vllm-any.toml", own)
    assert 'your own "vllm-any" replaces' in cli("presets", "list").err
    (finding,) = cli("presets", "list", "--json").document["findings"]
    assert finding["code"] == "preset.duplicate-id"


def test_every_shipped_preset_passes_its_check(cli: Cli) -> None:
    files = [str(p) for p in sorted(paths.shipped_presets_dir().glob("*.toml"))]
    ran = cli("presets", "check", *files, "--json")
    assert ran.code == 0
    assert [f["file"] for f in ran.document["files"]] == files and all(
        f["ok"] for f in ran.document["files"]
    )


BROKEN = {
    "bad toml": ("schema = 1\nid = 'x\n", "line"),
    "unknown field": ("schema = 1\nid = 'x'\nspeed = 3\n", "speed"),
    "wrong type": ("schema = 1\nid = 'x'\ntitle = 3\n", "title"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_check_names_the_file_and_the_place(cli: Cli, tmp_path: Path, name: str) -> None:
    text, place = BROKEN[name]
    file = tmp_path / "x.toml"
    file.write_text(text)
    ran = cli("presets", "check", str(file), "--json")
    assert ran.code == 2
    findings = ran.document["files"][0]["findings"]
    assert any(
        place in f"{f['field']} {f['text']} line {f['line']}" and f["file"] for f in findings
    ), findings
    assert str(file) in cli("presets", "check", str(file)).out


def test_check_of_a_missing_file(cli: Cli, tmp_path: Path) -> None:
    ran = cli("presets", "check", str(tmp_path / "gone.toml"), str(tmp_path), "--json")
    assert ran.code == 2 and [f["ok"] for f in ran.document["files"]] == [False, False]


def test_checking_a_preset_executes_nothing(cli: Cli, tmp_path: Path) -> None:
    """Values that a shell would run become words of argv or are rejected. No plan runs them."""
    trap = tmp_path / "trap"
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    general = (paths.shipped_presets_dir() / "vllm-any.toml").read_text()
    traps = f'[env]\nWORDS = "$(touch {trap})"\n\n[benchmark]'
    body = general.replace('id = "vllm-any"', 'id = "trap"').replace("[benchmark]", traps)
    (own / "trap.toml").write_text(body)
    for argv in (
        ("plan", "trap"),
        ("presets", "check", str(own / "trap.toml")),
        ("plan", "vllm-any", "--var", f"model=$(touch {trap})"),
        (
            "plan",
            "vllm-any",
            "--set",
            f"served-model-name=`touch {trap}`",
            "--env",
            f"A=;touch {trap}",
        ),
    ):
        cli(*argv, "--json")
        assert not trap.exists()


def test_flags(cli: Cli) -> None:
    ran = cli("--simulate", "four-pcie", "flags", "vllm", "--probe")
    assert ran.code == 1 and "next: run `workbench flags vllm`" in ran.err
    ran = cli("flags", "vllm", "--search", "max num seqs", "--json")
    assert ran.code == 0 and ran.document["flags"][0]["name"] == "max-num-seqs"
    everything = cli("flags", "sglang", "--json").document
    assert everything["engine"] == "sglang" and len(everything["flags"]) > 100
    nearest = cli("flags", "vllm", "--version", "0.0.1", "--json")
    assert nearest.code == 0 and nearest.document["version"] != "0.0.1"
    assert "--max-num-seqs" in cli("flags", "vllm", "--search", "max-num-seqs").out


def test_plan_shows_the_launch_and_starts_nothing(cli: Cli) -> None:
    argv = (
        "--simulate",
        "rtx-pro-6000",
        "plan",
        "vllm-any",
        "--set",
        "max-num-seqs=512",
        "--set",
        "port=8123",
        "--env",
        "VLLM_LOGGING_LEVEL=DEBUG",
        "--var",
        "model=some/marked-model",
        "--json",
    )
    ran = cli(*argv)
    assert ran.code == 0
    plan = ran.document
    assert plan["argv"][:3] == ["vllm", "serve", "some/marked-model"]
    assert plan["argv"][plan["argv"].index("--max-num-seqs") + 1] == "512"
    assert (
        plan["env"] == {"VLLM_LOGGING_LEVEL": "DEBUG"}
        and plan["files"] == {}
        and plan["nodes"] == []
    )
    assert plan["installed"].startswith("vLLM ") and plan["simulated"] is True
    assert with_argument("some/marked-model") == []
    assert cli("--simulate", "rtx-pro-6000", "servers", "--json").document["servers"] == []


def test_plan_says_that_the_state_directory_cannot_be_made(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nope")
    ran = cli("plan", "vllm-any", "--var", "model=org/x", "--json")
    found = {one["code"]: one["text"] for one in ran.document["findings"]}
    assert ran.code == 2 and "cannot create" in found["host.state-dir"]


def test_plan_keeps_unknown_flags_and_suggests_similar_ones(cli: Cli) -> None:
    plan = cli("plan", "vllm-any", "--set", "max-num-sequences=8", "--json").document
    assert plan["argv"][-2:] == ["--max-num-sequences", "8"]
    found = next(f for f in plan["findings"] if f["flag"] == "max-num-sequences")
    assert (
        set(found) >= {"level", "code", "flag", "text", "fix"}
        and "max-num-seqs" in f"{found['text']} {found['fix']}"
    )


def test_plan_unset_and_variables_are_not_remembered_by_a_plan(cli: Cli) -> None:
    ran = cli("plan", "llamacpp-gguf", "--var", "model=/tmp/x.gguf", "--unset", "metrics", "--json")
    assert ran.code == 0 and "--metrics" not in ran.document["argv"]
    assert cli("plan", "llamacpp-gguf").code == 2  # the model is still asked for


def test_keys_are_masked_in_a_plan(cli: Cli) -> None:
    argv = ("plan", "vllm-any", "--set", "api-key=verysecret", "--env", "HF_TOKEN=alsosecret")
    for ran in (cli(*argv), cli(*argv, "--json")):
        assert (
            ran.code == 0
            and "secret" not in ran.out.replace("secret.argv", "")
            and "***" in ran.out
        )


def test_plan_shows_one_command_per_node(cli: Cli) -> None:
    argv = ("plan", SPARKS, "--var", "head_ip=10.0.0.1", "--var", "worker_ip=10.0.0.2")
    nodes = cli(*argv, "--json").document["nodes"]
    assert [n["rank"] for n in nodes] == [0, 1]
    assert [n["env"]["VLLM_HOST_IP"] for n in nodes] == ["10.0.0.1", "10.0.0.2"]
    assert "--headless" in nodes[1]["argv"] and "--headless" not in nodes[0]["argv"]
    printed = cli(*argv).out.splitlines()
    assert [line for line in printed if line.startswith("#")] == [
        "# head (rank 0)",
        "# worker (rank 1)",
    ]
    assert nodes[0]["shell"] in printed and nodes[1]["shell"] in printed


def test_a_plan_with_several_nodes_is_rejected_on_a_real_host(cli: Cli) -> None:
    ran = cli("start", SPARKS, "--var", "head_ip=10.0.0.1", "--var", "worker_ip=10.0.0.2")
    assert ran.code == 2 and "2 nodes (head, worker)" in ran.err and "workbench plan" in ran.err


def test_a_plan_with_errors_exits_with_2(cli: Cli) -> None:
    ran = cli("plan", "vllm-any", "--set", "gpu-memory-utilization=7", "--json")
    assert (
        ran.code == 2
        and ran.document["argv"]
        and "error" in [f["level"] for f in ran.document["findings"]]
    )
    assert cli("plan", "vllm-any", "--set", "gpu-memory-utilization=7").code == 2
    assert cli("plan", "vllm-any").code == 0


def test_check_and_plan_report_the_same_findings_of_a_user_preset(cli: Cli) -> None:
    own = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets", "mine.toml")
    own.parent.mkdir(parents=True, exist_ok=True)
    text = (
        (paths.shipped_presets_dir() / "vllm-any.toml")
        .read_text()
        .replace('id = "vllm-any"', 'id = "mine"')
    )
    own.write_text(f'{text}\n[env]\nLD_PRELOAD = "/opt/lib/tcmalloc.so"\n')
    assert cli("plan", "mine").code == 0
    checked = cli("presets", "check", str(own), "--json")
    assert checked.code == 0
    (file,) = checked.document["files"]
    assert [f["level"] for f in file["findings"] if f["code"] == "preset.hijacks-execution"] == [
        "warn"
    ]
    elsewhere = own.parents[2] / "mine.toml"
    elsewhere.write_text(own.read_text())
    again = cli("presets", "check", str(elsewhere), "--json")
    assert [f["text"] for f in again.document["files"][0]["findings"]] == [
        f["text"] for f in file["findings"]
    ]
    refused = cli("--simulate", "rtx-pro-6000", "start", str(elsewhere))
    assert refused.code == 2 and "LD_PRELOAD" in refused.err and "--trust" in refused.err


def test_a_preset_is_shown_with_its_hardware_baseline_and_benchmark(cli: Cli) -> None:
    shown = cli("presets", "show", "rtx-pro-6000-clock-power-profile").out
    for said in (
        "power limit 600 W",
        "memory clocks 13365 MHz",
        "CPU governor performance, CPU C-states off",
        "baseline  sglang-",
        "lines 15, 45",
    ):
        assert said in shown
    assert "--enable-metrics\n" in shown and "${model}" not in shown
    sparks = cli("presets", "show", SPARKS).out
    assert (
        "node 1: worker" in sparks
        and "--headless" in sparks
        and ("(default enp1s0f1np1)") in sparks
    )


def test_fit_knows_the_sizes_of_models_that_presets_have(cli: Cli) -> None:
    ran = cli("--simulate", "rtx-pro-6000", "fit", "meta-llama/Llama-3.3-70B-Instruct")
    assert ran.code == 0 and "BF16" in ran.out and "no answer" not in ran.out
    assert "the sizes are those of the preset vllm-llama-3.3-70b" in ran.err


def test_a_preset_with_parameters_and_quantization_has_a_memory_estimate(cli: Cli) -> None:
    ran = cli("--simulate", "rtx-5060ti-x2", "plan", "vllm-qwen3.5-122b-int4-spark")
    assert "does not fit: weights 59.0 GiB per GPU" in ran.err
    assert "data-parallel-size 2 would use 2" not in ran.err


def test_fit_answers_what_fits(cli: Cli) -> None:
    ran = cli("--simulate", "gb10-x2", "fit", SPARKS, "--context", "8192,32768")
    assert ran.code == 0 and "NVFP4 *" in ran.out and "8,192" in ran.out
    (group,) = cli("--simulate", "gb10-x2", "fit", SPARKS, "--kv", "fp8", "--json").document[
        "groups"
    ]
    by_size = {(row["weights"], len(row["gpus"])): row for row in group["rows"]}
    assert (
        by_size["BF16", 2]["limit_tok_s"] == pytest.approx(3.93, abs=0.01)
        and ("BF16", 1) not in by_size
    )
    none = cli("--simulate", "four-pcie", "fit", "org/nothing")
    assert none.code == 2 and "no answer" in none.out
    wrong = cli("--simulate", "four-pcie", "fit", SPARKS, "--context", "long")
    assert wrong.code == 2 and "no lengths" in wrong.err
