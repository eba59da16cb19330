"""The line of the benchmark form that sums up its load."""

from __future__ import annotations

import pytest

from workbench.model.load_spec import BenchSpec
from workbench.tui.modals.bench_form import IN_FORM, load_description_rows
from workbench.tui.modals.declared_fields import option_value_text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_tokens": "1", "warmup": "1"}, ("1 output token;", "warm-up 1 request")),
        ({"max_tokens": "64", "warmup": "8"}, ("64 output tokens;", "warm-up 8 requests")),
        ({"input_tokens": "1"}, ("1 prompt token,",)),
    ],
)
def test_one_of_a_thing_is_not_a_plural(values: dict[str, str], said: tuple[str, ...]) -> None:
    """A preset for embeddings, or for one stream, said "1 output tokens" and "warm-up 1 requests"."""
    spec = BenchSpec("http://127.0.0.1:8000", "a/b")
    first = {
        one.dest: "" if one.argument else option_value_text(getattr(spec, one.field))
        for one in IN_FORM
    }
    rows = load_description_rows({**first, **values}, 200)
    text = "".join(part[0] for row in rows for part in row)
    assert all(part in text for part in said), text
    assert "1 requests" not in text
