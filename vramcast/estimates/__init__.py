"""Estimates of jobs: peaks, bounds, advice and plans."""
