"""Collectors of measured runs: each reads the files of one public repository, in their own format, and yields its rows."""
