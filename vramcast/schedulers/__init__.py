"""Jobs which ask Ray or dask for the GPU memory that they take, and for more of it after they ran out of memory."""
