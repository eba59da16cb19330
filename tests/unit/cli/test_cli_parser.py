"""The argument tree: examples, options of every command, hosts by name."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_canned import canned_result

from workbench.cli.parser import EPILOG, build_parser, parse_command_line
from workbench.cli.registry import FIRST_WORDS, load_commands
from workbench.cli.results import result_row_lines
from workbench.hosts import ssh_names
from workbench.model.errors import InputError
from workbench.model.experiment import SHOWS_PCT


def parsers(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from parsers(child, f"{name} {word}".strip())


@pytest.fixture
def ssh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the .ssh directory of a home in which no name is resolved."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ssh_names, "_name_resolves", lambda host: False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


COMMANDS = [found for word in FIRST_WORDS for found in load_commands(word)]
EXAMPLES = [line.strip() for line in EPILOG.splitlines() if line.startswith("  workbench")]
EXAMPLES += [line for found in COMMANDS for line in found.examples if not line.startswith("eval")]


def test_every_command_has_an_example() -> None:
    assert not [found.name for found in COMMANDS if not found.examples]


def test_one_command_loads_the_files_of_that_command_only() -> None:
    code = (
        "import sys\n"
        "from workbench.cli.parser import parse_command_line\n"
        "parse_command_line(['presets', 'path'])\n"
        "assert not {'bench', 'sweeps', 'gpu_settings'} & {m.rpartition('.')[2] for m in "
        "sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_parser_accepts_every_example(line: str, ssh_home: Path) -> None:
    words = shlex.split(line.split(" > ")[0])
    assert words[0] == "workbench"
    assert parse_command_line(words[1:]).command


def test_every_argument_of_every_command_has_help() -> None:
    unexplained = [
        f"{name}: {action.dest}"
        for name, parser in parsers(build_parser())
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and not action.help
    ]
    assert not unexplained


@pytest.mark.parametrize("words", [("--host", "box", "servers"), ("servers", "--host", "box")])
def test_global_options_are_accepted_before_and_after_the_command(words: tuple[str, ...]) -> None:
    space = parse_command_line([*words, "--json"])
    assert (space.command, space.host, space.simulate, space.json) == ("servers", "box", None, True)


@pytest.mark.parametrize(
    "words", [("tune", "vllm-any"), ("gpu", "set"), ("experiment", "show", "3")]
)
def test_an_unknown_option_points_to_the_help_of_its_command(words: tuple[str, ...]) -> None:
    """It pointed to `workbench --help`, which lists no option of a command."""
    with pytest.raises(InputError, match="unrecognized arguments: --frob") as refused:
        parse_command_line(["--host", "box", *words, "--frob"])
    command = " ".join(words[: 1 + (words[0] != "tune")])
    assert refused.value.next_step == f"workbench {command} --help"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--host a servers --host b", "--host"),
        ("gpu set --gpu 0 --gpu 1 --power-limit 200", "--gpu"),
        ("gpu set --gpu all --gpu 1 --power-limit 200", "--gpu"),
        ("gpu set --persistence on --persistence off", "--persistence"),
    ],
)
def test_an_option_is_not_given_twice_with_different_values(line: str, option: str) -> None:
    """argparse took the last: `gpu set --gpu 0 --gpu 1` changed one GPU without a word."""
    with pytest.raises(InputError, match=f"{option} is given twice"):
        parse_command_line(line.split())


def test_an_option_with_nan_is_given_once() -> None:
    """NaN is not equal to itself, so it was "given twice"."""
    arguments = parse_command_line(
        ["capacity", "run-1", "--slo", "ttft<=1", "--rate", "--horizon", "nan"]
    )
    assert arguments.horizon != arguments.horizon


def test_an_option_may_be_repeated_with_its_value() -> None:
    line = ["gpu", "set", "--gpu", "0", "--gpu", "0", "--power-limit", "200"]
    assert parse_command_line(line).gpu == "0"


@pytest.mark.parametrize("alias", ["gpus", "gpu2", "bench1", "server1", "star"])
def test_a_configured_host_is_opened_even_if_its_name_resembles_a_command(
    alias: str, ssh_home: Path
) -> None:
    (ssh_home / "config").write_text(f"Host other {alias}\n  HostName 192.0.2.1\n")
    space = parse_command_line([alias])
    assert (space.command, space.target) == ("screen", alias)


def test_a_form_is_known_by_the_name_that_its_tool_has() -> None:
    for word in ("llama-swap", "llamaswap"):
        assert parse_command_line(["export", "vllm-any", "--as", word]).form == "llamaswap"


def test_a_host_in_front_of_a_command_is_answered_with_the_option(ssh_home: Path) -> None:
    """`workbench box1 servers` said that ssh knows no box1, and proposed `workbench box1`."""
    (ssh_home / "config").write_text("Host box1\n  HostName 192.0.2.1\n")
    with pytest.raises(InputError, match="'box1' is a host and not a command") as caught:
        parse_command_line(["box1", "servers"])
    assert "`workbench --host box1 servers`" in str(caught.value.next_step)


def test_a_mistyped_command_with_arguments_is_not_looked_up_as_a_host(
    ssh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`workbench strat vllm-any` waited up to a second for the name resolver."""
    asked: list[str] = []
    monkeypatch.setattr(ssh_names, "_name_resolves", lambda host: bool(asked.append(host)))
    with pytest.raises(InputError, match="workbench start"):
        parse_command_line(["strat", "vllm-any"])
    assert asked == []


def test_ssh_patterns_known_hosts_and_addresses_are_hosts(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Include more\nHost *\n  User me\nHost node-*\n  User me\n")
    (ssh_home / "more").write_text("Host included\n")
    # "192.168.1.61" in sshd(8)
    hashed = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="
    (ssh_home / "known_hosts").write_text(
        f"plain,[ported]:2222 ssh-ed25519 AAAA\n{hashed} ssh-rsa AAAA\n"
    )
    for name in ("node-7", "included", "plain", "ported", "me@any", "box.example", "::1"):
        assert ssh_names.can_find_ssh_name(name), name
    assert ssh_names._is_in_known_hosts("192.168.1.61")
    assert not ssh_names.can_find_ssh_name("frobnicate")


@pytest.mark.parametrize(
    ("word", "hint"), [("frobnicate", "nor ssh knows a host"), ("benhc", "workbench bench")]
)
def test_a_mistyped_command_is_not_opened_as_a_host(word: str, hint: str, ssh_home: Path) -> None:
    with pytest.raises(InputError, match=hint):
        parse_command_line([word])


def test_help_and_readme_agree_on_the_difference_that_pairs_detect() -> None:
    """The help, the reference and the form name the same difference for each number of pairs."""
    three, five, eight = (f"{pct:g} %" for pct in SHOWS_PCT.values())
    reference = (Path(__file__).parents[3] / "docs" / "REFERENCE.md").read_text()
    assert f"3 pairs are for {three}, 5 for {five}, 8 for {eight}." in reference
    told = " ".join(dict(parsers(build_parser()))["experiment"].format_help().split())
    assert f"3 detect a difference of {three}, 5 of {five}, 8 of {eight} (3)" in told


def test_a_result_of_a_users_own_command_shows_no_concurrency() -> None:
    ours = canned_result(1)
    own = replace(ours, spec=replace(ours.spec, command=("vllm", "bench", "serve")))
    first, second = result_row_lines([own, ours])
    assert "  c=-  " in first and f"  c={ours.spec.concurrency}  " in second


def test_the_list_names_the_host_of_each_result() -> None:
    one = canned_result(1)
    hosts = ("gpu-a", "gpu-b")
    found = [replace(one, conditions=replace(one.conditions, host=host)) for host in hosts]
    assert [line.split()[1] for line in result_row_lines(found)] == list(hosts)


def test_a_long_model_name_leaves_room_for_the_rest_of_the_line() -> None:
    path = "/mnt/data/models/" + "a-very-long-folder/" * 12 + "Llama-3.3-70B-FP8"
    one = canned_result(1)
    (line,) = result_row_lines([replace(one, conditions=replace(one.conditions, model=path))])
    assert "…" in line and "Llama-3.3-70B-FP8  c=" in line and len(line) < 160


def test_the_help_of_results_says_in_words_what_a_search_looks_into() -> None:
    """A renaming once put the name of a function into this list."""
    helps = [parser.format_help() for _, parser in parsers(build_parser(["results"]))]
    text = " ".join(" ".join(helps).split())
    assert "model, command, settings, note, tags" in text
    assert "print_message" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "run", "--requests", "x"], "expected a whole number, not 'x'"),
        (["tune", "--hours", "x"], "expected a number, not 'x'"),
    ],
)
def test_a_wrong_number_is_refused_without_names_of_python(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_command_line(words)
    assert said in str(caught.value) and "value" not in str(caught.value)
