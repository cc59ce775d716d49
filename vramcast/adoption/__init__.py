"""Adoption of a cluster's history in one command: import, estimates, training, evaluation, and deployment.

artifact_store.py     DIR and its files; the lock; an artifact replaces another atomically
ingest.py     history files become runs of the store
sample.py     the choice of training runs; the prediction of one run applies to all of its kind
gate.py       whether a new artifact may replace the current one
verdict.py    both applied to the runs, and the gate's decision
policies.py   the cost of requests: GiB-hours and deaths
report.py   the report
pipeline.py    all steps, in order
"""
