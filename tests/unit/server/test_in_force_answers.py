"""What a live server answers about itself: as SGLang and TabbyAPI answer, and as no server should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.hostile import EVIL, assert_safe
from support.scripted_server import FIN, SILENCE, Request, ScriptedServer

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.in_force import InForceReport
from workbench.model.plan import LaunchPlan
from workbench.server import in_force, readiness
from workbench.server.log_lines import LogRing

ANSWERS = Path(__file__).parents[2] / "fixtures" / "answers"
Step = bytes | str
Answer = Callable[[], Iterable[Step]]


def http(body: bytes, status: str = "200 OK", *headers: str) -> list[Step]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return ["\r\n".join([*lines, "", ""]).encode() + body]


def recorded(name: str) -> Answer:
    return lambda: http((ANSWERS / name).read_bytes(), "200 OK", "Content-Type: application/json")


def asked(
    engine: str, answers: dict[str, Answer], log: Iterable[str] = (), **flags: Any
) -> InForceReport:
    """Return what is in force in a server that gives `answers`, by path; any other path is not
    found."""
    settings = tuple(FlagSetting(name.replace("_", "-"), value) for name, value in flags.items())
    plan = LaunchPlan(engine, "org/model", flags=settings)
    found = engines.get_engine(engine)
    ring = LogRing()
    ring.extend(list(log))

    def answer(request: Request, n: int) -> Iterable[Step]:
        path = request.line.split()[1].partition("?")[0]
        return answers.get(path, lambda: http(b"not here", "404 Not Found"))()

    async def scenario(url: str) -> InForceReport:
        client = readiness.make_request_connection(url, "s3cret")

        async def same() -> Any:
            return client

        run = SimpleNamespace(
            engine=found,
            port=int(url.rpartition(":")[2]),
            host=LocalHost(),
            facts=SimpleNamespace(alive=True, pid=None),
            record=SimpleNamespace(
                run_id="run", engine=engine, plan=plan, command=found.command(plan)
            ),
            follower=SimpleNamespace(ring=ring),
            secrets=("s3cret",),
            connection=same,
        )
        try:
            return await in_force.read_settings_in_force(run)  # type: ignore[arg-type]
        finally:
            client.close()

    with ScriptedServer(answer) as server:
        return asyncio.run(asyncio.wait_for(scenario(server.url), 30))


def rows(report: InForceReport) -> dict[str, tuple[str | None, str | None, str, bool]]:
    return {row.name: (row.asked, row.in_force, row.where, row.differs) for row in report.rows}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang(path: str) -> None:
    answers = {path: recorded("sglang-0.5.2-get_server_info.json")}
    flags = {
        "tensor_parallel_size": 2,
        "chunked_prefill_size": 16384,
        "quantization": "awq",
        "max_total_tokens": 65536,
    }
    report = asked(
        "sglang", answers, **flags, attention_backend="triton", api_key="s3cret", made_up=1
    )
    found = rows(report)
    assert found["version"] == (None, "0.5.2", "server's answer", False)
    assert found["attention backend"] == ("triton", "triton", "server's answer", False)
    assert found["KV cache, tokens"] == ("65536", "62318", "server's answer", True)
    # it answers tp_size
    assert found["tensor-parallel-size"] == ("2", "1", "server's answer", True)
    assert found["chunked-prefill-size"][3] is False and found["quantization"] == (
        "awq",
        "awq_marlin",
        "server's answer",
        False,
    )
    assert (
        found["made-up"][1] is None
        and "never-shown" not in str(report)
        and "s3cret" not in str(report)
    )
    assert not any("server_info" in note for note in report.notes)


def test_a_recorded_answer_of_sglang() -> None:
    flags = {
        "max_total_tokens": 65536,
        "max_running_requests": 8,
        "attention_backend": "torch_native",
        "device": "cpu",
    }
    report = asked("sglang", {"/server_info": recorded("sglang-0.5.23-server_info.json")}, **flags)
    found = rows(report)
    assert found["version"][1] == "0.5.23" and found["device"] == (
        "cpu",
        "cpu",
        "server's answer",
        False,
    )
    assert found["KV cache, tokens"] == ("65536", "65536", "server's answer", False)
    assert found["requests at once"] == ("8", "16", "server's answer", True)
    assert (found["KV cache, GiB"][1], found["weights, GiB"][1]) == ("0.063", "0.012")
    assert {row.name for row in report.rows if row.differs} == {"requests at once", "model-path"}


def test_sglang_behind_its_grpc_gateway() -> None:
    inner = json.loads((ANSWERS / "sglang-0.5.2-get_server_info.json").read_text())
    body = json.dumps({"server_args": inner, "scheduler_info": {}}).encode()
    found = rows(asked("sglang", {"/server_info": lambda: http(body)}, mem_fraction_static=0.9))
    assert found["mem-fraction-static"] == ("0.9", "0.92", "server's answer", True)


def test_tabbyapi() -> None:
    answers = {"/v1/model": recorded("tabbyapi-v1-model.json")}
    flags = {
        "max_seq_len": 32768,
        "cache_size": 32768,
        "cache_mode": "Q8",
        "draft_model_name": "other",
    }
    found = rows(asked("tabbyapi", answers, **flags))
    assert found["model name"][1] == "Mistral-Large-Instruct-2411-exl3-4.0bpw"
    assert found["max model length"] == ("32768", "16384", "/v1/model", True)
    assert found["KV cache, tokens"] == ("32768", "32768", "/v1/model", False)
    assert found["KV cache type"][1] == "8,8" and found["chunk size"][1] == "2048"
    assert found["draft model"] == ("other", "Mistral-7B-Instruct-v0.3-exl3", "/v1/model", True)


def test_a_server_without_a_model_or_without_the_key_is_a_note() -> None:
    """TabbyAPI answers so before a model is loaded, and to a wrong key."""
    for status in ("503 Service Unavailable", "401 Unauthorized"):
        report = asked(
            "tabbyapi",
            {"/v1/model": lambda status=status: http(b'{"detail":"no"}', status)},
            max_seq_len=1,
        )
        assert f"/v1/model answers HTTP status {status[:3]}" in report.notes
        assert rows(report)["max-seq-len"][1] is None


def deep(open_: bytes, close: bytes, levels: int) -> bytes:
    return open_ * levels + b"1" + close * levels


LOGGED = "server_args=ServerArgs(model_path='x', mem_fraction_static=0.5, tp_size=4)"
HUGE = 50 * 2**20


def large() -> Iterable[Step]:
    yield f"HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n".encode()
    for _ in range(HUGE >> 20):
        yield b'"' * 2**20


def dripping() -> Iterable[Step]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
    yield SILENCE


HOSTILE: dict[str, Answer] = {
    "lists in lists": lambda: http(deep(b"[", b"]", 900)),
    "objects in objects": lambda: http(deep(b'{"version":', b"}", 400)),
    "too deep for Python": lambda: http(deep(b"[", b"]", 200_000)),
    "a deep setting": lambda: http(b'{"mem_fraction_static": ' + deep(b"[", b"]", 300) + b"}"),
    "50 MB": large,
    "5 MB of one setting": lambda: http(b'{"mem_fraction_static": "' + b"9" * 5 * 2**20 + b'"}'),
    "many settings": lambda: http(json.dumps({f"s{n}": n for n in range(100_000)}).encode()),
    "a list": lambda: http(b"[1, 2]"),
    "a text": lambda: http(b'"ready"'),
    "null": lambda: http(b"null"),
    "no JSON": lambda: http(b"<html>"),
    "nothing": lambda: http(b""),
    "wrong types": lambda: http(
        b'{"version": {"a": []}, "mem_fraction_static": [{"b": null}], "tp_size": true}'
    ),
    "not numbers": lambda: http(
        b'{"mem_fraction_static": NaN, "tp_size": -Infinity, "max_total_num_tokens": 1e999}'
    ),
    "a number of 5000 digits": lambda: http(b'{"tp_size": ' + b"9" * 5000 + b"}"),
    "escape sequences": lambda: http(
        json.dumps({"version": EVIL, EVIL: EVIL, "mem_fraction_static": EVIL}).encode()
    ),
    "another charset": lambda: http(
        '{"version": "\u202e1"}'.encode("utf-16"), "200 OK", "Content-Type: a/b; charset=hex"
    ),
    "not UTF-8": lambda: http(b'{"version": "\xff\xfe\x9b2J"}'),
    "a redirect": lambda: http(b"", "302 Found", "Location: http://127.0.0.1:1/"),
    "compressed": lambda: http(b"\x1f\x8b\x08", "200 OK", "Content-Encoding: gzip"),
    "cut off": lambda: [*http(b'{"version": "1"}')[:1], FIN],
    "half an answer": lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", FIN],
    "no HTTP": lambda: [b"\x00\x01\x02", FIN],
    "a slow drip": dripping,
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("engine", ["sglang", "tabbyapi"])
def test_an_answer_that_no_server_gives_is_a_note_or_a_row(
    engine: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_force, "TIMEOUT_S", 0.5)
    flags = (
        {"mem_fraction_static": 0.9, "tensor_parallel_size": 4}
        if engine == "sglang"
        else {"max_seq_len": 8192}
    )
    paths = ("/server_info", "/get_server_info", "/v1/models", "/v1/model", "/metrics")
    report = asked(engine, dict.fromkeys(paths, HOSTILE[kind]), [LOGGED], **flags)
    shown = json.dumps(report.as_json(), ensure_ascii=False)
    assert_safe(shown)
    assert len(shown) < 12_000
    assert all(row.in_force is None or row.where for row in report.rows)
    asked_rows = {row.asked for row in report.rows}
    assert {str(value) for value in flags.values()} <= asked_rows  # nothing that was asked is lost


def test_a_log_counts_if_no_answer_does() -> None:
    report = asked("sglang", {"/server_info": HOSTILE["a list"]}, [LOGGED], tensor_parallel_size=4)
    assert rows(report)["tensor-parallel-size"] == ("4", "4", "log", False)
    report = asked(
        "sglang", {"/server_info": HOSTILE["no JSON"]}, [LOGGED], mem_fraction_static=0.9
    )
    assert rows(report)["mem-fraction-static"] == ("0.9", "0.5", "log", True)
    assert "/server_info answers no JSON" in report.notes


@pytest.mark.parametrize("value", ["5k", "1,000", "NaN", "x", "1e999"])
def test_a_sample_of_the_metrics_page_may_be_anything(value: str) -> None:
    page = f'sglang:max_total_num_tokens{{a="b"}} {value}\n'.encode()
    asked("sglang", {"/metrics": lambda: http(page)})
