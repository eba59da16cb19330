"""Reads compose files as recipes: the service that starts a server, with references such as
`${NAME:-default}` replaced by their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.errors import InputError
from workbench.model.untrusted_numbers import whole_number
from workbench.recipes.imports.containers import Container, environment, server_commands
from workbench.recipes.imports.fields import rest_of, table_of, text_of, words_of
from workbench.recipes.imports.server_command import ServerCommand, no_server
from workbench.recipes.imports.shell_script import interpret, recipe_of
from workbench.recipes.recipe import Notes, Recipe
from workbench.recipes.shell_text import Variable, interpolated, simple_commands

FORM = "compose file"
_KNOWN = "image entrypoint command environment volumes ports working_dir deploy gpus container_name"
_OF_CONTAINER = (
    "restart ipc shm_size network_mode networks ulimits cap_add security_opt privileged runtime "
    "devices healthcheck "
    "logging labels depends_on hostname user tty stdin_open init stop_grace_period stop_signal "
    "extra_hosts expose "
    "mem_limit cpus pid profiles pull_policy platform"
)
_REFUSED = "build env_file extends secrets configs develop post_start pre_stop"


def recognizes(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("services"), Mapping)


def read(document: Mapping[str, Any], notes: Notes, entry: str | None = None) -> Recipe:
    """Return the recipe of the service `entry`, or by default of the first service that starts a
    server. Parts that are not understood are added to `notes`. Raises InputError if there is no
    service `entry`."""
    services = table_of(document, "services", notes)
    if entry is not None and entry not in services:
        raise InputError(
            f"the compose file has no service {entry!r}",
            next_step=f"choose one of its services: {', '.join(services)}",
        )
    rest_of(document, "services version name volumes networks", notes)
    found: dict[str, list[ServerCommand]] = {}
    noted: dict[str, Notes] = {}
    for name, service in services.items():
        if isinstance(service, Mapping) and entry in (None, name):
            noted[name] = Notes()
            if commands := server_commands(
                _container(service, noted[name]), noted[name], interpret
            ):
                found[name] = commands
    if not found:
        for own in noted.values():
            notes.findings += own.findings
        notes.findings.insert(0, no_server(FORM, [f"the services {', '.join(services)}"]))
        return Recipe(None, FORM)
    first = next(iter(found))
    notes.findings += noted[first].findings
    notes.variables |= noted[first].variables
    for other in services:
        if other != first and entry is None:
            notes.left_out(
                f"the service {other}",
                f"--entry {other} reads it" if other in found else "it starts no server",
            )
    recipe = recipe_of(found[first], notes, FORM)
    return Recipe(recipe.plan, FORM, name=first, title=first, gpus=recipe.gpus)


def _container(service: Mapping[str, Any], notes: Notes) -> Container:
    filled = _filled_in(service, notes)
    rest_of(filled, f"{_KNOWN} {_OF_CONTAINER} {_REFUSED}", notes)
    for name in _REFUSED.split():
        if filled.get(name):
            notes.refused(f"the service's {name}", filled[name])
    for name in _OF_CONTAINER.split():
        if name in filled and not (name == "ulimits" and _open_files(filled)):
            notes.left_out(name, "a preset starts the server on the host, not in a container")
    return Container(
        text_of(filled, "image", notes),
        _words(filled, "entrypoint", notes),
        _words(filled, "command", notes),
        environment(filled.get("environment"), notes),
        [_volume(one) for one in _list(filled, "volumes", notes)],
        [_port(one) for one in _list(filled, "ports", notes)],
        text_of(filled, "working_dir", notes) or None,
        _gpus(filled),
        _open_files(filled),
    )


def _open_files(service: Mapping[str, Any]) -> int | None:
    limits = service.get("ulimits")
    limit = limits.get("nofile") if isinstance(limits, Mapping) else None
    soft = limit.get("soft") if isinstance(limit, Mapping) else limit
    return whole_number(str(soft))


def _words(service: Mapping[str, Any], name: str, notes: Notes) -> list[str]:
    """Return the value of the field `name` ("entrypoint" or "command") as a list of arguments. A
    string is split like a shell command, without replacing variables."""
    value = service.get(name)
    if not isinstance(value, str):
        return words_of(service, name, notes)
    commands = simple_commands(value.replace("$", "\\$"))
    if len(commands) > 1:
        notes.refused(
            f"the rest of the service's {name}", " ".join(one.source for one in commands[1:])
        )
    return (
        ["".join(part for part in word if isinstance(part, str)) for word in commands[0].words]
        if commands
        else []
    )


def _list(service: Mapping[str, Any], name: str, notes: Notes) -> list[Any]:
    value = service.get(name)
    if not isinstance(value, list | None):
        notes.not_understood(name, value)
    return [one for one in value if one] if isinstance(value, list) else []


def _volume(volume: Any) -> str:
    if isinstance(volume, Mapping):
        return f"{volume.get('source', '')}:{volume.get('target', '')}"
    return str(volume)


def _port(port: Any) -> str:
    return (
        f"{port.get('published')}:{port.get('target')}" if isinstance(port, Mapping) else str(port)
    )


def _gpus(service: Mapping[str, Any]) -> str:
    if service.get("gpus"):
        return str(service["gpus"])
    place: Any = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        place = place.get(key) if isinstance(place, Mapping) else None
    for device in place if isinstance(place, list) else ():
        if isinstance(device, Mapping):
            ids = device.get("device_ids")
            return (
                f"device={','.join(map(str, ids))}"
                if isinstance(ids, list)
                else str(device.get("count", "all"))
            )
    return ""


def _filled_in(value: Any, notes: Notes) -> Any:
    """Return a copy of `value`, a value of a compose file, without references to variables: each is
    replaced by its default, or by a variable of the preset if it has no default. "$$" becomes "$".
    """
    if isinstance(value, Mapping):
        return {k: _filled_in(v, notes) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled_in(v, notes) for v in value]
    return (
        "".join(_part(part, notes) for part in interpolated(value))
        if isinstance(value, str)
        else value
    )


def _part(part: Any, notes: Notes) -> str:
    if part == Variable("@"):  # a shell script's arguments, written without a second dollar sign
        return "$@"
    if isinstance(part, Variable):
        return (
            notes.variable(part.name, FORM)
            if part.default is None
            else "".join(_part(p, notes) for p in part.default)
        )
    return part if isinstance(part, str) else part.source
