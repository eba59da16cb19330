"""What a run or a preset was changed from, if the user names only B."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.model.errors import InputError, ServerError
from workbench.model.experiment import Arm, ArmTarget
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.quality.lineage import ChangedFrom, Lineage
from workbench.session.session import Session
from workbench.store import paths

MODEL = {"model": "Qwen/Qwen3-0.6B"}


class Runs:
    """The runs of a host, each started in place of the one before it."""

    def __init__(self, *plans: LaunchPlan, ready: int = 0, pruned: bool = False) -> None:
        self._records, self._statuses = {}, {}
        before = "20261128-100000-vllm-gone" if pruned else None
        for number, plan in enumerate(plans):
            run_id = f"20261128-10000{number}-vllm-000{number}"
            state = ServerState.READY if number >= len(plans) - ready else ServerState.STOPPED
            self._records[run_id] = SimpleNamespace(plan=plan, replaces=before)
            self._statuses[run_id] = ServerStatus(run_id, "vllm", state, "box", port=8100)
            before = run_id
        self.newest = before or ""

    def statuses(self) -> tuple[ServerStatus, ...]:
        return tuple(self._statuses.values())

    def status(self, run_id: str) -> ServerStatus:
        return self._statuses[run_id]

    def record(self, run_id: str) -> Any:
        if run_id not in self._records:
            raise ServerError("unknown")
        return self._records[run_id]


def preset_plan(session: Session, **flags: Any) -> LaunchPlan:
    plan = session.presets.make_plan("vllm-any", MODEL)
    for name, value in flags.items():
        plan = plan.with_flag(name.replace("_", "-"), value)
    return plan


def of(session: Session, runs: Runs, b: Arm | None = None) -> ChangedFrom:
    servers: Any = SimpleNamespace(supervisor=runs)
    arm = b or Arm(target=ArmTarget(runs.newest[-8:]))
    return Lineage(session.presets, servers).find_original_arm(arm, {})


def test_a_run_is_compared_with_the_run_that_it_replaced() -> None:
    session = Session.of_host()
    first, restarted = preset_plan(session), preset_plan(session, max_num_seqs=8)
    runs = Runs(first, restarted, preset_plan(session, kv_cache_dtype="fp8"), ready=1)
    found = of(session, runs)
    a, b = found.a, found.b
    assert a.target is not None and a.target.name == "20261128-100001-vllm-0001"
    assert b.target is not None and b.target.name == runs.newest
    assert a.sets == b.sets == ("port=8100",), "one after the other on the GPUs of the run"


def test_a_restart_without_a_change_of_the_answers_is_no_ancestor() -> None:
    session = Session.of_host()
    changed = preset_plan(session, kv_cache_dtype="fp8")
    runs = Runs(preset_plan(session), changed, changed.with_flag("max-num-seqs", 8))
    found = of(session, runs)
    assert found.a.target is not None
    assert found.a.target.name == "20261128-100000-vllm-0000"


def test_two_runs_that_are_ready_are_measured_as_they_are() -> None:
    session = Session.of_host()
    runs = Runs(preset_plan(session), preset_plan(session, kv_cache_dtype="fp8"), ready=2)
    found = of(session, runs)
    assert not found.a.changes_launch and not found.b.changes_launch


@pytest.mark.parametrize("pruned", [True, False])
def test_the_first_run_of_a_preset_is_compared_with_the_preset(pruned: bool) -> None:
    session = Session.of_host()
    runs = Runs(preset_plan(session, kv_cache_dtype="fp8"), ready=1, pruned=pruned)
    found = of(session, runs)
    assert found.a.target is not None and found.a.target.name == "vllm-any"
    assert found.variables["model"] == MODEL["model"]
    assert found.a.sets == found.b.sets == ("port=8100",)


def test_a_run_of_another_model_was_ended_and_not_changed() -> None:
    session = Session.of_host()
    other = session.presets.make_plan("vllm-any", {"model": "Qwen/Qwen3-8B"})
    found = of(session, Runs(other, preset_plan(session, kv_cache_dtype="fp8")))
    assert found.a.target is not None and found.a.target.name == "vllm-any"


def test_a_saved_preset_is_compared_with_its_baseline() -> None:
    session = Session.of_host()

    shipped = tomllib.loads((paths.shipped_presets_dir() / "vllm-any.toml").read_text())
    flags = {**shipped.get("flags", {}), "kv-cache-dtype": "fp8"}
    own = {**shipped, "id": "my-fp8", "baseline": "vllm-any", "flags": flags}
    session.presets.library.save(own, "my-fp8")
    servers: Any = SimpleNamespace(supervisor=Runs())
    lineage = Lineage(session.presets, servers)
    found = lineage.find_original_arm(Arm(target=ArmTarget("my-fp8")), MODEL)
    assert found.a == Arm(target=ArmTarget("vllm-any")) and found.words == "the baseline of my-fp8"
    with pytest.raises(InputError, match="nothing is known from which preset vllm-any was changed"):
        lineage.find_original_arm(Arm(target=ArmTarget("vllm-any")), MODEL)


def test_flags_after_a_target_are_the_change() -> None:
    session = Session.of_host()
    b = Arm(sets=("kv-cache-dtype=fp8",), target=ArmTarget("vllm-any"))
    found = of(session, Runs(), b)
    assert (found.a, found.b) == (Arm(target=ArmTarget("vllm-any")), b)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("http://127.0.0.1:8000", "Workbench did not start http://127.0.0.1:8000"),
        ("no-such-preset", "no-such-preset"),
    ],
)
def test_what_has_no_lineage_says_so(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        of(Session.of_host(), Runs(), Arm(target=ArmTarget(name)))


def test_a_run_without_a_changed_answer_says_so() -> None:
    session = Session.of_host()
    with pytest.raises(
        InputError, match=r"differs from .*vllm-any in no setting that changes"
    ) as e:
        of(session, Runs(preset_plan(session), preset_plan(session, max_num_seqs=8)))
    assert "workbench quality A B" in (e.value.next_step or "")
