"""Plans that are followed, on the null GPU."""
