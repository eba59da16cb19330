"""The user's directories. They follow the XDG specification on every system, so that SSH hosts and
laptops use the same paths."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def _xdg_directory(variable: str, fallback: str) -> Path:
    """Return the directory $variable/workbench, or ~/`fallback`/workbench if the variable is unset,
    empty or relative."""
    value = os.environ.get(variable, "")
    root = Path(value) if value.startswith("/") else Path.home() / fallback
    return root / "workbench"


def config_dir() -> Path:
    return _xdg_directory("XDG_CONFIG_HOME", ".config")


def state_dir() -> Path:
    """Return the directory for this machine's state: the activity log, journals of GPU settings,
    and run directories."""
    return _xdg_directory("XDG_STATE_HOME", ".local/state")


def data_dir() -> Path:
    return _xdg_directory("XDG_DATA_HOME", ".local/share")


def cache_dir() -> Path:
    """Return the directory for files that Workbench can create again."""
    return _xdg_directory("XDG_CACHE_HOME", ".cache")


def config_file() -> Path:
    return config_dir() / "config.toml"


def hosts_file() -> Path:
    return config_dir() / "hosts.toml"


def sweeps_dir() -> Path:
    """Return the directory of the stored sweeps."""
    return data_dir() / "sweeps"


def watches_dir() -> Path:
    """Return the directory of the watches and their nights."""
    return data_dir() / "watches"


def bisections_dir() -> Path:
    """Return the directory of the bisections."""
    return data_dir() / "bisections"


def results_db() -> Path:
    return data_dir() / "results.sqlite3"


def has_results() -> bool:
    """Return whether there is a database of results, perhaps one that cannot be read."""
    try:
        results_db().stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def preset_list_file() -> Path:
    return state_dir() / "preset-list"


def own_presets_dir() -> Path:
    """Return the directory of the user's own presets. It may not exist."""
    return config_dir() / "presets"


def shipped_presets_dir() -> Path:
    """Return the directory of the presets that Workbench ships: `workbench/_presets` in an
    installed wheel, or `presets/` in the parent directory of the package in a checkout."""
    packaged = _PACKAGE / "_presets"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "presets"
