"""The options of the launchers `docker` and `podman`."""

from __future__ import annotations

import posixpath
import re

from workbench.model.errors import InputError
from workbench.model.run_options.option import (
    RunOption,
    make_pattern_checker,
    make_whole_number_checker,
)

_SWITCH = ("yes", "no")
_SIZE = make_pattern_checker(r"\d+[bkmgtBKMGT]?", "a size such as 16g")
# Directories of a host's system, and those below them that give power over it.
_SYSTEM = frozenset({"/", "/boot", "/home", "/root", "/run", "/var", "/var/run"})
_BELOW = ("/dev", "/etc", "/proc", "/sys", "/run", "/var/run")
_SOCKET = re.compile(r".*(?:docker|podman|containerd|crio)[^/]*\.sock")
_GPU_DEVICE = re.compile(r"nvidia\.com/gpu=.*|/dev/nvidia.*")


def is_switch_on(text: str, default: bool = False) -> bool:
    """Return whether a switch has the value "yes". For an empty `text`, return `default`."""
    return text == "yes" if text else default


def _check_mount(text: str) -> str:
    if not re.fullmatch(r"/[^:\0\n\r]*:/[^:\0\n\r]*(?::[A-Za-z,]+)?", text):
        raise InputError(
            "expected a mount HOST:CONTAINER or HOST:CONTAINER:ro with absolute "
            f"paths, got {text!r}"
        )
    return text


def _mount_danger_message(text: str) -> str:
    source = posixpath.normpath(f"/{text.partition(':')[0].lstrip('/')}")
    if _SOCKET.fullmatch(source):
        return "can start other containers, as root of the host"
    if source in _SYSTEM or any(f"{source}/".startswith(f"{one}/") for one in _BELOW):
        return f"shows the server {source}, a part of the host's system"
    return ""


def _device_danger_message(text: str) -> str:
    return "" if _GPU_DEVICE.fullmatch(text) else "gives the server a device of the host"


def _security_danger_message(text: str) -> str:
    return (
        ""
        if text in ("no-new-privileges", "label=disable")
        else ("changes what the host forbids to the server")
    )


def _namespace_danger_message(text: str) -> str:
    return (
        ("removes a boundary between the server and the host")
        if text not in ("private", "auto", "keep-id")
        else ""
    )


OPTIONS = (
    RunOption(
        "image",
        "the image, in place of the plan's; with a digest it stays the same",
        check=make_pattern_checker(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", "the name of an image"),
        foreign="runs the code of this image",
    ),
    RunOption(
        "pull",
        "when the image is pulled",
        choices=("missing", "always", "never"),
        default="missing",
    ),
    RunOption(
        "gpus",
        "the GPUs that the server sees: all, none, or indices or UUIDs",
        check=make_pattern_checker(
            r"all|none|[A-Za-z0-9:.-]+(,[A-Za-z0-9:.-]+)*", "all, none, or GPUs such as 0,1"
        ),
        default="all",
    ),
    RunOption(
        "cdi",
        "whether GPUs are named by CDI; the default is yes for podman, no for docker",
        choices=_SWITCH,
    ),
    RunOption(
        "mount",
        "a path of the host that the server sees; repeatable",
        check=_check_mount,
        repeatable=True,
        foreign="shows the server a path of the host",
        power=_mount_danger_message,
    ),
    RunOption(
        "hub-cache",
        "where the host's hub cache is in the container, or none; the default is "
        "/root/.cache/huggingface, and none "
        "for a model that is a path",
        check=make_pattern_checker(r"none|/[^:]*", "an absolute path or none"),
    ),
    RunOption(
        "network",
        "the container's network; with another than host the port is published on 127.0.0.1",
        default="host",
    ),
    RunOption(
        "ipc",
        "host: the server uses the shared memory of the host, in place of the container's own",
        choices=("private", "host"),
    ),
    RunOption(
        "shm-size", "size of the container's own shared memory; the default is 16g", check=_SIZE
    ),
    RunOption(
        "ulimit",
        "a limit of the server's processes, such as memlock=-1; repeatable",
        check=make_pattern_checker(r"[a-z]+=-?\d+(:-?\d+)?", "a limit such as memlock=-1"),
        repeatable=True,
    ),
    RunOption("memory", "memory that the container may use", check=_SIZE),
    RunOption(
        "cpus",
        "cores that it may use",
        check=make_pattern_checker(r"\d+(\.\d+)?", "a number of cores"),
    ),
    RunOption(
        "cpuset-cpus",
        "which cores, such as 0-15",
        check=make_pattern_checker(r"[\d,-]+", "cores such as 0-15"),
    ),
    RunOption("user", "the user in the container"),
    RunOption("group-add", "a further group of that user; repeatable", repeatable=True),
    RunOption(
        "workdir",
        "the working directory in the container",
        check=make_pattern_checker(r"/.*", "an absolute path"),
    ),
    RunOption(
        "platform",
        "the platform of the image, such as linux/arm64",
        check=make_pattern_checker(r"[\w/]+", "OS/ARCHITECTURE"),
    ),
    RunOption(
        "init", "whether an init process reaps processes and forwards signals", choices=_SWITCH
    ),
    RunOption(
        "grace",
        "seconds from a stop to the kill",
        check=make_whole_number_checker(0, 3600),
        default="15",
    ),
    RunOption(
        "device",
        "a device of the host; repeatable",
        repeatable=True,
        foreign="gives the server a device of the host",
        power=_device_danger_message,
    ),
    RunOption(
        "cap-add",
        "a capability, such as IPC_LOCK; repeatable",
        check=make_pattern_checker(r"[A-Za-z_]+", "the name of a capability"),
        repeatable=True,
        foreign="gives the server a capability",
        power=lambda text: "gives the server a capability",
    ),
    RunOption(
        "security-opt",
        "a security option; repeatable",
        repeatable=True,
        foreign="changes what the host forbids to the server",
        power=_security_danger_message,
    ),
    RunOption(
        "pid",
        "host: the server sees the process ids of the host, not only its own",
        choices=("private", "host"),
        foreign="changes a boundary between the server and the host",
        power=_namespace_danger_message,
    ),
    RunOption(
        "userns",
        "the user ids of the container",
        check=make_pattern_checker(r"[\w:=,-]+", "a user namespace such as keep-id"),
        foreign="changes a boundary between the server and the host",
        power=_namespace_danger_message,
    ),
    RunOption(
        "privileged",
        "all rights over the host, as root",
        choices=_SWITCH,
        foreign="gives the server all rights over the host",
        power=lambda text: "gives the server all rights over the host" if text == "yes" else "",
    ),
)
