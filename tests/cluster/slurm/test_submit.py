"""A submission, from its options to the instructions for Slurm, against a service that answers well, slowly, or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.cluster.answer import Unanswerable
from vramcast.cluster.slurm import submit
from vramcast.cluster.slurm.__main__ import main
from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.cluster.slurm.site_settings import SiteSettings, read_settings
from vramcast.core.errors import UsageError
from vramcast.core.units import GIB, MIB

NAMED = "#VRAMCAST target=torchvision:resnet50 batch=8x3x224x224\ntorchrun train.py\n"
SMALL, LARGE = 14913 * MIB, 40507 * MIB


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "job.sh").write_text(f"#!/bin/bash\n{NAMED}")
    return folder / "job.sh"


def options(**more: Any) -> dict[str, Any]:
    return {"argv": ["job.sh"], "gres": "gres:gpu:1", "partition": "small", **more}


def decided(settings: SiteSettings, kind: str = "sbatch", **more: Any) -> Any:
    return submit.decision_on(kind, options(**more), Path.cwd(), {}, settings)


def both_fit(service: Any) -> None:
    service.fits("t4", 3 * GIB, 4 * GIB - 1, SMALL)
    service.fits("a100-40gb", 3 * GIB, 4 * GIB, LARGE)


def test_asks_about_named_job_on_each_card(service: Any, settings: SiteSettings, script: Path) -> None:
    both_fit(service)
    decision = decided(settings)
    assert decision.changes["gres"] == "shard:4"
    bodies = {body["device"]: body for _, body, _ in service.asked}
    assert set(bodies) == {"t4", "a100-40gb"}
    assert bodies["t4"]["target"] == "torchvision:resnet50"
    assert (bodies["t4"]["level"], 0 < bodies["t4"]["wait_s"] < settings.timeout_s) == (0.99, True)
    assert {token for _, _, token in service.asked} == {"Bearer secret"}


def test_sends_script_with_surrounding_code(
    service: Any, settings: SiteSettings, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_fit(service)
    text = "#!/bin/bash\nexport LR=1\nsource set.sh\nsrun python train.py --lr $LR $EXTRA\n"
    script.write_text(text)
    for name in ("train.py", "model/net.py", "conf.yaml", "set.sh", ".git/config.py", "data.bin", "wandb/x.py"):
        path = script.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = os.environ['READ_BY_CODE']")
    submitted = {
        "EXTRA": "a",
        "READ_BY_CODE": "b",
        "UNREAD": "c",
        "HOME": "/home/ann",
        "PYTORCH_ALLOC_CONF": "d",
        "SLURM_X": "e",
    }
    asked = options(ntasks="2", export="ALL,EXTRA=f", argv=["job.sh", "1 2"])
    submit.decision_on("sbatch", asked, Path.cwd(), submitted, settings)
    path, body, _ = service.asked[0]
    assert path == "/v1/scripts"
    assert (body["script"], body["arguments"], body["folder"]) == (text, ["1 2"], str(script.parent))
    assert set(body["files"]) == {"train.py", "model/net.py", "conf.yaml", "set.sh", "job.sh"}
    assert body["environment"] == {"EXTRA": "f", "READ_BY_CODE": "b", "HOME": "/home/ann", "PYTORCH_ALLOC_CONF": "d"}
    assert (body["tasks"], body["nodes"], body["cards"]) == (2, 1, 1)


def sent(service: Any, settings: SiteSettings, script: Path, submitted: dict[str, str] | None = None, **more: Any) -> Any:
    """Return the body of the request about the files in the job's folder."""
    both_fit(service)
    submit.decision_on("sbatch", options(**more), Path.cwd(), submitted or {}, settings)
    return service.asked[-1][1]


def test_sends_unusual_configs(service: Any, settings: SiteSettings, script: Path) -> None:
    script.write_text("source env/set\npython train.py @args --table hp.csv\n")
    texts = {"train.py": "load_dotenv(); open('own.cfgx')", "big.yaml": "batch: 512", ".env": "BATCH=512\n", "own.cfgx": "y"}
    texts |= {
        "m.env": "B=1",
        "x.gin": "b",
        "x.conf": "b",
        "x.json5": "{}",
        ".hydra/config.yaml": "b",
        "env/a.yaml": "b",
        "args": "x",
    }
    texts |= {"build/b.yaml": "b", "hp.csv": "1", "real/c.yaml": "b", "env/set": "C=1"}
    others = {"venv/pyvenv.cfg": "", "venv/x.py": "", "unread.xyz": "", "notes.csv": "1", ".git/config.yaml": "b"}
    for name, text in {**texts, **others}.items():
        (script.parent / name).parent.mkdir(exist_ok=True)
        (script.parent / name).write_text(text)
    (script.parent / "config.yaml").symlink_to("big.yaml")
    (script.parent / "conf").symlink_to("real")
    files = sent(service, settings, script)["files"]
    assert set(files) == {*texts, "config.yaml", "conf/c.yaml", "job.sh"}
    assert files["config.yaml"] == "batch: 512"


def test_does_not_send_secrets_of_environment_files(service: Any, settings: SiteSettings, script: Path) -> None:
    script.write_text("python train.py\n")
    secret = "API_KEY='a\nb'\nexport HF_TOKEN=c\nPASSWORD=\"d\"\n"
    (script.parent / ".env").write_text(f"BATCH=8\n{secret}LR='x'\n")
    assert sent(service, settings, script)["files"][".env"] == "BATCH=8\nAPI_KEY=\nexport HF_TOKEN=\nPASSWORD=\nLR='x'\n"


@pytest.mark.parametrize("name", ["large.yaml", "outside.yaml", "binary.cfgx", "conf/outside.yaml"])
def test_file_that_is_not_sent_makes_answer_uncertain(name: str, service: Any, settings: SiteSettings, script: Path) -> None:
    elsewhere = script.parents[1] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "outside.yaml").write_text("secret")
    (script.parent / "conf").symlink_to(elsewhere)
    (script.parent / "outside.yaml").symlink_to(elsewhere / "outside.yaml")
    (script.parent / "large.yaml").write_bytes(b"x" * (MIB + 1))
    (script.parent / "binary.cfgx").write_bytes(b"\0\xff")
    script.write_text(f"python train.py --config {name}\n")
    (script.parent / "model.pt").write_bytes(b"\0")
    both_fit(service)
    decision = decided(settings)
    assert (decision.changes, decision.is_refused) == ({}, False)
    assert f"{name} was not sent" in decision.line.replace("conf/outside.yaml, outside.yaml", name)
    assert not {name, "outside.yaml"} & service.asked[-1][1]["files"].keys()


def test_data_and_unnamed_files_leave_answer_certain(service: Any, settings: SiteSettings, script: Path) -> None:
    script.write_text("python train.py --resume model.pt\n")
    (script.parent / "model.pt").write_bytes(b"\0")
    (script.parent / "large.yaml").write_bytes(b"x" * (MIB + 1))
    both_fit(service)
    assert decided(settings).changes["gres"] == "shard:4"


def test_cards_of_tasks_are_kept(service: Any, settings: SiteSettings, script: Path) -> None:
    both_fit(service)
    assert "gres" not in decided(settings, **{"gres": "", "tres-per-task": "gres/gpu:1"}).changes


def test_reports_unknown_line_and_keeps_job(service: Any, settings: SiteSettings, script: Path) -> None:
    script.write_text("make train\n")
    message = "line 1 is not understood (`make train`: what it does is not known)"
    service.answers["/v1/scripts"] = 422, {"error": {"kind": "cannot_estimate", "message": message}}
    for when_away in ("submit", "refuse"):
        decision = decided(replace(settings, when_away=when_away))  # type: ignore[arg-type]
        assert (decision.changes, decision.is_refused) == ({}, False)
        assert message in decision.line


@pytest.mark.parametrize("named", [True, False])
def test_steps_that_request_cards_keep_card(named: bool, service: Any, settings: SiteSettings, script: Path) -> None:
    service.fits("t4", 3 * GIB, 4 * GIB - 1, SMALL)
    service.answers["/v1/scripts t4"] = 200, {**service.answers["/v1/checks t4"][1], "steps_ask_for_cards": True}
    script.write_text((NAMED if named else "") + "srun --gres=gpu:1 python train.py\n")
    assert "gres" not in decided(settings).changes


@pytest.mark.parametrize(
    ("kind", "more", "text"),
    [
        ("salloc", {}, NAMED),
        ("sbatch", {"partition": "cpu"}, NAMED),
        ("sbatch", {"argv": []}, NAMED),
        ("sbatch", {"argv": ["missing.sh"]}, NAMED),
        ("sbatch", {}, f"#VRAMCAST off\n{NAMED}"),
        ("sbatch", {"gres": ""}, "python train.py\n"),
    ],
)
def test_ignores_other_jobs(
    kind: str, more: dict[str, Any], text: str, service: Any, settings: SiteSettings, script: Path
) -> None:
    script.write_text(text)
    assert decided(settings, kind, **more).changes == {}
    assert not service.asked


def test_asks_about_srun_outside_jobs_only(service: Any, settings: SiteSettings, script: Path) -> None:
    both_fit(service)
    step = {"argv": ["python", "train.py"], "gres": "gres:gpu:1", "partition": "small"}
    assert submit.decision_on("srun", step, Path.cwd(), {"SLURM_JOB_ID": "7"}, settings).changes == {}
    assert submit.decision_on("srun", step, Path.cwd(), {}, settings).changes["gres"] == "shard:4"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((202, {"state": "running"}), "not ready"),
        ((429, {}), "too many"),
        ((422, {"error": {"message": "no such model"}}), "no such model"),
        ((500, []), "500"),
        ((200, {"id": 1}), "not in the expected format"),
    ],
)
def test_submits_unchanged_without_estimate(answer: Any, why: str, service: Any, settings: SiteSettings, script: Path) -> None:
    service.answers["/v1/checks"] = answer
    decision = decided(settings)
    assert (decision.changes, decision.is_refused) == ({}, False)
    assert why in decision.line


def test_reports_unknown_word_in_mark(settings: SiteSettings, script: Path) -> None:
    script.write_text("#VRAMCAST target\npython train.py\n")
    assert "'target' in its #VRAMCAST line" in decided(settings).line


@pytest.mark.parametrize("what", ["a pipe", "a device", "a folder", "a name with a NUL"])
def test_reads_regular_files_only(what: str, service: Any, settings: SiteSettings, script: Path) -> None:
    os.mkfifo("pipe")
    name = {"a pipe": "pipe", "a device": "/dev/zero", "a folder": ".", "a name with a NUL": "a\0b"}[what]
    assert decided(settings, argv=[name]).changes == {}
    assert not service.asked


def test_comment_stays_on_one_line(service: Any, written: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both_fit(service)
    hostile = options(comment="mine\nset partition secret\r\nrefuse x\u2028set gres gpu:8")
    main(["--settings", str(written), "submit", "sbatch", json.dumps(hostile)])
    lines = capsys.readouterr().out.splitlines()
    assert (
        sum(line.startswith("set comment mine set partition secret refuse x set gres gpu:8 vramcast=") for line in lines) == 1
    )
    assert not any(line.startswith(("set partition", "refuse")) for line in lines)


def test_does_not_send_too_much_code(settings: SiteSettings, script: Path) -> None:
    script.write_text("python train.py\n")
    for k in range(501):
        (script.parent / f"{k}.py").write_text("")
    with pytest.raises(Unanswerable, match="name the model"):
        decided(settings)


# -- the process ---------------------------------------------------------------------------------------------------


@pytest.fixture
def written(settings: SiteSettings, tmp_path: Path) -> Path:
    path = tmp_path / "vramcast.toml"
    path.write_text(f'service = "{settings.service}"\nmode = "fill"\ntimeout_s = 1\n[partitions]\nsmall = "t4"\n')
    return path


def test_hook_prints_instructions(service: Any, written: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both_fit(service)
    assert main(["--settings", str(written), "submit", "sbatch", json.dumps(options())]) == 0
    lines = dict(
        line.split(" ", 1) if line[:3] != "set" else line[4:].split(" ", 1) for line in capsys.readouterr().out.splitlines()
    )
    assert lines["gres"] == "shard:4"
    assert Ticket.found_in(lines["comment"]) is not None
    assert lines["say"].startswith("vramcast: 3.00 GiB")


def test_slow_service_does_not_delay_submission(
    service: Any, written: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.wait_s = 1.2
    main(["--settings", str(written), "submit", "sbatch", json.dumps(options())])
    assert "did not answer in time" in capsys.readouterr().out


@pytest.mark.integration
def test_hook_exits_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        submit._end_after(0.1, lambda: os.write(writer, b"over") and None)
        time.sleep(60)
        os._exit(1)
    os.close(writer)
    with open(reader, "rb") as said:
        assert said.read() == b"over"
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"argv": 5}', "[" * 100_000, '{"argv": ["\\u0000"], "gres": "gpu:1"}'])
def test_odd_options_give_a_message(text: str, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--settings", str(written), "submit", "sbatch", text]) == 0
    assert capsys.readouterr().err == ""
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_reports_wrong_settings_and_submits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--settings", str(tmp_path / "none"), "submit", "sbatch", "{}"]) == 0
    assert capsys.readouterr().out.startswith("say vramcast: The settings")


# -- settings ------------------------------------------------------------------------------------------------------


def test_reads_example_settings() -> None:
    found = read_settings(Path(__file__).parents[3] / "contrib" / "slurm" / "vramcast.toml")
    assert (found.mode, found.when_away, found.shard_bytes, found.requeues) == ("watch", "submit", GIB, False)
    assert found.partitions == {"small": "t4", "large": "a100-40gb"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mode = 'all'", "mode is 'all': one of watch, fill"),
        ("timeout_s = -1", "from 0 to 600"),
        ("timeout_s = '2'", "finite number"),
        ("level = 2", "from 0 to 1"),
        ("shard = '0GiB'", "not positive"),
        ("modes = 1", "did you mean 'mode'"),
        ("requeues = 1", "true or false"),
        ("token_file = 1", "token_file is 1: text"),
        ("partitions = 3", "partitions is 3: an object"),
        ("partitions = {small = 4}", r"partitions\['small'\] is 4: text"),
        ("partitions = {}", "no partitions"),
        ("x = [", "cannot be read"),
    ],
)
def test_wrong_settings_error_names_expectation(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    partitions = "" if "partitions" in line else "partitions = {small = 't4'}"
    path.write_text(f"service = 'http://x'\n{line}\n{partitions}\n")
    with pytest.raises(UsageError, match=why):
        read_settings(path)


def test_unreadable_token_is_an_error(settings: SiteSettings) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        replace(settings, token_file="/nonexistent").token()
    assert replace(settings, token_file="").token() == ""
