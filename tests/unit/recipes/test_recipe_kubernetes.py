"""Kubernetes manifests and values of the vLLM production stack: which server a preset of them has,
and that the values which Workbench writes are read back as the same server."""

from __future__ import annotations

import pytest
import yaml

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, Node
from workbench.recipes.launch import build_launch
from workbench.recipes.recipe import Given, Notes, Recipe
from workbench.recipes.registry import find_export_form, parse_recipe_text

SERVICE = """apiVersion: v1
kind: Service
metadata: {name: llm}
spec: {ports: [{port: 80}]}
"""
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: llm-engine
spec:
  template:
    spec:
      volumes:
      - {name: weights, hostPath: {path: /srv/weights}}
      - {name: cache, emptyDir: {}}
      containers:
      - name: engine
        image: vllm/vllm-openai:v0.20.0
        args: [--model, $(WHICH), --max-model-len, "4096", --port, "9000", --served-model-name, "5$$"]
        env:
        - {name: WHICH, value: /weights/small}
        - {name: HF_HOME, value: /cache/hub}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
        - {name: VLLM_LOGGING_LEVEL, value: DEBUG}
        volumeMounts:
        - {name: weights, mountPath: /weights}
        - {name: cache, mountPath: /cache}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""
TWO_CONTAINERS = """apiVersion: v1
kind: Pod
metadata: {name: both}
spec:
  containers:
  - {name: proxy, image: "nginx:1"}
  - name: engine
    image: lmsysorg/sglang:v0.5.9
    command: [bash, -c, "python3 -m sglang.launch_server --model-path org/m --tp 2"]
"""
VALUES = """servingEngineSpec:
  runtimeClassName: ""
  modelSpec:
  - name: first
    repository: vllm/vllm-openai
    tag: v0.20.0
    modelURL: org/First
    replicaCount: 1
    requestGPU: 2
    enableTool: true
    toolCallParser: hermes
    vllmConfig: {maxModelLen: 8192, tensorParallelSize: 2, extraArgs: [--seed, "3"]}
    env: [{name: VLLM_LOGGING_LEVEL, value: DEBUG}]
  - name: second
    repository: vllm/vllm-openai
    tag: v0.20.0
    modelURL: org/Second
    vllmConfig: {enablePrefixCaching: true}
"""
# types of the fields that an export sets, in helm/values.schema.json of the production stack
CHART_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "repository": str,
    "tag": str,
    "modelURL": str,
    "replicaCount": int,
    "requestCPU": int,
    "requestMemory": str,
    "requestGPU": (int, float, str),
    "shmSize": str,
    "vllmConfig": dict,
    "env": list,
    "raySpec": dict,
}


def plan_in(recipe: Recipe) -> LaunchPlan:
    assert recipe.plan is not None
    return recipe.plan


def values_of(plan: LaunchPlan) -> tuple[str, Notes]:
    notes = Notes()
    return find_export_form("helm").render(build_launch(plan, notes, "a-name", ""), notes), notes


def test_a_deployment_gives_the_server_with_the_paths_of_the_node() -> None:
    recipe = parse_recipe_text(f"{SERVICE}---\n{DEPLOYMENT}")
    plan = plan_in(recipe)
    assert (plan.engine, plan.model, recipe.gpus, recipe.name) == (
        "vllm",
        "/srv/weights/small",
        2,
        "llm-engine",
    )
    assert {s.name: s.value for s in plan.flags} == {
        "max-model-len": 4096,
        "port": 9000,
        "served-model-name": "5$",
    }
    assert plan.image == "vllm/vllm-openai:v0.20.0"
    assert {s.name for s in plan.env} == {"WHICH", "VLLM_LOGGING_LEVEL"}
    said = " ".join(finding.text for finding in recipe.findings)
    assert "HF_TOKEN" in said and "HF_HOME=/cache/hub" in said


def test_the_container_that_starts_a_server_is_read_and_an_entry_chooses_one() -> None:
    recipe = parse_recipe_text(TWO_CONTAINERS)
    assert (plan_in(recipe).engine, plan_in(recipe).model) == ("sglang", "org/m")
    assert "the container both/proxy is left out: it starts no server" in [
        finding.text for finding in recipe.findings
    ]
    assert parse_recipe_text(TWO_CONTAINERS, Given("both/proxy")).plan is None
    with pytest.raises(InputError, match="has no container 'nothing'"):
        parse_recipe_text(TWO_CONTAINERS, Given("nothing"))


def test_an_object_without_containers_says_that_it_starts_no_server() -> None:
    recipe = parse_recipe_text(SERVICE)
    assert recipe.plan is None
    assert "starts no server" in recipe.findings[0].text


def test_several_documents_that_are_no_objects_are_an_error() -> None:
    with pytest.raises(InputError, match="2 YAML documents"):
        parse_recipe_text("model: m\nruntime: vllm\n---\nmodel: n\n")


def test_values_give_the_server_that_the_chart_starts() -> None:
    recipe = parse_recipe_text(VALUES)
    plan = plan_in(recipe)
    assert (plan.model, recipe.gpus, plan.image) == ("org/First", 2, "vllm/vllm-openai:v0.20.0")
    assert {s.name: s.value for s in plan.flags} == {
        "enable-auto-tool-choice": True,
        "tool-call-parser": "hermes",
        "enable-prefix-caching": False,  # the chart switches it off unless the values set it
        "max-model-len": 8192,
        "tensor-parallel-size": 2,
        "seed": 3,
    }
    assert "--entry second reads it" in " ".join(finding.text for finding in recipe.findings)
    assert plan_in(parse_recipe_text(VALUES, Given("second"))).model == "org/Second"


def test_written_values_are_read_back_as_the_same_server() -> None:
    flags = {
        "max-model-len": 4096,
        "tensor-parallel-size": 2,
        "enable-prefix-caching": True,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
        "seed": 7,
    }
    settings = tuple(FlagSetting(name, value) for name, value in flags.items())
    env = (FlagSetting("A", "$(B) $C $$"),)
    plan = LaunchPlan("vllm", "org/Model", flags=settings, env=env, image="a/b:1")
    read = plan_in(parse_recipe_text(values_of(plan)[0]))
    assert {s.name: s.value for s in read.flags} == flags
    assert (read.model, read.image) == (plan.model, plan.image)
    assert {s.name: s.value for s in read.env} == {"A": "$(B) $C $$"}


def test_values_of_two_nodes_let_ray_start_them_in_the_types_of_the_chart() -> None:
    env = {"NCCL_SOCKET_IFNAME": "eth7", "NCCL_DEBUG": "INFO"}
    plan = LaunchPlan(
        "vllm",
        "org/Model",
        flags=(
            FlagSetting("tensor-parallel-size", 2),
            FlagSetting("nnodes", 2),
            FlagSetting("master-addr", "10.0.0.1"),
            FlagSetting("enable-prefix-caching", False),
        ),
        env=tuple(FlagSetting(name, value) for name, value in env.items()),
        nodes=(Node("head", 0), Node("worker", 1)),
    )
    text, notes = values_of(plan)
    model = yaml.safe_load(text)["servingEngineSpec"]["modelSpec"][0]
    assert set(model) == CHART_TYPES.keys()
    for name, value in model.items():
        assert isinstance(value, CHART_TYPES[name]), name
    head = model["raySpec"]["headNode"]
    assert (model["replicaCount"], model["requestGPU"], head["requestGPU"]) == (1, 1, 1)
    assert (type(head["requestCPU"]), type(head["requestMemory"])) == (int, str)
    config = model["vllmConfig"]
    assert (config["tensorParallelSize"], config["pipelineParallelSize"]) == (2, 1)
    assert config["extraArgs"] == ["--no-enable-prefix-caching"]
    assert model["env"] == [{"name": "NCCL_DEBUG", "value": "INFO"}]
    network = next(finding for finding in notes.findings if finding.code == "recipe.network")
    assert network.level is Level.WARN and "NCCL_SOCKET_IFNAME" in network.text
    read = parse_recipe_text(text)
    assert read.gpus == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [({"data-parallel-size": 2}, "data-parallel-size 2"), ({"chat-template": "$X"}, "bash")],
)
def test_what_ray_of_the_chart_would_start_otherwise_is_an_error(
    flags: dict[str, object], said: str
) -> None:
    settings = tuple(FlagSetting(name, value) for name, value in flags.items())
    nodes = (Node("head", 0), Node("worker", 1))
    with pytest.raises(InputError, match=said):
        values_of(LaunchPlan("vllm", "m", flags=settings, nodes=nodes))


def test_values_for_one_node_of_several_are_an_error() -> None:
    nodes = (Node("head", 0), Node("worker", 1))
    notes = Notes()
    launch = build_launch(LaunchPlan("vllm", "m", nodes=nodes), notes, "a-name", "")
    with pytest.raises(InputError, match="all nodes of a server together"):
        find_export_form("helm").render(launch.nodes[0][1], notes)
