"""The flags that the engines installed on the session's host support. Each engine is asked for its
flags once, and the answer is stored."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.model.errors import HostError
from workbench.session.hosts.settings import HostSettings
from workbench.store import flag_cache

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.flags import FlagCatalog
    from workbench.server.engine_probe import InstalledEngine
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


class EngineFlags:
    """Flag catalogs of the engines installed on the host. A stored catalog is used as long as the
    host, the program, its version and its modification time are the same."""

    def __init__(self, core: StateHolder, config: ConfigStore) -> None:
        self._core, self._settings = core, HostSettings(core, config)
        # why an engine did not answer in this session
        self._refused: dict[tuple[str, ...], str] = {}
        self._asking = asyncio.Lock()

    async def find_installed_engine(self, engine: Engine, executable: str = "") -> InstalledEngine:
        """Return what a search of the host for the engine found; if that is nothing, the answer has
        the problem. Its program is `executable`, or else the one that config.toml, hosts.toml or
        PATH names. The program is run only to read its version."""
        from workbench.server.engine_probe import probe_engine

        named = executable
        if not named:
            chosen = self._settings.engine_program_and_source_file(engine.name)
            named = "" if chosen is None else chosen[0]
        return await probe_engine(self._core.host, engine, shlex.split(named))

    def stored_catalog(self, engine: Engine, found: InstalledEngine) -> FlagCatalog | None:
        """Return the stored catalog of the engine `found`. None if the engine has not been asked
        for its flags, or its path or version is unknown."""
        from workbench.engines import catalog as catalogs

        if not found.path or not found.version:
            return None
        data = flag_cache.read_cached_flags(self._flag_cache_key(engine, found))
        if data is None:
            return None
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged file: ask again
            return catalogs.catalog_from_data(
                engine.name,
                found.version,
                data,
                engine.accepts_flag_prefixes,
                printed_by=found.path,
            )
        return None

    async def query_engine_flags(
        self, engine: Engine, found: InstalledEngine, *, again: bool = False
    ) -> FlagCatalog:
        """Return the flag catalog of the engine `found`. The engine is asked for its flags if that
        was not done yet, or if `again` is True. Raises HostError if the engine cannot be asked or
        does not answer, and InputError if the answer is not a list of flags."""
        from workbench.engines import catalog as catalogs
        from workbench.engines import own_flags
        from workbench.server import engine_flags

        host, key = self._core.host, self._flag_cache_key(engine, found)
        why_not = engine_flags.why_flags_cannot_be_listed(host, engine, found)
        if why_not is None and not again:
            why_not = self._refused.get(key)
        if why_not is not None:
            step = f"run `workbench flags {engine.name}` for the flags of a shipped version"
            raise HostError(why_not, host=host.name, next_step=step)
        assert found.version is not None
        async with self._asking:
            known = None if again else self.stored_catalog(engine, found)
            if known is not None:
                return known
            try:
                data = own_flags.make_catalog_data(
                    engine,
                    found.version,
                    await engine_flags.read_flags_json_or_help(host, engine, found),
                )
            except HostError as error:
                self._refused[key] = error.message
                raise
            flag_cache.write_cached_flags(key, data)
            self._core.record_command(
                f"# asked {found.path} for its flags", f"{len(data['flags'])} flags"
            )
        return catalogs.catalog_from_data(
            engine.name, found.version, data, engine.accepts_flag_prefixes, printed_by=found.path
        )

    def _flag_cache_key(self, engine: Engine, found: InstalledEngine) -> tuple[str, ...]:
        return (
            self._core.host.name,
            engine.name,
            found.path or "",
            found.version or "",
            found.modified,
        )
