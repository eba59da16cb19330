"""The commands `version` and `config`, which print the installed version and the configuration."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from workbench.cli.output import items_as_json, print_json_or_lines
from workbench.cli.registry import command


@command("version", "print the version", examples=("workbench version",))
def print_version(arguments: argparse.Namespace) -> int:
    from workbench import __version__

    return print_json_or_lines(arguments.json, {"version": __version__}, f"workbench {__version__}")


@command(
    "config print",
    "print all settings in effect, with defaults",
    examples=("workbench config print",),
)
def print_config(arguments: argparse.Namespace) -> int:
    """Print the configuration. Return 2 if config.toml has an error, otherwise 0."""
    import tomlkit

    from workbench.model.findings import Level
    from workbench.store.config import ConfigStore

    store = ConfigStore()
    config = store.config
    settings = asdict(replace(config, alerts=config.alerts.with_masked_secrets))
    document = {
        "file": str(store.path),
        "config": settings,
        "findings": items_as_json(store.findings),
    }
    print_json_or_lines(arguments.json, document, tomlkit.dumps(settings).rstrip())
    return 2 if any(f.level is Level.ERROR for f in store.findings) else 0


@command(
    "config path", "print the path of the configuration file", examples=("workbench config path",)
)
def print_config_paths(arguments: argparse.Namespace) -> int:
    from workbench.store import paths

    path = paths.config_file()
    return print_json_or_lines(
        arguments.json, {"file": str(path), "exists": path.exists()}, str(path)
    )
