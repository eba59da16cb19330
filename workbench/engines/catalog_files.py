"""The directory of the packaged data about flags: a catalog per engine version, help texts, groups and removed flags."""

from pathlib import Path

DIRECTORY = Path(__file__).parent / "catalogs"
