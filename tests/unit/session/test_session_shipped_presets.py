"""Every shipped preset plans without an error on the simulated host that it is for."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from support.natural_host import natural_host

from workbench.model.findings import Finding, Level
from workbench.session.session import Session
from workbench.store.presets import PresetLibrary


def presets_by_host() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for entry in PresetLibrary().list():
        found[natural_host(entry)].append(entry.id)
    return found


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("profile", sorted(presets_by_host()))
def test_every_shipped_preset_plans_without_errors_on_its_host(
    clean_environment: None, profile: str
) -> None:
    async def errors() -> dict[str, list[Finding]]:
        session = Session.of_host(None, profile)
        found = {}
        try:
            await session.link.connect()
            for preset_id in presets_by_host()[profile]:
                await session.plans.load_preset(preset_id)
                await session.plans.locate_engine()
                view = session.state.plan
                assert view is not None and view.command is not None and view.installed, preset_id
                found[preset_id] = [
                    f for f in view.findings if f.level is Level.ERROR or f.code == "version.range"
                ]
        finally:
            await session.close()
        return found

    assert {name: faults for name, faults in asyncio.run(errors()).items() if faults} == {}
