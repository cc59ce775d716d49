"""Kinds of batch scripts that are easily misread: each is understood rightly, or its line is named.

`python -m benchmarks.hostile.batch_scripts` draws thousands of them and compares with Bash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vramcast.cluster.shell.grammar import NotUnderstood
from vramcast.cluster.shell.plan import ScriptStep
from vramcast.cluster.shell.script import ShellScript, read_script

pytest.importorskip("tree_sitter_bash")
FOLDER = "/home/ann/job"
FILES = {
    "train.py": "",
    "src/train.py": "",
    "conf.yaml": "batch: 8\n",
    "big.yaml": "batch: 512\n",
    "call.sh": "python train.py\n",
    "assign.sh": "N=7\n",
    "e.env": "# settings\nexport BATCH='900'\nLR=1 # small\n",
    "odd.env": "BATCH=$OTHER\n",
}


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def read(text: str, *, tasks: int = 1, cards: int = 1, **more: str) -> ShellScript:
    environment: Mapping[str, str | None] = {"HOME": "/home/ann", **more}
    return read_script(text, folder=FOLDER, environment=environment, files=FILES, tasks=tasks, cards=cards)


def only(text: str, **given: int) -> ScriptStep:
    (step,) = read(text, **given).steps
    return step


# -- variables that reach the training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "set -o allexport\nBATCH=900\nset +o allexport\npython train.py",
        "set -euo pipefail -a\nBATCH=900\npython train.py",
        "set -a; : ${BATCH:=900}\npython train.py",
        "export BATCH\nBATCH=900\npython train.py",
        "srun --export=ALL,BATCH=900 python train.py",
        "srun --export BATCH=900,ALL python train.py",
        "export SLURM_EXPORT_ENV=ALL,BATCH=900\nsrun python train.py",
        "mpirun -genv BATCH=900 -np 1 python train.py",
        "mpirun -genv BATCH 900 -np 1 python train.py",
        "mpirun -x BATCH=900 -np 1 python train.py",
        "export APPTAINERENV_BATCH=900\napptainer exec --nv i.sif python train.py",
        "SINGULARITYENV_BATCH=900 singularity exec i.sif python train.py",
        "apptainer exec --env BATCH=900,LR=1 i.sif python train.py",
        "uv run --env-file e.env python train.py",
        "srun uv run --no-sync --env-file=e.env train.py",
        "export UV_ENV_FILE=e.env\nuv run train.py",
        "BATCH=900 source ./call.sh",
        "BATCH=900 eval 'python train.py'",
        "f() { python train.py; }\nBATCH=900 f",
        "bash -a -c 'BATCH=900; python train.py'",
        "bash -o allexport -c 'BATCH=900; python train.py'",
    ],
)
def test_variable_reaches_training(text: str) -> None:
    assert dict(only(text).environment)["BATCH"] == "900"


@pytest.mark.parametrize(
    "text",
    [
        "uv run --no-env-file --env-file e.env python train.py",
        "BATCH=900 true\npython train.py",
        "BATCH=900\npython train.py",
        "set -a; set +a; BATCH=900\npython train.py",
        "BATCH=900 source assign.sh\npython train.py",
        "export BATCH=900\nunset BATCH\npython train.py",
        "mpirun -x BATCH -np 1 python train.py",
    ],
)
def test_variable_does_not_reach_training(text: str) -> None:
    assert "BATCH" not in dict(only(text).environment)


def test_environment_comes_before_files_of_uv() -> None:
    assert dict(only("export BATCH=8\nuv run --env-file e.env python train.py").environment)["BATCH"] == "8"


@pytest.mark.parametrize(
    "text",
    [
        "srun --export=NONE python train.py",
        "srun --export=BATCH=900 python train.py",
        "srun --export=ALL,BATCH='\"1,2\"' python train.py",
        "srun --task-prolog=./p.sh python train.py",
        "srun -i conf.yaml python train.py",
        "srun --gpu-bind=map_gpu:0,0 python train.py",
        "uv run --env-file missing.env python train.py",
        "uv run --env-file odd.env python train.py",
        "uv run --unknown python train.py",
        "set -k\npython train.py BATCH=900",
        "set -o posix\npython train.py",
        "bash -O lastpipe -c 'python train.py'",
        "export BATCH=8\nexport -n BATCH\npython train.py",
        "export BATCH=8\ndeclare +x BATCH\npython train.py",
        "if [ -f x ]; then export BATCH=5; fi\nBATCH=900\npython train.py",
        "if [ -f x ]; then export BATCH=5; fi\nbash -c 'BATCH=1; python train.py'",
        "#!/bin/zsh\npython train.py",
        "#!/usr/bin/env -S python3\npython train.py",
    ],
)
def test_unknown_environment_is_left_alone(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(text)


@pytest.mark.parametrize(
    "first", ["#!/bin/bash", "#!/bin/bash -l", "#!/usr/bin/env bash", "#! /bin/sh", "#!/usr/bin/bash -e", "# x"]
)
def test_reads_scripts_of_bash(first: str) -> None:
    assert only(f"{first}\npython train.py").words == ("python", "train.py")


# -- numbers of processes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "given", "copies"),
    [
        ("srun --gpus=1 --ntasks-per-gpu=4 python train.py", {}, 4),
        ("srun --ntasks-per-gpu=4 python train.py", {"cards": 2}, 4),
        ("srun --gpus=1 --ntasks-per-gpu=4 python train.py", {"cards": 4}, 4),
        ("srun -n4 --gpus=1 python train.py", {"cards": 4}, 4),
        ("srun -n4 --gres=gpu:a100:2 python train.py", {"cards": 4}, 2),
        ("srun -n4 --gpus-per-task=1 python train.py", {"cards": 4}, 1),
        ("srun --gpus=4 --gpus-per-task=1 python train.py", {"cards": 4}, 1),
        ("export SLURM_NTASKS=4\nsrun python train.py", {}, 4),
        ("SLURM_NPROCS=4 srun python train.py", {}, 4),
        ("SLURM_NTASKS=4\nsrun -n 2 python train.py", {}, 2),
        ("#SBATCH --ntasks-per-gpu=4\nsrun python train.py", {"tasks": 4}, 4),
        ("#SBATCH -n 4\nsrun -n1 python train.py", {}, 1),
        ("#SBATCH -n 4\npython train.py", {}, 1),
    ],
)
def test_counts_processes_on_a_card(text: str, given: dict[str, int], copies: int) -> None:
    assert only(text, **given).copies == copies


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --gpus=1 --ntasks-per-gpu=4\nsrun python train.py",
        "#SBATCH -n 4\nsrun python train.py",
        "SLURM_NTASKS=$(nproc)\nsrun python train.py",
        "srun -n1 python train.py : -n1 python train.py",
        "mpirun -np 1 python train.py : -np 1 python train.py",
        "setsid -f python train.py",
        "wandb agent ann/project/x",
    ],
)
def test_unknown_processes_are_left_alone(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"python train.py\n{text}")


# -- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        "X=$(grep -c T4 gpus.txt)",
        "mkdir out 2>/dev/null",
        "mkdir -p /scratch/x",
        "mkdir -p train.py/x",
        "module load cuda",
        "true > /no/x",
        "source assign.sh",
        "printf %d x",
        "date",
        "cd nowhere",
        "false",
        "local X=1",
        "true && module load cuda",
        "true() { return 1; }; true",
    ],
)
def test_value_behind_a_status_is_unknown(status: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"N=512\n{status} && N=8\npython train.py --batch $N")


@pytest.mark.parametrize(
    "status",
    [
        "true",
        ":",
        "X=1",
        "export OMP_NUM_THREADS=$(false)",
        "echo x",
        "echo x > /dev/null",
        "cd src",
        "cd .",
        "mkdir -p out/x",
        "X=1 && true",
        "set -u",
    ],
)
def test_value_behind_a_certain_status_is_known(status: str) -> None:
    assert only(f"N=512\n{status} && N=8\npython train.py --batch $N").words[-1] == "8"


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p out && cd out\ncd ..\npython train.py",
        "module load cuda && python train.py",
        "cd src && cd .. && source venv/bin/activate && python train.py",
        "mkdir -p logs && export OMP_NUM_THREADS=4\npython train.py",
        "module load cuda || exit 1\npython train.py",
        "source venv/bin/activate && python train.py && echo done",
    ],
)
def test_usual_lists_stay_certain(text: str) -> None:
    found = read(text)
    assert [step.folder for step in found.steps] == ["."]
    assert not found.is_doubtful


@pytest.mark.parametrize(
    "text",
    [
        "shopt -s lastpipe\necho 512 | read N",
        "shopt -so allexport",
        "trap 'N=900' ERR",
        "trap 'N=900' DEBUG\nN=8",
        "f() { N=900; }\ntrap f USR1",
        "f() { trap 'N=900' RETURN; }\nf",
        "trap 'set -- 900' ERR\nN=$1",
        "IFS=''\nset -- 5 12\nN=\"$*\"",
        'IFS=,\nA=(5 12)\nN="${A[*]}"',
        "f() { local IFS=; A=(5 12); N=${A[*]}; }\nf",
        "for N in {008..009}; do :; done",
        "readonly N=900\nN=8",
        "A=(8)\nunset 'A[0]'\nN=$A",
        "A=(8)\nprintf -v 'A[0]' 9\nN=$A",
        "printf -vN 900",
        "f() { unset N; }\ng() { local N=1; f; M=$N; }\ng\nN=$M",
        "N=900 eval 'N=7'",
        "PS4='$(python train.py)'",
        "set +B",
        "time N=9",
        "export 1X=1 && N=9",
        "shopt -s extglob\nN=@(8)",
        "N=$((N ? 2 : 3))",
        "N=$((-7 / -2 + 500))",
    ],
)
def test_unknown_value_is_left_alone(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"N=1\n{text}\npython train.py --batch $N")


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("python train.py --batch=90\\\n0", "--batch=900"),
        ("python train.py --ba\\\ntch", "--batch"),
        ("pyt\\\nhon train.py 9", "9"),
        ("N=90\\\n0\npython train.py $N", "900"),
        ("export N=90\\\n0\npython train.py $N", "900"),
        ("python train.py \\\n  --x \\\n  9", "9"),
        ("cd src && \\\ncd .. &&\\\npython train.py 9", "9"),
        ("trap 'echo failed' ERR\nN=9\npython train.py $N", "9"),
        ("trap 'N=1' EXIT\nN=9\npython train.py $N", "9"),
        ('unset IFS\nset -- 5 9\npython train.py "$*"', "5 9"),
        ("N=9\nunset -f N\npython train.py $N", "9"),
        ("for N in {1..9..4}; do :; done\npython train.py $N", "9"),
        ("N=abcd\npython train.py ${#N}", "4"),
        ("N=90080\npython train.py ${N:1:2}", "00"),
        ("N=a/b.x.yaml\npython train.py ${N##*/}", "b.x.yaml"),
        ("N=a/b.x.yaml\npython train.py ${N%.*}", "a/b.x"),
        ("N=a/b.x.yaml\npython train.py ${N%%.*}", "a/b"),
        ("N=a/b/b\npython train.py ${N/b/c}", "a/c/b"),
        ("N=a/b/b\npython train.py ${N//b/c}", "a/c/c"),
        ("python train.py $'a\\x20b\\tc'", "a b\tc"),
        ("python train.py $((16#ff)) $((7 / -2))", "-3"),
        ("bash -euo pipefail -c 'python train.py 9'", "9"),
        ("PS4='+ '\nset -x\npython train.py 9", "9"),
        ("shopt -s nullglob\npython train.py 9", "9"),
    ],
)
def test_words_match_bash(text: str, batch: str) -> None:
    assert only(text).words[-1] == batch


# -- programs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "sort big.yaml -o conf.yaml",
        "sort -oconf.yaml big.yaml",
        "sort --output=conf.yaml big.yaml",
        "uniq big.yaml conf.yaml",
        "xxd -r - conf.yaml",
        "tree -o conf.yaml",
        "gcc -o conf.yaml x.c",
        "cp -t. x/conf",
        "nvidia-smi -f conf.yaml",
        "git diff --output=conf.yaml",
        "git show --ext-diff",
        "/usr/bin/time -o conf.yaml true",
        "sed 's|x|python train.py|e' x",
        "sed 's,x,python train.py,Me' x",
        "sed -e s/a/b/ -e '1e python train.py' x",
        "sed '1{e python train.py\n}' x",
        "sed -n 's|b|b|w out' x",
        "sed -f run.sed x",
        "sed --file=run.sed x",
        "awk -f prog.awk x",
        "awk '@include \"prog\"' x",
        "sort --compress-program=./train.py x",
        "rsync -e ./train.sh a b",
        "jobs -x python train.py",
        "hash -p ./exec.py python",
        "scontrol write batch_script 1 conf.sh",
    ],
)
def test_program_may_write_or_run(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"{text}\npython train.py")


@pytest.mark.parametrize(
    "text",
    [
        "sed 's/a/b/g;s|/x|/y|I' log",
        "sed -n '/a\\/b/,$p' log",
        "sed -E -e 's,(a),\\1,' -e '$!d' log",
        "sed -i 's/a/b/' out.log",
        "awk -F: -v x=1 '{ print $1 }' log",
        "sort -u -k2 log",
        "find . -name '*.log'",
        "wandb login",
        "scontrol show hostnames x",
        "jobs -r",
        "git log --oneline",
    ],
)
def test_program_is_harmless(text: str) -> None:
    assert only(f"{text}\npython train.py").words == ("python", "train.py")
