"""The table of keys: every key has a help text, and none belongs to tmux or the terminal."""

from __future__ import annotations

import pytest

from workbench.tui.bindings import Key, footer_keys, make_textual_bindings
from workbench.tui.panes import ALL_KEYS

DESIGN_KEYS = (
    "1 2 3 4 5 6 p slash enter s x b a B c g r v y w h z u U full_stop question_mark "
    "ctrl+p q f e n d tab"
)
TMUX_AND_TERMINAL = {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+q", "ctrl+h", "ctrl+i", "ctrl+j", "ctrl+m"}


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda k: f"{k.where or 'screen'}-{k.key}")
def test_every_key_has_label_and_help(key: Key) -> None:
    assert key.label.strip() and len(key.help) > 5


def test_every_key_of_the_design_is_there() -> None:
    assert set(DESIGN_KEYS.split()) <= {k.key for k in ALL_KEYS}


def test_no_key_that_tmux_or_the_terminal_owns() -> None:
    assert not {k.key for k in ALL_KEYS} & TMUX_AND_TERMINAL


def test_a_key_has_one_meaning_in_one_place() -> None:
    for where in {k.where for k in ALL_KEYS}:
        keys = [k.key for k in ALL_KEYS if k.where == where]
        assert len(keys) == len(set(keys)), where


def test_every_key_has_an_id_of_its_own() -> None:
    actions = [binding.action for binding in make_textual_bindings(ALL_KEYS)]
    assert len(actions) == len(set(actions)) == len({key.id for key in ALL_KEYS})


def test_the_footer_comes_from_the_table() -> None:
    assert [k.label for k in footer_keys()][:5] == ["Explain", "Quit", "Preset", "Find", "Start"]
