"""The lowest layer: errors, units, checked values, files, the cache, the compiler; no torch."""
