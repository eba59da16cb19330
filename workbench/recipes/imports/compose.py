"""Reads compose files as recipes: the service that starts a server, with references such as
`${NAME:-default}` replaced by the values of the file `.env` beside the compose file, or by their
defaults."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from workbench.model.errors import error_reason
from workbench.model.findings import Level
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import VARIABLE_NAME, as_list, as_table, clean_text
from workbench.recipes.imports.containers import Container, parse_environment
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.shell_script import recipe_of_first_server
from workbench.recipes.recipe import Given, Notes, Recipe, shorten_value
from workbench.recipes.shell_text import Variable, parse_compose_file_value, split_simple_commands

FORM_TITLE = "compose file"
_KNOWN = "image entrypoint command environment volumes ports working_dir deploy gpus container_name"
_OF_CONTAINER = (
    "restart ipc shm_size network_mode networks ulimits cap_add security_opt privileged runtime "
    "devices healthcheck "
    "logging labels depends_on hostname user tty stdin_open init stop_grace_period stop_signal "
    "extra_hosts expose "
    "mem_limit memswap_limit mem_reservation mem_swappiness cpus cpuset cpu_shares cpu_quota pid "
    "pids_limit profiles pull_policy platform sysctls tmpfs group_add userns_mode cgroup_parent dns "
    "annotations cap_drop read_only scale links attach oom_score_adj oom_kill_disable storage_opt uts"
)
_MOST_BYTES = 256 * 1024  # of a file of variables
_REFUSED = "build extends secrets configs develop post_start pre_stop"


def recognizes(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("services"), Mapping)


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe of the service `given.entry`, or by default of the first service that
    starts a server. Parts that are not understood are added to `notes`. Raises InputError if there
    is no such service."""
    services = table_field(document, "services", notes)
    add_unknown_field_notes(document, "services version name volumes networks", notes)
    values = _read_dotenv(given.directory, notes)
    containers = {
        name: partial(_container_of_service, as_table(service), values, given.directory)
        for name, service in services.items()
    }
    return recipe_of_first_server(containers, notes, given, FORM_TITLE, "service")


def _read_dotenv(directory: Path | None, notes: Notes) -> Mapping[str, str]:
    """Return the variables in the file `.env` of the directory; {} if it has no such file, or if
    the directory is unknown (None)."""
    if directory is None or not (directory / ".env").is_file():
        return {}
    return _read_env_file(directory / ".env", notes)


def _read_env_file(path: Path, notes: Notes) -> dict[str, str]:
    """Return the variables in a file of lines NAME=VALUE. If the file is too large or cannot be
    read, add a warning to `notes` and return {}."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            limit = f"{_MOST_BYTES // 1024} KiB"
            notes.add(Level.WARN, "dotenv", f"{path} is not read: it is larger than {limit}")
            return {}
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        notes.add(Level.WARN, "dotenv", f"{path} cannot be read: {error_reason(error)}")
        return {}
    found: dict[str, str] = {}
    for line in clean_text(text, len(text), lines=True).splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or not VARIABLE_NAME.fullmatch(name.strip()):
            continue
        quote = value.strip()[:1]
        if quote in ("'", '"') and value.count(quote) > 1:
            value = value.split(quote)[1]
        else:
            value = f" {value}".partition(" #")[0].strip()
        found[name.strip()] = value
    return found


def _read_env_files_of_service(files: Any, directory: Path | None, notes: Notes) -> dict[str, str]:
    """Return the variables in `files`, the value of a service's env_file: one file or a list of
    them. Only files below `directory`, that of the compose file, are read; a warning about each
    other one is added to `notes`."""
    found: dict[str, str] = {}
    for one in as_list(files) or [files]:
        name, required = one, True
        if isinstance(one, Mapping):
            name, required = one.get("path"), one.get("required") is not False
        if not isinstance(name, str):
            notes.add_not_understood_warning("a part of env_file", one)
            continue
        path = Path(directory or "", name).resolve()
        if directory is None or not path.is_relative_to(directory.resolve()):
            fix = "add the variables that the server needs with --env NAME=VALUE"
            text = f"the variables in the file {name} are not read"
            notes.add(Level.WARN, "env-file", text, fix=fix)
        elif required or path.is_file():
            found |= _read_env_file(path, notes)
    return found


def _container_of_service(
    service: Mapping[str, Any], values: Mapping[str, str], directory: Path | None, notes: Notes
) -> Container:
    """Return the container of a service, with its variables filled in. `values` has the variables
    of the compose file, and `directory` is that of the file. What a preset cannot contain is added
    to `notes`."""
    filled = _fill_in_variables(service, notes, values)
    add_unknown_field_notes(filled, f"{_KNOWN} {_OF_CONTAINER} {_REFUSED} env_file", notes)
    files = filled.get("env_file")
    env = _read_env_files_of_service(files, directory, notes) if files else {}
    for name in _REFUSED.split():
        if filled.get(name):
            notes.add_not_run_warning(f"the service's {name}", filled[name])
    left_out = set(filled)
    if _open_file_limit(filled):
        left_out.discard("ulimits")
    for name in _OF_CONTAINER.split():
        if name in left_out:
            notes.add_left_out_note(
                name, "a preset starts the server on the host, not in a container"
            )
    return Container(
        text_field(filled, "image", notes),
        _read_argument_list(filled, "entrypoint", notes),
        _read_argument_list(filled, "command", notes),
        env | parse_environment(filled.get("environment"), notes),
        [
            _format_volume_with_host_path(one, directory)
            for one in _read_list_field(filled, "volumes", notes)
        ],
        list(map(_format_port_mapping, _read_list_field(filled, "ports", notes))),
        text_field(filled, "working_dir", notes),
        _docker_gpu_option(filled),
        _open_file_limit(filled),
    )


def _open_file_limit(service: Mapping[str, Any]) -> int | None:
    """Return the soft limit of open files of a service; None if it sets none."""
    limit = as_table(service.get("ulimits")).get("nofile")
    soft = limit.get("soft") if isinstance(limit, Mapping) else limit
    return parse_whole_number(str(soft))


def _read_argument_list(service: Mapping[str, Any], name: str, notes: Notes) -> list[str]:
    """Return the value of the field `name` ("entrypoint" or "command") as a list of arguments. A
    string is split like a shell command, without replacing variables."""
    value = service.get(name)
    if not isinstance(value, str):
        return text_list_field(service, name, notes)
    commands = split_simple_commands(value.replace("$", "\\$"))
    if len(commands) > 1:
        notes.add_not_run_warning(
            f"the rest of the service's {name}", " ".join(one.source for one in commands[1:])
        )
    if not commands:
        return []
    return ["".join(part for part in word if isinstance(part, str)) for word in commands[0].words]


def _read_list_field(service: Mapping[str, Any], name: str, notes: Notes) -> list[Any]:
    value = service.get(name)
    if not isinstance(value, list | None):
        notes.add_not_understood_warning(name, value)
    return list(filter(None, as_list(value)))


def _format_volume_with_host_path(volume: Any, directory: Path | None) -> str:
    """Return a volume as "HOST:CONTAINER". A host path that is relative to the compose file becomes
    absolute if the file's directory is known. Any other name is that of a volume."""
    if isinstance(volume, Mapping):
        volume = f"{volume.get('source', '')}:{volume.get('target', '')}"
    source, colon, rest = str(volume).partition(":")
    if directory is None or not source.startswith((".", "~")):
        return str(volume)
    path = os.path.normpath(directory / Path(source).expanduser())
    return f"{path}{colon}{rest}"


def _format_port_mapping(port: Any) -> str:
    if isinstance(port, Mapping):
        return f"{port.get('published')}:{port.get('target')}"
    return str(port)


def _docker_gpu_option(service: Mapping[str, Any]) -> str:
    """Return the GPUs of a service as `docker run --gpus` names them: "all", "2" or "device=0,1";
    "" if it has none."""
    if service.get("gpus"):
        return str(service["gpus"])
    place: Any = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        place = as_table(place).get(key)
    for device in as_list(place):
        if isinstance(device, Mapping):
            ids = device.get("device_ids")
            if isinstance(ids, list):
                return f"device={','.join(map(str, ids))}"
            return str(device.get("count", "all"))
    return ""


def _fill_in_variables(value: Any, notes: Notes, values: Mapping[str, str]) -> Any:
    """Return a copy of `value`, a value of a compose file, with its references to variables
    replaced: each by its value in `values`, else by its default, else by a reference to a variable
    of the preset. "$$" becomes "$"."""
    if isinstance(value, Mapping):
        return {k: _fill_in_variables(v, notes, values) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill_in_variables(v, notes, values) for v in value]
    if not isinstance(value, str):
        return value
    return "".join(
        _expand_compose_value_part(part, notes, values) for part in parse_compose_file_value(value)
    )


def _expand_compose_value_part(part: Any, notes: Notes, values: Mapping[str, str]) -> str:
    """Return the text of one part of a value of a compose file, as `_fill_in_variables` replaces
    it."""
    if part == Variable("@"):  # a shell script's arguments, written without a second dollar sign
        return "$@"
    if not isinstance(part, Variable):
        return part if isinstance(part, str) else part.source
    known = values.get(part.name)
    if part.alternative is not None:
        if known:
            return "".join(
                _expand_compose_value_part(one, notes, values) for one in part.alternative
            )
        notes.add_left_out_note(
            shorten_value(part.source), f"{part.name} has no value in the compose file's .env"
        )
        return ""
    if known:
        return known
    if part.default is None:
        return (
            notes.add_variable_and_get_reference(part.name, FORM_TITLE) if known is None else known
        )
    return "".join(_expand_compose_value_part(one, notes, values) for one in part.default)
