"""A stand-in for platformdirs, which Textual imports and uses only to save a screenshot."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class LazyPlatformdirs(ModuleType):
    """A module in place of `platformdirs`, which takes 0.3 MiB. Whoever asks it for a directory, or
    imports another name of it, gets that of the real module, which is loaded then."""

    REPLACED = "platformdirs"

    def user_downloads_path(self) -> Path:
        """Return the directory of the user's downloads."""
        found: Path = self._load_platformdirs().user_downloads_path()
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks of each module
            raise AttributeError(name)
        return getattr(self._load_platformdirs(), name)

    def _load_platformdirs(self) -> ModuleType:
        if sys.modules.get(self.REPLACED) is self:
            del sys.modules[self.REPLACED]
        return import_module(self.REPLACED)
