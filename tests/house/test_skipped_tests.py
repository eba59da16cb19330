"""`.ci/run` runs the tests again that README's command skipped: each is noted with its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MODULE = """
import pytest

@pytest.mark.skipif(True, reason="needs one")
def test_marked():
    pass

def test_skips_itself():
    pytest.skip("needs two,\\nthe second")

@pytest.mark.xfail
def test_expected():
    assert False

def test_runs():
    pass
"""


@pytest.mark.slow
def test_each_skipped_test_is_noted_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_one.py").write_text(MODULE)
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.skip('needs three', allow_module_level=True)\n"
    )
    noted = tmp_path / "skipped"
    command = [sys.executable, "-m", "pytest", "-n", "1", "-c", os.devnull, "--rootdir", "."]
    # this run may itself be in a worker of pytest-xdist
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"SKIPPED_TESTS_FILE": str(noted)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(noted.read_text().splitlines()) == [
        "test_module.py\tSkipped: needs three",
        "test_one.py::test_marked\tSkipped: needs one",
        "test_one.py::test_skips_itself\tSkipped: needs two, the second",
    ]
