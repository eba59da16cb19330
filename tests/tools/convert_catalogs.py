"""Write the packaged flag catalogs from raw dumps of the engines' own parsers. README.md here
describes the dumps.

usage: python tests/tools/convert_catalogs.py RAW_DIRECTORY
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

CATALOGS = Path(__file__).resolve().parents[2] / "workbench" / "engines" / "catalogs"
NOTES = Path(__file__).with_name("catalog_notes.json")
Raw = dict[str, Any]
PRINTS_AND_ENDS = {"--help", "--version", "--completion-bash", "--list-devices", "--cache-list"}
# longer, but the older or odder spelling
NOT_CANONICAL = ("webui", "device-memory", "hierarchical-sparse")


def canonical(names: list[str]) -> str:
    """Return the longest long option, the first of equally long ones. llama.cpp's newer
    spec-draft-* comes first."""
    long = [n[2:] for n in names if n.startswith("--")]
    usual = [n for n in long if not n.startswith(NOT_CANONICAL)] or long
    return max([n for n in usual if n.startswith("spec-draft")] or usual, key=len)


def lean(flag: Raw) -> Raw:
    """Return the flag without empty fields. False and 0 are kept as defaults and limits."""
    stays = ("default", "minimum", "maximum")
    return {k: v for k, v in flag.items() if v is not None and (v or k in stays)}


def common(raw: Raw) -> Raw:
    """Return the fields that all dumps have."""
    negations = [n for n in raw.get("negation", []) if len(raw["names"]) > 1]
    positive = [n for n in raw["names"] if n not in negations]
    name = canonical(positive)
    shown = [n for n in negations if n in raw["names"]] or negations
    long = [n for n in shown if n.startswith("--")]
    return {
        "name": name,
        "kind": raw["kind"],
        "aliases": [n for n in positive if n != f"--{name}"],
        "negation": (long or shown or [None])[0],
        "choices": [str(c) for c in raw.get("choices", []) if c is not None],
        "default": raw.get("default"),
        "nargs": raw.get("nargs"),
        "repeatable": raw.get("nargs") in ("+", "*"),
        "group": raw.get("namespace") or raw.get("group", ""),
        "human_readable_int": raw.get("human_readable_int", False),
        "json_fields": list(raw.get("json_fields", {})),
        "deprecated": raw.get("deprecated", False),
        "required": raw.get("required", False),
        "env": raw.get("env"),
    }


def vllm(raw: Raw) -> Raw | None:
    if raw.get("positional"):
        return None
    flag = common(raw)
    if raw.get("json_class"):  # a configuration object, whose default is that of the CPU platform
        flag["default"] = None
    return flag


def sglang(raw: Raw) -> Raw:
    flag = common(raw)
    if flag["kind"] == "json" and isinstance(flag["default"], str):
        flag["default"] = json.loads(flag["default"])
    return flag


def tabbyapi(raw: Raw) -> Raw:
    type_ = raw["type"]
    kinds = (("bool", "bool"), ("int", "int"), ("float", "float"))
    inner = re.sub(r"Literal\[[^]]*\]|constr.*", "", type_, flags=re.IGNORECASE)
    kind = next((kind for word, kind in kinds if re.search(rf"\b{word}\b", inner)), "str")
    flag = common({**raw, "names": [raw["cli"]], "kind": kind, "group": raw["section"]})
    flag["value_takes_bool_word"] = kind == "bool"
    return flag


def llamacpp(raw: Raw) -> Raw | None:
    if not PRINTS_AND_ENDS.isdisjoint(raw["names"]):
        return None
    arg, text = raw.get("arg", ""), str(raw.get("default", "")).replace("\n", " ")
    if re.search(r"\.\.|/|=", arg):  # a picture of the argument, not a list of choices
        raw = {**raw, "choices": []}
    if raw["kind"] == "int" and re.match(r"-?\d+\.\d", text):
        raw = {**raw, "kind": "float"}
    flag = common({**raw, "group": raw["section"].removesuffix(" params")})
    if re.search(r",\s*\.\.", arg):
        flag["nargs"] = ","
    flag["default"], flag["default_note"] = llamacpp_default(flag["kind"], text)
    return flag


def llamacpp_default(kind: str, text: str) -> tuple[Any, str]:
    """Return (value, note) from the help's text, such as "-1, -1 = infinity", "enabled" or "same as
    --threads"."""
    listed = re.sub(r"^(-?[\d.]+) =", r"\1, \1 =", text).replace(";", ",")
    head, _, rest = (part.strip() for part in listed.partition(","))
    try:
        if kind == "bool" and head:
            return {"enabled": True, "true": True, "disabled": False, "false": False}[head], rest
        if kind in ("int", "float"):
            return (int(head) if kind == "int" else float(head)), rest
    except (KeyError, ValueError):
        return None, text
    if text.startswith(
        ("same as", "--", "value from", "template", "search", "unused", "none", "no ", "read from")
    ):
        return None, text
    return (text.replace('""', ""), "") if text else (None, "")


def env(raw: Raw) -> Raw:
    default, type_ = raw["default"], raw["type"] or "str"
    if default is not None:
        try:
            default = ast.literal_eval(default)
        except (ValueError, SyntaxError):
            default = None  # computed when the engine starts
    choices = ast.literal_eval(raw["choices"]) if raw["choices"] else []
    simple = "str" if type_.startswith("Literal") else type_.removesuffix(" | None")
    text = None if default is None else str(default)
    return lean({"name": raw["name"], "type": simple, "default": text, "choices": choices})


def annotate(flag: Raw, notes: Raw) -> Raw:
    """Return the flag with the ranges, words and help of catalog_notes.json, which override the
    dump."""
    flag |= notes.pop(flag["name"], {})
    if flag["kind"] == "int" and (flag["name"] == "port" or flag["name"].endswith("-port")):
        flag |= {"minimum": 1, "maximum": 65535}
    flag["repeatable"] = flag["repeatable"] or flag["nargs"] not in (None, "?")
    if flag["kind"] in ("int", "float") and isinstance(flag["default"], str):
        number = re.split("[,;]", flag["default"])[0]
        flag["default"] = int(number) if flag["kind"] == "int" else float(number)
    return lean(flag)


SOURCES = (
    ("vllm", "0.32.0", "vllm-0.32.0.json", vllm),
    ("vllm", "0.33.0", "vllm-0.33.0.json", vllm),
    ("sglang", "0.5.23", "sglang-0.5.23.json", sglang),
    ("tabbyapi", "2026-08-13", "tabbyapi-2026-11.json", tabbyapi),
    ("llamacpp", "b11434", "llamacpp-b11434.json", llamacpp),
)


def main(raw_directory: Path) -> None:
    all_notes = json.loads(NOTES.read_text())
    for engine, version, file, convert in SOURCES:
        notes = dict(all_notes[engine])
        dump = json.loads((raw_directory / file).read_text())["flags"]
        flags = [annotate(f, notes) for raw in dump if (f := convert(raw))]
        if notes:
            sys.exit(
                f"{engine} {version}: catalog_notes.json has flags that the dump does not have: "
                f"{', '.join(notes)}"
            )
        lines = [json.dumps(f, ensure_ascii=False, separators=(",", ":")) for f in flags]
        environment = "[]"
        if engine == "vllm":  # read from 0.33.0, used for 0.32.0 too
            entries = json.loads((raw_directory / "vllm-env-0.33.0.json").read_text())["env"]
            environment = (
                "[\n"
                + ",\n".join(json.dumps(env(e), separators=(",", ":")) for e in entries)
                + "\n]"
            )
        head = f'{{"engine":"{engine}","version":"{version}","env":'
        text = f'{head}{environment},"flags":[\n' + ",\n".join(lines) + "\n]}\n"
        (CATALOGS / f"{engine}-{version}.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
