"""Plans from presets and assignments, rows of the flag editor, and conversion of text to values and
back."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import engines
from workbench.model.errors import InputError, PlanError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import LaunchPlan
from workbench.model.preset import Preset

CATALOG = engines.get_engine("vllm").catalog("0.33.0")


def preset(**changes: Any) -> Preset:
    data: dict[str, Any] = {
        "schema": 1,
        "id": "some-setup",
        "title": "Some setup",
        "summary": "for tests",
        "hardware": {"count": 2},
        "engine": {
            "name": "vllm",
            "versions": ">=0.14,<0.34",
            "executable": ["${venv}/bin/vllm"],
            "workdir": "${venv}",
        },
        "model": {
            "id": "${models}/Llama",
            "parameters_b": 70.6,
            "weight_gb": 141.1,
            "kv_bytes_per_token": 327680,
        },
        "flags": {
            "max-num-seqs": 64,
            "chat-template": "${models}/t.jinja",
            "hf-overrides": {"path": ["${models}"]},
        },
        "env": {"CACHE": "${venv}/cache", "PLAIN": "$HOME {x} $x"},
        "nodes": [
            {
                "name": "${head}",
                "rank": 0,
                "flags": {"node_rank": 0, "no-async-scheduling": True},
                "env": {"IP": "${head}"},
            }
        ],
        "variables": {
            "venv": {"description": "where vLLM is", "kind": "path", "default": "/opt/v"},
            "models": {
                "description": "the model directory",
                "kind": "path",
                "example": "/srv/models",
            },
            "head": {"description": "the head node", "default": "spark-01"},
        },
        "provenance": {"document": "a test", "status": "untested"},
    }
    return Preset.model_validate({**data, **changes})


def test_plan_from_preset() -> None:
    plan = engines.plan_from_preset(preset(), {"models": "/srv/models"})
    assert (plan.engine, plan.model, plan.workdir) == ("vllm", "/srv/models/Llama", "/opt/v")
    assert plan.executable == ("/opt/v/bin/vllm",)
    assert plan.flag("chat-template") == "/srv/models/t.jinja" and plan.flag("hf-overrides") == {
        "path": ["/srv/models"]
    }
    assert [(e.name, e.value) for e in plan.env] == [
        ("CACHE", "/opt/v/cache"),
        ("PLAIN", "$HOME {x} $x"),
    ]
    assert {f.origin for f in (*plan.flags, *plan.env)} == {Origin.PRESET}
    assert plan.model_facts is not None
    assert (plan.model_facts.parameters, plan.model_facts.weight_bytes) == (70.6e9, 141.1e9)
    assert (plan.preset_id, plan.engine_versions) == ("some-setup", ">=0.14,<0.34")
    node = plan.nodes[0]
    assert (node.name, node.env) == ("spark-01", {"IP": "spark-01"})
    assert node.flags == {"node-rank": 0, "async-scheduling": False}


def test_preset_flags_get_their_canonical_names() -> None:
    flags = {
        "max_num_seqs": 8,
        "tp": 2,
        "no-enforce-eager": True,
        "disable-log-requests": True,
        "speculative-config.model": "d",
    }
    flags |= {"speculative-config.num_speculative_tokens": 3, "speculative-model": "x"}
    plan = engines.plan_from_preset(preset(flags=flags), {"models": "m"})
    assert [(f.name, f.value) for f in plan.flags] == [
        ("max-num-seqs", 8),
        ("tensor-parallel-size", 2),
        ("enforce-eager", False),
        ("enable-log-requests", False),
        ("speculative-config", {"model": "d", "num_speculative_tokens": 3}),
        ("speculative-model", "x"),
    ]


def test_model_flag_in_a_preset_is_the_model() -> None:
    plan = engines.plan_from_preset(preset(flags={"model": "other/model"}), {"models": "m"})
    assert plan.model == "other/model" and plan.flags == ()


def test_errors_name_missing_and_unknown_variables() -> None:
    with pytest.raises(PlanError, match=r"models.*the model directory") as missing:
        engines.plan_from_preset(preset())
    assert "--var models=" in str(missing.value)
    with pytest.raises(PlanError, match="modles") as unknown:
        engines.plan_from_preset(preset(), {"modles": "x", "models": "y"})
    assert "venv" in str(unknown.value)
    with pytest.raises(PlanError, match="undeclared"):
        engines.plan_from_preset(preset(env={"A": "${undeclared}"}), {"models": "y"})


def test_variables_are_replaced_once_and_execute_nothing() -> None:
    plan = engines.plan_from_preset(preset(), {"models": "$(touch x)/${venv}; rm"})
    assert plan.model == "$(touch x)/${venv}; rm/Llama"
    argv = engines.get_engine("vllm").command(plan).argv
    assert "$(touch x)/${venv}; rm/Llama" in argv  # one argument, whatever it holds


def assign(*sets: str, unsets: tuple[str, ...] = (), envs: tuple[str, ...] = ()) -> LaunchPlan:
    start = LaunchPlan(
        "vllm",
        "m",
        flags=(FlagSetting("max-num-seqs", 64, Origin.PRESET),),
        env=(FlagSetting("A", "1"),),
    )
    return engines.apply_assignments(start, CATALOG, sets, unsets, envs)


def test_assignments() -> None:
    plan = assign(
        "-tp=4",
        "max-model-len=32K",
        "enforce-eager",
        "no-enable-prefix-caching",
        "compilation-config.mode=3",
    )
    assert plan.flag("tensor-parallel-size") == 4 and plan.flag("max-model-len") == 32768
    assert plan.flag("enforce-eager") is True and plan.flag("enable-prefix-caching") is False
    assert plan.flag("compilation-config") == {"mode": 3}
    changed = assign("max-num-seqs=512")
    assert changed.flags == (FlagSetting("max-num-seqs", 512, Origin.EDITED),)
    assert assign("model=a/b=c").model == "a/b=c"
    assert assign("unknown-thing=1.5").flag("unknown-thing") == 1.5
    assert assign("chat-template=a=b c").flag("chat-template") == "a=b c"
    assert assign(unsets=("max_num_seqs", "A"), envs=("B=x=y",)) == LaunchPlan(
        "vllm", "m", env=(FlagSetting("B", "x=y"),)
    )
    assert assign(unsets=("enforce-eager",)) == assign()


@pytest.mark.parametrize(
    ("sets", "unsets", "envs", "text"),
    [
        (("max-num-seqs=many",), (), (), "whole number"),
        (("max-num-seqs",), (), (), "needs a value"),
        (("=3",), (), (), "has no flag name"),
        (("enforce-eager=perhaps",), (), (), "on or off"),
        (("speculative-config={'a': 1}",), (), (), "column 2"),
        (("max-model-len=1.5K",), (), (), "max-model-len"),
        ((), ("max-num-seq",), (), "max-num-seqs"),
        ((), (), ("NOVALUE",), "NAME=value"),
        ((), (), ("bad name=1",), "NAME=value"),
    ],
)
def test_invalid_assignments_raise(sets: Any, unsets: Any, envs: Any, text: str) -> None:
    with pytest.raises(InputError) as error:
        assign(*sets, unsets=unsets, envs=envs)
    assert text in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("max-model-len", "1k", 1000),
        ("max-model-len", "1K", 1024),
        ("max-model-len", "2.5m", 2_500_000),
        ("max-model-len", "auto", "auto"),
        ("max-num-seqs", " 12 ", 12),
        ("gpu-memory-utilization", ".9", 0.9),
        ("enforce-eager", "OFF", False),
        ("enforce-eager", "1", True),
        ("served-model-name", "a 'b c'", ["a", "b c"]),
        ("served-model-name", '["a", "b c"]', ["a", "b c"]),
        ("cudagraph-capture-sizes", "1,2, 4", [1, 2, 4]),
        ("speculative-config", ' {"a": [1]}', {"a": [1]}),
        ("chat-template", " kept as typed ", " kept as typed "),
    ],
)
def test_typed_values(flag: str, text: str, value: Any) -> None:
    assert engines.parse_flag_value(CATALOG.flags[flag], text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("3", 3),
        ("0.5", 0.5),
        ("007", "007"),
        ("1e999", "1e999"),
        ('{"a":1}', {"a": 1}),
        ("{x", "{x"),
        ("a b", "a b"),
    ],
)
def test_values_of_unknown_flags_are_parsed_without_loss(text: str, value: Any) -> None:
    assert engines.parse_flag_value(None, text) == value
    assert engines.format_flag_value(engines.parse_flag_value(None, text)) == text


def test_rows() -> None:
    plan = assign("unknown-thing=1", envs=("VLLM_LOGGING_LEVEL=DEBUG",))
    found = (
        Finding(Level.HINT, "x", "a hint", "max-num-seqs"),
        Finding(Level.ERROR, "y", "an error", "max-num-seqs"),
    )
    changed = engines.make_flag_rows(plan, CATALOG, found)
    assert [r.name for r in changed] == ["max-num-seqs", "unknown-thing", "A", "VLLM_LOGGING_LEVEL"]
    assert (changed[0].finding, changed[0].level, changed[0].origin) == (
        "an error",
        "error",
        Origin.PRESET,
    )
    assert changed[1].spec is None
    assert changed[3].is_env and changed[3].default == "INFO"
    everything = engines.make_flag_rows(plan, CATALOG, found, view="all")
    assert len(everything) == len(CATALOG.flags) + 3
    unset = next(r for r in everything if r.name == "data-parallel-size")
    assert (unset.value, unset.default, unset.origin) == (None, 1, Origin.DEFAULT)


def test_a_repeatable_flag_keeps_the_values_of_two_assignments() -> None:
    plan = engines.plan_from_preset(preset(flags={}), {"models": "m"})
    catalog = engines.get_engine("vllm").catalog()
    twice = engines.apply_assignments(
        plan, catalog, ["middleware=a.b", "middleware=c.d", "port=1", "port=2"]
    )
    assert twice.flag("middleware") == ["a.b", "c.d"] and twice.flag("port") == 2
    argv = engines.get_engine("vllm").command(twice).argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--middleware"] == ["a.b", "c.d"]
    again = engines.apply_assignments(twice, catalog, ["middleware=e.f"])
    assert again.flag("middleware") == ["e.f"]
