"""The service: estimates, checks and observations over HTTP, for schedulers that cannot start Python for each job.

`requests.py` is what may be asked, `worker_main.py` answers one question in a process of its own, `worker_answer.py` says what
it may answer, `workers.py` keeps such processes warm and within limits, and `turns.py` whose question is next. Code of clients
runs in a `sandbox.py`, held by `system_calls.py` and `control_group.py`. `store.py` is what a restart must not lose, and
`service.py` joins these. `app.py` is the HTTP, `clients.py` and `access.py` whom it answers, `connections.py` ends who takes
too much of it, `responses.py` and `openapi.py` are how it describes itself, `operator_log.py` is the operator's log.
Extra: `pip install 'vramcast[serve]'`.
"""
