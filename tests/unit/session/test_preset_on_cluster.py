"""A plan that was loaded on one host and is taken to a cluster: the addresses of the preset become
the cluster's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.model.plan import LaunchPlan, Node, VariableSource
from workbench.session.plans.preset_variables import (
    plan_with_cluster_values,
    variables_to_remember,
)

DOCUMENTED = {"head-address": "192.168.1.1", "other": "192.168.1.10", "interface": "eth1"}
HERE = {"head-address": "10.0.0.1", "interface": "enp1s0"}


def plan() -> LaunchPlan:
    sources = dict.fromkeys(DOCUMENTED, VariableSource("default"))
    nodes = (Node("a", 0, {"node-rank": 0}, {"NCCL_SOCKET_IFNAME": "eth1,eth10"}),)
    made = LaunchPlan("vllm", "org/model", nodes=nodes, variables=DOCUMENTED, sources=sources)
    made = made.with_flag("master-addr", "192.168.1.1").with_flag("port", 8000)
    return made.with_env("PEERS", "192.168.1.1:1,192.168.1.10:1")


def test_the_values_of_the_preset_become_those_of_the_cluster() -> None:
    there = plan_with_cluster_values(plan(), HERE)
    assert (there.flag("master-addr"), there.flag("port")) == ("10.0.0.1", 8000)
    assert there.env[0].value == "10.0.0.1:1,192.168.1.10:1", "no part of another address"
    assert there.nodes[0].env == {"NCCL_SOCKET_IFNAME": "enp1s0,eth10"} and there.nodes[
        0
    ].flags == {"node-rank": 0}
    assert there.variables == DOCUMENTED | HERE and there.sources["interface"].kind == "cluster"
    assert (
        there.sources["other"].kind == "default" and plan_with_cluster_values(there, HERE) is there
    )


def test_what_the_user_gave_or_replaced_stays() -> None:
    given = replace(plan(), sources={**plan().sources, "head-address": VariableSource("given")})
    assert plan_with_cluster_values(given, HERE).flag("master-addr") == "192.168.1.1"
    edited = plan().with_flag("master-addr", "172.16.0.9")
    assert plan_with_cluster_values(edited, HERE).flag("master-addr") == "172.16.0.9"


@pytest.mark.parametrize(
    "filled",
    [
        LaunchPlan("vllm", "m", run_as="slurm", run_options={"partition": "quick-gpus"}),
        LaunchPlan("vllm", "m", nodes=(Node("quick-gpus", 0),)),
        LaunchPlan("vllm", "m").with_flag("overrides", {"names": ["quick-gpus"]}),
    ],
)
def test_a_given_variable_is_remembered_wherever_it_was_filled_in(filled: LaunchPlan) -> None:
    """A variable that only a run option or the name of a node contained was forgotten."""
    given = {"partition": "quick-gpus"}
    sources = {"partition": VariableSource("given")}
    assert variables_to_remember(replace(filled, variables=given, sources=sources)) == given


@pytest.mark.parametrize("word", ["on", "None", "True", "names"])
def test_what_was_not_filled_in_is_no_effect_of_a_variable(word: str) -> None:
    """The text of a missing working directory, "None", contains "on"."""
    made = LaunchPlan("vllm", "m").with_flag("a", True).with_flag("b", {"names": ["x"]})
    assert not made.contains_fillable_text(word)
