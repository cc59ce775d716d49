"""The jobs which a repository names in its pyproject.toml, what was found of each, and what changed since a base."""
