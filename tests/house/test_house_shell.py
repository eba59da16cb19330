"""Shell code is in files, which a shell parses and whose head says what they do. `.ci/run` runs
shellcheck on them too."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from workbench.hosts.script_files import read_script

PACKAGE = Path(__file__).parents[2] / "workbench"
SCRIPTS = sorted(PACKAGE.rglob("scripts/*.sh"))
END_OF_BLOCK = re.compile(r"^\s*(fi|done|esac|\})\b", re.M)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_shell_parses_each_script(path: Path) -> None:
    module = path.parents[1] / "module.py"
    code = read_script(str(module), path.name)
    parsed = subprocess.run(("sh", "-n"), input=code, text=True, capture_output=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("scripts/*")), ids=name_of)
def test_each_script_begins_with_a_comment_and_is_used_beside_it(path: Path) -> None:
    head, _, code = path.read_text("utf-8").partition("\n\n")
    assert all(line.startswith("#") for line in head.split("\n")), head
    assert code.strip(), "the code begins after the first blank line"
    beside = "".join(one.read_text("utf-8") for one in path.parents[1].glob("*.py"))
    assert f'read_script(__file__, "{path.name}"' in re.sub(r"\(\s+", "(", beside).replace(
        "\n    ", " "
    )


def test_no_module_has_a_shell_script_in_a_string() -> None:
    """A script of several blocks is a file: no linter sees a string."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(END_OF_BLOCK.findall(node.value)) > 1
        and "then\n" in node.value
    ]
    assert not found
