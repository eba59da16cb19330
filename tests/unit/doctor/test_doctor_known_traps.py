"""Every published trap is decided, has a source, and names only rules, patterns and checks that
exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.doctor.known_traps import KINDS, KnownTrap, known_traps, known_traps_summary
from workbench.engines import trap_rules
from workbench.gpu.settings.setting_traps import known_traps_by_id
from workbench.server.log_patterns import patterns_of_engine

PACKAGE = Path(__file__).parents[3] / "workbench"


def codes_in(*folders: str) -> set[str]:
    texts = (path.read_text() for folder in folders for path in (PACKAGE / folder).rglob("*.py"))
    return {code for text in texts for code in re.findall(r'"([a-z0-9]+\.[a-z0-9-]+)"', text)}


KNOWN: dict[str, Callable[[], set[str]]] = {
    "plan": lambda: codes_in("engines", "session/plans", "session/servers") | {"host.port"},
    "log": lambda: {f"log.{pattern.id}" for pattern in patterns_of_engine()},
    "doctor": lambda: codes_in("doctor"),
    "advisor": lambda: codes_in("advisor"),
    "text": lambda: codes_in("model", "server"),
    "setting": lambda: set(known_traps_by_id()),
}


def test_the_traps_are_all_there_and_most_are_seen() -> None:
    traps = known_traps()
    assert [trap.id for trap in traps] == [f"{number:02}" for number in range(1, 125)]
    assert len({trap.title for trap in traps}) == 124
    seen = [trap for trap in traps if trap.seen_by]
    assert len(seen) >= 55 and f"sees {len(seen)}," in known_traps_summary()


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_that_a_trap_names_exists(kind: str) -> None:
    named = {seen for trap in known_traps() for seen in trap.seen_by if seen.startswith(f"{kind}:")}
    assert named, f"no trap names a {kind}"
    assert {seen.partition(":")[2] for seen in named} <= KNOWN[kind]()


def test_each_trap_has_a_source_a_status_and_a_decision() -> None:
    for trap in known_traps():
        number = int(trap.id)
        assert re.search(rf"/traps/\w+/0*{number}-[a-z0-9-]+\.md$", trap.source), trap.source
        assert trap.status in ("reproduced", "measured", "contributed", "reported")
        assert trap.seen_by or trap.why_not, trap.id
        assert len(set(trap.seen_by)) == len(trap.seen_by)
        codes = trap.detection_text.partition(";")[0].split(", ")
        assert len(set(codes)) == len(codes), trap.detection_text


def test_a_trap_that_nobody_decided_or_of_an_unknown_kind_is_refused() -> None:
    for seen, why in (((), None), (("oracle:x.y",), None)):
        with pytest.raises(ValueError, match="trap 01"):
            KnownTrap("01", "title", seen, why, None, "reported", "source")


@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_lists_every_trap_with_what_sees_it(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--list", *(["--json"] if as_json else [])]) == 0
    said = capsys.readouterr().out
    if as_json:
        document = json.loads(said)
        assert len(document["traps"]) == 124 and document["seen"] >= 55
        assert document["traps"][44]["seen_by"] == ["plan:kv.quant-pair"]
    else:
        assert all(
            f"  {trap.title}" in said and trap.detection_text in said for trap in known_traps()
        )
        assert said.splitlines()[0].strip() == known_traps_summary()


def test_each_rule_about_traps_is_in_the_table() -> None:
    source = Path(trap_rules.__file__).read_text()
    codes = re.findall(r'^ +"([a-z]+\.[a-z-]+)",$', source, re.MULTILINE)
    named = {seen.partition(":")[2] for trap in known_traps() for seen in trap.seen_by}
    assert len(codes) == len(trap_rules.RULES)
    assert set(codes) <= named
