"""The prose linter of this repository: proselint's checks, the house style, and rates that may only fall."""
