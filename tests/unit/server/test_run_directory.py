"""Tests of run directories: records are read back the same, by other versions too, and states
follow from facts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import Command, LaunchPlan, ModelFacts, Node
from workbench.model.server_run import ServerState
from workbench.server import running_server_secrets, watched_run
from workbench.server.run_directory import (
    RUN_ID_PATTERN,
    ReadyFacts,
    RunFacts,
    RunRecord,
    decode_ready,
    decode_record,
    encode_ready,
    encode_record,
    new_run_id,
)
from workbench.server.run_state import compute_status, reachable_address

PLAN = LaunchPlan(
    "vllm",
    "org/model",
    ModelFacts("org/model", parameters=70e9, layers=80),
    flags=(
        FlagSetting("max-num-seqs", 256, Origin.PRESET),
        FlagSetting("compilation-config", {"mode": 3}),
    ),
    env=(FlagSetting("NCCL_DEBUG", "INFO"),),
    executable=("/opt/v/bin/vllm",),
    nodes=(Node("a", 0, {"node-rank": 0}, {"X": "1"}), Node("b", 1)),
    variables={"home": "/data"},
)
COMMAND = Command(
    ("vllm", "serve", "org/model"),
    {"NCCL_DEBUG": "INFO"},
    {"c.yml": "a: 1\n"},
    "/data",
    host="0.0.0.0",
    port=8001,
)
RECORD = RunRecord(
    "20261121-031502-vllm-3f2a", "box", PLAN, COMMAND, 1e9, 600.0, "0.33.0", "0.1.0", True
)
READY = ReadyFacts(1_000_030.0, "tiny", 30.0, 8001)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_a_record_is_read_back_the_same() -> None:
    assert decode_record(RECORD.run_id, encode_record(RECORD)) == RECORD


@given(st.dictionaries(st.text("abc-", min_size=1), values, max_size=4), st.text(max_size=20))
def test_any_flag_value_and_model_name_is_read_back_the_same(
    flags: dict[str, object], model: str
) -> None:
    plan = LaunchPlan("sglang", model, flags=tuple(FlagSetting(k, v) for k, v in flags.items()))
    record = replace(RECORD, plan=plan)
    assert decode_record(record.run_id, encode_record(record)) == record


def test_fields_of_a_later_version_are_dropped() -> None:
    body = json.loads(encode_record(RECORD))
    body["new"] = 1
    body["plan"]["new"] = body["command"]["new"] = body["plan"]["model_facts"]["new"] = 2
    assert decode_record(RECORD.run_id, json.dumps(body).encode()) == RECORD


def test_a_value_of_the_wrong_type_is_named() -> None:
    body = json.loads(encode_record(RECORD))
    body["plan"]["flags"][0]["origin"] = "nowhere"
    problem = decode_record(RECORD.run_id, json.dumps(body).encode()).problem
    assert problem is not None and "$.plan.flags[0].origin" in problem


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe", b"[" * 100_000],
)
def test_a_damaged_plan_json_gives_a_record_with_a_problem(data: bytes) -> None:
    record = decode_record(RECORD.run_id, data)
    assert record.problem is not None and record.problem.startswith("plan.json of run ")
    assert record.engine == "vllm"


@given(st.binary(max_size=60))
def test_damaged_ready_json_raises_nothing(data: bytes) -> None:
    decode_ready(data)


def test_ready_facts_are_read_back_the_same() -> None:
    assert decode_ready(encode_ready(READY)) == READY


def test_run_ids_are_utc_and_have_their_shape() -> None:
    run_id = new_run_id("vllm", 1795230902.0)
    assert run_id.startswith("20261121-031502-vllm-")
    assert RUN_ID_PATTERN.fullmatch(run_id)


@pytest.mark.parametrize(
    ("facts", "now", "silent_s", "state", "reason"),
    [
        ({"alive": True}, 1_000_100, None, ServerState.STARTING, None),
        (
            {"alive": True},
            1_000_601,
            None,
            ServerState.FAILED,
            "the server was not ready within 600 s, but its process still runs",
        ),
        ({"alive": True, "ready": READY}, 1_000_601, None, ServerState.READY, None),
        (
            {"alive": True, "ready": READY},
            1_000_601,
            12.0,
            ServerState.UNRESPONSIVE,
            "the server has not answered for 12 s",
        ),
        (
            {"alive": True, "ready": READY, "stop_unix_s": 1.0},
            1_000_601,
            None,
            ServerState.STOPPING,
            None,
        ),
        (
            {"alive": False, "members": 2, "stop_unix_s": 1.0},
            1_000_601,
            None,
            ServerState.STOPPING,
            None,
        ),
        (
            {"alive": False, "stop_unix_s": 1.0, "exit_code": 0},
            1_000_601,
            None,
            ServerState.STOPPED,
            None,
        ),
        (
            {"alive": False, "exit_code": 2},
            1_000_100,
            None,
            ServerState.FAILED,
            "the server's process exited with code 2",
        ),
        (
            {"alive": False, "ready": READY, "exit_code": 137, "exit_signal": "SIGKILL"},
            1_000_100,
            None,
            ServerState.CRASHED,
            "the server's process was killed by SIGKILL",
        ),
        (
            {"alive": False, "ready": READY, "lost": "the host was restarted since"},
            1_000_100,
            None,
            ServerState.CRASHED,
            "the host was restarted since",
        ),
    ],
)
def test_states_follow_from_facts(
    facts: dict[str, object],
    now: float,
    silent_s: float | None,
    state: ServerState,
    reason: str | None,
) -> None:
    seen = RunFacts(RECORD, started_unix_s=1_000_000.0, **facts)  # type: ignore[arg-type]
    status = compute_status(seen, now_unix_s=now, silent_s=silent_s)
    assert status.state is state
    assert (status.reason is None) == (reason is None)
    assert reason is None or reason in (status.reason or "")
    assert status.url == "http://127.0.0.1:8001"
    assert status.simulated


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("10.0.0.5", "10.0.0.5"),
        ("fd00::1", "[fd00::1]"),
    ],
)
def test_where_a_server_answers(bind: str, address: str) -> None:
    assert reachable_address(bind) == address


@pytest.mark.parametrize(
    ("argv", "env", "key"),
    [
        (("vllm", "--api-key", "a"), {}, "a"),
        (("vllm", "--api-key=b", "--port", "1"), {}, "b"),
        (("vllm",), {"VLLM_API_KEY": "c"}, "c"),
        (("vllm",), {"OTHER_API_KEY": "d"}, None),
    ],
)
def test_a_server_s_key_is_found(
    argv: tuple[str, ...], env: dict[str, str], key: str | None
) -> None:
    assert running_server_secrets.api_key_of(Command(argv, env), engines.get_engine("vllm")) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("admin_key: x\napi_key: 0a1b\n", "0a1b"),
        ("api_key:\n- first\n- second\n", "first"),
        ("admin_key: x\n", None),
    ],
)
def test_tabbyapi_s_own_key_file(tmp_path: Path, text: str, key: str | None) -> None:
    (tmp_path / "api_tokens.yml").write_text(text)
    tabby = engines.get_engine("tabbyapi")
    assert (
        asyncio.run(running_server_secrets.read_key_from_file(LocalHost(), tabby, str(tmp_path)))
        == key
    )
    assert asyncio.run(running_server_secrets.read_key_from_file(LocalHost(), tabby, None)) is None


def test_a_start_that_prints_nothing_more_names_the_known_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = RunRecord("20261121-031502-vllm-3f2a", "local", PLAN, COMMAND, 0.0, 600.0)
    run = watched_run.WatchedRun(
        LocalHost(), "/tmp/run", record, engines.get_engine("vllm"), adopted=False
    )
    run.add_log_bytes(b"INFO vLLM is using nccl==2.28.9\n", 0)
    assert not run.status.findings
    monkeypatch.setattr(watched_run, "STUCK_AFTER_S", 0.0)
    assert run.refresh_and_check_status_change() and [
        finding.code for finding in run.status.findings
    ] == [
        "log.nccl-start",
        "start.stuck",
    ]
    run.spinning = Finding(Level.WARN, "start.spinning", "spinning, not working")
    assert run.refresh_and_check_status_change() and run.status.findings[0] is run.spinning
    monkeypatch.undo()
    run.add_log_bytes(b"INFO loading weights\n", 32)
    assert (
        run.refresh_and_check_status_change() and not run.status.findings and run.spinning is None
    )
