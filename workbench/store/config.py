"""The user's file config.toml: settings of the screen, of GPUs and of executables, and remembered
preset variables.

A missing file counts as empty. An invalid setting is reported and its default is used. A change
keeps comments and unknown settings; a file that is not valid TOML is not changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import StoreError
from workbench.model.findings import Finding, Level
from workbench.model.untrusted_numbers import parser_error_message
from workbench.store import paths
from workbench.store.config_schema import Config, Remembered, check_config
from workbench.store.text_files import read_user_text, write_atomic

if TYPE_CHECKING:
    from workbench.store.toml_lines import LineIndex

_RETIRED = {  # settings of earlier versions that may still be in the file
    **dict.fromkeys(
        ("ui.colour", "ui.log_lines", "ui.confirm_quit", "ui.keys", "default_host"),
        "no longer used; remove the setting",
    ),
    "variables": "no longer used: values are remembered per preset, when its server is READY; "
    "remove the table",
}


class ConfigStore:
    """The user's file config.toml. It is read at first use and then cached. `findings` has its
    problems, from that first use on."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.config_file()
        self.findings: tuple[Finding, ...] = ()
        self._config: Config | None = None

    @property
    def config(self) -> Config:
        if self._config is None:
            self._config, self.findings = self._read_file()
        return self._config

    def remembered_variables(self, host: str, preset_id: str) -> dict[str, Remembered]:
        """Return {variable: remembered value} for a preset on `host`, or {} if there are none. The
        values are those with which the server last became ready."""
        return dict(self.config.remembered.get(host, {}).get(preset_id, {}))

    def executable_of_engine(self, host: str, engine: str) -> str | None:
        """Return the program that the user has set for starting `engine` on `host`. None if the
        user has set none."""
        return self.config.executables.get(host, {}).get(engine)

    def remember_variables(
        self, host: str, preset_id: str, values: Mapping[str, str], run_id: str
    ) -> None:
        """Store the preset variables with which the server of the run `run_id` became ready. A
        stored value from a newer run is not overwritten. Raises StoreError if the file cannot be
        written."""
        known = self.remembered_variables(host, preset_id)
        rows = {name: asdict(value) for name, value in known.items()}
        has_new = False
        for name, value in values.items():
            if name not in known or known[name].run < run_id:
                rows[name] = {"value": value, "run": run_id}
                has_new = True
        if has_new:
            self.set(("remembered", host, preset_id), rows)

    def set(self, path: tuple[str, ...], value: Any) -> None:
        """Write the setting at `path` to the file, for example ("ui", "refresh_s"). If `value` is
        None, remove the setting. Raises StoreError if the value is invalid, the file is not valid
        TOML, or it cannot be written."""
        import tomllib

        import tomlkit

        from workbench.store.toml_edit import merge_into_table

        text = read_user_text(self.path)
        try:
            tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is not valid TOML and was not changed: {error}",
                next_step=f"correct or remove {self.path}, then try again",
            ) from error
        document = tomlkit.parse(text)
        wanted = document.unwrap()
        _put_value(wanted, path, value)
        merge_into_table(document, wanted)
        config, findings = _validate_config(document.unwrap(), str(self.path), None)
        errors = [finding for finding in findings if finding.is_error]
        wrong = [error for error in errors if (error.field or "").startswith(path[0])]
        if wrong:
            text = f"the setting was not written to {self.path}: {wrong[0].text}"
            raise StoreError(text, findings=tuple(wrong))
        write_atomic(self.path, tomlkit.dumps(document))
        self._config, self.findings = config, findings

    def _read_file(self) -> tuple[Config, tuple[Finding, ...]]:
        file = str(self.path)
        try:
            text = read_user_text(self.path)
        except StoreError as error:
            return Config(), (_unusable_config_finding(error.message, file),)
        if not text:
            return Config(), ()
        import tomllib

        from workbench.store.toml_lines import LineIndex

        try:
            document = tomllib.loads(text)
        except RecursionError:
            return Config(), (_unusable_config_finding("not valid TOML: nested too deeply", file),)
        except ValueError as error:
            why = parser_error_message(error)
            return Config(), (_unusable_config_finding(f"not valid TOML: {why}", file),)
        return _validate_config(document, file, LineIndex(text))


def _unusable_config_finding(reason: str, file: str) -> Finding:
    text = f"the configuration file cannot be used, so every setting has its default: {reason}"
    return Finding(
        Level.ERROR, "config.unusable", text, file=file, fix="correct or remove config.toml"
    )


def _validate_config(
    document: Mapping[str, Any], file: str, lines: LineIndex | None
) -> tuple[Config, tuple[Finding, ...]]:
    """Return the configuration and a finding for each invalid or unknown setting. An invalid
    setting gets its default value. `file` is the file name for the findings; `lines` gives their
    line numbers."""
    config, problems = check_config(document)
    findings = []
    for path, wrong in problems:
        name = ".".join(path)
        level, code, text = Level.WARN, "config.unknown-setting", _unknown_setting_message(path)
        if wrong:
            level, code, text = Level.ERROR, "config.wrong-value", f"{wrong}; the default is used"
        line = lines.line_of_field(path) if lines else None
        text = f"{name}: {_RETIRED.get(name, text)}"
        findings.append(Finding(level, code, text, file=file, line=line, field=name))
    return config, tuple(findings)


def _unknown_setting_message(path: Sequence[str]) -> str:
    """Return the sentence about a setting that does not exist. If it stands at the top of the file
    and belongs into a table, the sentence names that table."""
    text = "Workbench has no such setting and ignores it"
    if len(path) != 1:
        return text
    for known in fields(Config):
        table = getattr(Config(), known.name)
        if is_dataclass(table) and hasattr(table, path[0]):
            return f"{text}; it belongs below [{known.name}]"
    return text


def _put_value(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(document.get(part), dict):
            if value is None:
                return
            document[part] = {}
        document = document[part]
    document[path[-1]] = value
