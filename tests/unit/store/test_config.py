"""Tests of config.toml: invalid settings get their defaults, and nothing in the user's file is
lost."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.model.errors import StoreError
from workbench.store import paths
from workbench.store.config import ConfigStore

WRITTEN = """\
# my settings
[ui]
refresh_s = 0.5  # quick

[remembered.spark-01.llama-2x]
model = { value = "/models/llama", run = "20261121-031502-vllm-3f2a" }  # on the fast disk
"""


@pytest.fixture
def store(tmp_path: Path) -> ConfigStore:
    return ConfigStore(tmp_path / "conf" / "config.toml")


def write(store: ConfigStore, text: str) -> None:
    store.path.parent.mkdir(exist_ok=True)
    store.path.write_text(text)


def test_a_missing_file_counts_as_empty(store: ConfigStore) -> None:
    assert store.config.gpu.heartbeat_s == 30.0 and store.config.ui.refresh_s == 1.0
    assert store.findings == () and store.remembered_variables("anywhere", "p") == {}
    assert not store.path.exists()


def test_the_default_path_is_the_xdg_one(tmp_path: Path) -> None:
    assert (
        ConfigStore().path
        == tmp_path / "xdg-config" / "workbench" / "config.toml"
        == paths.config_file()
    )


OLD, NEW = "20261121-031502-vllm-3f2a", "20261122-031502-vllm-0001"


def values(store: ConfigStore, host: str, preset: str) -> dict[str, str]:
    return {
        name: row.value
        for name, row in ConfigStore(store.path).remembered_variables(host, preset).items()
    }


def test_variables_are_remembered_per_host_and_preset_with_comments_kept(
    store: ConfigStore,
) -> None:
    write(store, WRITTEN)
    store.remember_variables("spark-01", "llama-2x", {"interface": "enp1s0f1np1"}, NEW)
    store.remember_variables("local", "vllm-any", {"model": "tiny"}, NEW)
    assert values(store, "spark-01", "llama-2x") == {
        "model": "/models/llama",
        "interface": "enp1s0f1np1",
    }
    assert values(store, "local", "vllm-any") == {"model": "tiny"}
    assert values(store, "spark-01", "vllm-any") == {} == values(store, "local", "llama-2x")
    text = store.path.read_text()
    assert "# my settings" in text and "# quick" in text and "# on the fast disk" in text


def test_the_values_of_the_newest_run_are_kept_in_any_order_of_saving(store: ConfigStore) -> None:
    store.remember_variables("a", "p", {"x": "new"}, NEW)
    store.remember_variables("a", "p", {"x": "old", "y": "1"}, OLD)
    assert values(store, "a", "p") == {"x": "new", "y": "1"}


def test_remembering_equal_values_does_not_write(store: ConfigStore) -> None:
    store.remember_variables("a", "p", {"x": "1"}, NEW)
    stamp = store.path.stat().st_mtime_ns
    store.path.chmod(0o400)
    store.remember_variables("a", "p", {"x": "1"}, NEW)
    assert store.path.stat().st_mtime_ns == stamp


def test_unusual_host_names_are_kept(store: ConfigStore) -> None:
    name = 'me@10.0.0.1:22 "x".y'
    store.remember_variables(name, "p", {"model": 'C:\\x "quoted"\n'}, NEW)
    assert values(store, name, "p") == {"model": 'C:\\x "quoted"\n'}


def test_set_and_remove(store: ConfigStore) -> None:
    store.set(("gpu", "heartbeat_s"), 60.0)
    assert store.config.gpu.heartbeat_s == 60.0
    store.set(("gpu", "heartbeat_s"), None)
    assert ConfigStore(store.path).config.gpu.heartbeat_s == 30.0
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert [p.name for p in store.path.parent.iterdir()] == ["config.toml"]


def test_an_invalid_value_is_not_saved(store: ConfigStore) -> None:
    write(store, WRITTEN)
    with pytest.raises(StoreError, match=r"ui\.refresh_s"):
        store.set(("ui", "refresh_s"), -1)
    assert store.path.read_text() == WRITTEN


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("[ui\n", "not valid TOML", None),
        ("ui = '\xe9'".encode("latin-1"), "not UTF-8", None),
        ("a = " + "[" * 5000, "not valid TOML", None),
        ("[gpu]\nheartbeat_s = 'x'\n[ui]\nrefresh_s = 0.5\n", "gpu.heartbeat_s", 2),
        (
            '[ui]\nthem = "x"\nrefresh_s = 0.5\n',
            "ui.them: Workbench has no such setting and ignores it",
            2,
        ),
        ("[ui]\ncolour = false\nrefresh_s = 0.5\n", "ui.colour: no longer used", 2),
        ("other = 1\n[ui]\nrefresh_s = 0.5\n", "other", 1),
        ("[ui]\nrefresh_s = 0.5\n[remembered.h.p]\nx = 1\n", "remembered.h.p.x", 4),
        ("[ui]\nrefresh_s = 0.5\n[variables.h]\nx = '1'\n", "variables: no longer used", None),
    ],
)
def test_invalid_settings_are_reported_and_the_others_are_used(
    store: ConfigStore, text: str | bytes, words: str, line: int | None
) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    store.path.parent.mkdir()
    store.path.write_bytes(data)
    assert store.config.gpu.heartbeat_s == 30.0
    assert store.config.ui.refresh_s == (0.5 if b"refresh_s" in data else 1.0)
    (finding,) = store.findings
    assert words in finding.text and finding.line == line and finding.file == str(store.path)
    assert store.path.read_bytes() == data


def test_an_invalid_file_is_not_overwritten(store: ConfigStore) -> None:
    write(store, "[ui\n")
    with pytest.raises(StoreError, match="was not changed") as caught:
        store.remember_variables("a", "p", {"x": "1"}, NEW)
    assert caught.value.next_step and store.path.read_text() == "[ui\n"


def test_unknown_settings_of_a_newer_version_are_kept(store: ConfigStore) -> None:
    write(store, "new = [1, 2]\n[ui]\nfancy = true\n")
    store.set(("ui", "refresh_s"), 2.0)
    assert "new = [1, 2]" in store.path.read_text() and "fancy = true" in store.path.read_text()


def test_a_linked_file_stays_linked(store: ConfigStore, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(WRITTEN)
    store.path.parent.mkdir()
    store.path.symlink_to(real)
    store.set(("ui", "refresh_s"), 2.0)
    assert store.path.is_symlink() and "refresh_s = 2.0" in real.read_text()


def test_a_directory_that_cannot_be_created_gives_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be read"):
        ConfigStore(tmp_path / "file" / "config.toml").set(("ui", "refresh_s"), 2.0)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text(max_size=40),
    table=st.sampled_from(["", "[ui]\n", "[variables.h]\n", "executables."]),
)
def test_any_text_gives_a_configuration(tmp_path: Path, text: str, table: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes((table + text).encode())
    store = ConfigStore(path)
    assert store.config.gpu.heartbeat_s == 30.0 or "heartbeat_s" in text
    assert path.read_bytes() == (table + text).encode()


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_empty_and_relative_xdg_values_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", value)
    assert paths.config_dir() == tmp_path / ".config/workbench"
    assert paths.state_dir() == tmp_path / ".local/state/workbench"
    assert paths.results_db() == tmp_path / ".local/share/workbench/results.sqlite3"


def test_shipped_presets_are_found_in_a_checkout() -> None:
    assert (paths.shipped_presets_dir() / "vllm-any.toml").is_file()


def test_a_setting_at_the_top_of_the_file_names_its_table(clean_environment: None) -> None:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('theme = "light"\n')
    store = ConfigStore()
    _ = store.config
    (finding,) = store.findings
    assert finding.text.startswith("theme: ") and "it belongs below [ui]" in finding.text
