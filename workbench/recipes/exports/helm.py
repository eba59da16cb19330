"""The values file for the Helm chart of the vLLM production stack."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil
from typing import Any

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.untrusted_numbers import is_number
from workbench.recipes import yaml_text
from workbench.recipes.exports.containers import add_container_notes
from workbench.recipes.exports.shell import add_open_file_limit_warning
from workbench.recipes.launch import Launch, Secret, Word, argument_or_secret
from workbench.recipes.recipe import Notes

# Fields of the chart -> flags. The chart writes the other flags from extraArgs.
_FIELDS = {
    "enableChunkedPrefill": "enable-chunked-prefill",
    "enablePrefixCaching": "enable-prefix-caching",
    "maxModelLen": "max-model-len",
    "dtype": "dtype",
    "tensorParallelSize": "tensor-parallel-size",
    "maxNumSeqs": "max-num-seqs",
    "gpuMemoryUtilization": "gpu-memory-utilization",
}
_PIPELINE = "pipeline-parallel-size"
# flags that the chart writes with Ray, or whose addresses and ranks Ray replaces
_OF_NODES = (
    _PIPELINE,
    *("distributed-executor-backend", "nnodes", "node-rank", "master-addr", "master-port"),
    "headless",
)
# variables that choose interfaces and addresses of the host, which a pod does not have
_OF_INTERFACES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"),
    *("NCCL_IB_HCA", "NCCL_NET", "VLLM_HOST_IP", "MASTER_ADDR", "MASTER_PORT"),
)
_SHARED_MEMORY = "20Gi"  # as in the chart's examples with Ray
_HUB_TOKEN = "HF_TOKEN"
_BASE_MEMORY_GIB = 16  # requestMemory in the example of the chart's values.yaml
# flags with GiB of the host's memory, and whether the value is that of one GPU
_HOST_MEMORY_FLAGS = {"cpu-offload-gb": True, "swap-space": True, "kv-offloading-size": False}


def helm_values_text(launch: Launch, notes: Notes) -> str:
    """Return the text of the values file. Raises InputError for a plan that the chart cannot
    start."""
    engine, plan = launch.engine, launch.plan
    if not engine.helm_chart:
        raise InputError(
            f"the vLLM production stack cannot start {engine.title}",
            next_step="export in another format",
        )
    if plan.nodes and not launch.nodes:
        raise InputError(
            "the chart starts all nodes of a server together, and the plan is that of one node",
            next_step="leave out --node",
        )
    add_container_notes(launch, notes)
    repository, tag = _split_image_and_tag(launch.image)
    config = _chart_vllm_config(launch)
    name = re.sub(r"[^a-z0-9-]+", "-", launch.name.lower()).strip("-")
    env: list[dict[str, Any]] = [
        {"name": key, "value": _escape_dollars(text)}
        for key, text in launch.env.items()
        if key not in _OF_INTERFACES
    ]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": key}}}
        for key in launch.secrets
        if key not in (_HUB_TOKEN, engine.api_key_env)
    ]
    model: dict[str, Any] = {
        "name": name,
        "repository": repository,
        "tag": tag,
        "modelURL": plan.model,
    }
    model |= {
        "replicaCount": 1,
        "requestCPU": _count_vllm_processes(launch),
        "requestMemory": f"{_requested_host_memory_gib(launch)}Gi",
        "requestGPU": launch.gpus,
    }
    model |= {"vllmConfig": config} | ({"env": env} if env else {})
    if _HUB_TOKEN in launch.secrets:
        model["hf_token"] = {"secretName": f"{name}-secrets", "secretKey": _HUB_TOKEN}
    if launch.nodes:
        _require_no_data_parallel_nodes(launch)
        model |= _chart_fields_of_ray(launch)
        _add_ray_note(launch, notes)
    engine_spec: dict[str, Any] = {"modelSpec": [model]}
    if engine.api_key_env in launch.secrets:
        engine_spec["vllmApiKey"] = {
            "secretName": f"{name}-secrets",
            "secretKey": engine.api_key_env,
        }
    _add_chart_notes(launch, name, notes)
    add_open_file_limit_warning(launch, notes, "the chart")
    return yaml_text.dump_yaml({"servingEngineSpec": engine_spec})


def _chart_vllm_config(launch: Launch) -> dict[str, Any]:
    """Return the field vllmConfig. For several nodes, the chart writes its values into a script of
    bash; for one, Kubernetes replaces $(VARIABLE) in them."""
    plan = launch.plan
    config: dict[str, Any] = {}
    for field, flag in _FIELDS.items():
        if plan.flag(flag) is not None:
            config[field] = plan.flag(flag)
    if "enablePrefixCaching" not in config:
        # the chart switches it off if it is absent; the engine's default is on
        config["enablePrefixCaching"] = True
    if not launch.nodes:
        config["extraArgs"] = list(
            map(_argument_with_kubernetes_escapes, _arguments_without_chart_field(launch))
        )
        return config
    pipeline = plan.flag(_PIPELINE)
    config.setdefault("tensorParallelSize", 1)
    config |= {"pipelineParallelSize": pipeline if isinstance(pipeline, int) else 1, "v1": "1"}
    words = list(map(_text_in_bash_double_quotes, _arguments_without_chart_field(launch)))
    if config["enablePrefixCaching"] is False:
        words.append("--no-enable-prefix-caching")  # the chart leaves it out with Ray
    config["extraArgs"] = words
    return config


def _require_no_data_parallel_nodes(launch: Launch) -> None:
    """Raise InputError if the plan has several data-parallel ranks, which the chart does not start
    on several nodes."""
    ranks = _data_parallel_ranks(launch)
    if ranks > 1:
        raise InputError(
            "the chart starts several nodes with Ray as one server, and the plan has "
            f"data-parallel-size {ranks}",
            next_step="export in another format: shell, slurm or sparkrun",
        )


def _chart_fields_of_ray(launch: Launch) -> dict[str, Any]:
    """Return the fields of a model that Ray runs on several nodes: replicaCount is the number of
    nodes besides the head, and each node has the requests of one."""
    head = {
        "requestCPU": _count_vllm_processes(launch),
        "requestMemory": f"{_requested_host_memory_gib(launch)}Gi",
        "requestGPU": launch.gpus,
    }
    return {
        "replicaCount": launch.host_count - 1,
        "shmSize": _SHARED_MEMORY,
        "raySpec": {"enabled": True, "headNode": head},
    }


def _add_ray_note(launch: Launch, notes: Notes) -> None:
    text = (
        f"KubeRay starts the {launch.host_count} nodes, and vLLM with Ray in place of its own start "
        "on several nodes"
    )
    fix = f"the cluster needs the operator of KubeRay, and the image {launch.image} the program ray"
    notes.add(Level.WARN, "ray", text, fix=fix)
    left_out = [name for name in _OF_INTERFACES if name in launch.env]
    names = ", ".join(("the address of each node", *left_out))
    why = (
        "a pod has addresses and interfaces of its own; without RDMA in the pods, NCCL uses TCP, "
        "which is much slower"
    )
    notes.add(Level.WARN, "network", f"{names}: left out, because {why}")


def _add_chart_notes(launch: Launch, name: str, notes: Notes) -> None:
    text = (
        f"requestCPU is one core for each of the {_count_vllm_processes(launch)} processes of the engine, and "
        f"requestMemory is {_BASE_MEMORY_GIB} GiB, as in the chart's example, plus what the plan "
        "keeps in the host's memory"
    )
    fix = "change both in the values file if the model needs more while it loads"
    notes.add(Level.INFO, "requests", text, fix=fix)
    notes.add_left_out_note(
        f"the address {launch.host}:{launch.port}",
        "the chart gives the server an address of its own",
    )
    if launch.secrets:
        secrets = " ".join(f"--from-literal={key}=…" for key in launch.secrets)
        fix = f"kubectl create secret generic {name}-secrets {secrets}"
        notes.add(Level.INFO, "secret", f"the values refer to the secret {name}-secrets", fix=fix)
    if launch.plan.model.startswith("/"):
        notes.add(
            Level.WARN,
            "volume",
            f"{launch.plan.model} is a path: mount it with a volume of the cluster",
        )


def _count_vllm_processes(launch: Launch) -> int:
    """Return the number of processes of vLLM on the node: an API server and an engine core for each
    data parallel rank, a worker for each GPU, and a coordinator of several ranks
    (docs/design/arch_overview.md of vLLM)."""
    ranks = _data_parallel_ranks(launch)
    coordinators = 1 if ranks > 1 else 0
    return 2 * ranks + launch.gpus + coordinators


def _data_parallel_ranks(launch: Launch) -> int:
    ranks = launch.plan.flag("data-parallel-size")
    return max(1, ranks) if isinstance(ranks, int) else 1


def _requested_host_memory_gib(launch: Launch) -> int:
    """Return the memory to request for the server in GiB, with what the plan keeps in the host's
    memory. Kubernetes uses it to choose a node, and does not limit the server to it."""
    total = float(_BASE_MEMORY_GIB)
    for flag, per_gpu in _HOST_MEMORY_FLAGS.items():
        value = launch.plan.flag(flag)
        if is_number(value):
            total += value * (launch.gpus if per_gpu else 1)
    return ceil(total)


def _split_image_and_tag(image: str) -> tuple[str, str]:
    """Return (repository, tag) of a container image, which the chart joins with a colon. For an
    image with a digest, they are "NAME@sha256" and the hash."""
    if "@sha256:" in image:
        repository, _, digest = image.partition("@sha256:")
        return f"{repository}@sha256", digest
    head, colon, tag = image.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (image, "latest")


def _text_in_bash_double_quotes(word: Word) -> str:
    """Return `word` as the text in double quotes of a bash script. Raises InputError for a text
    that bash would change there, because the chart cannot write the backslash that prevents it."""
    if isinstance(word, Secret):
        return f"{_text_in_bash_double_quotes(word.prefix)}${{{word.variable}}}"
    if "$" in word or "`" in word:
        raise InputError(
            f"the chart would write {word!r} into a script of bash, which replaces a part of it",
            next_step="change this value, or export in another format",
        )
    return word


def _arguments_without_chart_field(launch: Launch) -> list[Word]:
    """Return the command-line arguments for the flags that have no field in the chart."""
    engine = launch.engine
    written = {*_FIELDS.values(), *(_OF_NODES if launch.nodes else ())}
    plan = replace(
        launch.plan,
        nodes=(),
        flags=tuple(f for f in launch.plan.flags if f.name not in written),
    )
    least = replace(plan, flags=tuple(f for f in plan.flags if f.name in ("host", "port")))
    words = engine.command(plan).argv[len(engine.command(least).argv) :]
    return list(map(argument_or_secret, words))


def _argument_with_kubernetes_escapes(word: Word) -> str:
    """Return `word`, one argument of a container's command, with "$" written as "$$". A secret
    becomes $(VARIABLE), which Kubernetes replaces by the variable's value."""
    if isinstance(word, Secret):
        return f"{_escape_dollars(word.prefix)}$({word.variable})"
    return _escape_dollars(word)


def _escape_dollars(text: str) -> str:
    return text.replace("$", "$$")
