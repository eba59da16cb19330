"""Every shipped preset in every form of export: what the text says is what the plan says, and what
a form cannot say is an error or a finding."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from test_recipe_properties import argv_of

from workbench import engines
from workbench.engines.cluster import spread_plan_over_nodes
from workbench.model.errors import InputError
from workbench.model.node_network import NodeAddress
from workbench.model.plan import LaunchPlan
from workbench.recipes.launch import build_launch
from workbench.recipes.recipe import Notes
from workbench.recipes.registry import EXPORT_FORMS, find_export_form, parse_recipe_text
from workbench.session.plans.recipes import export_plan
from workbench.store.presets import PresetLibrary

LIBRARY = PresetLibrary()
WITH_RAY = "vllm-llama-3.3-70b-2x-spark-ray"
PRESETS = [entry.id for entry in LIBRARY.list() if entry.origin != "own"]
FORMS = [form.name for form in EXPORT_FORMS]
BY_SCHEDULER = ("slurm", "pbs")
IN_CONTAINERS = ("docker", "podman", "compose", "sparkrun", "helm")
WITHOUT_LIMIT = ("llamaswap", "helm")
# What a form says about itself where it cannot start the plan.
REFUSALS = (
    "can start one node",
    "sparkrun cannot start",
    "vLLM production stack cannot start",
    "which a ",  # "the server needs the file X, which a … cannot write"
    "a Slurm job script cannot start Ray",
)


def _plans(preset_id: str) -> list[LaunchPlan]:
    """Return the plan of a preset; of a preset for several nodes, the plan of each node."""
    preset = LIBRARY.get(preset_id)
    values = {
        name: str(variable.default or variable.example or f"/srv/{name}")
        for name, variable in preset.variables.items()
    }
    plan = engines.plan_from_preset(preset, values)
    if not plan.nodes:
        return [plan]
    return [replace(plan, nodes=()), *(_of_node(plan, rank) for rank in range(len(plan.nodes)))]


def _of_node(plan: LaunchPlan, rank: int) -> LaunchPlan:
    node = plan.nodes[rank]
    for name, value in node.flags.items():
        plan = plan.with_flag(name, value)
    for name, text in node.env.items():
        plan = plan.with_env(name, text)
    return replace(plan, nodes=())


def _exported(plan: LaunchPlan, form: str) -> tuple[str, Notes] | None:
    """Return the text of the export with its notes; None if the form refuses the plan."""
    notes = Notes()
    launch = build_launch(plan, notes, "a-name", "A title")
    try:
        return find_export_form(form).render(launch, notes), notes
    except InputError as error:
        assert any(reason in error.message for reason in REFUSALS), error
        return None


def _codes(notes: Notes) -> set[str]:
    return {finding.code.removeprefix("recipe.") for finding in notes.findings}


def _env(plan: LaunchPlan, form: str) -> dict[str, str]:
    hidden = ("CUDA_VISIBLE_DEVICES",) if form in BY_SCHEDULER else ()
    return {e.name: str(e.value) for e in plan.env if e.name not in hidden}


def _without_port(words: Sequence[str]) -> list[str]:
    found = list(words)
    found[found.index("--port") + 1] = "PORT"
    return found


@pytest.mark.parametrize("form", [form for form in FORMS if form != "helm"])
def test_each_export_is_read_back_as_its_plan(form: str) -> None:
    compared = 0
    for preset_id in PRESETS:
        for plan in _plans(preset_id):
            exported = _exported(plan, form)
            if exported is None or plan.engine == "tabbyapi":  # its flags are in a file
                continue
            text, notes = exported
            read = parse_recipe_text(text).plan
            assert read is not None, (preset_id, text)
            wanted, found = argv_of(plan), argv_of(read)
            if form == "llamaswap":  # it chooses the port
                wanted, found = tuple(_without_port(wanted)), tuple(_without_port(found))
            assert found == wanted, preset_id
            assert {e.name: str(e.value) for e in read.env} == _env(plan, form), preset_id
            if form not in IN_CONTAINERS:
                assert read.executable == plan.executable, preset_id
            _check_limit(preset_id, form, plan, notes, read.open_files)
            compared += 1
    assert compared > 40


def _check_limit(
    preset_id: str, form: str, plan: LaunchPlan, notes: Notes, read: int | None
) -> None:
    if form in WITHOUT_LIMIT:
        assert ("open-files" in _codes(notes)) is (plan.open_files is not None), preset_id
    elif form == "sparkrun":  # no recipe of sparkrun has it in its command
        assert "open-files" not in _codes(notes)
    else:
        assert read == plan.open_files, preset_id


@pytest.mark.parametrize("form", FORMS)
def test_the_limit_of_open_files_is_in_the_text_or_in_a_finding(form: str) -> None:
    limited = [(i, plan) for i in PRESETS for plan in _plans(i) if plan.open_files]
    assert limited, "no preset has a limit, so this test says nothing"
    for preset_id, plan in limited:
        exported = _exported(plan, form)
        if exported is None:
            continue
        text, notes = exported
        assert str(plan.open_files) in text or "open-files" in _codes(notes), preset_id


@pytest.mark.parametrize("form", BY_SCHEDULER)
def test_a_job_that_listens_on_loopback_has_a_finding(form: str) -> None:
    for host, warned in (("127.0.0.1", True), (None, True), ("0.0.0.0", False)):
        plan = LaunchPlan("vllm", "m")
        plan = plan if host is None else plan.with_flag("host", host)
        exported = _exported(plan, form)
        assert exported is not None and ("loopback" in _codes(exported[1])) is warned


def test_the_log_of_a_pbs_job_is_written_where_it_can_be_followed() -> None:
    exported = _exported(LaunchPlan("vllm", "m"), "pbs")
    assert exported is not None
    assert 'exec > "$PBS_O_WORKDIR/a-name-$PBS_JOBID.log" 2>&1' in exported[0]


def test_helm_values_have_every_flag_and_variable_of_a_plan() -> None:
    compared = 0
    for preset_id in PRESETS:
        for plan in _plans(preset_id):
            exported = _exported(plan, "helm")
            if exported is None:
                continue
            spec = yaml.safe_load(exported[0])["servingEngineSpec"]["modelSpec"][0]
            assert spec["modelURL"] == plan.model
            said = _words_of_chart(spec["vllmConfig"])
            engine = engines.get_engine(plan.engine)
            of_nodes = _OF_NODES if plan.nodes else ()
            flags = [flag for flag in plan.flags if flag.name not in of_nodes]
            words = [word for flag in flags for word in _words(engine, flag)]
            for word in words:
                assert word in said, (preset_id, word)
            env = {e["name"]: e["value"].replace("$$", "$") for e in spec.get("env", ())}
            of_interfaces = {"NCCL_NET", "NCCL_IB_HCA", "VLLM_HOST_IP", "UCX_NET_DEVICES"}
            expected = {
                name: value
                for name, value in _env(plan, "helm").items()
                if name not in of_interfaces and not name.endswith("_SOCKET_IFNAME")
            }
            assert env == expected, preset_id
            compared += 1
    assert compared > 20


# flags that Ray of the chart replaces: KubeRay starts the nodes
_OF_NODES = (
    *("nnodes", "master-addr", "master-port", "distributed-executor-backend"),
    "pipeline-parallel-size",
)


def _words(engine: engines.Engine, flag: Any) -> list[str]:
    if flag.name in ("host", "port"):
        return []
    return engine.make_flag_arguments(engine.catalog(), flag, is_version_known=False)


def _words_of_chart(config: Mapping[str, Any]) -> list[str]:
    """Return the words that the chart makes of its fields, and its extra arguments."""
    words = [word.replace("$$", "$") for word in config["extraArgs"]]
    for name, value in config.items():
        if name != "extraArgs":
            dashed = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
            words += [f"--{dashed}", f"--no-{dashed}", str(value)]
    return words


def _on_nodes(preset_id: str) -> LaunchPlan:
    preset = LIBRARY.get(preset_id)
    values = {
        name: str(variable.default or variable.example or f"/srv/{name}")
        for name, variable in preset.variables.items()
    }
    return engines.plan_from_preset(preset, values)


@pytest.mark.parametrize(
    "preset_id", ["vllm-llama-3.3-70b-2x-spark", "sglang-llama-3.3-70b-2x-spark"]
)
def test_a_recipe_of_sparkrun_has_no_place_of_a_node(preset_id: str) -> None:
    plan = _on_nodes(preset_id)
    exported = _exported(plan, "sparkrun")
    assert exported is not None
    text, notes = exported
    recipe = yaml.safe_load(text)
    words = shlex.split(recipe["command"])
    for flag in ("nnodes", "node-rank", "master-addr", "master-port", "headless", "dist-init-addr"):
        assert f"--{flag}" not in words
    assert (recipe["min_nodes"], recipe["max_nodes"]) == (2, 2)
    assert engines.get_engine(plan.engine).host_address_env not in recipe["env"]
    assert "left-out" in _codes(notes)


def test_a_script_for_the_nodes_of_a_cluster_starts_ray() -> None:
    plan = engines.plan_from_preset(LIBRARY.get(WITH_RAY), {"model": "m", "head_ip": "10.0.0.1"})
    places = [NodeAddress(f"spark-0{at}", f"10.0.0.{at}", "enp1") for at in (1, 2)]
    spread_plan = spread_plan_over_nodes(plan, engines.get_engine("vllm"), places)
    exported = _exported(spread_plan, "shell")
    assert exported is not None
    text, notes = exported
    assert "exec ray start --head --port 6379 --node-ip-address 10.0.0.1 --block" in text
    assert "exec ray start --address 10.0.0.1:6379 --node-ip-address 10.0.0.2 --block" in text
    assert "order" in _codes(notes)
    assert _exported(spread_plan, "slurm") is None
    sparkrun = _exported(spread_plan, "sparkrun")
    assert sparkrun is not None and yaml.safe_load(sparkrun[0])["max_nodes"] == 2


@pytest.mark.parametrize("form", ["shell", "systemd", "docker", "pbs"])
def test_an_export_that_starts_no_ray_says_so(form: str) -> None:
    plan = engines.plan_from_preset(LIBRARY.get(WITH_RAY), {"model": "m", "head_ip": "10.0.0.1"})
    exported = _exported(plan, form)
    assert exported is not None and "ray" in _codes(exported[1])


@pytest.mark.parametrize("node", ["spark-01", "spark-01-ray", "spark-02-ray"])
def test_a_part_of_a_launch_with_ray_names_the_other_parts(node: str) -> None:
    plan = engines.plan_from_preset(LIBRARY.get(WITH_RAY), {"model": "m", "head_ip": "10.0.0.1"})
    places = [NodeAddress(f"spark-0{at}", f"10.0.0.{at}", "enp1") for at in (1, 2)]
    exported = export_plan(
        spread_plan_over_nodes(plan, engines.get_engine("vllm"), places),
        "systemd",
        name="x",
        node=node,
    )
    (finding,) = [f for f in exported.findings if f.code == "recipe.one-part"]
    assert "spark-01, spark-01-ray, spark-02-ray" in finding.text
    assert "start Ray on the first node" in (finding.fix or "")
