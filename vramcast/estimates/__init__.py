"""The answer: estimates, bounds, verdicts, advice and plans."""
