"""An installed engine is asked for its own flags: by its real parser or help, once, whatever its
program does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.procs import eventually, with_argument

from workbench import engines
from workbench.engines import catalog as catalogs
from workbench.engines import own_flags
from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError, InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.flags import FlagKind, FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.server import engine_flags
from workbench.server.engine_probe import InstalledEngine, probe_engine
from workbench.session.plans.engine_flags import EngineFlags
from workbench.session.session import Session
from workbench.session.state_holder import StateHolder
from workbench.store.config import ConfigStore

HELP = Path(__file__).parents[2] / "fixtures/llama-server-help-b11434.txt"
SERVER_ARGS = """
import argparse, json, os, sys
print("an engine logs to stdout while it is imported")
open({seen!r}, "a").write(json.dumps([os.getcwd(), os.environ["CUDA_VISIBLE_DEVICES"], os.nice(0)]) + "\\n")

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        {extra}
        parser.add_argument("--model-path", "--model", required=True, help="The \\x1b[31mmodel\\x1b[0m.")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        group = parser.add_argument_group("schedule")
        group.add_argument("--new-thing", type=lambda text: int(text), default=7, help="A new thing. Since today.")
        group.add_argument("--new-mode", choices=["fast", "slow"], default="fast", help="**[DEPRECATED]** Mode.")
        group.add_argument("--new-switch", action=argparse.BooleanOptionalAction, default=True)
        group.add_argument("--new-list", nargs="+", type=float)
        group.add_argument("--new-json", type=json.loads, help="An object with: any fields")
        group.add_argument("--mem-fraction-static", type=float)
"""


def install(root: Path, extra: str = "pass", version: str = "0.5.99") -> Path:
    """Install an SGLang whose parser runs `extra`. Return its program."""
    package = root / "lib/python3.11/site-packages/sglang/srt"
    package.mkdir(parents=True, exist_ok=True)
    (package.parents[1] / f"sglang-{version}.dist-info").mkdir(exist_ok=True)
    text = SERVER_ARGS.format(seen=str(root / "seen"), extra=extra)
    (package / "server_args.py").write_text(text)
    (root / "bin").mkdir(exist_ok=True)
    python, program = root / "bin/python", root / "bin/sglang"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parents[1]} exec {sys.executable} "$@"\n')
    program.write_text(f"#!{python}\n")
    for path in (python, program):
        path.chmod(0o755)
    return program


async def found_at(program: Path) -> InstalledEngine:
    return await probe_engine(LocalHost(), engines.get_engine("sglang"), (str(program),))


def ask(program: Path, timeout_s: float = 100.0) -> dict[str, Any]:
    async def asked() -> object:
        return await engine_flags.read_flags_json_or_help(
            LocalHost(), engines.get_engine("sglang"), await found_at(program), timeout_s
        )

    return own_flags.make_catalog_data(engines.get_engine("sglang"), "0.5.99", asyncio.run(asked()))


def test_the_parser_of_the_engine_gives_names_types_defaults_choices_and_help(
    tmp_path: Path,
) -> None:
    data = ask(install(tmp_path))
    catalog = catalogs.catalog_from_data("sglang", "0.5.99", data, printed_by="x")
    flags = catalog.flags
    assert (flags["new-thing"].kind, flags["new-thing"].default) == (FlagKind.INT, 7)
    assert flags["new-thing"].help == "A new thing."
    assert flags["new-mode"].choices == ("fast", "slow") and flags["new-mode"].deprecated
    assert (flags["new-switch"].negation, flags["new-switch"].default) == ("--no-new-switch", True)
    assert (flags["new-list"].kind, flags["new-list"].repeatable) == (FlagKind.FLOAT, True)
    assert flags["new-json"].kind is FlagKind.JSON
    assert (
        engines.look_up_flag(catalog, "--model").name == "model-path"
        and flags["model-path"].required
    )
    shipped = engines.get_engine("sglang").catalog("0.5.23").flags["mem-fraction-static"]
    assert flags["mem-fraction-static"] == shipped  # with its limits, group and help
    directory, visible, nice = json.loads((tmp_path / "seen").read_text())
    assert (directory, visible) == ("/", "") and nice >= os.nice(0)


@pytest.mark.slow
def test_an_engine_that_hangs_fails_or_prints_nonsense_is_an_error_in_time(tmp_path: Path) -> None:
    for number, (extra, timeout_s, why) in enumerate(
        (
            ("import time; time.sleep(600)", 1.0, "did not end within 1 s"),
            ("raise RuntimeError('no CUDA\\x1b[2J')", 100.0, "RuntimeError: no CUDA"),
            ("os.kill(os.getpid(), 9)", 100.0, "SIGKILL ended it"),
            (
                "[parser.add_argument(f'--x{n}', help='x' * 9000) for n in range(5000)]",
                100.0,
                "it printed",
            ),
            ("json.dump = lambda data, out: out.write('[' * 900)", 100.0, "the answer is not JSON"),
            (
                "json.dump = lambda data, out: out.write('[' * 900 + ']' * 900)",
                100.0,
                "not the flag list of SGLang",
            ),
        )
    ):
        with pytest.raises(WorkbenchError) as error:
            ask(install(tmp_path / str(number), extra), timeout_s)
        assert why in error.value.message and "\x1b" not in error.value.message


LEFT = "import subprocess; subprocess.Popen([{words}], start_new_session={apart}{pipes})"
CHILDREN = {  # of an engine that ends: with its pipes, without them, and in a session of its own
    "holds the pipes": {"apart": False, "pipes": ""},
    "silent": {"apart": False, "pipes": ", stdout=-3, stderr=-3"},
    "apart": {"apart": True, "pipes": ""},
}


@pytest.mark.parametrize("kind", CHILDREN.values(), ids=CHILDREN)
@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.slow
def test_a_child_that_a_probed_engine_leaves_is_ended(
    tmp_path: Path, kind: dict[str, Any], answers: bool
) -> None:
    number = f"600.{os.getpid()}"  # longer than the test may take
    left = LEFT.format(words=f"'sleep', '{number}'", **kind)
    if answers:
        ask(install(tmp_path, left))
    else:
        with pytest.raises(HostError, match="did not end within 1 s"):
            ask(install(tmp_path, f"{left}; import time; time.sleep(600)"), 1.0)
    # SIGKILL has been sent to all of them; on a busy machine the child needs a moment to end
    eventually(lambda: not with_argument(number), "the child of the engine to end")


def test_what_is_not_the_list_of_this_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the flag list of SGLang"):
        ask(install(tmp_path, "return argparse.ArgumentParser()"))
    with pytest.raises(InputError, match=r"llama\.cpp"):
        own_flags.make_catalog_data(
            engines.get_engine("llamacpp"), "b1", "usage: something else\n--x  y"
        )


def test_an_engine_is_asked_once_until_its_program_changes(tmp_path: Path) -> None:
    program, engine = install(tmp_path), engines.get_engine("sglang")

    async def scenario() -> None:
        first = EngineFlags(StateHolder(LocalHost()), ConfigStore())
        assert first.stored_catalog(engine, await found_at(program)) is None
        asked = await asyncio.gather(
            *[first.query_engine_flags(engine, await found_at(program)) for _ in range(3)]
        )
        assert {len(catalog.flags) for catalog in asked} == {9}
        later = EngineFlags(StateHolder(LocalHost()), ConfigStore())
        assert later.stored_catalog(
            engine, await found_at(program)
        ) == await later.query_engine_flags(engine, await found_at(program))
        assert len((tmp_path / "seen").read_text().splitlines()) == 1
        os.utime(program, (1_000_000, 1_000_000))
        assert later.stored_catalog(engine, await found_at(program)) is None
        await later.query_engine_flags(engine, await found_at(program))
        assert len((tmp_path / "seen").read_text().splitlines()) == 2

    asyncio.run(scenario())


def test_the_plan_under_edit_is_checked_against_the_engine_s_own_flags(tmp_path: Path) -> None:
    program = install(tmp_path)
    chosen = {"new_thing": 8, "new-swich": True, "max-running-requests": 4}
    flags = tuple(FlagSetting(name, value) for name, value in chosen.items())
    plan = LaunchPlan(
        "sglang", "org/model", flags=flags, executable=(str(program),), executable_from="given"
    )

    async def scenario() -> None:
        session = Session.of_host()
        session.plans.edit_plan(plan, "mine")
        await session.plans.locate_engine()
        assert not session.plans.view().catalog_asked
        await session.plans.locate_engine_and_ask_flags()
        view = session.plans.view()
        assert view.catalog_asked and view.flag_source_text == "its own flags of sglang 0.5.99"
        errors = {f.flag: f.text for f in view.findings if f.level is Level.ERROR}
        assert set(errors) == {"new-swich", "max-running-requests"}, errors
        assert [
            spec.name for spec in engines.search_flags(session.plans.editor.catalog, "new-swi")
        ] == ["new-switch"]
        assert "--new-thing 8" in view.shell_command() or "--new_thing 8" in view.shell_command()
        install(tmp_path, "raise RuntimeError('broken')")
        os.utime(program, (1_000_000, 1_000_000))
        await session.plans.locate_engine_and_ask_flags()
        view = session.plans.view()
        assert not view.catalog_asked and "flags.shipped" in {f.code for f in view.findings}
        session.plans.edit_plan(
            replace(plan, executable_from="preset", stranger=True), "a stranger's"
        )
        os.utime(program, (2_000_000, 2_000_000))
        asked = (tmp_path / "seen").read_text()
        await session.plans.locate_engine_and_ask_flags()
        assert (tmp_path / "seen").read_text() == asked  # nothing that it names is run
        await session.close()

    asyncio.run(scenario())


def test_an_engine_that_refused_is_not_asked_again_and_a_damaged_answer_is(tmp_path: Path) -> None:
    program, engine = (
        install(tmp_path, "raise RuntimeError('broken')"),
        engines.get_engine("sglang"),
    )

    async def scenario() -> None:
        flags = EngineFlags(StateHolder(LocalHost()), ConfigStore())
        for _ in range(2):
            with pytest.raises(HostError, match="broken"):
                await flags.query_engine_flags(engine, await found_at(program))
        assert len((tmp_path / "seen").read_text().splitlines()) == 1
        install(tmp_path)
        await flags.query_engine_flags(engine, await found_at(program), again=True)
        for kept in Path(os.environ["XDG_CACHE_HOME"]).rglob("flags/*.json"):
            kept.write_text(kept.read_text().replace('"flags": [', '"flags": [3, '))
        assert flags.stored_catalog(engine, await found_at(program)) is None

    asyncio.run(scenario())


def test_a_program_that_was_not_run_is_named_with_the_reason() -> None:
    """`flags llamacpp --probe --executable PATH` said that none of a known version was found."""
    engine, host = engines.get_engine("llamacpp"), LocalHost()
    elsewhere = InstalledEngine("llamacpp", "/opt/x/llama-server", how="it was not run")
    why = engine_flags.why_flags_cannot_be_listed(host, engine, elsewhere)
    assert why == "the version of /opt/x/llama-server is not known: it was not run"
    missing = InstalledEngine("llamacpp", None, problem="llama-server not found on local")
    why = engine_flags.why_flags_cannot_be_listed(host, engine, missing)
    assert why == "llama-server not found on local"


def test_the_help_of_a_real_llama_server_gives_every_flag_of_its_catalog() -> None:
    engine = engines.get_engine("llamacpp")
    data = own_flags.make_catalog_data(engine, "b11434", HELP.read_text())
    own, shipped = (
        catalogs.catalog_from_data("llamacpp", "b11434", data).flags,
        engine.catalog("b11434").flags,
    )
    assert set(own) == set(shipped) and len(own) == 251
    for name, spec in shipped.items():
        found = own[name]
        assert (found.kind, found.choices, found.nargs, found.env) == (
            spec.kind,
            spec.choices,
            spec.nargs,
            spec.env,
        )
        assert (found.aliases, found.negation) == (spec.aliases, spec.negation), name
        if spec.default not in (None, "") and spec.kind is not FlagKind.STR:
            assert found.default == spec.default, name


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
_FIELDS = (
    "names",
    "negations",
    "kind",
    "choices",
    "default",
    "nargs",
    "help",
    "group",
    "json_fields",
    "env",
)
_FLAG = st.dictionaries(
    st.sampled_from((*_FIELDS, "default_text", "repeatable")),
    _JSON
    | st.sampled_from(
        ("int", "bool", "json", ["--x"], ["--model-path"], ["--port", "-p"], "\x1b[1m")
    ),
)
NEEDED = [{"names": [f"--{name}"], "kind": "str"} for name in ("host", "port", "model-path")]


@settings(max_examples=60)
@given(_JSON | st.fixed_dictionaries({"flags": st.lists(_FLAG, max_size=6), "variables": _JSON}))
@pytest.mark.long
@pytest.mark.slow
def test_any_answer_is_either_refused_or_a_catalog(answer: Any) -> None:
    if isinstance(answer, dict) and isinstance(answer.get("flags"), list):
        answer = {**answer, "flags": [*NEEDED, *answer["flags"]]}
    try:
        data = own_flags.make_catalog_data(engines.get_engine("sglang"), "0.5.99", answer)
    except InputError:
        return
    catalog = catalogs.catalog_from_data("sglang", "0.5.99", json.loads(json.dumps(data)))
    for name, spec in catalog.flags.items():
        assert (
            "\x1b" not in f"{name}{spec.help}{spec.choices}{spec.group}" and len(spec.help) <= 240
        )
        engines.parse_flag_value(
            spec, engines.format_flag_value(spec.default)
        ) if spec.kind is FlagKind.STR else None


def test_a_default_of_thousands_of_digits_is_no_default() -> None:
    long = "9" * 6000
    text = (
        f"--model FNAME  m\n--host HOST  h\n--port N  p (default: {long})\n--share N  s "
        f"(default: -{long}.5)\n"
    )
    flags = own_flags.make_catalog_data(engines.get_engine("llamacpp"), "b9000", text)["flags"]
    assert {flag["name"]: flag.get("default") for flag in flags}["port"] is None


def test_an_engine_that_prints_without_end_is_named_with_its_program(tmp_path: Path) -> None:
    program = install(tmp_path, "import sys; [sys.stdout.write('x' * 10**6) for _ in range(100)]")
    with pytest.raises(HostError, match="printed more than") as error:
        ask(program)
    assert error.value.command == str(tmp_path / "bin/python") and ("workbench flags") in (
        error.value.next_step or ""
    )
