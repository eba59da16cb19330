"""The judgement of a checked host: clock, python3, disk, engines, sudo, the way to start servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.doctor.examination import Examination
from workbench.hosts.base import HostFacts
from workbench.model.host_entry import HostEntry
from workbench.server.engine_probe import InstalledEngine
from workbench.session.hosts.check import (
    _compute_clock_skew_s,
    _entry_findings,
    _HostInspection,
    _system_findings,
)

SEEN = Examination(HostFacts("box", "ssh", python3="/usr/bin/python3", python3_version="3.11.2"))
GOOD = _HostInspection("/state", 0.0, "yes", 10**9)


@pytest.mark.parametrize(
    ("now", "skew"),
    [
        ("1000.5", 0.0),  # read between 1000 and 1001
        ("1100.000", 99.0),
        ("900.25", -99.75),
        ("1000", 0.0),  # whole seconds: any time of this second
        ("998", -1.0),
        ("1003.%N", 2.0),  # busybox prints the format
        ("", None),
        ("soon", None),
    ],
)
def test_a_clock_is_off_only_by_what_the_reading_cannot_have_made(
    now: str, skew: float | None
) -> None:
    assert _compute_clock_skew_s(now, started=1000.0, took_s=1.0) == skew


def codes(looked: _HostInspection, seen: Examination = SEEN) -> set[str]:
    return {finding.code for finding in _system_findings(seen, looked)}


def test_what_workbench_itself_needs() -> None:
    assert codes(GOOD) == set()
    assert codes(_HostInspection("/state", 90.0, "yes", 10**9)) == {"host.clock"}
    assert codes(_HostInspection("/state", -1.5, "yes", 10**5)) == {"host.disk"}
    assert codes(_HostInspection("/state", None, "mktemp: No space left on device")) == {
        "host.state-dir"
    }
    for facts in (
        HostFacts("box", "ssh"),
        HostFacts("box", "ssh", python3="/x", python3_version="3.6.8"),
    ):
        assert codes(GOOD, Examination(facts)) == {"host.python3"}
    unknown = Examination(HostFacts("box", "ssh", python3="/x", python3_version=None))
    assert codes(GOOD, unknown) == set()


def test_what_the_entry_of_the_host_needs() -> None:
    missing = InstalledEngine("vllm", None, problem="/opt/x/vllm on box does not exist")
    seen = Examination(SEEN.facts, engines=(missing,))
    entry = HostEntry("box", run_as="systemd", sudo=True, models=("/m",))
    looked = _HostInspection(
        "/state", 0.0, "yes", 10**9, program="", sudo="asks for a password", absent=("/m",)
    )
    found = {
        finding.code: finding
        for finding in _entry_findings(seen, looked, entry, {"vllm": "/opt/x/vllm"})
    }
    assert set(found) == {"host.engine", "host.run-as", "host.sudo", "host.models"} and all(
        f.fix for f in found.values()
    )
    assert found["host.engine"].text == "/opt/x/vllm on box does not exist"
    assert found["host.sudo"].text == "hosts.toml says sudo = true, and sudo asks for a password"
    # a host without an entry: the check looks for none of its models
    assert not _entry_findings(seen, replace(looked, absent=()), HostEntry("box"), {})
    there = _HostInspection(
        "/state", 0.0, "yes", 10**9, program="/usr/bin/systemd-run", sudo="without a password"
    )
    assert not _entry_findings(SEEN, there, entry, {})
