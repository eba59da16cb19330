"""Reads Kubernetes manifests as recipes: the container of a Deployment, a Pod or another object
that starts a server. A text of several documents is a List of its objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from workbench.model.untrusted_text import as_list, as_table
from workbench.recipes.imports.containers import Container, parse_environment
from workbench.recipes.imports.fields import (
    text_field,
    text_list_field,
)
from workbench.recipes.imports.shell_script import recipe_of_first_server
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "Kubernetes manifest"
_GPUS = "nvidia.com/gpu"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_OF_CONTAINER = (
    "readinessProbe livenessProbe startupProbe lifecycle imagePullPolicy securityContext ports "
    "terminationMessagePath terminationMessagePolicy stdin tty"
)
_DEEPEST = 12


def recognizes(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("kind"), str) and "apiVersion" in document


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe of the container `given.entry`, or by default of the first container that
    starts a server. Parts that are not understood are added to `notes`. Raises InputError if there
    is no such container."""
    containers = {
        name: partial(_read_container, container, pod)
        for name, (container, pod) in _containers_with_pod_by_name(document)
    }
    return recipe_of_first_server(containers, notes, given, FORM_TITLE, "container")


def _containers_with_pod_by_name(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Yield (name, (container, specification of its pod)) for the containers of all objects. The
    name is that of the object, with the container's name if the object has several."""
    items = document.get("items")
    objects = items if document.get("kind") == "List" and isinstance(items, list) else [document]
    seen: set[str] = set()
    for each in objects:
        if not isinstance(each, Mapping):
            continue
        owner = as_table(each.get("metadata")).get("name")
        pods = list(_pod_specifications(each, 0))
        several = sum(len(pod["containers"]) for pod in pods) > 1
        for pod in pods:
            for at, container in enumerate(pod["containers"]):
                if not isinstance(container, Mapping):
                    continue
                inner = container.get("name") or str(at + 1)
                name = f"{owner}/{inner}" if owner and several else str(owner or inner)
                if name not in seen:
                    seen.add(name)
                    yield name, (container, pod)


def _pod_specifications(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the specifications of pods in a value: the mappings with a list of containers."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
            return
        for one in value.values():
            yield from _pod_specifications(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _pod_specifications(one, depth + 1)


def _read_container(
    container: Mapping[str, Any], pod: Mapping[str, Any], notes: Notes
) -> Container:
    for name in _OF_CONTAINER.split():
        if name in container:
            notes.add_left_out_note(
                name, "a preset starts the server on the host, not in a container"
            )
    if container.get("envFrom"):
        notes.add_left_out_note("envFrom", "its variables stand in other objects of the cluster")
    env = parse_variables(container.get("env"), notes)
    image = text_field(container, "image", notes)
    return Container(
        image,
        _fill_in_variables(text_list_field(container, "command", notes), env),
        _fill_in_variables(text_list_field(container, "args", notes), env),
        env,
        _volumes_of_container(container, pod),
        workdir=text_field(container, "workingDir", notes),
        gpus=_gpu_count_text(container),
    )


def parse_variables(entries: Any, notes: Notes) -> dict[str, str]:
    """Return the environment variables in a list of `{name: NAME, value: VALUE}`. Those whose value
    stands in another object are left out."""
    given: dict[str, Any] = {}
    for one in as_list(entries):
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            notes.add_not_understood_warning("a part of env", one)
        elif "valueFrom" in one:
            notes.add_left_out_note(
                f"the variable {one['name']}", "its value stands in the cluster"
            )
        else:
            given[one["name"]] = one.get("value", "")
    found = parse_environment(given, notes)
    return {name: _expand_variable_references(text, found) for name, text in found.items()}


def _fill_in_variables(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    return [_expand_variable_references(word, env) for word in words]


def _expand_variable_references(text: str, env: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced by the variable, as Kubernetes does. An unknown name
    stays, and `$$` stands for a dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def _volumes_of_container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> list[str]:
    """Return the volumes of a container as "HOST:CONTAINER". If a volume is no directory of the
    node, its name stands in place of the host's path."""
    sources: dict[str, str] = {}
    for volume in map(as_table, as_list(pod.get("volumes"))):
        path = as_table(volume.get("hostPath")).get("path")
        if isinstance(path, str):
            sources[str(volume.get("name"))] = path
    found = []
    for mount in map(as_table, as_list(container.get("volumeMounts"))):
        if isinstance(mount.get("mountPath"), str):
            name, below = str(mount.get("name")), mount.get("subPath")
            source = sources.get(name, name)
            if isinstance(below, str):
                source = f"{source.rstrip('/')}/{below}"
            found.append(f"{source}:{mount['mountPath']}")
    return found


def _gpu_count_text(container: Mapping[str, Any]) -> str:
    """Return the number of GPUs that a container asks for, as text; "" if it asks for none."""
    resources = as_table(container.get("resources"))
    for kind in ("limits", "requests"):
        count = as_table(resources.get(kind)).get(_GPUS)
        if count is not None:
            return str(count)
    return ""
