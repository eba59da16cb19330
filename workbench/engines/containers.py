"""A server in a container: the image, the command line inside the image, the host paths to mount,
and the options of docker and podman for GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from workbench.engines.base import Engine
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan

HUB_CACHE = ".cache/huggingface"  # in the home directory, on the host and in the engines' images
# as the libraries of the Hugging Face hub find it
HUB_CACHE_OF_HOST = "${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}"
IMAGE_HOME = "/root"
ALL, NONE = "all", "none"
_Word = TypeVar("_Word")  # of a command line: a text, or a reference to a secret
_HUB_REPOSITORY = re.compile(r"(.*/models--[^/]+)/snapshots/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """A program that runs containers, docker or podman, and the properties in which the two
    differ."""

    name: str
    cdi: bool  # finds GPUs by their CDI names, not by --gpus
    security: tuple[str, ...] = ()  # words without which a container cannot use the GPUs
    limits: tuple[str, ...] = ()  # words for the limits of a container
    short_names: bool = False  # completes "vllm/vllm-openai" to an image of Docker Hub by itself

    def gpu_options(self, gpus: str, cdi: bool | None = None) -> tuple[str, ...]:
        """Return the options of docker or podman that make GPUs visible in a container; () for
        "none". `gpus` is "all", "none", or indices and UUIDs such as "0,1". `cdi` True selects
        --device with CDI names (Container Device Interface), False selects --gpus, and None the
        program's default."""
        if gpus == NONE:
            return ()
        names = gpus.split(",")
        if cdi is None:
            cdi = self.cdi
        if cdi:
            return (
                *(word for name in names for word in ("--device", f"nvidia.com/gpu={name}")),
                *self.security,
            )
        # The value is read as a line of CSV, in which a comma needs quotes.
        devices = f"device={gpus}"
        if gpus == ALL:
            devices = ALL
        elif len(names) > 1:
            devices = f'"{devices}"'
        return ("--gpus", devices)

    def full_image_name(self, image: str) -> str:
        """Return the full name of a container image for a pull. If `image` names no registry, and
        the program does not look in Docker Hub by itself, the result begins with "docker.io/"."""
        registry, slash, _ = image.partition("/")
        is_host = registry == "localhost" or "." in registry or ":" in registry
        if self.short_names or (slash and is_host):
            return image
        return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


PROGRAMS: Mapping[str, ContainerProgram] = {
    program.name: program
    for program in (
        # memlock and stack: what NVIDIA's images ask for. A rootless podman cannot raise them.
        ContainerProgram(
            "docker",
            cdi=False,
            limits=("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
            short_names=True,
        ),
        # label: SELinux hides the devices otherwise. Podman allows 2,048 processes by default; an
        # engine may need more.
        ContainerProgram(
            "podman",
            cdi=True,
            security=("--security-opt", "label=disable"),
            limits=("--pids-limit", "-1"),
        ),
    )
}


def choose_image(plan: LaunchPlan, engine: Engine) -> str:
    """Return the container image that the user, hosts.toml or the preset chose for the plan. If
    there is none, return the image that the engine's project publishes, with the plan's version as
    the tag if that is known."""
    if given := plan.run_options.get("image") or plan.image:
        return given
    tag, version = engine.image_tag, plan.engine_version or ""
    if tag == Engine.image_tag and re.fullmatch(r"\d+\.\d+\.\d+", version):
        tag = f"v{version}"
    return f"{engine.image}:{tag}"


def parse_version_in_tag(image: str, engine: Engine) -> str | None:
    """Return the engine version that the tag of `image` names. None if the image is not published
    by the engine's project, or if its tag names no version."""
    repository, _, tag = image.partition("@")[0].removeprefix("docker.io/").partition(":")
    found = re.fullmatch(r"v?(\d+\.\d+\.\d+)", tag)
    if found is None or repository != engine.image:
        return None
    return found[1]


def command_line_in_image(
    plan: LaunchPlan, engine: Engine, argv: Sequence[_Word]
) -> tuple[_Word | str, ...]:
    """Convert the host's command line `argv` to the command line inside the image: the program is
    replaced by the image's program, and the arguments stay."""
    return (
        *(engine.image_program or engine.launch),
        *argv[len(engine.first_command_words(plan)) :],
    )


def list_paths_to_mount(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the absolute host paths that a container must mount: the path of the model and the
    paths in flag values.

    For a file in the Hugging Face hub's cache, which is a symbolic link, the directory of its
    repository is returned; for a GGUF file that has several parts, the directory of the parts.
    """
    found = dict.fromkeys(_host_path_to_mount(plan.model))
    for flag in plan.flags:
        for value in _strings_in_flag_value(flag.value):
            found |= dict.fromkeys(_host_path_to_mount(value))
    return tuple(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def _host_path_to_mount(path: str) -> Iterator[str]:
    path = path.rstrip("/")
    if not path.startswith("/") or path.startswith("//"):
        return
    if hub := _HUB_REPOSITORY.fullmatch(path):
        yield hub[1]
    elif path.endswith(".gguf") and (directory := path.rpartition("/")[0]):
        yield directory
    else:
        yield path


def _strings_in_flag_value(value: Any) -> Iterator[str]:
    """Yield all strings in a flag's value, which may be a JSON document."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings_in_flag_value(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings_in_flag_value(inner)
