"""Real vLLM lists its own flags: all that its help names, like the shipped catalog of its version."""

from __future__ import annotations

import asyncio
import re
import subprocess

import engine_cache
import pytest

from workbench import engines
from workbench.engines import catalog as catalogs
from workbench.hosts.local import LocalHost
from workbench.model.findings import Level
from workbench.model.flags import FlagCatalog
from workbench.server.engine_probe import InstalledEngine, probe_engine
from workbench.session.plans.engine_flags import EngineFlags
from workbench.session.state_holder import StateHolder
from workbench.store.config import ConfigStore
from workbench.store.presets import PresetLibrary

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]
ENGINES = ("vllm", "sglang")


def asked(engine: str) -> tuple[InstalledEngine, FlagCatalog]:
    async def scenario() -> tuple[InstalledEngine, FlagCatalog]:
        found = await probe_engine(
            LocalHost(), engines.get_engine(engine), (engine_cache.executable(engine),)
        )
        return found, await EngineFlags(StateHolder(LocalHost()), ConfigStore()).query_engine_flags(
            engines.get_engine(engine), found
        )

    return asyncio.run(scenario())


def test_vllm_lists_every_flag_of_its_help() -> None:
    found, catalog = asked("vllm")
    help_all = subprocess.run(
        [engine_cache.executable("vllm"), "serve", "--help=all"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = set(re.findall(r"^  (?:-[\w-]+, )*(--[\w-]+)", help_all, re.MULTILINE)) - {"--help"}
    assert len(named) > 250
    assert {name for name in named if engines.look_up_flag(catalog, name).spec is None} == set()
    shipped = engines.get_engine("vllm").catalog("0.32.0")
    assert catalog.flags == shipped.flags and set(catalog.env) == set(shipped.env), found.version


def test_sglang_lists_the_flags_of_its_shipped_catalog_with_their_kinds() -> None:
    found, catalog = asked("sglang")
    shipped = engines.get_engine("sglang").catalog(found.version).flags
    assert {n: (f.kind, f.default) for n, f in catalog.flags.items()} == {
        n: (f.kind, f.default) for n, f in shipped.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shipped_presets_have_no_error_against_the_engine_s_own_flags(engine: str) -> None:
    found, catalog = asked(engine)
    assert len(catalog.flags) > 300
    library = PresetLibrary()
    for entry in library.list():
        if entry.engine != engine or entry.error:
            continue
        preset = library.get(entry.id)
        missing = {n: v.example or "x" for n, v in preset.variables.items() if v.default is None}
        plan = engines.plan_from_preset(preset, missing)
        findings = engines.validate_plan(plan, catalog, found.version)
        wrong = [f for f in findings if f.level is Level.ERROR]
        inside = catalogs.version_satisfies(found.version or "", plan.engine_versions)
        assert not wrong or not inside, (entry.id, wrong)
