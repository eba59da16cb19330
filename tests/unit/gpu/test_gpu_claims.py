"""What another Workbench's claim means for a change of ours: random users in a random order, one
setting, one truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.gpu.settings import claims
from workbench.gpu.settings.alterations import (
    alteration_of_claim,
    alterations_of_known_gpus,
    select_alterations_in_force,
)
from workbench.gpu.settings.claims import ASK, DONE, LEAVE, RESTORE, SettingClaim
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, GpuState, HostSample, Telemetry
from workbench.model.setting_commands import HOST
from workbench.model.setting_records import Alteration

UUID = "GPU-00000000-0000-4000-8000-000000000000"
POWER, LOCK = "power_limit_w", "gpu_clocks"


def entry(**changes: Any) -> dict[str, Any]:
    made = {
        "gpu_uuid": UUID,
        "setting": POWER,
        "before": 300.0,
        "now": 250.0,
        "since_unix_s": 1.0,
        "state": "applied",
    }
    return {**made, **changes}


def claim(
    now: Any = 200.0, at: float = 2.0, before: Any = 300.0, setting: str = POWER
) -> SettingClaim:
    return SettingClaim("bob", UUID, 0, setting, before, now, at)


CORES = entry(setting="governor", before="performance", now="powersave")
HALF = "performance=0-2 powersave=3"


@pytest.mark.parametrize(
    ("ours", "live", "others", "do", "value"),
    [
        pytest.param(entry(), 250.0, [], RESTORE, 300.0, id="ours is there"),
        pytest.param(entry(), 300.0, [], DONE, 300.0, id="it is back already"),
        pytest.param(entry(), 200.0, [], ASK, 200.0, id="someone else's"),
        pytest.param(entry(), None, [], RESTORE, 300.0, id="it cannot be asked"),
        pytest.param(
            entry(state="pending"), 400.0, [], RESTORE, 300.0, id="killed while it changed"
        ),
        pytest.param(
            CORES, HALF, [], RESTORE, "performance", id="its revert was killed between two cores"
        ),
        pytest.param(
            CORES,
            "ondemand=0 powersave=1",
            [],
            ASK,
            "ondemand=0 powersave=1",
            id="a core of someone else's",
        ),
        pytest.param(
            {**CORES, "before": HALF},
            "powersave=0-2 performance=3",
            [],
            ASK,
            "powersave=0-2 performance=3",
            id="a core neither has so",
        ),
        pytest.param(entry(), 200.0, [claim()], LEAVE, 200.0, id="another Workbench's"),
        pytest.param(
            entry(),
            250.0,
            [claim(250.0)],
            LEAVE,
            250.0,
            id="another's later claim of the same limit",
        ),
        pytest.param(
            entry(set_unix_s=3.0, over=[250.0]),
            250.0,
            [claim(250.0)],
            DONE,
            250.0,
            id="another's earlier claim of it",
        ),
        pytest.param(
            entry(setting="persistence", before=False, now=True),
            True,
            [claim(True, setting="persistence", before=False)],
            LEAVE,
            True,
            id="another's later claim of the same mode",
        ),
        pytest.param(
            entry(set_unix_s=3.0, over=[200.0]),
            250.0,
            [claim()],
            RESTORE,
            200.0,
            id="theirs lies under it",
        ),
        pytest.param(
            entry(set_unix_s=3.0, over=[200.0]), 250.0, [], RESTORE, 300.0, id="theirs lay under it"
        ),
        pytest.param(
            entry(set_unix_s=3.0, over=[200.0]),
            250.0,
            [claim(190.0)],
            RESTORE,
            300.0,
            id="theirs moved",
        ),
        pytest.param(
            entry(setting=LOCK, before="unknown", now="1,2"),
            None,
            [],
            RESTORE,
            "unknown",
            id="a lock of ours",
        ),
        pytest.param(
            entry(),
            200.0,
            [claim(before=250.0)],
            ASK,
            200.0,
            id="another's, who was not told of ours",
        ),
        pytest.param(
            entry(),
            250.0,
            [claim(250.0, before=150.0)],
            ASK,
            250.0,
            id="the same limit, another way back",
        ),
        pytest.param(
            entry(setting="persistence", before=False, now=True),
            True,
            [claim(True, setting="persistence", before=True)],
            ASK,
            True,
            id="the same mode, another way back",
        ),
        pytest.param(
            entry(before_known="claim"),
            250.0,
            [],
            ASK,
            250.0,
            id="only another told what was before",
        ),
        pytest.param(
            entry(before_known="default"),
            250.0,
            [],
            RESTORE,
            300.0,
            id="they told the driver's default",
        ),
        pytest.param(
            entry(before_known="claim", set_unix_s=3.0, over=[200.0]),
            250.0,
            [claim()],
            RESTORE,
            200.0,
            id="read then",
        ),
        pytest.param(
            entry(setting=LOCK, before="unknown", now="1,2"),
            None,
            [claim("3,4", setting=LOCK, before="unknown")],
            LEAVE,
            "3,4",
            id="a later lock",
        ),
        pytest.param(
            entry(setting=LOCK, before="default", now="1,2"),
            None,
            [claim("3,4", setting=LOCK, before="unknown")],
            LEAVE,
            "3,4",
            id="a later lock, whose revert sets the default, too",
        ),
    ],
)
def test_the_way_back(
    ours: dict[str, Any], live: Any, others: list[SettingClaim], do: str, value: Any
) -> None:
    way = claims.decide_revert(ours, live, others)
    assert (way.do, way.value) == (do, value)


@pytest.mark.parametrize(
    ("ours", "live", "others", "wanted", "theirs"),
    [
        pytest.param(None, 300.0, [], 250.0, False, id="nobody's"),
        pytest.param(None, 200.0, [claim()], 250.0, True, id="another Workbench's"),
        pytest.param(None, 200.0, [claim()], 200.0, False, id="the same value"),
        pytest.param(None, 300.0, [claim()], 250.0, False, id="a claim that no longer holds"),
        pytest.param(entry(), 250.0, [], 220.0, False, id="ours"),
        pytest.param(entry(), 200.0, [claim()], 220.0, True, id="another's since ours"),
        pytest.param(
            entry(set_unix_s=3.0), 250.0, [claim()], 220.0, False, id="another's before ours"
        ),
        pytest.param(entry(), 200.0, [], 220.0, True, id="by hand since ours"),
        pytest.param(entry(), 200.0, [], 200.0, False, id="by hand, and the same value"),
    ],
)
def test_what_a_change_would_take_from_somebody_else(
    ours: dict[str, Any] | None,
    live: float,
    others: list[SettingClaim],
    wanted: float,
    theirs: bool,
) -> None:
    assert claims.replaces_foreign_value((UUID, POWER), wanted, live, ours, others) is theirs


def test_a_claim_about_a_gpu_that_the_host_lacks_is_left_out() -> None:
    here, gone = claim(), claim()._replace(gpu_uuid="GPU-9")
    of_host = claim()._replace(gpu_uuid=HOST, gpu_index=-1, setting="governor")
    others = tuple(map(alteration_of_claim, (here, gone, of_host)))
    gpus = (GpuInfo(0, UUID, "RTX PRO 6000"),)
    reading = Telemetry(0.0, 0.0, DriverInfo(), HostSample(), gpus, ())
    assert [one.gpu_uuid for one in alterations_of_known_gpus(others, reading)] == [UUID, HOST]
    assert alterations_of_known_gpus(others, None) == others  # nothing is known of the GPUs


@pytest.mark.parametrize(
    ("limit_w", "found"),
    [
        (250.0, [("", 250.0)]),
        (200.0, [("bob", 200.0)]),
        (220.0, [("", 220.0)]),  # set with nvidia-smi
        (300.0, []),
        (None, [("", 250.0), ("bob", 200.0)]),
    ],
)
def test_of_two_users_limits_the_one_that_is_there_is_in_force(
    limit_w: float | None, found: list[tuple[str, float]]
) -> None:
    """The fleet showed both."""
    ours = Alteration(0, UUID, POWER, 300.0, 250.0, 1.0)
    sample = GpuSample(0, UUID, GpuState.LIVE, power_limit_w=limit_w)
    reading = Telemetry(0.0, 0.0, DriverInfo(), HostSample(), (GpuInfo(0, UUID, "x"),), (sample,))
    shown = select_alterations_in_force([ours], [alteration_of_claim(claim())], reading)
    assert [(one.by, one.now) for one in shown] == found


def test_what_is_said_of_a_value_that_is_not_ours() -> None:
    assert claims.drift_message(entry(now=400.0), 200.0) == (
        "set to 400 W by Workbench, now 200 W: changed by someone else"
    )
    assert "set by bob with Workbench" in claims.drift_message(entry(), 200.0, [claim()])
    assert claims.drift_message(CORES, HALF).endswith(": a change or a revert was interrupted")
    assert claims.drift_message(entry(), 250.0) == claims.drift_message(entry(), None) == ""
    assert claims.drift_message(entry(setting=LOCK, now="1,2"), None) == ""
    assert "3-4 MHz, set by bob" in claims.drift_message(
        entry(setting=LOCK, now="1,2"), None, [claim("3,4", setting=LOCK)]
    )


def test_a_value_as_before_on_a_full_disk_is_not_blamed_on_others() -> None:
    """A revert whose journal could not be written was "someone else or a reload of the driver"."""
    said = claims.drift_message(entry(), 300.0, (), True)
    assert "the disk of the journal is full" in said and "someone else" not in said
    by_hand = claims.drift_message(entry(), 200.0, (), True)
    assert "changed by someone else" in by_hand


def test_a_value_as_before_may_also_come_from_a_revert_that_was_killed() -> None:
    """It can be killed between its command and its journal, and blamed somebody else for that."""
    assert "a revert that was killed" in claims.drift_message(entry(), 300.0)


def test_a_revert_names_who_still_uses_the_value() -> None:
    """Two users set the same limit, as one preset does."""
    later = claims.decide_revert(entry(), 250.0, [claim(250.0)])
    assert "it is 250 W, set by bob with Workbench" in later.why and later.why.endswith(
        "its revert sets 300 W"
    )
    earlier = claims.decide_revert(entry(set_unix_s=3.0, over=[250.0]), 250.0, [claim(250.0)])
    assert earlier.why.startswith("left alone: it is 250 W, set by bob with Workbench")


@pytest.mark.parametrize("setting", [POWER, LOCK])
def test_a_claim_of_a_user_who_may_not_set_the_value_counts_only_where_the_value_shows_it(
    setting: str,
) -> None:
    forged, other = claim(250.0, setting=setting), claim(True, setting="persistence")
    keys = [forged.gpu_and_setting, other.gpu_and_setting]
    assert claims.drop_forged_claims([forged, other], keys, lambda one: False) == (other,)
    assert claims.drop_forged_claims([forged, other], keys, lambda one: True) == (forged, other)
    assert claims.drop_forged_claims([forged], [other.gpu_and_setting], lambda one: False) == (
        forged,
    )


def test_a_claim_names_its_user_and_only_what_a_claim_has() -> None:
    told = {
        "gpu_index": 0,
        "boot_id": "b",
        "before": 300.0,
        "now": 1.0,
        "energy_j": "x",
        "watch": {"heartbeat_s": 1},
    }
    told["owner"] = {"pid": 7}
    found = [
        {"uid": 7, "user": "b\x1bob", "journal": "j", "entries": [entry(**told)]},
        {"uid": 7, "user": "ada", "journal": "mine", "entries": [entry(changing=True)]},
    ]
    others, own = claims.parse_foreign_claims_and_own_entries(found, 7, "mine")
    assert [(c.by, c.now, c.energy_j) for c in others] == [
        ("bob (another state directory)", 1.0, None)
    ]
    assert own == (entry(),)


# ---- any number of users in any order

ORIGINAL = {POWER: 300.0, LOCK: "default"}


@dataclass
class Gpu:
    """One setting and the journals of its users, changed as control.py does it."""

    setting: str
    live: Any
    at: float = 1.0
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def told(self) -> Any:
        return None if self.setting == LOCK else self.live

    def others(self, user: str) -> list[SettingClaim]:
        return [
            SettingClaim(
                name, UUID, 0, self.setting, e["before"], e["now"], claims.last_changed_unix_s(e)
            )
            for name, e in self.entries.items()
            if name != user
        ]

    def set(self, user: str, value: Any) -> None:
        self.at += 1
        others, old, key = self.others(user), self.entries.get(user), (UUID, self.setting)
        by = claims.claim_behind_present_value(others, key, self.told(), old)
        before = by.before if by else self.live
        made = entry(setting=self.setting, before=before, now=value, set_unix_s=self.at)
        made["over"] = claims.foreign_values_to_be_replaced(others, key, self.told(), old)
        if old is not None:
            made["before"] = old["before"]
        self.entries[user], self.live = made, value

    def revert(self, user: str) -> None:
        if user not in self.entries:
            return
        way = claims.decide_revert(self.entries[user], self.told(), self.others(user))
        assert way.do != ASK  # there is nobody here but Workbenches
        if way.do == RESTORE:
            self.live = way.value
        del self.entries[user]


USERS = st.sampled_from(["ada", "bob", "eve", "root"])
STEPS = st.lists(st.tuples(USERS, st.none() | st.sampled_from([1, 2, 3])), max_size=12)
VALUES = {POWER: [0.0, 250.0, 200.0, 300.0], LOCK: ["", "1,1", "2,2", "3,3"]}


@settings(deadline=None)
@given(st.sampled_from([POWER, LOCK]), STEPS, st.permutations(["ada", "bob", "eve", "root"]))
def test_whatever_the_order_the_original_is_back_after_all_reverts(
    setting: str, steps: list[tuple[str, int | None]], last: list[str]
) -> None:
    gpu = Gpu(setting, ORIGINAL[setting])
    for user, value in steps:
        if value is None:
            gpu.revert(user)
        else:
            gpu.set(user, VALUES[setting][value])
        held = {e["now"] for e in gpu.entries.values()}
        assert gpu.live in held | {ORIGINAL[setting]}  # no value is there that nobody knows of
        # and nobody is told that an own value holds which does not
        for name, one in gpu.entries.items():
            told = claims.drift_message(one, gpu.told(), gpu.others(name))
            assert told or one["now"] == gpu.live
    for user in last:
        gpu.revert(user)
    assert gpu.live == ORIGINAL[setting]
