"""Exports that start a container: the commands of Docker and Podman, and a compose file.

The container uses the host's network, so the server listens on the address and port of the plan.
"""

from __future__ import annotations

import shlex
from typing import Any

from workbench.engines.containers import ALL, HUB_CACHE, IMAGE_HOME, PROGRAMS, ContainerProgram
from workbench.model.findings import Level
from workbench.model.open_files import open_files_option
from workbench.recipes import yaml_text
from workbench.recipes.exports.shell import (
    lines_that_check_secrets,
    quote_argument,
    script_header_lines,
)
from workbench.recipes.launch import Launch, Secret, Word
from workbench.recipes.recipe import Notes


def docker_script(launch: Launch, notes: Notes) -> str:
    """Return a shell script with the `docker run` command."""
    return _run_script(PROGRAMS["docker"], launch, notes)


def podman_script(launch: Launch, notes: Notes) -> str:
    """Return a shell script with the `podman run` command, which names the GPUs by their CDI
    names."""
    return _run_script(PROGRAMS["podman"], launch, notes)


def _run_script(program: ContainerProgram, launch: Launch, notes: Notes) -> str:
    add_container_notes(launch, notes)
    gpus, image = program.gpu_options(ALL), program.full_image_name(launch.image)
    words = [
        program.name,
        "run",
        "--rm",
        "--name",
        launch.name,
        *gpus,
        "--network",
        "host",
        "--ipc",
        "host",
    ]
    if launch.open_files:
        words += ["--ulimit", open_files_option(launch.open_files)]
    parts = [shlex.join(words)]
    parts += [f"-e {shlex.quote(f'{name}={text}')}" for name, text in launch.env.items()]
    parts += [f"-e {name}" for name in launch.secrets]
    parts.append(f'-v "$HOME/{HUB_CACHE}:{IMAGE_HOME}/{HUB_CACHE}"')
    parts += [
        f"-v {shlex.quote(f'{path}:{path}:ro')}" for path in _model_path_to_mount(launch, notes)
    ]
    first, *rest = launch.in_image
    parts.append(
        f"--entrypoint {quote_argument(first)} {shlex.quote(image)} {' '.join(map(quote_argument, rest))}"
    )
    lines = [
        *script_header_lines(launch),
        "set -eu",
        *lines_that_check_secrets(launch.secrets),
        "exec " + " \\\n  ".join(parts),
    ]
    return "\n".join(lines) + "\n"


def compose_file_text(launch: Launch, notes: Notes) -> str:
    """Return the text of a compose file. Dollar signs are doubled, because compose would take them
    for variables."""
    add_container_notes(launch, notes)
    first, *rest = launch.in_image
    volumes: list[Any] = [f"~/{HUB_CACHE}:{IMAGE_HOME}/{HUB_CACHE}"]
    volumes += [
        {
            "type": "bind",
            "source": _double_dollars(path),
            "target": _double_dollars(path),
            "read_only": True,
        }
        for path in _model_path_to_mount(launch, notes)
    ]
    environment = {name: _double_dollars(text) for name, text in launch.env.items()}
    environment |= {name: _required_variable_reference(name) for name in launch.secrets}
    limits = {"nofile": {"soft": launch.open_files, "hard": launch.open_files}}
    gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    service = {
        "image": launch.image,
        "container_name": launch.name,
        "network_mode": "host",
        "ipc": "host",
        "environment": environment,
        "volumes": volumes,
        "ulimits": limits if launch.open_files else {},
        "deploy": {"resources": {"reservations": {"devices": [gpu]}}},
        "entrypoint": [_escape_word_for_compose(first)],
        "command": list(map(_escape_word_for_compose, rest)),
        "restart": "unless-stopped",
    }
    services = {launch.name: yaml_text.drop_empty_fields(service)}
    return yaml_text.dump_yaml({"services": services})


def _escape_word_for_compose(word: Word) -> str:
    if isinstance(word, Secret):
        return f"{_double_dollars(word.prefix)}{_required_variable_reference(word.variable)}"
    return _double_dollars(word)


def _required_variable_reference(name: str) -> str:
    return f"${{{name}:?set {name} to the secret}}"


def _double_dollars(text: str) -> str:
    return text.replace("$", "$$")


def add_container_notes(launch: Launch, notes: Notes) -> None:
    """Add to `notes` what the exported container changes: a warning if the image has no digest,
    and, if the plan has a working directory or a program, that the container does not use it."""
    if "@sha256:" not in launch.image:
        text = f"the image {launch.image} is not pinned: the same name can mean another image later"
        fix = (
            "set `image` in the table [engine] of the preset to NAME@sha256:…, as `docker "
            "image inspect` shows it"
        )
        notes.add(Level.WARN, "image-not-pinned", text, fix=fix)
    if launch.workdir:
        notes.add_left_out_note(f"the working directory {launch.workdir}", "the image has its own")
    if launch.plan.executable:
        notes.add_left_out_note(
            f"the program {shlex.join(launch.plan.executable)}", "the image has its own"
        )


def _model_path_to_mount(launch: Launch, notes: Notes) -> list[str]:
    """Return the paths of the host to mount in the container: [path of the model], or [] if the
    model is not an absolute path. For a path that cannot be mounted, add a warning to `notes` and
    return []."""
    model = launch.plan.model
    if not model.startswith("/"):
        return []
    if ":" in model:
        notes.add(
            Level.WARN, "volume", f"{model} cannot be mounted, because its name contains a colon"
        )
        return []
    return [model]
