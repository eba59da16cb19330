"""The answers of a host about its register and its journal, with each part replaced by impossible
numbers and by data of other types: a reader leaves the part out, or refuses it in a sentence."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from support.fake_host import Answer, Call, FakeHost
from support.hostile import EVIL, ODD_NUMBERS

from workbench.cli.gpu_status import _journal_entry_json, _journal_lines, _journal_log_line
from workbench.gpu.guard import client as guard_client
from workbench.gpu.settings import claims, journal, proof_files, register
from workbench.gpu.settings.alterations import alteration_of_claim, alteration_of_record
from workbench.gpu.settings.rights import Rights
from workbench.model.errors import WorkbenchError
from workbench.model.untrusted_numbers import parse_strict_json, replace_non_finite

ODD = (*ODD_NUMBERS, None, "x", EVIL, {"a": 1}, [[]])
ENTRY: dict[str, Any] = {
    "gpu_uuid": "GPU-aaaaaaaa-1111-2222-3333-bbbbbbbbbbbb",
    "gpu_index": 0,
    "gpu_name": "RTX",
    "setting": "power_limit_w",
    "before": 300.0,
    "before_known": "read",
    "now": 240.0,
    "since_unix_s": 1.7e9,
    "set_unix_s": 1.7e9,
    "boot_id": "b",
    "driver": "595",
    "who": "ada@box",
    "owner": {"machine": "m", "boot_id": "b", "pid": 12, "start": "3"},
    "energy_j": 3.0,
    "state": "applied",
    "watch": {"trial": "x", "trial_s": 3.0, "heartbeat_s": 5.0},
    "over": [250.0],
    "origin": "",
    "driver_start": "3",
}
FILE = {"boot_id": "b", "made_ns": 3, "version": 2}
CHANGE = {"gpu_index": 0, "setting": "gpu_clocks", "unix_s": 1.7e9}
OWN = {**FILE, "uid": 0, "user": "ada", "journal": "own", "entries": [ENTRY], "changes": [CHANGE]}
OTHER = {**FILE, "uid": 7, "user": "eve", "journal": "e", "entries": [ENTRY], "changes": []}
REGISTER = {"directory": "/run/lock", "uid": 0, "journal": "own", "found": [OWN, OTHER]}
LINE = {
    "unix_s": 1.7e9,
    "boot_id": "b",
    "who": "ada@box",
    "what": "set",
    "gpu_uuid": ENTRY["gpu_uuid"],
    "setting": "power_limit_w",
    "before": 300.0,
    "now": 240.0,
    "ok": True,
    "message": "m",
}
JOURNAL = {"version": 2, "entries": [ENTRY], "log": [LINE]}


def places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(data, dict):
        data = list(data.items())
    elif isinstance(data, list):
        data = list(enumerate(data))
    else:
        return
    for name, part in data:
        yield from places(part, (*place, name))


def with_odd(data: Any, place: tuple[Any, ...], odd: object) -> str:
    if not place:
        return json.dumps(odd)
    changed = copy.deepcopy(data)
    at = changed
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = odd
    return json.dumps(changed)


def host_with(register_text: str, journal_text: str) -> FakeHost:
    found = {
        "boot_id": "b",
        "driver_start": "3",
        "text": journal_text,
        "damage": None,
        "register": register_text,
        "answered": "read",
    }

    def answer(call: Call) -> str:
        reads = b'{"do": "read"' in call.input
        return f"{json.dumps(found)}\n" if reads else ""

    return FakeHost(answer)


def use(found: journal.Journal) -> None:
    """Do with a journal what status, journal and revert do with it."""
    for claim in found.others:
        assert claim.value_and_origin_text and alteration_of_claim(claim)
    for change in found.register.changes:
        assert claims.local_date_and_time_text(change.unix_s)
    records = found.records({})
    for record in records:
        assert alteration_of_record(record)
        claims.decide_revert(record.entry.field_values, 300.0, found.others)
    assert list(
        _journal_lines(
            {"journal": "", "entries": [_journal_entry_json(r, "/sys") for r in records]}
        )
    )
    assert all(map(_journal_log_line, found.log))
    json.dumps(replace_non_finite([record.entry.as_json() for record in records]), allow_nan=False)
    assert found.without_entries_of_lost_settings({}).boot_id == "b"


@pytest.mark.parametrize("place", list(places(REGISTER)), ids=str)
def test_what_a_host_says_about_its_register_stops_no_journal(place: tuple[Any, ...]) -> None:
    async def main() -> None:
        for odd in ODD:
            host = host_with(with_odd(REGISTER, place, odd), json.dumps(JOURNAL, indent=1))
            found = await journal.read_journal(host)
            assert found.entries[0].now == 240.0, "the own journal stays usable"
            use(found)

    asyncio.run(main())


@pytest.mark.parametrize("place", list(places(JOURNAL)), ids=str)
def test_what_a_journal_says_is_used_or_refused(place: tuple[Any, ...]) -> None:
    async def main() -> None:
        for odd in ODD:
            host = host_with(json.dumps({**REGISTER, "found": []}), with_odd(JOURNAL, place, odd))
            try:
                found = await journal.read_journal(host)
            except WorkbenchError as refused:
                assert refused.next_step
            else:
                use(found)

    asyncio.run(main())


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 21, "9" * 5000])
def test_no_number_of_a_neighbour_makes_the_whole_register_unreadable(number: str) -> None:
    """Also not one in a field that this version does not know: the answer of the host's program has
    the files of all users, and a host with Python 3.8 reads integers of any length."""
    with pytest.raises(ValueError, match="impossible number"):
        parse_strict_json(f'{{"more": [{number}]}}')
    assert parse_strict_json('{"more": [1e18, 1.5, -3]}') == {"more": [1e18, 1.5, -3]}


def test_a_register_file_is_fit_as_a_whole() -> None:
    assert register.register_document_is_valid(OWN)
    assert not register.register_document_is_valid({**OWN, "made_ns": 10**400})
    assert not register.register_document_is_valid({**OWN, "entries": None})


def test_what_is_right_is_used() -> None:
    found = asyncio.run(
        journal.read_journal(host_with(json.dumps(REGISTER), json.dumps(JOURNAL, indent=1)))
    )
    assert [(c.by, c.now) for c in found.others] == [("eve", 240.0)]
    assert [c.unix_s for c in found.register.changes] == [1.7e9]
    assert len(found.log) == len(found.entries) == 1


CLOCK = {
    "gpu_uuid": ENTRY["gpu_uuid"],
    "setting": "gpu_clocks",
    "lock": "1000,2000",
    "load": "bench",
    "circumstances": "c",
    "mhz": 2000,
    "limiter": None,
    "unix_s": 0.0,
}


@pytest.mark.parametrize("place", list(places({"clocks": [CLOCK], "shown": [["a"]]})), ids=str)
def test_a_kept_file_of_clocks_with_an_odd_part_is_no_evidence_or_possible(
    place: tuple[Any, ...],
) -> None:
    said = {"clocks": [{**CLOCK, "unix_s": time.time() - 60}], "shown": [["a"]]}

    async def main() -> None:
        for odd in ODD:
            text = with_odd(said, place, odd).encode()
            host = FakeHost()
            host.files[f"{await host.state_dir()}/{proof_files.CLOCKS_FILE}"] = text
            for clock in (await proof_files.read_measured_clocks(host)).clocks:
                assert 0 <= clock.mhz <= 50_000 and 0 <= clock.unix_s <= time.time()
        host.files[f"{await host.state_dir()}/{proof_files.CLOCKS_FILE}"] = json.dumps(
            said
        ).encode()
        assert len((await proof_files.read_measured_clocks(host)).clocks) == 1

    asyncio.run(main())


@pytest.mark.parametrize("said", ["3", "null", "[]", '{"error": [1]}', "[[1, 2]]", "NaN", '"x"'])
def test_any_answer_of_a_guard_that_starts_is_read(said: str) -> None:
    answers = host_with(json.dumps(REGISTER), json.dumps(JOURNAL, indent=1))

    def answer(call: Call) -> Answer:
        starts = '"nvidia_smi"' in " ".join(call.argv)
        return f"{said}\n" if starts else cast(str, answers.handler(call))

    host = FakeHost(answer)
    view = asyncio.run(
        guard_client.start_guard(host, guard_client.GuardTerms(Rights()), journal.Journal())
    )
    assert not view.running
