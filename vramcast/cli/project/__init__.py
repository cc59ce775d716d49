"""Jobs named in a repository's pyproject.toml, their results, and the changes since a base."""
