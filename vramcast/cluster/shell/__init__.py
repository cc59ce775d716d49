"""Batch scripts, parsed with a grammar of Bash: their training commands, in sequence or in parallel. Nothing is executed."""
