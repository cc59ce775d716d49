"""Hooks for Slurm (docs/slurm.md): at submission, on each node, and at a job's end.

    submit      called by cli_filter.lua: reads the batch script, asks the service, and prints the new request
    peaks       runs permanently on each node: samples the memory that each job uses on the cards
    epilog      called at a job's end: reports its peak to the service, or that it ran out of memory
    come-back   started by the epilog: requeues a job that ran out of memory, with a larger request
    note-peak   started by the epilog: records the peak for sacct

They need neither torch nor any package besides vramcast's own files. None of them may delay a job: errors are reported, and
the job continues unchanged.
"""
