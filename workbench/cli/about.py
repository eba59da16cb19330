"""version, config: what this Workbench is, and the configuration in force."""

from __future__ import annotations

import argparse

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import say


def version(arguments: argparse.Namespace) -> int:
    from workbench import __version__

    if arguments.json:
        return emit({"version": __version__})
    say(f"workbench {__version__}")
    return 0


def config_print(arguments: argparse.Namespace) -> int:
    """Print every setting in force, defaults included. Exits 2 if the file has an error."""
    import tomlkit

    from workbench.model.findings import Level
    from workbench.store.config import ConfigStore

    store = ConfigStore()
    settings = store.config.model_dump(mode="json", exclude_none=True)
    if arguments.json:
        emit({"file": str(store.path), "config": settings, "findings": [f.as_json() for f in store.findings]})
    else:
        say(tomlkit.dumps(settings).rstrip())
    return 2 if any(f.level is Level.ERROR for f in store.findings) else 0


def config_path(arguments: argparse.Namespace) -> int:
    from workbench.store import paths

    path = paths.config_file()
    if arguments.json:
        return emit({"file": str(path), "exists": path.exists()})
    say(str(path))
    return 0


COMMANDS: dict[str, Command] = {"version": version, "config print": config_print, "config path": config_path}
