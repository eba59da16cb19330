"""The flags that the engines installed on the session's host have by their own account, asked for once and kept."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.engines import catalog as catalogs
from workbench.model.errors import HostError
from workbench.session.host_settings import HostSettings
from workbench.store import flag_cache

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.flags import FlagCatalog
    from workbench.server.engine_probe import InstalledEngine
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


class EngineFlags:
    """Flag catalogs of installed engines. A catalog is valid as long as the host, the program, its version and its time
    of modification are the same."""

    def __init__(self, core: StateHolder, config: ConfigStore) -> None:
        self._core, self._settings = core, HostSettings(core, config)
        self._refused: dict[tuple[str, ...], str] = {}  # why an engine did not answer in this session
        self._asking = asyncio.Lock()

    async def find(self, engine: Engine, executable: str = "") -> InstalledEngine:
        """Return the engine on the host that `executable`, config.toml, hosts.toml or PATH names. No program is run but
        the engine's own, for its version."""
        from workbench.server.engine_probe import probe

        named = executable or next(iter(self._settings.program(engine.name) or ()), "")
        return await probe(self._core.host, engine, shlex.split(named))

    def known(self, engine: Engine, found: InstalledEngine) -> FlagCatalog | None:
        """Return the catalog that the engine gave earlier, None if it was not asked."""
        data = flag_cache.read(self._key(engine, found)) if found.path and found.version else None
        if data is None or found.version is None:
            return None
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged file: ask again
            return catalogs.of_data(engine.name, found.version, data, engine.accepts_flag_prefixes, asked=found.path)
        return None

    async def ask(self, engine: Engine, found: InstalledEngine, *, again: bool = False) -> FlagCatalog:
        """Return the catalog of the engine `found`. The engine is asked if it was not asked yet, or with `again`.

        Raises HostError if the engine cannot be asked or did not answer, and InputError if its answer is not a list of
        its flags.
        """
        from workbench.engines import own_flags
        from workbench.server import engine_flags

        host, key = self._core.host, self._key(engine, found)
        why_not = engine_flags.why_not(host, engine, found) or (None if again else self._refused.get(key))
        if why_not is not None or found.version is None:
            step = f"run `workbench flags {engine.name}` for the flags of a shipped version"
            raise HostError(why_not or "its version is unknown", host=host.name, next_step=step)
        async with self._asking:
            known = None if again else self.known(engine, found)
            if known is not None:
                return known
            try:
                data = own_flags.entries(engine, found.version, await engine_flags.ask(host, engine, found))
            except HostError as error:
                self._refused[key] = error.message
                raise
            flag_cache.write(key, data)
            self._core.record(f"{found.path}: asked for its flags", f"{len(data['flags'])} flags")
        return catalogs.of_data(engine.name, found.version, data, engine.accepts_flag_prefixes, asked=found.path)

    def _key(self, engine: Engine, found: InstalledEngine) -> tuple[str, ...]:
        return (self._core.host.name, engine.name, found.path or "", found.version or "", found.modified)
