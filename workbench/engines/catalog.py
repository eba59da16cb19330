"""Flag catalogs: load the packaged data, find a flag by any of its spellings, search in names and
help texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from workbench.engines.catalog_files import DIRECTORY
from workbench.engines.flag_groups import group_name_of_flag, rank_among_most_used_flags
from workbench.model import fuzzy
from workbench.model.flags import MOST_USED, EnvSpec, FlagCatalog, FlagKind, FlagSpec
from workbench.model.lazy_dataclass import dataclass

_TUPLES = ("aliases", "choices", "json_fields", "words")


def parse_version_numbers(text: str | None) -> tuple[int, ...]:
    """Return the numbers of a version for sorting: "0.32.0+cpu" -> (0, 32, 0), "b11434" ->
    (11434,). The tuple is empty if `text` is not a version.
    """
    match = re.match(
        r"[vb]?(\d{1,18}(?:[.-]\d{1,18})*)(?:[+.\s-]|post|rc|dev|$)", (text or "").strip()
    )
    if not match:
        return ()
    return tuple(map(int, re.split(r"[.-]", match[1])))


def version_satisfies(version: str, wanted: str | None) -> bool:
    """Return whether a version is in the range `wanted`, such as ">=0.14,<0.34". True if there is
    no range or `version` has no numbers to compare. A part of the range that is no comparison is
    ignored."""
    have = parse_version_numbers(version)
    if not have:
        return True
    for part in (wanted or "").split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|!=|~=|>|<)\s*(\S+)\s*", part)
        if not match:
            continue
        bound = parse_version_numbers(match[2].removesuffix(".*"))
        a, b = _pad_versions_with_zeros(have, bound)
        same = have[: len(bound)] == bound if match[2].endswith(".*") else a == b
        holds = {
            ">=": a >= b,
            "<=": a <= b,
            ">": a > b,
            "<": a < b,
            "==": same,
            "!=": not same,
            "~=": a >= b and have[: len(bound) - 1] == bound[:-1],
        }
        if not holds[match[1]]:
            return False
    return True


def _pad_versions_with_zeros(
    a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)), b + (0,) * (width - len(b))


@lru_cache(maxsize=8)
def list_catalog_versions(engine: str) -> tuple[str, ...]:
    """Return the versions of an engine that have a flag catalog, oldest first."""
    found = [p.stem.removeprefix(f"{engine}-") for p in DIRECTORY.glob(f"{engine}-*.json")]
    return tuple(sorted(found, key=parse_version_numbers))


def find_nearest_catalog_version(engine: str, wanted: str | None) -> str:
    """Return the engine version whose shipped catalog is nearest to the version `wanted`. If two
    are equally near, return the older one. If `wanted` is None or no version, return the newest
    one."""
    have, key = list_catalog_versions(engine), parse_version_numbers(wanted)
    if not key:
        return have[-1]
    return min(have, key=lambda v: _version_distance(parse_version_numbers(v), key))


def _version_distance(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distance of two versions as a sort key; the smallest key belongs to the nearest
    version. It is (minus the index of the first number that differs, the difference of these
    numbers), because a difference in an earlier number is larger."""
    parts = [abs(x - y) for x, y in zip(*_pad_versions_with_zeros(a, b), strict=True)]
    first = next((n for n, part in enumerate(parts) if part), len(parts))
    return (-first, *parts[first : first + 1])


@lru_cache(maxsize=8)
def load_catalog(engine: str, version: str, *, accepts_prefixes: bool = False) -> FlagCatalog:
    """Return the packaged flag catalog of exactly this version. `accepts_prefixes` is True if the
    engine accepts unambiguous beginnings of flags.
    """
    data = json.loads((DIRECTORY / f"{engine}-{version}.json").read_text("utf-8"))
    return catalog_from_data(engine, version, data, accepts_prefixes)


def catalog_from_data(
    engine: str,
    version: str,
    data: Mapping[str, Any],
    accepts_prefixes: bool = False,
    printed_by: str | None = None,
) -> FlagCatalog:
    """Return the catalog that `data`, the content of a catalog file, describes. `printed_by` is the
    path of the installed program that printed the flags; None for a catalog that Workbench
    ships."""
    flags = {f["name"]: _parse_flag_spec(engine, version, f) for f in data["flags"]}
    env = {e["name"]: EnvSpec(**{**e, "choices": tuple(e.get("choices", ()))}) for e in data["env"]}
    for flag in flags.values():
        if flag.env and flag.env not in env:
            kind = "str" if flag.repeatable or flag.words else str(flag.kind)
            env[flag.env] = EnvSpec(
                flag.env,
                type=kind,
                choices=flag.choices,
                help=f"sets the same value as --{flag.name}",
            )
    return FlagCatalog(engine, version, flags, env, accepts_prefixes, printed_by)


def _parse_flag_spec(engine: str, version: str, raw: dict[str, Any]) -> FlagSpec:
    name = raw["name"]
    derived = {
        "kind": FlagKind(raw["kind"]),
        "help": _load_flag_help_sentences(engine).get(name)
        or raw.get("help")
        or f"No description in {engine} {version}.",
        "area": group_name_of_flag(engine, name, raw.get("group", "")),
        "most_used": rank_among_most_used_flags(engine, name),
    }
    return FlagSpec(**raw | {k: tuple(raw[k]) for k in _TUPLES if k in raw} | derived)


@lru_cache(maxsize=8)
def _load_flag_help_sentences(engine: str) -> dict[str, str]:
    """Return the help sentences that Workbench ships for an engine, by flag name. All versions of
    the engine share them."""
    texts: dict[str, dict[str, str]] = json.loads((DIRECTORY / "help.json").read_text("utf-8"))
    return texts[engine]


def has_flag_help(engine: str, name: str) -> bool:
    """Return whether Workbench ships a help sentence for the flag `name` of `engine`."""
    return name in _load_flag_help_sentences(engine)


@dataclass(frozen=True, slots=True)
class RemovedSetting:
    """A flag or variable that an engine no longer has, or that it never had although users try it.
    `since` is the first version without it ("" if unknown). `until` is the first version that has
    it again ("" if none has). `renamed` is the flag that takes the same value now, or "flag.key"
    for a key of a JSON flag ("" if there is none).
    """

    reason: str
    fix: str
    since: str = ""
    until: str = ""
    renamed: str = ""


@cache
def load_removed_settings(engine: str, kind: str) -> dict[str, RemovedSetting]:
    """Return the flags (`kind` "flags") or environment variables (`kind` "env") that no longer
    exist in `engine`, by name. Variables that no engine reads any more are included."""
    data: dict[str, Any] = json.loads((DIRECTORY / "removed.json").read_text("utf-8"))
    tables = (data["every engine"], data.get(engine, {}))
    return {
        name: RemovedSetting(**entry)
        for table in tables
        for name, entry in table.get(kind, {}).items()
    }


class FlagMatch(NamedTuple):
    """A flag that was found by one of its spellings. `negated` is True if the spelling turns the
    flag off, as "no-enforce-eager" does.
    """

    name: str
    spec: FlagSpec | None
    negated: bool = False

    def invert_value_if_negated(self, value: Any) -> Any:
        """Return `value`, or its opposite if the spelling turns the flag off and `value` is True or
        False."""
        if self.negated and isinstance(value, bool):
            return not value
        return value


def look_up_flag(catalog: FlagCatalog, spelling: str) -> FlagMatch:
    """Return the flag that `spelling` means. Leading dashes, and underscores in place of dashes,
    are accepted; so is a beginning that only one flag has, if the engine accepts such. `spec` of
    the result is None if the catalog has no such flag."""
    bare = spelling.strip().lstrip("-")
    name = bare.replace("_", "-")
    if name in catalog.flags:
        return FlagMatch(name, catalog.flags[name])
    spellings = _index_flags_by_spelling(catalog)
    found = spellings.get(bare, spellings.get(name))
    if not found and name and catalog.accepts_prefixes:
        candidates = {m.name: m for s, m in spellings.items() if s.startswith(name)}
        if len(candidates) == 1:
            (found,) = candidates.values()
    return found or FlagMatch(name, None)


def _index_flags_by_spelling(catalog: FlagCatalog) -> dict[str, FlagMatch]:
    table: dict[str, FlagMatch] = {}
    for spec in catalog.flags.values():
        for alias in spec.aliases:
            table.setdefault(alias.lstrip("-"), FlagMatch(spec.name, spec))
        if spec.negation:
            for off in (spec.negation.lstrip("-"), f"no-{spec.name}"):
                table.setdefault(off, FlagMatch(spec.name, spec, negated=True))
    return table | {name: FlagMatch(name, spec) for name, spec in catalog.flags.items()}


def canonical_flag_name(catalog: FlagCatalog, spelling: str) -> str:
    """Return the main name of the flag that `spelling` means. For a flag that the catalog lacks,
    return the spelling with dashes in place of underscores.
    """
    return look_up_flag(catalog, spelling).name


def most_similar_flag_name(catalog: FlagCatalog, name: str) -> str | None:
    """Return the catalog's flag whose name is most similar to `name`, or None if none is
    similar."""
    # "kv-dtype" for "kv-cache-dtype": all words occur, with others between them
    words = set(name.split("-"))
    holders = [n for n in catalog.flags if len(words) > 1 and words <= set(n.split("-"))]
    if holders:
        return min(holders, key=len)
    spellings = _index_flags_by_spelling(catalog)
    close = get_close_matches(name, spellings, n=1, cutoff=0.7)
    if not close:
        return None
    return spellings[close[0]].name


def most_similar_variable_name(catalog: FlagCatalog, name: str) -> str | None:
    """Return the catalog's environment variable whose name is most similar to `name`, or None if
    none is similar."""
    return next(iter(get_close_matches(name, catalog.env, n=1, cutoff=0.75)), None)


def search_flags(catalog: FlagCatalog, text: str) -> list[FlagSpec]:
    """Return the flags that match `text`, best match first. Blank text matches all flags, in
    catalog order.

    First comes the flag with exactly this name or alias, then matches in a name (model/fuzzy.py)
    and flags of the group with this name, then flags whose help contains all words. Similar
    spellings match only if nothing else does.
    """
    query = text.strip().lstrip("-").replace("_", "-").lower()
    if not query:
        return list(catalog.flags.values())
    meant, words = look_up_flag(catalog, query).name, query.replace("-", " ").split()
    ranked = []
    for spec in catalog.flags.values():
        score = _search_score_of_flag(spec, words)
        if score is not None:
            ranked.append((spec.name != meant, -round(score), len(spec.name), spec))
    if not ranked:
        near = most_similar_flag_name(catalog, "-".join(query.split()))
        return [catalog.flags[near]] if near else []
    ranked.sort(key=itemgetter(0, 1, 2))
    return [spec for *_, spec in ranked]


def _search_score_of_flag(spec: FlagSpec, words: Sequence[str]) -> float | None:
    group = " ".join(words)
    scores = []
    for name in (spec.name, *spec.aliases):
        score = fuzzy.match_score(group, name.lstrip("-").lower())
        if score is not None:
            scores.append(score)
    if len(group) > 2 and any(
        name.lower().startswith(group) for name in _searchable_group_names(spec)
    ):
        scores.append(200.0)
    if words and all(word in spec.help.lower() for word in words):
        scores.append(-1000.0)
    return max(scores, default=None)


def _searchable_group_names(spec: FlagSpec) -> tuple[str, ...]:
    return (spec.area, MOST_USED) if spec.most_used else (spec.area,)


def search_variables(catalog: FlagCatalog, text: str) -> list[EnvSpec]:
    """Return the environment variables that match `text`, best match first."""
    query = text.strip().replace("-", "_").upper()
    hits = [e for e in catalog.env.values() if all(word in e.name for word in query.split())]
    if not query:
        return hits
    return sorted(hits, key=lambda e: (not e.name.startswith(query), len(e.name)))
