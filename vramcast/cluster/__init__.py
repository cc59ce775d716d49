"""Code for clusters: the service, the reader of batch scripts, plug-ins of Slurm and Kubernetes, jobs of Ray and dask."""
