"""Tenants of one service who do not trust each other: attacks of one on another, on the service, and on its answers.

`sandboxed.py` has attempts within the sandbox. Here a service runs with its clients: alice attacks, bob has honest jobs, and
the epilog's observations count fully.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.cluster import sandboxed
from benchmarks.hostile.command import ROOT
from vramcast.cluster.service.sandbox import missing
from vramcast.cluster.service.worker_answer import read_answer
from vramcast.core.errors import VramcastError
from vramcast.core.process_tree import descendants
from vramcast.core.units import GIB, MIB

_HOST: Final = "127.0.0.1"
_START_S: Final = 120.0  # arbitrary: imports on a busy machine, and compilation of the null GPU for the sandbox
TOKENS: Final = {"alice": "alice-s3cret", "bob": "bob-s3cret", "epilog": "epilog-s3cret", "slow": "slow-s3cret"}
_FILE: Final = "alice {alice}\nbob {bob}\nepilog {epilog} weight=1\nslow {slow} rate=1\n"
_MODEL: Final = {"target": "torchvision:resnet18", "batch": ["8x3x64x64"], "labels": "8:int64<1000", "device": "t4"}
_OTHER: Final = {**_MODEL, "target": "torchvision:resnet34"}
_HONEST: Final = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.zeros(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""

Check = Callable[[int, Any], str]


@dataclass(slots=True)
class Tried:
    """A running service, and requests of its clients."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    names: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = "alice-s3cret", wait_s: float = 100.0
    ) -> tuple[int, Any]:
        """Return the status of an answer, and its JSON."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=wait_s)
        with contextlib.closing(connection):
            headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, content, headers)  # type: ignore[arg-type]
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def post(self, path: str, body: object, client: str = "alice") -> tuple[int, Any]:
        """Return a client's answer."""
        return self.ask("POST", path, body, token=TOKENS[client])

    def code(self, text: str, client: str = "alice", **more: Any) -> tuple[int, Any]:
        """Return a client's answer for a script."""
        files = {"train.py": text, **more.pop("files", {})}
        return self.post(
            "/v1/checks", {"command": ["python", "train.py"], "files": files, "device": "t4", "wait_s": 90, **more}, client
        )

    def id_of(self, model: Mapping[str, Any], client: str = "bob") -> str:
        """Return the id of a model's estimate."""
        return str(self.post("/v1/checks", model, client)[1]["id"])

    def requested(self, model: Mapping[str, Any]) -> int:
        """Return the request that bob gets."""
        return int(self.post("/v1/checks", model, "bob")[1]["request_bytes"])


@contextlib.contextmanager
def served(folder: Path, *options: str, before: tuple[str, ...] = ()) -> Iterator[Tried]:
    """Yield a service with the three clients until the block ends."""
    folder.mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    tokens = folder / "tokens"
    tokens.write_text(_FILE.format(**TOKENS))
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port), "--data", str(folder / "data")]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*before, *command, "--token-file", str(tokens), *options], stderr=log, env=environment, cwd=ROOT
        )
    found = Tried(process, port, folder)
    try:
        _await(found)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _await(service: Tried) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and service.process.poll() is None:
        with contextlib.suppress(OSError):
            if service.ask("GET", "/healthz")[0] == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the service did not start: {(service.folder / 'log').read_text()[-500:]}")


def _judged(found: tuple[int, Any], status: int | set[int], check: Check = lambda status, body: "") -> Verdict:
    """Check an answer by its status, its form, and a further check."""
    expected = {status} if isinstance(status, int) else status
    if found[0] not in expected:
        return Verdict(Wrong.WALL, f"{found[0]}: {json.dumps(found[1])[:200]}")
    if found[0] >= 400 and not found[1].get("error", {}).get("message"):
        return Verdict(Wrong.UNCLEAR, json.dumps(found[1])[:200])
    return Verdict(Wrong.WALL, said) if (said := check(*found)) else HANDLED


def _if(wrong: bool, seen: str, kind: Wrong = Wrong.WALL) -> Verdict:
    return Verdict(kind, seen) if wrong else HANDLED


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases of this group."""
    yield from sandboxed.cases(folder)
    yield from _forged()
    code = [] if missing() else ["--allow-code"]
    with served(folder / "one", *code, "--workers", "2", "--job-memory", "3GiB", "--job-timeout", "60") as service:
        yield from _tokens(service)
        yield from _fields(service)
        yield from _observed(service)
        if code:
            yield from _channel(service)
            yield from _neighbours(service)
        yield from _queue(service)
        yield from _connections(service)
    yield from _left(service)
    yield from _full_disk(folder / "two")


# ------------------------------------------------------------------------------------------------ tokens and requests
def _tokens(service: Tried) -> Iterator[Case]:
    hashed = "sha256:" + "0" * 64
    for name, token in {
        "none": None,
        "an empty one": "",
        "another": "other",
        "one less a character": TOKENS["alice"][:-1],
        "one with a character more": TOKENS["alice"] + "x",
        "a client's name": "alice",
        "a whole line of the file": f"alice {TOKENS['alice']}",
        "a hash": hashed,
        "letters beyond ASCII": "älice",
        "30,000 letters": "x" * 30_000,
    }.items():
        yield Case("tokens", name, lambda token=token: _judged(service.ask("POST", "/v1/checks", _MODEL, token=token), 401))
    yield Case(
        "tokens", "an observation without one", lambda: _judged(service.ask("POST", "/v1/observations", {}, token=None), 401)
    )
    yield Case("tokens", "an id without one", lambda: _judged(service.ask("GET", f"/v1/estimates/{'0' * 64}", token=None), 401))

    def too_often() -> Verdict:
        statuses = [service.ask("GET", f"/v1/estimates/{'0' * 64}", token=TOKENS["slow"])[0] for _ in range(20)]
        return _if(statuses.count(429) < 15, f"{statuses}")

    yield Case("tokens", "more than its rate", too_often)
    yield Case("tokens", "the others, meanwhile", lambda: _judged(service.post("/v1/checks", _MODEL, "bob"), 200))


def _fields(service: Tried) -> Iterator[Case]:
    command = {"command": ["python", "train.py"], "files": {"train.py": _HONEST}, "device": "t4"}
    for name, body in {
        "nproc_per_node 0": {**_MODEL, "parallel": "ddp", "world_size": 8, "nproc_per_node": 0},
        "world_size 0": {**_MODEL, "parallel": "ddp", "world_size": 0},
        "alloc_conf with a command": {**command, "alloc_conf": "expandable_segments:True"},
        "batch with a command": {**command, "batch": ["8x3"]},
        "precision with a command": {**command, "precision": "bf16"},
        "optimizer with a trace": {"trace": "AAAA", "optimizer": "sgd"},
        "a card that is a file": {**_MODEL, "device": "/etc/card.toml"},
        "a setting of vramcast's in the environment": {**command, "environment": {"VRAMCAST_ARTIFACT": "/job/mine"}},
        "a file above the job's folder": {**command, "files": {"../../x": ""}},
    }.items():
        yield Case("fields", name, lambda body=body: _judged(service.post("/v1/checks", body), 400))


def _observed(service: Tried) -> Iterator[Case]:
    def said(client: str = "alice", model: Mapping[str, Any] = _MODEL, **changes: Any) -> tuple[int, Any]:
        body = {"estimate_id": service.id_of(model), "outcome": "finished", "process_bytes": GIB, **changes}
        return service.post("/v1/observations", {name: value for name, value in body.items() if value is not None}, client)

    for name, changes in {
        "an unknown estimate": {"estimate_id": "f" * 64},
        "no id": {"estimate_id": "x"},
        "request_bytes of a forged ticket, 1 MiB": {"request_bytes": MIB},
        "request_bytes of a forged ticket, 999,999,999 MiB": {"request_bytes": 999_999_999 * MIB},
        "request_bytes of 2^50": {"request_bytes": 1 << 50},
        "request_bytes below what was answered": {"request_bytes": 400 * MIB},
        "process_bytes '1_000'": {"process_bytes": "1_000"},
        "process_bytes in full-width digits": {"process_bytes": "１２３"},
        "process_bytes 1.5": {"process_bytes": 1.5},
        "process_bytes true": {"process_bytes": True},
        "process_bytes below 0": {"process_bytes": -1},
        "process_bytes of 2^51": {"process_bytes": 1 << 51},
        "no peak": {"process_bytes": None},
        "another outcome": {"outcome": "out_of_memory\n"},
        "a card that is a file": {"device": "/etc/hostname.toml"},
        "a field more": {"weight": 1},
    }.items():
        yield Case("observations", name, lambda changes=changes: _judged(said(**changes), 400))

    def twice(**changes: Any) -> Verdict:
        found = [said(model=_OTHER, outcome="out_of_memory", process_bytes=None, **changes) for _ in range(2)]
        return _if([one[0] for one in found] != [201, 200] or found[0][1] != found[1][1], f"{found}")

    yield Case("observations", "the same job twice", lambda: twice(job_id="twice"))
    yield Case("observations", "no job twice", twice)

    def first_sender() -> Verdict:
        found = [said(client, job_id="4711", process_bytes=300 * MIB)[0] for client in ("alice", "epilog")]
        return _if(found != [201, 201], f"{found}")

    yield Case("observations", "a job's number, before the epilog has it", first_sender)

    def ten_lies() -> Verdict:
        models = [{**_MODEL, "target": f"torchvision:{name}"} for name in ("resnet18", "resnet34", "resnet50", "squeezenet1_1")]
        before = [service.requested(model) for model in models]
        for number in range(10):
            said(job_id=f"lie {number}", outcome="out_of_memory", process_bytes=None)
        after = [service.requested(model) for model in models]
        return _if(any(b > 2 * a for a, b in zip(before, after, strict=True)), f"{before} -> {after}", Wrong.NUMBER)

    yield Case("observations", "ten lies: out of memory", ten_lies)

    def many_lies() -> Verdict:
        answer = service.post("/v1/estimates", _OTHER, "bob")[1]
        lowest = answer["levels"]["0.975"]
        for number in range(3000):
            status, found = service.post(
                "/v1/observations",
                {"estimate_id": answer["id"], "outcome": "finished", "process_bytes": 1, "job_id": f"many {number}"},
            )
            if status != 201:
                return Verdict(Wrong.UNCLEAR, f"{status}: {found}")
        requested = service.requested(_OTHER)
        return _if(requested < lowest, f"{requested}, and the bound at 0.975 is {lowest}", Wrong.NUMBER)

    yield Case("observations", "3,000 lies: one byte", many_lies)

    def over() -> Verdict:
        connection = http.client.HTTPConnection(_HOST, service.port)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        mean = max(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vramcast_overprovision{"))
        return _if(mean > 100, f"over-provision {mean}", Wrong.NUMBER)

    yield Case("observations", "the metrics after them", over)

    def recovered() -> Verdict:
        for number in range(6):
            said("epilog", job_id=f"true {number}", outcome="out_of_memory", process_bytes=None)
        answer = service.post("/v1/checks", _MODEL, "bob")[1]
        return _if(answer["request_bytes"] < answer["capacity_bytes"] // 2, f"{answer}", Wrong.NUMBER)

    yield Case("observations", "what the epilog reports still counts fully", recovered)


# ------------------------------------------------------------------------------------------------ forged answers
_WORDS: Final = {"headline": "Fits", "lines": {"peak": "1 GiB"}, "sentences": [], "assumed": []}


def _forged() -> Iterator[Case]:
    """Yield forged answers that a job may write."""
    model = ["torchvision:resnet18", "--batch", "2x3x64x64", "--device", "t4"]
    made = subprocess.run(
        [sys.executable, "-m", "vramcast", "estimate", *model, "--json"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    honest = {"estimate": json.loads(made.stdout), "levels": {"0.5": 5, "0.99": 6}, "words": _WORDS}
    read_answer(json.dumps(honest).encode())  # a valid answer

    def tried(text: bytes) -> Verdict:
        try:
            return Verdict(Wrong.WALL, str(read_answer(text))[:200])
        except VramcastError as error:
            return _if("invalid answer" not in str(error), str(error), Wrong.UNCLEAR)

    def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
        answer = json.loads(json.dumps(honest))
        change(answer)
        return json.dumps(answer).encode()

    def put(*path: str, value: object) -> bytes:
        def change(answer: dict[str, Any]) -> None:
            for name in path[:-1]:
                answer = answer[name]
            answer[path[-1]] = value

        return changed(change)

    for name, text in {
        "nothing": b"",
        "a number": b"1",
        "a list": b"[]",
        "half an answer": json.dumps(honest).encode()[:500],
        "a million brackets": b"[" * 1_000_000,
        "no UTF-8": b'{"error": {"kind": "usage", "message": "\xff"}}',
        "an error of another kind": b'{"error": {"kind": "forbidden", "message": ""}}',
        "an error with headers": b'{"error": {"kind": "usage", "message": "", "retry_after_s": "x\\r\\ny: z"}}',
        "an error of 60 MiB": json.dumps({"error": {"kind": "usage", "message": "x" * (60 << 20)}}).encode(),
        "a field more": put("more", value=1),
        "no levels": put("levels", value={}),
        "a level beyond 1": put("levels", "1.5", value=7),
        "levels which fall": put("levels", "0.999", value=1),
        "a level of 2^60": put("levels", "0.99", value=1 << 60),
        "a level below 0": put("levels", "0.5", value=-1),
        "a thousand levels": put("levels", value={f"0.{number:04}": number for number in range(1, 1000)}),
        "a card of 2^60": put("estimate", "memory_bytes", value=1 << 60),
        "a card in words": put("estimate", "memory_bytes", value="80GiB"),
        "no peaks": put("estimate", "peaks", value=None),
        "a peak that is no number": put("estimate", "peaks", "process", value=float("nan")),
        "no words": put("words", value=None),
        "words of another form": put("words", "lines", value=["<b>"]),
        "an exit code of 7": put("estimate", "verdict", "exit_code", value=7),
        "another verdict": put("estimate", "verdict", "value", value="fits well"),
        "traits that are lists": put("estimate", "traits", value={"operators": ["convolution"]}),
        "a field that the schema does not know": put("estimate", "html", value="<script>"),
    }.items():
        yield Case("forged answers", name, lambda text=text: tried(text))


_WRITES: Final = """
import json, os, sys
line = json.dumps({"error": {"kind": "usage", "message": "FORGED"}}).encode() + b"\\n"
tried = []
def attempt(name, act):
    try: act(); tried.append(name)
    except BaseException as error: pass
ancestors, pid = [], os.getpid()
while pid > 1:
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    ancestors.append(pid)
others = [int(p) for p in os.listdir("/proc") if p.isdecimal() and int(p) != os.getpid()]
"""
_RUNS: Final = """
import pickle
class Run:
    def __reduce__(self):
        return exec, (f"import os\\nfor fd in range(3, 40):\\n  try: os.write(fd, {line!r})\\n  except OSError: pass",)
"""
_CHANNEL: Final = {
    "descriptors taken by pidfd_getfd": """
import ctypes
libc = ctypes.CDLL(None)
for pid in others:
    for fd in range(30):
        got = libc.syscall(438, os.pidfd_open(pid), fd, 0)
        if got >= 0: attempt(fd, lambda: os.write(got, line))""",
    "descriptors opened in /proc": """
for pid in others:
    for fd in range(30): attempt(fd, lambda: os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), line))""",
    "its own descriptors": """
for fd in range(3, 60): attempt(fd, lambda: os.write(fd, line))""",
    "memory written through /proc": """
for pid in others:
    def overwrite():
        maps = [l for l in open(f"/proc/{pid}/maps") if "rw-p" in l]
        with open(f"/proc/{pid}/mem", "r+b", 0) as mem:
            for l in maps[:20]: mem.seek(int(l.split("-")[0], 16)); mem.write(bytes(4096))
    attempt(pid, overwrite)""",
    "a pickle in the place of the job's result": f"""{_RUNS}
import socket, struct, stat
for number in range(1, 4):
    data = pickle.dumps(dict(number=number, answer=Run(), imported=[]))
    for fd in range(3, 60):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, struct.pack("<Q", len(data)) + data)
        except OSError: pass
os._exit(0)""",
    "a pickle in the folder of its processes": _RUNS
    + """
folder = os.environ.get("VRAMCAST_SUBPROCESSES", "")
for name in ("1", "99"):
    open(f"{folder}/{name}.claim", "w").write("x"); open(f"{folder}/{name}.process", "wb").write(pickle.dumps(Run()))""",
    "a library in the cache": """
import glob
for path in glob.glob("/cache/**/*.so*", recursive=True): attempt(path, lambda: open(path, "wb"))""",
    "a line on its output": "print(line.decode(), flush=True); os.write(1, line); os.write(2, line)",
}
_PLANTED: Final = """
import os
for fd in range(3, 40):
    try: os.write(fd, b'{"error": {"kind": "usage", "message": "FORGED"}}\\n')
    except OSError: pass
raise ImportError
"""


def _channel(service: Tried) -> Iterator[Case]:
    """Yield attempts of a job's code to write the answer itself; none of them is the answer."""

    def judged(found: tuple[int, Any]) -> Verdict:
        text = json.dumps(found[1])
        return _if(
            "FORGED" in found[1].get("error", {}).get("message", "")[:10] or found[0] >= 500, f"{found[0]}: {text[:200]}"
        )

    for name, code in _CHANNEL.items():
        yield Case("answer channel", name, lambda code=code: judged(service.code(_WRITES + code + _HONEST)))
    for name in ("json", "torch", "numpy", "vramcast", "sitecustomize", "encodings/idna", "jsonschema"):
        files = {f"{name}.py": _PLANTED}
        yield Case("answer channel", f"a file {name}.py", lambda files=files: judged(service.code(_HONEST, files=files)))
    for name, value in {
        "LD_PRELOAD": "/job/x.so",
        "PYTHONSTARTUP": "/job/x.py",
        "PYTHONPATH": "/job",
        "PATH": "/job",
        "CC": "/job/train.py",
        "TMPDIR": "/job",
        "HOME": "/nowhere",
    }.items():
        environment = {name: value}
        files = {"sitecustomize.py": _PLANTED, "x.py": _PLANTED}
        yield Case(
            "answer channel", f"the variable {name}",
            lambda files=files, environment=environment: judged(service.code(_HONEST, files=files, environment=environment)),
        )  # fmt: skip

    def large() -> Verdict:
        before = _resident_bytes(service.process.pid)
        for number in range(3):
            service.code(f"raise ValueError('x' * (60 << 20) + '{number}')")
        grown = _resident_bytes(service.process.pid) - before
        return _if(grown > 300 * MIB, f"the service grew by {grown // MIB} MiB")

    yield Case("answer channel", "an error of 60 MiB, three times", large)


# ------------------------------------------------------------------------------------------------ neighbours
_NEIGHBOURS: Final = {
    "499 processes that sleep": """
import subprocess, time
children = [subprocess.Popen(["sleep", "40"]) for _ in range(499)]
time.sleep(40)""",
    "forks without end": """
import os, time
end = time.time() + 30
while time.time() < end:
    try: os.fork()
    except OSError: time.sleep(0.1)""",
    "threads without end": """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(40,)).start()
except RuntimeError: time.sleep(40)""",
    "its disk is full": """
import time
try: open("/tmp/x", "wb").write(bytes(1100 << 20))
except OSError: pass
time.sleep(30)""",
    "all its files are open": """
import os, time
try:
    while True: os.open("/", 0)
except OSError: time.sleep(30)""",
    "it takes all memory that it gets": """
import time
taken = []
while True:
    taken.append(bytearray(50 << 20))
    time.sleep(0.02)""",
}


def _neighbours(service: Tried) -> Iterator[Case]:
    """Yield actions of alice's job during bob's honest job; bob's answer must be his own and unchanged."""
    alone: dict[str, int] = {}

    def honest(name: str) -> tuple[int, Any]:
        return service.code(f"{_HONEST}\n# {name}", "bob")

    def by_himself() -> Verdict:
        status, found = honest("alone")
        alone.update(bytes=found.get("process_bytes", 0))
        return _if(status != 200, f"{status}: {found}")

    yield Case("neighbours", "nobody", by_himself)

    def beside(name: str, code: str) -> Verdict:
        attack = threading.Thread(target=service.code, args=(code,))
        attack.start()
        time.sleep(4)
        status, found = honest(name)
        verdict = _if(status != 200 or found["process_bytes"] != alone["bytes"], f"{status}: {found}")
        attack.join()
        return verdict

    for name, code in _NEIGHBOURS.items():
        yield Case("neighbours", name, lambda name=name, code=code: beside(name, code))

    def again(first: str) -> Verdict:
        """Check that a question gets another answer once the machine has room: the code reads the clock."""
        text = f"import os, time\nif time.time() < {time.time() + 6}: {first}\n{_HONEST}"
        failed = service.code(text, "bob")
        time.sleep(7)
        found = service.code(text, "bob")
        return _if(failed[0] != 422 or found[0] != 200, f"{failed} then {found}")

    for error in (
        "raise BlockingIOError(11, 'x')",
        "raise MemoryError",
        "raise OSError(28, 'x')",
        "raise ValueError('x')",
        "os.kill(os.getpid(), 9)",
    ):
        yield Case("failures are not kept", error, lambda error=error: again(error))


def _queue(service: Tried) -> Iterator[Case]:
    def filled() -> Verdict:
        for number in range(200):
            service.post(
                "/v1/checks",
                {
                    **_MODEL,
                    "target": "torchvision:vgg11",
                    "batch": [f"{number + 1}x3x64x64"],
                    "labels": f"{number + 1}:int64<1000",
                    "wait_s": 0,
                },
            )
        began = time.monotonic()
        status, found = service.post(
            "/v1/checks", {**_MODEL, "batch": ["7x3x64x64"], "labels": "7:int64<1000", "wait_s": 60}, "bob"
        )
        taken = time.monotonic() - began
        return _if(status != 200 or taken > 30, f"{status} after {taken:.0f} s: {json.dumps(found)[:150]}")

    yield Case("the queue", "200 questions by one who does not wait", filled)


def _connections(service: Tried) -> Iterator[Case]:
    """Yield connections that hold resources without a request; bob gets an answer after each."""

    def judged(attack: Callable[[], str]) -> Verdict:
        before = _resident_bytes(service.process.pid)
        said = attack()
        grown = _resident_bytes(service.process.pid) - before
        status = service.post("/v1/checks", _MODEL, "bob")[0]
        return _if(bool(said) or grown > 150 * MIB or status != 200, f"{said}; grew by {grown // MIB} MiB; bob got {status}")

    def opened() -> socket.socket:
        return socket.create_connection((_HOST, service.port), timeout=15)

    def endless(piece: bytes) -> Callable[[], str]:
        def attack() -> str:
            one, sent = opened(), 0
            one.sendall(b"POST /v1/checks HTTP/1.1\r\nHost: x\r\n")
            with contextlib.closing(one), contextlib.suppress(OSError):
                while sent < 64 * MIB:
                    one.sendall(piece)
                    sent += len(piece)
            return "64 MiB of headers were taken" if sent >= 64 * MIB else ""

        return attack

    def unread() -> str:
        clients = [opened() for _ in range(100)]
        for one in clients:
            one.setblocking(False)
            with contextlib.suppress(OSError):
                while True:
                    one.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        time.sleep(30)
        still = len(_connected(service.process.pid))
        for one in clients:
            one.close()
        return f"{still} connections are open after 30 s" if still > 10 else ""

    def trailers() -> str:
        one, sent = opened(), 0
        one.sendall(
            f"POST /v1/checks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['alice']}\r\n".encode()
            + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
        )
        with contextlib.closing(one), contextlib.suppress(OSError):
            while sent < 64 * MIB:
                one.sendall(b"a: b\r\n" * 10_000)
                sent += 60_000
        return ""

    yield Case("connections", "headers without end", lambda: judged(endless(b"a: b\r\n" * 10_000)))
    yield Case("connections", "one header without end", lambda: judged(endless(b"a" * 60_000)))
    yield Case("connections", "trailers without end", lambda: judged(trailers))
    yield Case("connections", "100 clients that ask and read nothing", lambda: judged(unread))


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process alone. spec: proc(5), statm, the second number."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _connected(pid: int) -> list[str]:
    """Return the sockets of a process that are connected over TCP."""
    established = {
        line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] in ("01", "08")
    }
    links = [
        os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if os.path.lexists(f"/proc/{pid}/fd/{fd}")
    ]
    return [link for link in links if link.startswith("socket:[") and link[8:-1] in established]


# ------------------------------------------------------------------------------------------------ the end, and the disk
def _left(service: Tried) -> Iterator[Case]:
    """Yield the remains of a service after its end; the one before ended with SIGTERM."""
    left = sorted(path.name for path in (service.folder / "tmp").iterdir())
    yield Case("what is left", "folders of workers", lambda: _if(bool(left), f"{left}", Wrong.ORPHAN))
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"vramcast-{service.process.pid}-*")]
    yield Case("what is left", "control groups", lambda: _if(bool(groups), f"{groups}", Wrong.ORPHAN))
    children = descendants(service.process.pid)
    yield Case("what is left", "processes", lambda: _if(bool(children), f"{children}", Wrong.ORPHAN))
    log = (service.folder / "log").read_text()
    yield Case(
        "what is left", "tokens in the log", lambda: _if(any(token in log for token in TOKENS.values()), "a token is in it")
    )
    yield Case(
        "what is left",
        "unexpected errors in the log",
        lambda: _if("unexpected error" in log, log[log.find("unexpected error") :][:300], Wrong.TRACEBACK),
    )


def _full_disk(folder: Path) -> Iterator[Case]:
    """Yield requests to a service whose disk is full: a tmpfs of its own, which needs root."""
    if os.geteuid() != 0:
        return
    folder.mkdir()
    data = folder / "data"
    data.mkdir()
    mounted = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=256k none {data} && exec "$@"', "sh")
    with served(folder, "--workers", "1", before=mounted) as service:
        filler = f"/proc/{service.process.pid}/root{data}/filler"

        def fill() -> Verdict:
            service.post("/v1/checks", {**_MODEL, "batch": ["2x3x64x64"], "labels": "2:int64<1000"})
            with contextlib.suppress(OSError), open(filler, "wb", 0) as file:
                while True:
                    file.write(bytes(512))
            found = service.post("/v1/checks", _MODEL)
            return _judged(found, 200, lambda _, body: "" if body["kept"] is False else "it reports kept")

        def same(path: str) -> Callable[[], Verdict]:
            return lambda: _judged(service.post(path, _MODEL), 200, lambda _, body: "" if body["kept"] is False else f"{body}")

        def observed() -> tuple[int, Any]:
            return service.post(
                "/v1/observations", {"estimate_id": service.id_of(_MODEL), "outcome": "finished", "process_bytes": GIB}
            )

        def health(status: str) -> Verdict:
            found = service.ask("GET", "/healthz")
            return _judged(
                found,
                200,
                lambda _, body: "" if body["status"] == status and ("full" in str(body)) == (status != "ok") else f"{body}",
            )

        def room() -> Verdict:
            Path(filler).unlink()
            return _judged(observed(), 201)

        yield Case("full disk", "a check", fill)
        yield Case("full disk", "the same check", same("/v1/checks"))
        yield Case("full disk", "its estimate", same("/v1/estimates"))
        yield Case(
            "full disk",
            "an observation",
            lambda: _judged(observed(), 503, lambda _, body: "" if "full" in str(body) else f"{body}"),
        )
        yield Case("full disk", "health", lambda: health("degraded"))
        yield Case("full disk", "an observation, when there is room", room)
        yield Case("full disk", "health, when there is room", lambda: health("ok"))
