"""The directory of the packaged data about flags: catalogs of engine versions, help texts, groups,
removed flags."""

from pathlib import Path

DIRECTORY = Path(__file__).parent / "catalogs"
