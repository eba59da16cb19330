"""Recipes: descriptions of a server start in the formats of other tools, read and written. Nothing
that a recipe contains is run.

registry.py           all formats that Workbench reads or writes; the command line and the screen list them from here
recipe.py             what Workbench understood of a recipe, with findings about the rest
imports/              one module for each format to read
shell_text.py         splits a shell script into words, without running it
yaml_text.py          reads YAML as data only, with limits, and writes it
preset_document.py    converts a recipe to the document of a preset
launch.py             what an export writes: command line, environment, secrets as references, image, GPUs
exports/              the formats to write
"""
