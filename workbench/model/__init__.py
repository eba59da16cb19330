"""Plain data, no I/O. Frozen dataclasses, standard library only (pydantic in preset.py, where a file is parsed)."""
