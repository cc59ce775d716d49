"""What Slurm's hooks call (docs/slurm.md): at submission, on each node, and at a job's end.

    submit      by cli_filter.lua: reads the batch script, asks the service, and says what the request shall be
    peaks       on each node, all the time: samples what each job takes of the cards
    epilog      at a job's end: tells the service its peak, or that it ran out of memory
    come-back   started by the epilog: a job which ran out of memory is queued again with a larger request
    note-peak   started by the epilog: the peak for sacct

None of it needs torch, or a package besides vramcast's own files. Nothing here may hold a job up: what goes wrong is said, and
the job goes on as it is.
"""
