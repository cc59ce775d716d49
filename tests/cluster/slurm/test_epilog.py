"""The end of a job: its sampled peak, its exit status, and the reports to the service and to Slurm."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.cluster.slurm import epilog, peaks, requeue
from vramcast.cluster.slurm.__main__ import main
from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.cluster.slurm.exit_status import EndedJob, outcome_of, read_environment
from vramcast.cluster.slurm.requeue import come_back, note_peak
from vramcast.cluster.slurm.site_settings import SiteSettings
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories.noted_peak import NotedPeak

TICKET = Ticket("c" * 64, 4 * GIB, 14913 * MIB)
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ..."


def variables(folder: Path, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "12", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid()), "SLURM_JOB_EXIT_CODE": "0",
        "SLURM_JOB_RESTART_COUNT": "1", "SLURM_JOB_COMMENT": f"mine {TICKET}", "SLURM_JOB_WORK_DIR": str(folder), **more,
    }  # fmt: skip


def job(folder: Path, **more: str) -> EndedJob:
    found = read_environment(variables(folder, **more))
    assert found is not None
    return found


# -- sampling ------------------------------------------------------------------------------------------------------


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    said: dict[str, list[list[str]]] = {"compute": [], "gpu": [["G0", "14913", "Tesla T4"], ["G1", "[N/A]", "x"]]}
    monkeypatch.setattr(peaks, "_smi", lambda words: iter(said["compute" if "compute" in words[0] else "gpu"]))
    return said


def test_peak_is_largest_sum_per_card(smi: dict[str, list[list[str]]], tmp_path: Path) -> None:
    jobs: dict[str, peaks.JobPeaks] = {}
    cards = peaks.node_cards()
    owners = {1: "12", 2: "12", 3: "13"}
    for rows in (
        [["G0", "1", "100"], ["G0", "3", "7"]],
        [["G0", "1", "90"], ["G0", "2", "50"], ["G1", "2", "1"]],
        [["G0", "1", "[N/A]"]],
    ):
        smi["compute"] = [*rows, ["G0", "9", "999"]]
        peaks.take_sample(jobs, cards, tmp_path, owners.get)
    found = {one.name: one for one in peaks.read_peaks(tmp_path, "12")}
    assert {name: one.peak_bytes for name, one in found.items()} == {"Tesla T4": 140 * MIB, "x": MIB}
    assert found["Tesla T4"].capacity_bytes == 14913 * MIB
    assert found["x"].capacity_bytes is None
    assert [one.peak_bytes for one in peaks.read_peaks(tmp_path, "13")] == [7 * MIB]


def test_forgets_job_after_its_epilog(smi: dict[str, list[list[str]]], tmp_path: Path) -> None:
    jobs: dict[str, peaks.JobPeaks] = {}
    smi["compute"] = [["G0", "1", "100"]]
    peaks.take_sample(jobs, {}, tmp_path, lambda pid: "12")
    (tmp_path / "12.json").unlink()
    smi["compute"] = []
    peaks.take_sample(jobs, {}, tmp_path, lambda pid: "12")
    assert jobs == {}


def test_ignores_damaged_peaks(tmp_path: Path) -> None:
    assert peaks.read_peaks(tmp_path, "1") == []
    for text in ("", "{", "[]", '{"cards": {"a": {}}}', '{"cards": 3}'):
        (tmp_path / "1.json").write_text(text)
        assert peaks.read_peaks(tmp_path, "1") == []


@pytest.mark.integration
def test_finds_job_in_environment_without_cgroup() -> None:
    child = os.fork()
    if child == 0:
        os.execve("/bin/sleep", ["sleep", "60"], {"SLURM_JOB_ID": "77"})
    try:
        latest = time.monotonic() + 30
        while peaks._job_of(child) is None and time.monotonic() < latest:  # until the kernel has written its environment
            time.sleep(0.01)
        assert peaks._job_of(child) == "77"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert peaks._job_of(child) is None


# -- exit status -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "file"),
    [("", "slurm-12.out"), ("%x-%j.out", "*-12.out"), ("o.%4j", "o.0012"), ("%A_%a.log", "10_3.log"), ("100%%", "100%")],
)
def test_finds_output_by_pattern(pattern: str, file: str, tmp_path: Path) -> None:
    more = {"SLURM_JOB_STDOUT": pattern} if pattern else {}
    if "_" in pattern:
        more |= {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    assert job(tmp_path, **more).outputs == (tmp_path / file,)


@pytest.mark.parametrize("pattern", ["%1000000000j", "%10000000000j", "%" + "9" * 5000 + "j", "%10j" * 1000])
def test_limits_padding_of_pattern(pattern: str, tmp_path: Path) -> None:
    outputs = job(tmp_path, SLURM_JOB_STDOUT=pattern).outputs
    assert all(len(str(path)) < 20_000 for path in outputs)
    assert job(tmp_path, SLURM_JOB_STDOUT="%12j").outputs == (tmp_path / "0000000012",)


@pytest.mark.parametrize("name", ["**", "**a", "[", "a\0b"])
def test_tolerates_odd_job_names(name: str, tmp_path: Path) -> None:
    failed = job(tmp_path, SLURM_JOB_EXIT_CODE="256", SLURM_JOB_STDOUT="%x.out", SLURM_JOB_NAME=name)
    assert outcome_of(failed) == "unknown"


@pytest.mark.parametrize("number", ["1_0", "１２", " 12", "+12", "9" * 5000])
def test_ignores_non_decimal_job_ids(number: str) -> None:
    assert read_environment({"SLURM_JOB_ID": number, "SLURM_JOB_UID": "1"}) is None
    assert read_environment({"SLURM_JOB_ID": "12", "SLURM_JOB_UID": number}) is None


def test_detects_out_of_memory_in_output(tmp_path: Path) -> None:
    failed = job(tmp_path, SLURM_JOB_EXIT_CODE="256", SLURM_JOB_STDOUT="%x.out")
    assert outcome_of(failed) == "unknown"
    (tmp_path / "name.out").write_text("x" * 300_000 + FULL)
    assert outcome_of(failed) == "out_of_memory"
    assert outcome_of(job(tmp_path, SLURM_JOB_STDOUT="name.out")) == "finished"
    (tmp_path / "name.out").write_text(FULL + "x" * 300_000)
    assert outcome_of(failed) == "unknown"


def test_pipe_as_output_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert outcome_of(job(tmp_path, SLURM_JOB_EXIT_CODE="1", SLURM_JOB_STDOUT="pipe")) == "unknown"
    assert outcome_of(job(tmp_path, SLURM_JOB_EXIT_CODE="1", SLURM_JOB_STDOUT=".")) == "unknown"


@pytest.mark.integration
@pytest.mark.skipif(os.getuid() != 0, reason="drops root's rights: needs root")
def test_reads_output_with_users_rights(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(FULL)
    (tmp_path / "secret").chmod(0o600)
    asked = job(tmp_path, SLURM_JOB_EXIT_CODE="1", SLURM_JOB_STDOUT="secret", SLURM_JOB_UID="65534", SLURM_JOB_GID="65534")
    assert epilog.outcome_as_user(asked) == "unknown"
    assert epilog.outcome_as_user(replace(asked, uid=0, gid=0)) == "out_of_memory"


def test_ignores_other_environments() -> None:
    assert read_environment({}) is None
    assert read_environment({"SLURM_JOB_ID": "x", "SLURM_JOB_UID": "1"}) is None


# -- reports ---------------------------------------------------------------------------------------------------------


def _hooks(words: list[str], how: dict[str, Any]) -> list[str]:
    """Return the arguments of a hook, which starts by absolute path and imports nothing from a job's folder."""
    assert Path(words[0]).is_absolute()
    assert words[1:6] == ["-I", "-P", "-m", "vramcast.cluster.slurm", "--settings"]
    assert how["cwd"] == "/"
    return words[7:]


@pytest.fixture
def ended(settings: SiteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the epilog of a job with a sampled peak, and returns the commands that follow it."""
    started: list[list[str]] = []
    monkeypatch.setattr(epilog.subprocess, "Popen", lambda words, **how: started.append(_hooks(words, how)))
    monkeypatch.setattr(epilog, "read_settings", lambda _: current[0])
    monkeypatch.setattr(epilog, "outcome_as_user", outcome_of)  # without a process
    current = [settings]
    settings.peaks_folder.mkdir()

    def run(peak_mib: int | None = 3250, settings: SiteSettings = settings, **more: str) -> list[list[str]]:
        current[0] = settings
        if peak_mib is not None:
            card = {"peak_bytes": peak_mib * MIB, "capacity_bytes": 14913 * MIB, "name": "Tesla T4"}
            (settings.peaks_folder / "12.json").write_text(json.dumps({"cards": {"G0": card}, "samples": 3}))
        epilog.main("x.toml", variables(tmp_path, **more))
        return started

    return run


def test_reports_peak_of_each_attempt(service: Any, settings: SiteSettings, ended: Any) -> None:
    service.answers["/v1/observations"] = 201, {"id": "1"}
    assert ended() == []
    assert service.asked[0][1] == {
        "estimate_id": TICKET.estimate_id, "outcome": "finished", "request_bytes": 4 * GIB, "job_id": "12.1",
        "process_bytes": 3250 * MIB,
    }  # fmt: skip
    assert list(settings.outbox.iterdir()) == []
    assert list(settings.peaks_folder.iterdir()) == []


def test_retries_failed_reports_and_drops_rejected(service: Any, settings: SiteSettings, ended: Any) -> None:
    service.answers["/v1/observations"] = 503, {}
    ended()
    assert [path.name for path in settings.outbox.iterdir()] == ["12.1.json"]
    service.answers["/v1/observations"] = 201, {}
    ended(SLURM_JOB_ID="13", SLURM_JOB_COMMENT="", peak_mib=None)
    assert list(settings.outbox.iterdir()) == []
    service.answers["/v1/observations"] = 404, {}
    ended()
    assert list(settings.outbox.iterdir()) == []


def test_unreachable_service_only_costs_time(settings: SiteSettings, ended: Any) -> None:
    ended(settings=replace(settings, service="http://127.0.0.1:9"))
    assert [path.name for path in settings.outbox.iterdir()] == ["12.1.json"]


def test_requeues_failed_job_if_site_wants(service: Any, settings: SiteSettings, ended: Any, tmp_path: Path) -> None:
    service.answers["/v1/observations"] = 201, {}
    (tmp_path / "slurm-12.out").write_text(FULL)
    (tmp_path / "slurm-12.out").chmod(0o644)
    assert ended(SLURM_JOB_EXIT_CODE="256") == []
    assert service.asked[0][1]["outcome"] == "out_of_memory"
    assert ended(SLURM_JOB_EXIT_CODE="256", settings=replace(settings, requeues=True)) == [["come-back", "12", str(TICKET)]]


def test_notes_peak_without_estimate(service: Any, settings: SiteSettings, ended: Any) -> None:
    started = ended(settings=replace(settings, writes_admin_comment=True), SLURM_JOB_COMMENT="")
    assert started == [["note-peak", "12", "vramcast-peak=3250:14913:tesla-t4"]]
    assert not service.asked


def test_unknown_failure_is_no_observation(service: Any, ended: Any) -> None:
    ended(SLURM_JOB_EXIT_CODE="256")
    ended(peak_mib=None)
    assert not service.asked


def test_epilog_always_exits_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    assert main(["--settings", str(tmp_path / "none"), "epilog"]) == 0
    assert "cannot be read" in capsys.readouterr().err


# -- hooks that follow -----------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that presets the answers of Slurm's commands, and returns the calls from then on."""
    monkeypatch.setattr(requeue, "_PAUSE_S", 0)

    def says(**answers: tuple[bool, str]) -> list[str]:
        called: list[str] = []

        def call(words: list[str]) -> tuple[bool, str]:
            called.append(" ".join(words))
            return answers.get(words[1], (True, ""))

        monkeypatch.setattr(requeue, "call_slurm", call)
        return called

    return says


PENDING = "JobId=12 JobName=x JobState=PENDING Comment=the long ones, lr=0.1 vramcast=" + "c" * 64 + ":4096:14913 StdErr=/x"


def test_requeues_with_request_grown_by_half(settings: SiteSettings, slurm: Callable[..., list[str]]) -> None:
    called = slurm(**{"--oneliner": (True, PENDING)})
    assert come_back("12", TICKET, settings)
    assert called[0] == "scontrol requeuehold 12"
    assert called[2].startswith("scontrol update JobId=12 Gres=shard:6 Comment=the long ones, lr=0.1 vramcast=ccc")
    assert Ticket.found_in(called[2]) == replace(TICKET, request_bytes=6 * GIB)
    assert called[3] == "scontrol release 12"


def test_requeues_with_whole_card_once(settings: SiteSettings, slurm: Callable[..., list[str]]) -> None:
    called = slurm(**{"--oneliner": (True, PENDING)})
    assert come_back("12", replace(TICKET, request_bytes=10 * GIB), settings)
    assert "Gres=gpu:1" in called[2]
    assert not come_back("12", replace(TICKET, request_bytes=TICKET.capacity_bytes), settings)


def test_leaves_job_that_slurm_refuses(settings: SiteSettings, slurm: Callable[..., list[str]]) -> None:
    refused = slurm(requeuehold=(False, ""))
    assert not come_back("12", TICKET, settings)
    assert len(refused) == 1
    slurm(**{"--oneliner": (True, "JobState=COMPLETING")})
    assert not come_back("12", TICKET, settings)
    stays = slurm(**{"--oneliner": (True, PENDING), "update": (False, "")})
    assert not come_back("12", TICKET, settings)
    assert stays[-1] == "scontrol release 12"


def test_notes_peak_once_database_has_job(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(False, ""), (True, " Nothing found"), (True, " Modified jobs...\n  12 submitted at")])
    called: list[list[str]] = []

    def call(words: list[str]) -> tuple[bool, str]:
        called.append(words)
        return next(answers)

    monkeypatch.setattr(requeue, "call_slurm", call)
    monkeypatch.setattr(requeue, "_PAUSE_S", 0)
    assert note_peak("12", "vramcast-peak=1:2:x")
    assert called[-1][-2:] == ["set", "AdminComment=vramcast-peak=1:2:x"]


def test_noted_peak_survives_lowercasing() -> None:
    noted = NotedPeak.of(3250 * MIB, 14913 * MIB, "Tesla T4")
    assert NotedPeak.found_in(f"JS1:x {noted} more".lower()) == noted
    assert NotedPeak.found_in(str(NotedPeak.of(MIB, None, ""))) == NotedPeak(MIB, None, "")
    assert NotedPeak.found_in("vramcast-peak=") is None
