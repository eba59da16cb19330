"""The file formats of recipes that Workbench reads. Each module for YAML or JSON has
`recognizes(document)` and `read(document, notes, given)`, where `given` is a `Given` of
recipe.py."""
