"""The cluster's own history in one command: read, estimated, learned from, judged, and put in place if it is no worse.

artifact_store.py     DIR and what lies in it; the lock; an artifact takes the place of another in one step
ingest.py     history files become runs of the store
sample.py     which runs are learned from; the prediction of one run holds for all of its kind
gate.py       whether a new artifact may take the place of the present one
verdict.py    both asked about the runs, and what the gate says
policies.py   what requests cost: GiB-hours and deaths
report.py   the report
pipeline.py    all of it, in order
"""
