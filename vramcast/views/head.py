"""How every page of vramcast begins: it asks nothing from the network, and runs no script but its own."""

from __future__ import annotations


def opening(style: str, *, runs_scripts: bool = False) -> str:
    """Return a page from its first line to <body>, as text for `string.Template` with a place for `$title`.

    Args:
        style: CSS.
        runs_scripts: Whether the page holds a script.
    """
    scripts = "; script-src 'unsafe-inline'" if runs_scripts else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{scripts}">
<title>$title</title>
<style>{style}</style>
</head>
<body>
"""
