"""Batch scripts read by a grammar of Bash: which training commands they run, in turn or at once. Nothing is executed."""
