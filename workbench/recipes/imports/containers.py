"""Reads `docker run` and `podman run` command lines, and the containers of compose files: the
server that a container starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from workbench.model.findings import Level
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.recipes.imports.fields import scalar_text
from workbench.recipes.imports.server_command import (
    VISIBLE_TO_CONTAINER,
    ServerCommand,
    is_path_in_directory,
    recognize_start_in_container,
)
from workbench.recipes.recipe import Notes, shorten_value

PROGRAMS = ("docker", "podman", "nerdctl")
_SHELLS = ("sh", "bash", "dash", "zsh")


def split_word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Options of `docker run` that take no value; every other option takes one.
_SWITCHES = split_word_set(
    "d detach i interactive t tty rm init privileged P publish-all q quiet read-only "
    "no-healthcheck oom-kill-disable "
    "sig-proxy disable-content-trust replace no-hosts tls-verify"
)
_LONG = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "w": "workdir",
    "u": "user",
    "m": "memory",
    "h": "hostname",
}
_HUB_CACHE = "/.cache/huggingface"
_INNER_HOME = "/root"  # of the user whom the engines' images run as
_WITHOUT_EFFECT = "a preset starts the server on the host, not in a container"


@dataclass(slots=True)
class Container:
    """A container that a recipe starts: its image, its command, and the paths, ports and GPUs of
    the host that it uses."""

    image: str
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)  # "host:container[:mode]"
    ports: list[str] = field(default_factory=list)  # "[address:]host:container"
    workdir: str = ""
    gpus: str = ""  # "all", "2", "device=0,1"
    open_files: int | None = None


def parse_run_command(words: Sequence[str], notes: Notes) -> Container | None:
    """Return the container that a `docker run` command line starts. None if it starts none, or
    names no image, which adds an error to `notes`."""
    rest = list(words[1:])
    while _starts_with_option(rest):
        rest.pop(0)
    if rest[:1] == ["container"]:
        rest.pop(0)
    if rest[:1] not in (["run"], ["create"]):
        return None
    rest.pop(0)
    options: list[tuple[str, str]] = []
    while _starts_with_option(rest):
        word = rest.pop(0)
        if word == "--":
            break
        options += _parse_option_names_and_values(word, rest)
    if not rest:
        notes.add(Level.ERROR, "no-image", f"{words[0]} run names no image")
        return None
    container = Container(rest[0], command=rest[1:])
    for name, value in options:
        _apply_option(container, name, value, notes)
    return container


def _starts_with_option(words: Sequence[str]) -> bool:
    return next(iter(words), "").startswith("-")


def _parse_option_names_and_values(word: str, following_words: list[str]) -> list[tuple[str, str]]:
    """Return (name, value) of each option in the argument `word`, such as "-it" or "--gpus=all".
    `following_words` are the arguments after `word`; if the first of them is the option's value, it
    is removed from them. The value is "" for a switch, and if there is none."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if name in _SWITCHES:
            return [(name, value)]
        return [(name, value if equals else _take_first_word(following_words))]
    found: list[tuple[str, str]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in _SWITCHES:
            found.append((letter, ""))
            continue
        value = letters.removeprefix("=") if letters else _take_first_word(following_words)
        return [*found, (_LONG.get(letter, letter), value)]
    return found


def _take_first_word(words: list[str]) -> str:
    """Remove the first of the words and return it; "" if there is none."""
    return words.pop(0) if words else ""


def _apply_option(container: Container, name: str, value: str, notes: Notes) -> None:
    """Change `container` by one option of `docker run`. An option that a preset does not need or
    cannot have is added to `notes`."""
    match name:
        case "env":
            variable, equals, text = value.partition("=")
            if equals:
                container.env[variable] = text
            else:
                notes.add_left_out_note(
                    f"the variable {variable}",
                    "the container takes its value from the user's environment",
                )
        case "volume":
            container.volumes.append(value)
        case "mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            source = parts.get("source", parts.get("src"))
            target = parts.get("target", parts.get("dst"))
            if source and target:
                container.volumes.append(f"{source}:{target}")
            else:
                notes.add_not_understood_warning("--mount", value)
        case "publish":
            container.ports.append(value)
        case "entrypoint":
            container.entrypoint = [value] if value else []
        case "ulimit" if value.startswith("nofile="):
            container.open_files = parse_whole_number(
                value.removeprefix("nofile=").partition(":")[0]
            )
        case "workdir":
            container.workdir = value
        case "gpus" | "device" if name == "gpus" or value.startswith("nvidia.com/gpu="):
            container.gpus = value.removeprefix("nvidia.com/gpu=").strip("\"'")
        case "env-file":
            notes.add_not_run_warning("the file of environment variables", f"--env-file {value}")
        case "name" | "d" | "detach" | "i" | "interactive" | "t" | "tty" | "rm" | "init":
            pass
        case _:
            notes.add_left_out_note(
                f"--{name} {value}".strip() if len(name) > 1 else f"-{name}", _WITHOUT_EFFECT
            )


class Interpreter(Protocol):
    """The type of a function that finds the server commands in the text of a shell script."""

    def __call__(
        self,
        text: str,
        notes: Notes,
        *,
        env: Mapping[str, str],
        positional: Sequence[str],
        depth: int,
    ) -> list[ServerCommand]: ...


def server_commands_of_container(
    container: Container, notes: Notes, find_in_script: Interpreter, depth: int = 0
) -> list[ServerCommand]:
    """Return the commands of the servers that a container starts; [] if it starts no server of an
    engine that Workbench supports. If the container starts a shell, `find_in_script` finds them in
    its script. `depth` is the number of scripts around the container."""
    words = [*container.entrypoint, *container.command]
    if script := shell_script_and_arguments(words):
        found = find_in_script(
            script[0], notes, env=container.env, positional=script[1], depth=depth + 1
        )
        for each in found:
            each.image = each.image or container.image
    elif start := recognize_start_in_container(
        container.image, container.entrypoint, container.command
    ):
        found = [ServerCommand(start, dict(container.env), image=container.image)]
    else:
        return []
    for each in found:
        use_host_paths(each, container.volumes, notes)
        each.open_files = each.open_files or container.open_files
        each.ports = {**_host_port_by_container_port(container.ports, notes), **each.ports}
        _set_visible_gpus(each, container.gpus, notes)
        if container.workdir:
            notes.add_left_out_note(
                f"the working directory {container.workdir}", "it is a directory of the image"
            )
    return found


def use_host_paths(command: ServerCommand, volumes: Sequence[str], notes: Notes) -> None:
    """Give a command of a container the host's paths of its volumes, each "HOST:CONTAINER[:MODE]",
    and take the paths from its environment that only the container has."""
    command.paths = {**_host_path_by_container_path(volumes, notes), **command.paths}
    command.env = _environment_without_container_paths(command, volumes, notes)


def shell_script_and_arguments(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return (SCRIPT, ARGUMENTS) of the command line `bash -c SCRIPT NAME ARGUMENTS…`, for any
    shell of _SHELLS; None for any other command line."""
    if next(iter(words), "").rpartition("/")[2] not in _SHELLS:
        return None
    for at, word in enumerate(words[1:], start=1):
        if not word.startswith("-"):
            break
        if re.fullmatch(r"-[a-z]*c", word):
            return (words[at + 1], list(words[at + 3 :])) if at + 1 < len(words) else None
    return None


def _host_path_by_container_path(volumes: Sequence[str], notes: Notes) -> dict[str, str]:
    """Return {path in the container: path on the host} for `volumes`, each "HOST:CONTAINER[:MODE]".
    Volumes without an absolute host path are left out and added to `notes`."""
    found: dict[str, str] = {}
    for volume in volumes:
        host, inside = _split_host_and_container_path(volume)
        if not inside.startswith("/"):
            notes.add_not_understood_warning("the volume", volume)
        elif inside.rstrip("/").endswith(_HUB_CACHE) and host.rstrip("/").endswith(_HUB_CACHE):
            continue  # the engine on the host finds the same cache by itself
        elif host.startswith(("/", "${")):
            found[inside] = host
        else:
            notes.add_left_out_note(f"the volume {volume}", "it is no absolute path of the host")
    return found


def _environment_without_container_paths(
    command: ServerCommand, volumes: Sequence[str], notes: Notes
) -> dict[str, str]:
    """Return the environment of `command` without the variables whose value is a path that only the
    container has: one in the home directory of its root, or in a volume that is no directory of the
    host. A note about each is added to `notes`."""
    inner = [_INNER_HOME]
    for volume in volumes:
        inner.append(_split_host_and_container_path(volume)[1])
    hidden = [path.rstrip("/") for path in inner if path and path not in command.paths]
    kept: dict[str, str] = {}
    for name, text in command.env.items():
        outside = any(is_path_in_directory(text, path) for path in command.paths)
        if not outside and any(is_path_in_directory(text, path) for path in hidden):
            notes.add_left_out_note(
                f"the variable {name}={text}", "only the container has this path"
            )
        else:
            kept[name] = text
    return kept


def _split_host_and_container_path(volume: str) -> tuple[str, str]:
    """Split a volume such as "${models:-/m}/x:/models:ro" into (path on the host, path in the
    container). A colon inside the braces is not the separator."""
    name, brace, rest = volume.partition("}") if "}" in volume else ("", "", volume)
    host, _, inside = rest.partition(":")
    return f"{name}{brace}{host}", inside.partition(":")[0]


def _host_port_by_container_port(ports: Sequence[str], notes: Notes) -> dict[int, int]:
    """Return {port of the container: port of the host} for `ports`, each "HOST:CONTAINER". A port
    without one on the host is left out; one that is no number is added to `notes`."""
    found: dict[int, int] = {}
    for port in ports:
        parts = port.partition("/")[0].split(":")
        if len(parts) < 2:
            continue
        outside, inside = map(parse_whole_number, parts[-2:])
        if inside is not None and outside is not None:
            found[inside] = outside
        else:
            notes.add_not_understood_warning("the published port", port)
    return found


def _set_visible_gpus(command: ServerCommand, gpus: str, notes: Notes) -> None:
    """Set the GPUs of `command` from `gpus`, the container's GPU option. Indices such as
    "device=0,1" set CUDA_VISIBLE_DEVICES and the number of GPUs. A plain number sets only the
    number of GPUs, and other values are added to `notes`."""
    named = gpus.removeprefix("device=") if "=" in gpus else ""
    seen = named or command.env.get(VISIBLE_TO_CONTAINER, "")
    if re.fullmatch(r"[0-9]+(,[0-9]+)*", seen):
        command.env.setdefault(VISIBLE_TO_CUDA, seen)
        command.gpus = len(seen.split(","))
    elif count := parse_whole_number(gpus, 4):
        command.gpus = count
    elif gpus not in ("", "all", "-1") or seen not in ("", "all", "void", "none"):
        notes.add_not_understood_warning("the choice of GPUs", shorten_value(gpus or seen))


def parse_environment(given: object, notes: Notes) -> dict[str, str]:
    """Return the environment variables in `given`, which is a mapping or a list of "NAME=value".
    Variables without a usable value are left out and added to `notes`."""
    found: dict[str, str] = {}
    if isinstance(given, Mapping):
        pairs = [(str(k), v) for k, v in given.items()]
    elif isinstance(given, list) and all(isinstance(one, str) for one in given):
        pairs = []
        for one in given:
            name, equals, value = one.partition("=")
            pairs.append((name, value if equals else None))
    else:
        if given is not None:
            notes.add_not_understood_warning("the environment", given)
        return found
    for name, value in pairs:
        if value is None:
            notes.add_left_out_note(
                f"the variable {name}", "its value comes from the user's environment"
            )
        elif isinstance(value, str | int | float):
            found[name] = scalar_text(value)
        else:
            notes.add_not_understood_warning(f"the variable {name}", value)
    return found
