"""Upper bounds of the process peak, with one interface and two implementations.

`learned.py` gives the bound of an artifact, the shipped one included; `public.py` gives the built-in rule for jobs that no
artifact covers. A bound consists of parts with independent errors: the allocator's segments, the context, libraries, and
assumptions. `parts.py` divides the margin among them. An estimate holds one of the two bounds.
"""
