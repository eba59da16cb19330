"""Recipes: launches in the forms of other tools, read and written. Nothing that a recipe contains is run.

registry.py           all forms that Workbench reads or writes; the command line and the screen list them from here
recipe.py             what was understood of a foreign recipe, with findings about the rest
imports/              one module for each form to read
shell_text.py         the words of a shell script, without a shell
yaml_text.py          YAML as data only, with limits
preset_document.py    a recipe as the document of a preset
launch.py             what an export writes: words, environment, secrets as references, image, GPUs
exports/              the forms to write
"""
