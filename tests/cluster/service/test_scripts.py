"""Batch scripts over HTTP: read by a worker, their commands estimated like others, and answered together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("tree_sitter_bash")
from fastapi.testclient import TestClient  # after the lines above

from tests.cluster.service.doubles import GIB, Instant, estimate
from vramcast.cluster.service.access import Rules
from vramcast.cluster.service.app import create_app
from vramcast.cluster.service.service import Service
from vramcast.cluster.service.store import Store
from vramcast.cluster.service.worker_main import answer
from vramcast.core.errors import WorkerError

FILES = {"a.py": "", "b.py": "", "src/a.py": "x = 1", "src/conf.yaml": ""}


class Sandboxes(Instant):
    """Reads scripts like a worker, in a folder; a command takes as many GiB as its last word says.

    Attributes:
        questions: The questions so far.
        fails: Whether the next script hits a failure of the machine.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.questions: list[dict[str, Any]] = []
        self.fails = False
        self._folder = folder

    async def ask(self, values: dict[str, Any], *_: Any) -> dict[str, Any]:
        """Return the answer to a question."""
        self.questions.append(values)
        await self.gate.wait()
        if "script" in values:
            if self.fails:
                raise WorkerError("The process that traced the job crashed.")
            with contextlib.chdir(self._folder):
                return answer(values)
        return estimate(int(float(values["command"][-1]) * GIB))


@pytest.fixture
def sandboxes(tmp_path: Path) -> Sandboxes:
    (tmp_path / "sandbox").mkdir()
    return Sandboxes(tmp_path / "sandbox")


@pytest.fixture
def http(tmp_path: Path, sandboxes: Any) -> Iterator[TestClient]:
    with closing(Store(tmp_path / "kept")) as store:
        service = Service(store, Instant(), "v1", sandboxes=sandboxes)  # type: ignore[arg-type]
        with TestClient(create_app(service, [], Rules(allows_code=True))) as found:
            yield found


def asked(http: TestClient, script: str, **more: Any) -> Any:
    body = {"script": script, "folder": "/home/ann/job", "files": FILES, "device": "a100", **more}
    return http.post("/v1/scripts", json=body)


def said(http: TestClient, script: str, **more: Any) -> tuple[str, float, bool]:
    """Return the verdict, the requested GiB, and whether the answer belongs to one estimate; levels are twice the point."""
    answered = asked(http, script, **more)
    assert answered.status_code == 200, answered.text
    found = answered.json()
    return found["verdict"]["value"], found["request_bytes"] / GIB, "id" in found


def test_takes_largest_or_sum_of_commands(http: TestClient) -> None:
    assert said(http, "python a.py 1\npython b.py 3") == ("fits", 6, True)
    assert said(http, "python a.py 1 &\npython b.py 3 &\nwait\npython b.py 2") == ("fits", 8, False)
    assert said(http, "srun python a.py 1", tasks=4) == ("fits", 8, False)
    assert said(http, "srun python a.py 1", tasks=4, cards=4) == ("fits", 2, True)


def test_refuses_only_certain_misfits(http: TestClient) -> None:
    both = "python a.py 30 &\npython b.py 30 &\nwait"
    assert said(http, both)[0] == "does not fit"
    assert "overlap" in asked(http, both).json()["verdict"]["reason"]
    assert said(http, both, cards=2)[0] == "uncertain"
    assert said(http, f"if [ -f x ]; then\n{both}\nfi")[0] == "uncertain"
    assert said(http, "python a.py 15 &\npython b.py 15 &\nwait")[0] == "uncertain"


def test_commands_keep_folder_and_variables(http: TestClient, sandboxes: Sandboxes) -> None:
    script = "cd src\nexport LR=$RATE\nsrun python a.py 1"
    asked(http, script, environment={"RATE": "0.1", "API_TOKEN": None}, tasks=2)
    of_command = sandboxes.questions[-1]
    assert of_command["command"] == ["python", "a.py", "1"]
    assert of_command["files"] == {"a.py": "x = 1", "conf.yaml": ""}
    assert of_command["environment"] == {"LR": "0.1", "RATE": "0.1"}
    assert (of_command["world_size"], of_command["nproc_per_node"]) == (2, 2)


def test_reads_script_once_and_keeps_answer(http: TestClient, sandboxes: Sandboxes) -> None:
    for _ in range(3):
        assert said(http, "python a.py 1") == ("fits", 2, True)
    assert len(sandboxes.questions) == 2
    sandboxes.gate.clear()
    assert asked(http, "python a.py 2", wait_s=0).status_code == 202
    sandboxes.gate.set()
    assert said(http, "python a.py 2") == ("fits", 4, True)
    assert len(sandboxes.questions) == 4


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("python a.py 1\nmake train", "line 2 is not understood (`make train`"),
        ("python a.py $(date)", "$(date)"),
        ("echo", "no training command"),
        ("python missing.py", "no script or command 'missing.py'"),
        ("(" * 300, "line 1"),
    ],
)
def test_names_unknown_line_without_estimate(script: str, message: str, http: TestClient, sandboxes: Sandboxes) -> None:
    for _ in range(2):
        answered = asked(http, script)
        assert (answered.status_code, answered.json()["error"]["kind"]) == (422, "cannot_estimate")
        assert message in answered.json()["error"]["message"]
    assert len(sandboxes.questions) == 1


def test_does_not_cache_machine_failures(http: TestClient, sandboxes: Sandboxes) -> None:
    sandboxes.fails = True
    assert asked(http, "python a.py 1").json()["error"]["kind"] == "worker"
    sandboxes.fails = False
    assert said(http, "python a.py 1")[0] == "fits"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"files": {"../x": ""}}, 400),
        ({"files": {"/etc/x": ""}}, 400),
        ({"folder": "job"}, 400),
        ({"tasks": 0}, 400),
        ({"nodes": "2"}, 400),
        ({"odd": 1}, 400),
        ({"environment": {"A": 1}}, 400),
        ({"device": "x.toml"}, 400),
        ({"script": "x" * (2 << 20)}, 400),
    ],
)
def test_rejects_wrong_request(more: dict[str, Any], status: int, http: TestClient) -> None:
    answered = asked(http, **{"script": "python a.py 1", **more})
    assert (answered.status_code, answered.json()["error"]["kind"]) == (status, "usage")


def test_rejects_scripts_without_code_execution(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        service = Service(store, Instant(), "v1")  # type: ignore[arg-type]
        with TestClient(create_app(service, [], Rules())) as http:
            assert asked(http, "python a.py 1").status_code == 403
