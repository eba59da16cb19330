"""The endpoint file of verifiers: entries are added and replaced, and everything else stays."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench import own_command
from workbench.bench.endpoint_file import add_or_replace_endpoint_entry
from workbench.model.errors import InputError

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
FILE = """# mine
ENDPOINTS: dict = {  # é
    "a": {"model": "m", "url": "u", "key": "K"},  # kept
    'b': {
        "model": "x", "url": "y", "key": "z"},
}
OTHER = 1
"""


def endpoints(written: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(written, "endpoints.py", "exec"), names)  # as vf-eval does
    return names["ENDPOINTS"]


def test_an_entry_is_added_or_replaced_and_comments_stay() -> None:
    replaced = add_or_replace_endpoint_entry(FILE, "b", model="new", url="http://c01:8005/v1")
    assert endpoints(replaced)["b"] == {"model": "new", "url": "http://c01:8005/v1", "key": "EMPTY"}
    assert "# kept" in replaced and "# mine" in replaced and replaced.endswith("}\nOTHER = 1\n")
    added = add_or_replace_endpoint_entry(FILE, "c", model="new", url="u", key="VLLM_API_KEY")
    assert list(endpoints(added)) == ["c", "a", "b"] and "# kept" in added


@given(text, text, st.sampled_from(["", "ENDPOINTS = {}\n", FILE]))
def test_every_name_and_model_is_written_as_it_is(name: str, model: str, before: str) -> None:
    written = add_or_replace_endpoint_entry(
        add_or_replace_endpoint_entry(before, name, model="x", url="u"), name, model=model, url="v"
    )
    assert endpoints(written)[name] == {"model": model, "url": "v", "key": "EMPTY"}
    assert endpoints(written).keys() == endpoints(before or "ENDPOINTS = {}").keys() | {name}


@pytest.mark.parametrize(
    "other", ["x = 1", "ENDPOINTS = load()", "ENDPOINTS = {", "[[endpoint]]\nname = 'a'\n"]
)
def test_another_file_is_refused(other: str) -> None:
    with pytest.raises(InputError):
        add_or_replace_endpoint_entry(other, "a", model="m", url="u")


def test_an_own_command_gets_a_file_of_its_own() -> None:
    words = ("vf-eval", "-m", "{model}", "-e", "{endpoints}", "-b={base_url}")
    with own_command.replace_server_placeholders(words, "http://127.0.0.1:9/v1", "org/m") as argv:
        found = runpy.run_path(argv[4])["ENDPOINTS"]
        assert found == {
            "org/m": {"model": "org/m", "url": "http://127.0.0.1:9/v1", "key": "OPENAI_API_KEY"}
        }
        assert argv[2] == "org/m" and argv[5] == "-b=http://127.0.0.1:9/v1"
    assert not Path(argv[4]).exists()
