"""What every layer may use: errors, units, words, files, and the checks of values that come from outside; no packages."""
