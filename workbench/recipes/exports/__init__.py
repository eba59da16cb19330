"""The forms in which Workbench writes a launch. Each module has functions from a `Launch` to a text."""
