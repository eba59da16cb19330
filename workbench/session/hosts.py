"""Which host a name means: this machine, one behind ssh, or a simulated one."""

from __future__ import annotations

from pathlib import Path

from workbench.hosts import open_host
from workbench.hosts.base import Host
from workbench.model.errors import InputError
from workbench.store import paths

SIMULATED = "sim:"


def host_called(name: str | None, simulate: str | None = None) -> Host:
    """`name`: None or "local", an ssh name, or "sim:PROFILE". `simulate` puts a simulated driver and stand-in engines
    on that host (its files must be this machine's). Raises InputError for a profile that is not there."""
    if name and name.startswith(SIMULATED):
        simulate, name = name.removeprefix(SIMULATED), None
    inner = open_host(name)
    if simulate is None:
        return inner
    from workbench.sim.host import SimulatedHost

    return SimulatedHost(inner, simulate, str(paths.state_dir() / "sim" / simulate))


def known_names() -> tuple[str, ...]:
    """For the host picker: this machine, the aliases of the person's ssh config, the simulated profiles."""
    from workbench.sim.profiles import PROFILES

    return ("local", *_ssh_aliases(Path.home() / ".ssh" / "config"), *(SIMULATED + name for name in PROFILES))


def _ssh_aliases(config: Path, depth: int = 0) -> list[str]:
    """Host names of an ssh config without patterns, `Include`s followed."""
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return []
    names: list[str] = []
    for line in lines:
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() == "host":
            names += [n for n in rest.split() if not any(c in n for c in "*?!")]
        elif keyword.lower() == "include" and depth < 8:
            for pattern in rest.split():
                base = Path(pattern).expanduser()
                root = base.parent if base.is_absolute() else config.parent / base.parent
                names += [n for found in sorted(root.glob(base.name)) for n in _ssh_aliases(found, depth + 1)]
    return list(dict.fromkeys(names))


def check_profile(name: str) -> None:
    from workbench.sim.profiles import PROFILES

    if name not in PROFILES:
        raise InputError(f"no simulated host is called {name!r}", next_step=f"take one of {', '.join(PROFILES)}")
