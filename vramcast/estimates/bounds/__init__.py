"""Upper bounds of the process peak: one question, and two who answer it.

`learned.py` knows what an artifact says of jobs like this one, the shipped one among them; `public.py` is what holds where none
covers the job. A bound is built from parts which err apart: the allocator's segments, the context, libraries, and what was
assumed. `parts.py` says what each owes. An estimate holds one
of the two, and asks both the same.
"""
