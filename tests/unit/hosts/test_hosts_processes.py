"""Tests of the rules by which processes belong to a run, on invented process tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.hosts.run_processes import (
    Process,
    RunFiles,
    Survey,
    find_living_members,
    parse_survey,
)

RUN = RunFiles("/r", pid=11, start=101, sid=10, sid_start=100, boot_id="boot", token="cafe")


def row(
    pid: int,
    parent: int = 1,
    session: int = 10,
    start: int = 100,
    state: str = "S",
    group: int = 10,
) -> Process:
    return Process(pid, state, parent, group, session, start)


def survey(*rows: Process, tokens: dict[int, str] | None = None, boot: str = "boot") -> Survey:
    return Survey(boot, 0.0, {r.pid: r for r in rows}, tokens or {}, ())


def pids(run: RunFiles, seen: Survey) -> tuple[int, ...]:
    return tuple(p.pid for p in find_living_members(run, seen).all)


def test_leader_server_and_their_children_in_any_session() -> None:
    seen = survey(
        row(10), row(11, 10, start=101), row(12, 11), row(13, 12, session=13), row(99, session=99)
    )
    assert pids(RUN, seen) == (11, 12, 13, 10)


def test_a_session_with_another_leader_is_not_the_runs() -> None:
    assert pids(RUN, survey(row(10, start=500), row(12, 10, start=501))) == ()


def test_a_session_without_leader_belongs_to_the_run_by_one_known_member() -> None:
    assert pids(RUN, survey(row(11, start=101), row(12))) == (11, 12)


def test_a_session_without_leader_belongs_to_the_run_by_a_member_older_than_the_exit() -> None:
    ended = RunFiles("/r", pid=11, start=101, sid=10, sid_start=100, boot_id="boot", exit_ticks=300)
    assert pids(ended, survey(row(12, start=299), row(13, start=900))) == (12, 13)
    assert pids(ended, survey(row(12, start=301))) == ()


def test_a_leaderless_session_without_proof_is_left_alone() -> None:
    assert pids(RUN, survey(row(12), row(13))) == ()


def test_the_token_finds_who_left_the_session() -> None:
    assert pids(RUN, survey(row(50, session=50), row(51, 50, session=51), tokens={50: "cafe"})) == (
        50,
        51,
    )
    assert pids(RUN, survey(row(50, session=50), tokens={50: "beef"})) == ()


def test_zombies_are_not_members_but_prove_the_session() -> None:
    assert pids(RUN, survey(row(10, state="Z"), row(12))) == (12,)


def test_an_unfinished_start_has_no_members() -> None:
    empty = RunFiles("/r")
    assert pids(empty, survey(row(10), row(11), boot="")) == ()
    assert pids(RunFiles("/r", boot_id="boot"), survey(row(10), row(11, session=11))) == ()


@given(
    st.lists(
        st.tuples(
            st.integers(2, 40),
            st.integers(1, 40),
            st.integers(1, 40),
            st.integers(1, 50),
            st.sampled_from("SRZ"),
        ),
        max_size=25,
        unique_by=lambda t: t[0],
    )
)
def test_nobody_without_proof_is_ever_a_member(table: list[tuple[int, int, int, int, str]]) -> None:
    """No row has the run's start times, its token, or an earlier sighting, so none is a member,
    whatever its numbers."""
    rows = [
        row(pid, parent, session, 200 + start, state)
        for pid, parent, session, start, state in table
    ]
    assert pids(RUN, survey(*rows)) == ()


@given(
    st.lists(
        st.tuples(st.integers(2, 40), st.integers(1, 40)), max_size=25, unique_by=lambda t: t[0]
    )
)
def test_all_descendants_of_the_server_are_members(table: list[tuple[int, int]]) -> None:
    rows = {
        pid: row(pid, parent, session=pid, start=200)
        for pid, parent in table
        if pid not in (10, 11)
    }
    rows[11] = row(11, 1, start=101)
    found = set(pids(RUN, survey(*rows.values())))
    for pid, process in rows.items():
        chain, at = set(), process.pid
        while at in rows and at not in chain and at != 11:
            chain.add(at)
            at = rows[at].parent
        assert (pid in found) == (at == 11)


def test_parse_reads_names_with_any_bytes_and_files_with_any_lines() -> None:
    output = (
        b"boot boot\nnow 1700000000\nproc 10 S 1 10 10 100\ntoken 10 cafe\n"
        b"older 2026-x\nrun /runs/a:b\nvalue pid 11\nvalue exit 137 900 1700000001\n"
        b"run /runs/\xff\nvalue ended failed 1\n"
        b"/runs/a:b/plan.json:end\n/runs/a:b/plan.json:run x: "
        b"y\n/runs/a:b/plan.json:\n/runs/a:b/members:11:101\n"
        b"/runs/a:b/members:12:102\n/runs/\xff/log:\x00\xff\nend\n"
    )
    seen = parse_survey(output)
    assert seen is not None
    first, second = seen.runs
    assert first.files == {"plan.json": b"end\nrun x: y\n\n"}
    assert first.seen == {"11:101", "12:102"}
    assert (first.pid, first.exit_code, first.exit_ticks, first.ended_unix_s) == (
        11,
        137,
        900,
        1700000001.0,
    )
    assert (second.pid, second.exit_code, second.files) == (None, None, {"log": b"\x00\xff\n"})
    assert (first.marked, second.marked, seen.older) == (False, True, ("2026-x",))
    assert seen.processes[10].start == 100
    assert parse_survey(output.removesuffix(b"end\n")) is None
