"""Jobs that request GPU memory from Ray or dask, and request more of it after they have run out of memory."""
