"""`check -- COMMAND`, `run -- COMMAND`, `estimate_command`: one answer, as exit codes and in Python; `largest -- COMMAND`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vramcast

Call = Callable[..., tuple[int, str, str]]

# A module of a package that trains, and prints its view of the command.
TRAINER = """
import os, sys, torch
assert sys.path[0] == os.getcwd() and sys.argv[1:] == ["--width", "1000"], (sys.path[0], sys.argv)
model = torch.nn.Linear(1000, 1000).cuda()
torch.distributed.init_process_group("gloo")
assert (torch.distributed.get_world_size(), os.environ["LOCAL_RANK"]) == (1, "0")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check",), "vramcast check TARGET"),
        (("check", "--"), "vramcast check TARGET"),
        (("check", "--on", "t4", "torchvision:vgg16", "--lr", "3", "--", "train.py"), "TARGET, --lr: this describes a model"),
        (("check", "--on", "t4", "--tracer", "cpu", "--", "train.py"), "--tracer cpu works for models"),
        (("run", "--tracer", "cpu", "--", "train.py"), "invalid choice: 'cpu'"),
        (("check", "--on", "t4", "--", "absent.py"), "no script or command 'absent.py'"),
        (("largest", "--on", "t4"), "No job is given"),
        (("largest", "--", "generate.py"), "No card is given"),
        (("largest", "--axis", "wide", "--on", "t4", "--", __file__), "--axis wide: expected batch, accumulate, prompt"),
        (("largest", "--axis", "batch=--bs", "--on", "t4", "--", __file__), "has no option --bs with a value"),
        (("largest", "--axis", "batch=env:BS", "--on", "t4", "--", __file__), "The variable BS is not set"),
        (("largest", "--axis", "batch=a.yaml:b", "--on", "t4", "--", __file__), "No word of the command names a.yaml"),
        (("largest", "--axis", "prompt", "--on", "t4", "hf:gpt2"), "--axis prompt: expected batch, accumulate, seq"),
    ],
)
def test_reports_wrong_usage_before_running(call: Call, words: tuple[str, ...], said: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_rejects_rank_outside_world(call: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = ("--", "torchrun", "--nproc_per_node=8", str(tmp_path / "train.py"))
    code, _, err = call("check", "--on", "t4", "--json", "--ranks", "8", *command)
    assert code == 2
    assert "Rank 8 (--ranks) does not exist" in err
    assert call("check", "--on", "t4", "--json", "--ranks", "first", *command)[0] == 2


@pytest.mark.usefixtures("tracer")
def test_checks_launched_module(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAINER)
    monkeypatch.chdir(tmp_path)
    command = ("torchrun", "--nproc_per_node=1", "-m", "package.train", "--width", "1000")
    code, out, err = call("check", "--json", "--on", "rtx4090", "--", *command)
    found = json.loads(out)
    assert (code, found["verdict"]["value"], found["steps"]) == (0, "fits", 3), err
    estimate = vramcast.estimate_command(" ".join(command), device="rtx4090")
    assert {"allocated": estimate.allocated, "reserved": estimate.reserved}.items() <= found["peaks"].items()
    small = str(found["peaks"]["min_feasible"] - (1 << 20))
    code, out, err = call("check", "--memory", small, "--on", "rtx4090", "--", *command)
    assert code == 1
    assert out.startswith("does not fit: needs ")
    code, out, _ = call("run", "--memory", small, "--device", "rtx4090", "--", *command)
    assert code == 1
    assert out.startswith("does not fit: needs ")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize("verb", [pytest.param(("run",), marks=pytest.mark.release), ("check", "--on", "t4")])
def test_terminal_shows_only_script_output(verb: tuple[str, ...], tmp_path: Path) -> None:
    """A line of progress would mix with them: `running train.py ... 2 sloss 0.1`."""
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(3):\n"
        "    print('my step', step, flush=True)\n"
        "    model(torch.ones(2, 8, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    terminal, end = os.openpty()
    try:
        command = [sys.executable, "-m", "vramcast", *verb, "--", "train.py"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"}
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=end, env=environment, timeout=300, check=False
        )
        shown = os.read(terminal, 65536).decode()  # a terminal's buffer has at least 4 KiB, and this output is shorter
    finally:
        os.close(terminal)
        os.close(end)
    assert done.returncode == 0, shown
    lines = [line.removeprefix("\x1b[K") for line in shown.splitlines()]  # in place of the line of progress
    assert [line for line in lines if "my step" in line] == [f"my step {step}" for step in range(3)]


# ------------------------------------------------------------------------------------------------ largest
TRAINED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(8))).cuda()
data = TensorDataset(torch.zeros(100_000, 1024))
loader = DataLoader(data, batch_size=8)
optimizer = torch.optim.SGD(model.parameters())
for step, (x,) in zip(range(5), loader):
    x = x.cuda()
    y = model(x)
    y.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GENERATOR = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel as Model
model = Model(GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=4096, n_positions={positions},
                         bos_token_id=None, eos_token_id=None)).cuda().bfloat16().eval()
prompt = torch.randint(1, 4096, (1, {tokens}), device="cuda")
model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False, eos_token_id=None,
               pad_token_id=0)
"""


@pytest.fixture
def generator(tmp_path: Path, tracer: Any, need: Callable[[str], Any]) -> Callable[..., str]:
    """Return a function that writes a script which generates with a small GPT-2, and returns its path."""
    need("transformers")

    def write(tokens: int, positions: int) -> str:
        path = tmp_path / f"generate{tokens}.py"
        path.write_text(GENERATOR.format(tokens=tokens, positions=positions))
        return str(path)

    return write


@pytest.mark.integration
def test_model_limits_prompt(call: Call, generator: Callable[..., str]) -> None:
    command = ("--on", "t4", "--", generator(24, 32))
    code, out, err = call("largest", "--axis", "seq", "--json", *command)
    said = json.loads(out)
    assert (code, said["value"], said["next"], said["limit"]) == (0, 28, None, "the model's 32 positions, 4 of them new"), err
    assert [(row["value"], row["verdict"]) for row in said["traced"]] == [(24, "fits"), (28, "fits")]


@pytest.mark.integration
def test_card_limits_prompt(call: Call, generator: Callable[..., str]) -> None:
    card = ("--on", "t4", "--memory", "400MiB")
    code, out, err = call("largest", *card, "--json", "--", generator(1024, 1 << 16))
    said = json.loads(out)
    rows = {row["value"]: row for row in said["traced"]}
    assert (code, rows[said["value"]]["verdict"]) == (0, "fits"), err
    assert rows[said["next"]]["verdict"] != "fits"
    assert (said["axis"], len(rows) <= 5, said["next"] > said["value"]) == ("prompt", True, True)
    code, out, err = call("check", *card, "--json", "--", generator(said["value"], 1 << 16))
    assert code == 0, err
    peaks, row = json.loads(out)["peaks"], rows[said["value"]]
    assert abs(peaks["process"] - row["process_bytes"]) <= 2 << 20  # a page more for the script's own prompt


@pytest.mark.integration
@pytest.mark.usefixtures("tracer")
def test_command_without_prompt_is_refused(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "forward.py"
    path.write_text("import torch\nprint(torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8, device='cuda')).sum())\n")
    code, _, err = call("largest", "--on", "t4", "--", str(path))
    assert code == 2
    assert "takes no batch from a data loader" in err
    code, _, err = call("largest", "--axis", "prompt", "--on", "t4", "--", str(path))
    assert code == 2
    assert "passes no prompt of tokens to `generate`" in err


@pytest.mark.integration
def test_largest_batch_of_command_is_changed_in_its_loader(call: Call, tmp_path: Path, tracer: Any) -> None:
    script = tmp_path / "train.py"
    own = TRAINED.replace("batch_size=8", "batch_size=2048")
    script.write_text(own)
    card = ("--on", "t4", "--memory", "700MiB", "--json")
    code, out, err = call("largest", "--steps", "8", *card, "--", str(script))
    said = json.loads(out)
    assert (code, said["value"] % 8, said["next"] > said["value"], len(said["traced"]) <= 5) == (0, 0, True, True), err
    assert said["way"] == f"batch_size={said['value']} of the data loader in {script}:6"
    script.write_text(own.replace("batch_size=2048", f"batch_size={said['value']}"))
    code, out, err = call("check", *card, "--", str(script))
    row = next(row for row in said["traced"] if row["value"] == said["value"])
    assert (code, json.loads(out)["peaks"]["process"]) == (0, row["process_bytes"]), err


@pytest.mark.integration
def test_largest_value_of_option_is_changed_in_the_command(call: Call, tmp_path: Path, tracer: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINED.replace("batch_size=8", "batch_size=int(__import__('sys').argv[2])"))
    words = ("largest", "--axis", "rows=--bs", "--steps", "pow2", "--traces", "2", "--on", "t4", "--memory", "700MiB", "--json")
    code, out, err = call(*words, "--", str(script), "--bs", "8")
    said = json.loads(out)
    assert (code, said["axis"], said["way"], len(said["traced"])) == (0, "rows", f"--bs {said['value']}", 2), err


@pytest.mark.integration
def test_largest_value_of_job_without_a_bound_is_uncertain(call: Call, tmp_path: Path, tracer: Any) -> None:
    script = tmp_path / "train.py"
    words = ("largest", "--traces", "3", "--on", "t4", "--memory", "700MiB", "--json", "--", str(script))
    counted = "z = torch.randn(4096, 4096, device='cuda'); (z @ z).argmax(1).bincount(); del z"  # too much work to follow
    script.write_text(TRAINED.replace("    optimizer.step()", f"    {counted}\n    optimizer.step()"))
    code, out, err = call(*words)
    said = json.loads(out)
    assert (code, said["value"] >= 8) == (4, True), err
    assert {row["verdict"] for row in said["traced"]} <= {"uncertain", "does not fit"}
    assert "no largest size" in said["doubts"][0]
    script.write_text(TRAINED.replace("    optimizer.step()", "    raise RuntimeError('no such kernel')"))
    code, out, _ = call(*words)
    assert (code, "Each batch is uncertain: the command ended early" in out) == (3, True)


EDITS = {
    "fused optimizer": ("model.parameters())", "model.parameters(), fused=True)"),
    "autocast bf16": ("    y = model(x)", "    with torch.autocast('cuda', torch.bfloat16): y = model(x)"),
    "activation offload": ("    y = model(x)", "    with torch.autograd.graph.save_on_cpu(pin_memory=True): y = model(x)"),
    "checkpointing": (
        "data = ",
        "import functools\nfrom torch.utils.checkpoint import checkpoint\nfor block in model:\n"
        "    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)\ndata = ",
    ),
    "half the batch, accumulated twice": (
        "batch_size=8)", "batch_size=4)\nTWICE = True",
    ),
}  # fmt: skip


@pytest.mark.release
@pytest.mark.integration
def test_each_row_of_advice_is_the_peak_of_the_edited_program(call: Call, tmp_path: Path, tracer: Any) -> None:
    script = tmp_path / "train.py"
    twice = ("    optimizer.step()\n    optimizer.zero_grad()", "    if step % 2: optimizer.step(); optimizer.zero_grad()")
    script.write_text(TRAINED)
    code, out, err = call("run", "--advise", "--memory", "300MiB", "--json", "--", str(script))
    rows = {row["change"]: row for row in json.loads(out)["advice"]}
    assert (code, set(rows) >= set(EDITS)) == (1, True), err
    for name, edit in EDITS.items():
        edited = TRAINED.replace(*edit)
        script.write_text(edited.replace(*twice) if "TWICE" in edited else edited)
        _, out, err = call("run", "--memory", "300MiB", "--json", "--", str(script))
        assert json.loads(out)["peaks"]["reserved"] == pytest.approx(rows[name]["reserved"], rel=0.01), (name, err)
