"""The service: estimates, checks and observations over HTTP, for schedulers that cannot start Python for each job.

`requests.py` defines the requests, `worker_main.py` answers them in processes of their own, `worker_answer.py` checks these
answers, `workers.py` keeps such processes warm and within limits, and `turns.py` orders the queue. Clients' code runs in a
`sandbox.py`, limited by `system_calls.py` and `control_group.py`. `store.py` holds data that must survive a restart, and
`service.py` joins these. `app.py` is the HTTP interface, `clients.py` and `access.py` check who may use it,
`connections.py` closes connections that take too much, `responses.py` and `openapi.py` describe the API, `operator_log.py`
writes the operator's log. Extra: `pip install '.[serve]'`.
"""
