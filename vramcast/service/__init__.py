"""The service: estimates, checks and observations over HTTP, for schedulers that cannot start Python for each job.

`requests.py` is what may be asked, `worker_main.py` answers one question in a process of its own, `workers.py` keeps such
processes warm and within limits, `store.py` is what a restart must not lose, `service.py` joins these, `app.py` is the HTTP,
`access.py` whom it answers, `responses.py` and `openapi.py` how it describes itself, `operator_log.py` the operator's log.
Extra: `pip install 'vramcast[serve]'`.
"""
