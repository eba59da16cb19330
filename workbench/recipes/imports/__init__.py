"""The forms of recipes that Workbench reads. A module has `recognizes(document)` and `read(document, notes, entry)`."""
