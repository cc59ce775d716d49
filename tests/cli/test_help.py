"""Help with examples that parse, lists of cards and models, suggestions for misspellings, completion by a real shell."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli.main import VERBS, _module, _split, main, parser
from vramcast.cli.shell_completion import cards, targets
from vramcast.hardware.cards import DEVICES


def words_of(verb: str) -> str:
    return importlib.import_module(f"vramcast.cli.verbs.{_module(verb)}").__doc__ or ""


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "adopt"])
def test_examples_of_each_verb_parse(verb: str) -> None:
    examples = re.findall(rf"^ *(vramcast {verb}\b.*)$", words_of(verb), re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example, comments=True)[1:]
        own, _ = _split(words)
        assert parser([verb]).parse_args(own).verb == verb


def test_verb_docstring_matches_list_of_verbs() -> None:
    assert {verb: words_of(verb).partition("\n")[0] for verb in VERBS} == VERBS


@pytest.mark.integration
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["nonsense"]])
def test_imports_no_verb_without_one(words: list[str]) -> None:
    modules = [f"vramcast.cli.verbs.{_module(verb)}" for verb in VERBS]
    code = f"""
import sys
from vramcast.cli.main import main
main({words})
print(sorted(sys.modules.keys() & {modules}), file=sys.stderr)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stderr.splitlines()[-1] == "[]"


def test_imports_only_the_given_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "vramcast.cli.verbs.estimate", None)  # importing it raises
    assert main(["devices", "t4"]) == 0
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = set(re.findall(r"^  ([\w-]+)  ", shown, re.MULTILINE)) - {"vramcast"}
    assert set(VERBS) - listed == {"adopt", "import", "train", "calibrate", "evaluate"}  # until the next release


@pytest.mark.parametrize("columns", [60, 100])
def test_help_starts_with_examples_that_parse(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = [shlex.split(line)[1:] for line in lines[2:5]]
    assert [parser([words[0]]).parse_args(words).verb for words in examples] == ["estimate", "check", "run"]
    assert [line for line in lines if len(line) > columns] == []


def test_options_of_a_verb_are_in_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["estimate", "--help"]) == 0
    shown = capsys.readouterr().out
    parts = dict(
        zip(titles := re.findall(r"^(\S.*):$", shown, re.MULTILINE), re.split(r"^\S.*:$", shown, flags=re.M)[1:], strict=True)
    )
    assert titles == ["positional arguments", "the job", "the card", "the answer", "advanced"]
    assert all(option in parts["the job"] for option in ("--batch-size", "--lora r=N", "--qlora r=N", "--parallel"))
    assert "--help" in parts["advanced"]
    assert main(["run", "--help"]) == 0
    assert "usage: vramcast run [options] -- COMMAND\n" in capsys.readouterr().out


def test_no_words_print_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "vramcast estimate" in capsys.readouterr().err


def test_rejects_abbreviated_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--js"]) == 2
    assert "unrecognized arguments: --js: did you mean --json?" in capsys.readouterr().err


def test_lists_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    assert {one["key"] for one in json.loads(capsys.readouterr().out)["devices"]} == set(DEVICES)
    assert main(["devices", "A100 "]) == 0
    assert capsys.readouterr().out.split()[0].startswith("a100")
    assert main(["devices", "voodoo"]) == 2
    assert "vramcast devices lists all" in capsys.readouterr().err


@pytest.mark.integration
def test_lists_models_by_pattern(tracer: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "torchvision", "resnet1*"]) == 0
    assert capsys.readouterr().out.split() == ["torchvision:resnet101", "torchvision:resnet152", "torchvision:resnet18"]
    assert main(["models", "timm", "vit_base_patch16_224", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"models": ["timm:vit_base_patch16_224"]}
    assert main(["models", "hf", "gpt2"]) == 0
    assert main(["models", "hf", "meta-llama/*"]) == 0
    assert main(["models", "diffusers", "*stable-diffusion-xl*"]) == 0
    assert main(["models", "torchvision", "nothing*"]) == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["estimat"], "did you mean vramcast estimate?"),
        (["estimate", "torchvision:resnet18", "--devise", "t4"], "did you mean --device?"),
        (["estimate", "torchvision:resnet18", "--batch", "1x3x64x64", "--device", "rxt4090"], "Did you mean 'rtx4090'"),
    ],
)
def test_suggests_correction_of_misspelled_word(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert meant in capsys.readouterr().err


MISSPELT = {
    "torchvison:resnet18": "torchvision:resnet18",
    "torchvision:resnet17": "resnet18",
    "timm:vit_bas_patch16_224": "vit_base_patch16_224",
    "hf:gtp2": "gpt2",
}


@pytest.mark.integration
@pytest.mark.parametrize("target", MISSPELT)
def test_suggests_correction_of_misspelled_model(target: str, tracer: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", target, "--batch", "1x3x64x64"]) == 2
    assert MISSPELT[target] in capsys.readouterr().err


def test_completes_cards_and_registries() -> None:
    assert "a100-40gb" in cards("A100")
    assert targets("t") == ["torchvision:", "timm:"]
    assert targets("model.py:") == []


def test_completes_site_cards_despite_wrong_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.toml"
    monkeypatch.setenv("VRAMCAST_SITE", str(site))
    assert "t4" in cards("t4")  # the file does not exist
    site.write_text(
        '[[card]]\nkey = "mine-1"\nname = "NVIDIA Mine"\ntotal_bytes = 47_676_129_280\ncompute_capability = "8.6"\n'
        "sm_count = 84\nclock_khz = 1_740_000\nmemory_clock_khz = 7_251_000\nmemory_bus_bits = 384\nl2_bytes = 6_291_456\n"
    )
    assert cards("mine") == ["mine-1"]


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bash") is None, reason="asks bash for completions")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("vramcast est", "estimate"),
        ("vramcast estimate --devi", "--device"),
        ("vramcast estimate x --device a100-4", "a100-40gb"),
        ("vramcast estimate torchv", "torchvision:"),
    ],
)
def test_bash_completes_a_line(line: str, found: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    command = tmp_path / "vramcast"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramcast "$@"\n')
    command.chmod(0o755)
    script = f"""
        eval "$({sys.executable} -m argcomplete.scripts.register_python_argcomplete vramcast)"
        COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=($COMP_LINE)
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9
        _python_argcomplete vramcast
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert found in [word.strip() for word in done.stdout.split()], done.stderr
