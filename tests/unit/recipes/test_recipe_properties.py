"""Properties of recipes: what is written is read back, any text is read or refused with a reason,
nothing is run."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.command_line import parse_plan, recognize_engine_start
from workbench.model.errors import WorkbenchError
from workbench.model.flags import FlagKind, FlagSetting, FlagSpec
from workbench.model.plan import LaunchPlan
from workbench.model.secrets import is_secret_name
from workbench.recipes import yaml_text
from workbench.recipes.registry import parse_recipe_text

SAFE = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12
)
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CANARY = "recipe-canary"
RUN = f"touch {CANARY}"
FOREIGN = (
    *(f"$({RUN})", f"`{RUN}`", f"; {RUN}", f"| sh -c '{RUN}'", f"<({RUN})", f"&& {RUN} #"),
    *(
        f"!!python/object/apply:os.system ['{RUN}']",
        "hf_abcdefghijklmnopqrstuv",
        "\x1b]0;x\x07",
        "${IFS}",
    ),
    *("'", '"', "{model}", "*a", "&a"),
)
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")


def value_of(spec: FlagSpec, chance: random.Random) -> Any:
    if spec.choices:
        return chance.choice(spec.choices)
    words = (
        "a",
        "auto",
        "x/y",
        "it's",
        'a "b"',
        "100%",
        "$HOME",
        "a b",
        "-1",
        "{x}",
        "${y",
        "ü",
        "#no",
        "*",
        "\\n",
    )
    one = {
        FlagKind.BOOL: lambda: chance.random() < 0.6,
        FlagKind.INT: lambda: chance.randint(int(spec.minimum or 0), 1 << 20),
        FlagKind.FLOAT: lambda: round(chance.random(), 3),
        FlagKind.JSON: lambda: {"k": chance.choice(words), "n": [1, True, None]},
        FlagKind.STR: lambda: chance.choice(words),
    }[spec.kind]
    count = (
        int(spec.nargs)
        if (spec.nargs or "").isdecimal()
        else chance.randint(1, 3)
        if spec.repeatable
        else 1
    )
    values = [str(v) if str(v)[:1] != "-" else "x" for v in (one() for _ in range(count))]
    if spec.nargs == ",":
        values = [v.replace(",", ".") for v in values]
    if count == 1:
        return one()
    return [
        float(v) if spec.kind is FlagKind.FLOAT else int(v) if spec.kind is FlagKind.INT else v
        for v in values
    ]


def random_plan(chance: random.Random) -> LaunchPlan:
    """Return a plan with settings of every kind, without secrets."""
    engine = engines.get_engine(chance.choice(engines.engine_names()))
    catalog = engine.catalog()
    own = ("host", "port", "config", "model-dir", "loras", *engine.model_flags)
    names = [n for n in catalog.flags if n not in own and not is_secret_name(n)]
    chosen = {
        n: value_of(catalog.flags[n], chance) for n in chance.sample(names, chance.randint(0, 8))
    }
    flags = {n: v for n, v in chosen.items() if not (isinstance(v, dict) and engine.key_file)}
    flags["port"] = chance.randint(1, 65535)
    env = {"VLLM_X": chance.choice(("1", "a b", "it's", "$x", "")), "CUDA_VISIBLE_DEVICES": "0,1"}
    return LaunchPlan(
        engine.name,
        chance.choice(("org/Model", "/srv/models/seven", "/srv/a b/it's")),
        flags=tuple(FlagSetting(n, v) for n, v in flags.items()),
        env=tuple(FlagSetting(n, v) for n, v in env.items() if chance.random() < 0.5),
        workdir=chance.choice((None, "/srv/a dir")),
        image=chance.choice((None, "example/image@sha256:00ff")),
    )


def argv_of(plan: LaunchPlan) -> tuple[str, ...]:
    return engines.get_engine(plan.engine).command(plan).argv


@pytest.mark.parametrize("seed", range(150))
def test_a_command_line_is_read_back_as_the_same_plan(seed: int) -> None:
    plan = random_plan(random.Random(seed))
    command = engines.get_engine(plan.engine).command(plan)
    start = recognize_engine_start(command.argv)
    assert start is not None and start.engine.name == plan.engine
    read, findings = parse_plan(start, command.env, command.workdir)
    assert (argv_of(read), findings) == (command.argv, ())
    pasted = parse_recipe_text(command.shell_line).plan
    assert pasted is not None and argv_of(pasted) == command.argv
    assert {
        e.name: e.value for e in pasted.env
    } == command.env and pasted.workdir == command.workdir


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | SAFE | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAFE, inner, max_size=3),
        max_leaves=8,
    )
)
@relaxed
def test_yaml_is_read_back_as_it_was_written(data: Any) -> None:
    assert yaml_text.load_yaml(yaml_text.dump_yaml(data)) == data


@given(st.text(max_size=60) | st.text("vlm serve-=$({`'\"\\;&|<>\n:- []}#0", max_size=60))
@relaxed
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        recipe = parse_recipe_text(text)
    except WorkbenchError as error:
        assert error.message
    else:
        assert recipe.plan is not None or recipe.findings


def hostile(number: int) -> str:
    """Return one text of the corpus: a plan, a recipe or a command line, broken and with code in
    it."""
    chance = random.Random(number)
    code = chance.choice(FOREIGN)
    plan = random_plan(chance)
    words = list(argv_of(plan))
    words.insert(chance.randint(1, len(words)), code)
    line = " ".join(
        word if chance.random() < 0.1 or word == code else shlex.quote(word) for word in words
    )
    form = chance.choice(
        ("line", "docker", "sparkrun", "compose", "swap", "club", "recipe", "script")
    )
    document: Any = {
        "sparkrun": {
            "model": plan.model,
            "command": line,
            "container": "c",
            "pre_exec": [code],
            "defaults": {"a": code},
        },
        "compose": {
            "services": {
                "a": {"image": "vllm/vllm-openai", "command": words, "environment": [f"A={code}"]}
            }
        },
        "swap": {"models": {"a": {"cmd": line, "env": [f"A={code}"], "cmdStop": code}}},
        "club": {
            "runtime": {"engine": plan.engine},
            "serving": {"max_model_len": code},
            "model": {"id": code},
        },
        "recipe": {
            "model": {"model_id": "m", "base_args": words},
            "dependencies": [{"command": code}],
        },
    }.get(form)
    text = {
        "docker": f"docker run -e A={code} -v a:/b vllm/vllm-openai {line}",
        "script": f"A={code}\nif x; then\n{line}\nfi",
    }.get(form, line)
    if document is not None:
        text = json.dumps(document) if chance.random() < 0.3 else yaml_text.dump_yaml(document)
    for _ in range(chance.choice((0, 0, 1, 3))):  # broken somewhere
        at = chance.randint(0, len(text))
        text = (
            text[:at]
            + chance.choice(("", "\n", ": ", "'", "[", "\t", "$", "}", "x" * 50))
            + text[at + chance.randint(0, 4) :]
        )
    return text


def corpus_report(numbers: range) -> dict[str, int]:
    """Read the texts of the corpus, and count what became of them. An error without a message or a
    recipe without a plan and without a finding is a failure."""
    counts = {"plans": 0, "refused": 0, "findings": 0}
    for number in numbers:
        text = hostile(number)
        try:
            recipe = parse_recipe_text(text)
        except WorkbenchError as error:
            assert error.message, text
            counts["refused"] += 1
            continue
        assert recipe.plan is not None or recipe.findings, text
        assert not re.search(r"\bhf_abcdefghijklmnopqrstuv\b", repr(recipe)), text
        counts["plans"] += recipe.plan is not None
        counts["findings"] += len(recipe.findings)
    return counts


def audited(numbers: range, directory: Path) -> dict[str, Any]:
    """Read the corpus in a process that fails at once if anything in it starts a process or writes
    a file."""
    code = (
        "import sys, json\n"
        f"sys.path[:0] = {sys.path!r}\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_recipe_properties as tests\n"
        "tests.corpus_report(range(20))\n"  # imports what is imported late
        "def watch(event, arguments):\n"
        "    if event in tests.STARTS or (\n"
        "        event == 'open' and isinstance(arguments[1], str) and set(arguments[1]) & "
        "set('wax+')\n"
        "    ):\n"
        "        raise SystemExit(f'{event} {arguments}')\n"
        "sys.addaudithook(watch)\n"
        f"print(json.dumps(tests.corpus_report(range({numbers.start}, {numbers.stop}))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(directory.iterdir())
    counts: dict[str, Any] = json.loads(done.stdout)
    return counts


def test_a_corpus_of_hostile_recipes_runs_nothing(tmp_path: Path) -> None:
    counts = audited(range(300), tmp_path)
    assert counts["plans"] and counts["refused"] and counts["findings"] > 300


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_hostile_recipes_run_nothing(tmp_path: Path) -> None:
    counts = audited(range(10_000), tmp_path)
    print(counts)
    assert counts["plans"] + counts["refused"] <= 10_000
