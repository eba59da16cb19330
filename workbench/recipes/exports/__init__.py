"""The file formats in which Workbench can write the start of a server. Each function takes a
`Launch` and the `Notes` to which it adds its findings, and returns the text of the file."""
