"""READY and READY?: what the commands say about a server whose text is no answer. The servers are
real processes: one that answers each kind of garbage, a simulated engine, and llama.cpp."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import llama_server, text_engine, tiny_gguf
from support.serving import free_port

from tests.e2e.conftest import Cli
from workbench.bench import runner
from workbench.model.bench import BenchSpec
from workbench.session.session import Session

SIMULATED = ("--simulate", "rtx-5060ti-x2")


def _start(cli: Cli, tmp_path: Path, kind: str, *more: str):  # type: ignore[no-untyped-def]
    program = text_engine.install(tmp_path / kind, kind)
    words = ("--var", "model=org/tiny", "--executable", str(program), "--trust")
    return cli("start", "vllm-any", *words, "--set", f"port={free_port()}", "--wait", *more)


@pytest.mark.slow
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("kind", "reason", "excerpt"),
    [
        ("bang", "degenerate output", '"!!!!!!!!'),
        ("empty", "no content", "(no text)"),
        ("bad-utf8", "degenerate output", "The code word is"),
    ],
)
def test_garbage_is_never_plainly_ready(
    cli: Cli, tmp_path: Path, kind: str, reason: str, excerpt: str
) -> None:
    ran = _start(cli, tmp_path, kind)
    run_id = ran.out.strip()
    assert ran.code == 3, ran.err
    assert "ready? at http" in ran.err and "ready at" not in ran.err
    assert reason in ran.err and excerpt in ran.err
    assert f"workbench probe {run_id}" in ran.err

    listed = cli("servers").out
    assert f"{run_id}  ready? " in listed and reason in listed and excerpt in listed
    (server,) = cli("servers", "--json").document["servers"]
    assert (server["state"], server["run_id"]) == ("ready?", run_id)
    assert reason in server["text"]["problem"] and excerpt in server["text"]["excerpt"]
    assert any(f["code"] == server["text"]["code"] for f in server["findings"])

    again = cli("probe", run_id, "--json")
    assert again.code == 3
    assert reason in again.document["text"]["problem"]
    stopped = cli("stop", run_id)
    assert (stopped.code, stopped.out) == (0, f"{run_id} stopped\n")


@pytest.mark.slow
def test_good_text_is_ready_and_the_proof_outlives_the_command(cli: Cli, tmp_path: Path) -> None:
    ran = _start(cli, tmp_path, "good")
    assert (ran.code, "ready at http" in ran.err) == (0, True), ran.err
    (server,) = cli("servers", "--json").document["servers"]
    assert server["state"] == "ready"
    assert server["text"]["endpoint"] == "chat" and server["text"]["answers"] == 13
    assert "The code word is maple." in server["text"]["excerpt"]
    kept = json.loads(Path(server["run_dir"], "ready.json").read_text())
    assert kept["text"]["excerpt"] == server["text"]["excerpt"]
    probed = cli("probe", ran.out.strip())
    assert probed.code == 0 and "is ready: its text is an answer" in probed.out


@pytest.mark.slow
def test_a_benchmark_of_a_server_whose_text_is_no_answer_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_FAULT", "garbage")
    ran = cli(*SIMULATED, "start", "vllm-any", "--set", f"port={free_port()}", "--wait")
    run_id = ran.out.strip()
    assert ran.code == 3 and "ready? at http" in ran.err
    load = ("--concurrency", "2", "--requests", "8", "--max-tokens", "16", "--warmup", "0")
    bench = cli(*SIMULATED, "bench", run_id, *load, "--json")
    assert f"{run_id} is READY?: degenerate output" in bench.err
    (result,) = cli("results", "list", "--json").document["results"]
    shown = cli("results", "show", str(result["id"]), "--json").document
    assert "degenerate output" in json.dumps(shown["conditions"]["server_text"])
    assert "!!!!" in cli("results", "show", str(result["id"])).out


@pytest.mark.slow
def test_another_workbench_that_opens_later_shows_the_reason(cli: Cli, tmp_path: Path) -> None:
    _start(cli, tmp_path, "bang")

    async def opened() -> Session:
        session = Session.of_host(None, None)
        await session.link.connect()
        await session.servers.list_runs_and_select_one()
        return session

    async def go() -> None:
        session = await opened()
        try:
            server = session.state.server
            assert server is not None and server.state_word == "ready?"
            assert "degenerate output" in server.text_problem
        finally:
            await session.close()

    asyncio.run(go())


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "word", "note"),
    [
        ({}, 0, "ready", ""),
        ({"sense": False}, 0, "ready", "because its weights have only 11 MB"),
        ({"sense": False, "feed_forward": 8192}, 3, "ready?", ""),
    ],
)
def test_llama_cpp_with_a_model_that_speaks_and_with_random_weights(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, int],
    code: int,
    word: str,
    note: str,
) -> None:
    model = tiny_gguf.write(tmp_path / "tiny.gguf", **how)
    program = llama_server.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    sets = {"port": free_port(), "ctx-size": 4096, "parallel": 4, "alias": "tiny"}
    words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    ran = cli("start", "llamacpp-gguf", "--var", f"model={model}", *words, "--wait", "--json")
    assert (ran.code, ran.document["state"]) == (code, word), ran.document["text"]
    assert ran.document["text"]["answers"] >= 9
    assert ran.document["text"]["unjudged"] == ""
    assert note in " ".join(ran.document["text"]["notes"])


@pytest.mark.long
@pytest.mark.slow
def test_the_load_client_knows_that_random_weights_need_no_text(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At temperature 0 they may repeat a byte that is no character, of which llama.cpp sends none."""
    given: list[bool] = []
    run = runner.run_load

    async def noted(spec: BenchSpec, **more: Any) -> Any:
        given.append(spec.random_weights)
        return await run(spec, **more)

    monkeypatch.setattr(runner, "run_load", noted)
    model = tiny_gguf.write(tmp_path / "tiny.gguf", sense=False)
    program = llama_server.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    sets = {"port": free_port(), "ctx-size": 4096, "parallel": 4, "alias": "tiny"}
    words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    started = cli("start", "llamacpp-gguf", "--var", f"model={model}", *words, "--wait", "--json")
    load = ("--concurrency", "4", "--requests", "16", "--warmup", "0")
    load = (*load, "--max-tokens", "64", "--input-tokens", "200")
    ran = cli("bench", started.document["run_id"], *load, "--json")
    assert (ran.document["requests_ok"], ran.document["errors"]) == (16, {}), ran.err
    assert given == [True]
    (result,) = cli("results", "list", "--json").document["results"]
    shown = cli("results", "show", str(result["id"]), "--json").document
    assert shown["spec"]["random_weights"] is False  # nobody said so on the command line
