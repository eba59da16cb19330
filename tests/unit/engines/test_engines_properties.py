"""Properties of every plan: argv has all settings, text and values convert both ways, nothing
crashes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from engine_strategies import (
    JSON_VALUES,
    TEXT,
    parse_like_argparse,
    parse_like_llama,
    settings_of,
    typed,
    values,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.catalog import list_catalog_versions
from workbench.model.errors import WorkbenchError
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.plan import Command, LaunchPlan, ModelFacts

SPECS = [s for e in engines.engine_names() for s in engines.get_engine(e).catalog().flags.values()]
VERSIONS = [(e, v) for e in engines.engine_names() for v in list_catalog_versions(e)]
NOT_SETTINGS = (
    "host",
    "port",
    "model",
    "model-path",
    "hf-repo",
    "model-name",
    "model-dir",
    "config",
)
ENV_NAMES = st.from_regex(r"[A-Z_]{1,8}", fullmatch=True)
relaxed = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), VERSIONS)
@given(data=st.data())
@relaxed
def test_argv_has_every_setting_of_the_plan(name: str, version: str, data: st.DataObject) -> None:
    engine = engines.get_engine(name)
    catalog = engine.catalog(version)
    wanted: dict[str, Any] = data.draw(settings_of(catalog, without=NOT_SETTINGS))
    flags = tuple(FlagSetting(n, v) for n, v in wanted.items())
    plan = LaunchPlan(name, "the-model", flags=flags, workdir="/srv", engine_version=version)
    command, prefix = engine.command(plan), engine.first_command_words(plan)
    launch = len(prefix)
    assert command.argv[:launch] == prefix
    words = list(command.argv[launch:])
    parsed = (
        parse_like_llama(catalog, words)
        if name == "llamacpp"
        else parse_like_argparse(catalog, words)
    )
    assert parsed.pop("host") in ("127.0.0.1", ["127.0.0.1"])
    assert int(parsed.pop("port")) == engine.default_port
    for model_flag in engine.model_flags:
        assert parsed.pop(model_flag, "the-model") == "the-model"
    in_file: dict[str, Any] = {}
    for text in command.files.values():
        assert parsed.pop("config") == "{run_dir}/config.yml"
        in_file = {
            k.replace("_", "-"): v
            for section in json.loads(text).values()
            for k, v in section.items()
        }
    seen = in_file | {n: typed(catalog.flags[n], w, wanted[n]) for n, w in parsed.items()}
    unwritable = {n for n, v in wanted.items() if v is False and n not in parsed}
    assert all(not catalog.flags[n].negation for n in unwritable)
    assert seen == {n: v for n, v in wanted.items() if n not in unwritable}


@given(st.lists(TEXT, min_size=1, max_size=6), st.dictionaries(ENV_NAMES, TEXT, max_size=3))
@relaxed
def test_a_shell_line_parses_back_to_argv(argv: list[str], env: dict[str, str]) -> None:
    command = Command(tuple(argv), env)
    words = shlex.split(command.shell_line)
    assert words == [*(f"{k}={v}" for k, v in env.items()), *argv]
    inside = replace(command, workdir="/a dir/it's")
    assert shlex.split(inside.shell_line) == ["cd", "/a dir/it's", "&&", *words]


@given(data=st.data())
@relaxed
def test_values_format_and_parse_back(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(SPECS))
    value = data.draw(values(spec))
    if spec.repeatable and not isinstance(value, list):
        value = [value]
    assert engines.parse_flag_value(spec, engines.format_flag_value(value)) == value


@given(st.sampled_from(VERSIONS), st.text(max_size=20))
@relaxed
def test_search_and_lookup_never_raise(version: tuple[str, str], text: str) -> None:
    catalog = engines.get_engine(version[0]).catalog(version[1])
    for found in engines.search_flags(catalog, text):
        assert found is catalog.flags[found.name]
    engines.look_up_flag(catalog, text)
    engines.most_similar_flag_name(catalog, text)
    engines.search_variables(catalog, text)


@given(data=st.data())
@relaxed
def test_no_plan_makes_validation_or_the_estimate_raise(data: st.DataObject) -> None:
    """Plans may contain anything that a preset file can: wrong types, huge numbers, unknown names."""
    name = data.draw(st.sampled_from(engines.engine_names()))
    engine = engines.get_engine(name)
    catalog = engine.catalog()
    names = st.sampled_from(sorted(catalog.flags)) | TEXT
    anything = (
        JSON_VALUES
        | st.integers()
        | st.floats()
        | st.sampled_from([10**400, "32k", "1.5", "auto", "${x}"])
    )
    flags = data.draw(st.dictionaries(names, anything, max_size=8))
    env = data.draw(
        st.dictionaries(
            st.sampled_from(sorted(catalog.env)) if catalog.env else TEXT, TEXT, max_size=4
        )
    )
    kv_bytes = data.draw(st.none() | st.floats(1, 1e7))
    plan = LaunchPlan(
        name,
        data.draw(TEXT),
        ModelFacts("m", weight_bytes=data.draw(st.floats(1, 1e12)), kv_bytes_per_token=kv_bytes),
        tuple(FlagSetting(n, v) for n, v in flags.items()),
        tuple(FlagSetting(n, v) for n, v in env.items()),
    )
    gpus = [
        GpuInfo(i, f"GPU-{i}", "NVIDIA GeForce RTX 5060 Ti", memory_total_bytes=16 << 30)
        for i in range(2)
    ]
    found = engines.validate_plan(
        plan, catalog, data.draw(st.none() | st.just(catalog.version) | TEXT), gpus
    )
    engines.estimate_memory_or_reason(plan, gpus)
    assert len(engines.make_flag_rows(plan, catalog, found)) == len(plan.flags) + len(plan.env)
    try:
        engine.command(plan)
    except WorkbenchError as error:
        assert error.message


@given(st.sampled_from(SPECS), st.text(max_size=12))
@relaxed
def test_parse_value_returns_a_value_or_names_the_expected_type(spec: Any, text: str) -> None:
    try:
        value = engines.parse_flag_value(spec, text)
    except WorkbenchError as error:
        assert spec.name in error.message
    else:
        problem = engines.check_flag_value(spec, value)
        assert problem is None or problem.code not in ("flag.type", "flag.json")
