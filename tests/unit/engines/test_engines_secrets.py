"""Nothing that is a key may be shown; nothing that is not may be hidden."""

from __future__ import annotations

import pytest

from workbench import engines
from workbench.model.plan import Command, LaunchPlan
from workbench.model.secrets import MASK, is_secret_name, mask_argv, mask_command, mask_env, mask_text


@pytest.mark.parametrize("name", ["api-key", "--api-key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "admin-api-key"])
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("engine", engines.names())
def test_no_ordinary_flag_counts_as_secret(engine: str) -> None:
    secret = {n for n in engines.get(engine).catalog().flags if is_secret_name(n)}
    assert secret <= {"api-key", "admin-api-key", "hf-token", "ssl-keyfile-password", "seqlog-api-key"}
    assert engine == "tabbyapi" or "api-key" in secret


def test_argv_masks_every_value_under_a_secret_flag() -> None:
    argv = ["vllm", "serve", "m", "--api-key", "x", "second-key", "--port", "8000", "--hf-token=abc"]
    assert mask_argv(argv) == ("vllm", "serve", "m", "--api-key", MASK, MASK, "--port", "8000", f"--hf-token={MASK}")


def test_command_masks_the_value_wherever_it_stands() -> None:
    command = Command(("sglang", "serve", "--api-key", "s3cret", "--alias", "with-s3cret-inside"), {"HF_TOKEN": "tok"})
    masked = mask_command(command)
    assert "s3cret" not in masked.shell() and "tok" not in masked.env.values()
    assert masked.argv[-1] == f"with-{MASK}-inside"


def test_env_and_text() -> None:
    env = {"PATH": "/bin", "EMPTY_KEY": ""}
    assert mask_env({"HF_TOKEN": "abc", **env}) == {"HF_TOKEN": MASK, **env}
    assert mask_text("vllm serve m --api-key hunter2 --port 1") == f"vllm serve m --api-key {MASK} --port 1"
    assert mask_text("http_proxy=http://me:pw@proxy:3128/") == f"http_proxy=http://me:{MASK}@proxy:3128/"
    assert mask_text("listening on http://127.0.0.1:8000/v1") == "listening on http://127.0.0.1:8000/v1"
    assert mask_text("max_num_batched_tokens=8192") == "max_num_batched_tokens=8192"


def test_plan_with_a_key_shows_none() -> None:
    engine, plan = engines.get("vllm"), LaunchPlan("vllm", "m")
    plan = engines.apply_assignments(plan, engine.catalog(), ["api-key=a b"], envs=["VLLM_API_KEY=topsecret"])
    shown = mask_command(engine.command(plan)).shell()
    assert "topsecret" not in shown
    assert f"--api-key '{MASK}' '{MASK}'" in shown
