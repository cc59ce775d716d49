"""Batch scripts in the usual style: the training commands, their words and variables, and their overlap.

`python -m benchmarks.hostile --group batch_scripts` compares hundreds of scripts with Bash itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cluster.shell.grammar import NotUnderstood
from vramcast.cluster.shell.plan import ScriptStep, from_plain, peak_bytes, to_plain
from vramcast.cluster.shell.script import ShellScript, read_script

pytest.importorskip("tree_sitter_bash")
FOLDER = "/home/ann/job"
FILES = {
    "train.py": "",
    "a.py": "",
    "b.py": "",
    "src/train.py": "",
    "pkg/__init__.py": "",
    "pkg/train.py": "",
    "conf.yaml": "",
    "settings.sh": "BATCH=256\n",
    "run.sh": '#!/bin/bash\npython train.py "$@"\n',
    "two.sh": "python a.py &\npython b.py\n",
    "train.sh": "make train\n",
}


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the job's files in the current folder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def read(text: str, *arguments: str, tasks: int = 1, nodes: int = 1, cards: int = 1, **environment: str | None) -> ShellScript:
    variables: Mapping[str, str | None] = {"HOME": "/home/ann", "PATH": "/usr/bin", **environment}
    script = f"#!/bin/bash\n{text}"
    return read_script(
        script, arguments, folder=FOLDER, environment=variables, files=FILES, tasks=tasks, nodes=nodes, cards=cards
    )


def words(text: str, *arguments: str, **environment: str) -> list[tuple[str, ...]]:
    return [one.words for one in read(text, *arguments, **environment).steps]


def why(text: str, *arguments: str, **environment: str | None) -> str:
    with pytest.raises(NotUnderstood) as error:
        read(text, *arguments, **environment)
    return str(error.value)


def takes(script: ShellScript) -> int:
    """Return the peak of a script if each command takes the value of its `--batch`, or else 1."""

    def size(step: ScriptStep) -> int:
        at = step.words.index("--batch") + 1 if "--batch" in step.words else 0
        return int(step.words[at]) if at else 1

    return peak_bytes(script.plan, {step: size(step) for step in script.steps})


# -- training commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python train.py --lr 0.1", "python train.py --lr 0.1"),
        ("module load cuda\nsource venv/bin/activate\npython3.12 -m pkg.train", "python3.12 -m pkg.train"),
        ("srun --label -n 1 python train.py", "python train.py"),
        ("srun -u --cpu-bind=none python3 train.py", "python3 train.py"),
        ("torchrun --nproc_per_node=4 \\\n  train.py \\\n  --x 'a'", "torchrun --nproc_per_node=4 train.py --x a"),
        ("cd src && python train.py > log.txt 2>&1", "python train.py"),
        ("nohup python train.py &", "python train.py"),
        ("python train.py | tee log", "python train.py"),
        ("if true; then python train.py; fi", "python train.py"),
        ("time CUDA_VISIBLE_DEVICES=0 accelerate launch train.py", "accelerate launch train.py"),
        ("uv run train.py", "uv run train.py"),
        ("poetry run python train.py", "poetry run python train.py"),
        ("uv run torchrun train.py", "uv run torchrun train.py"),
        ("env A=1 python train.py", "python train.py"),
        ("python3.13t train.py", "python3.13t train.py"),
        ("conda run -n x python train.py", "python train.py"),
        ("conda run --no-capture-output -p /opt/x python train.py", "python train.py"),
        ("apptainer exec --nv -B /data:/data image.sif python train.py", "python train.py"),
        ("singularity exec --nv image.sif python train.py", "python train.py"),
        ("timeout -k 10 2h nice -n 5 python train.py", "python train.py"),
        ("mpirun -np 1 python train.py", "python train.py"),
        ("bash run.sh --lr 1", "python train.py --lr 1"),
        ("./run.sh --lr 1", "python train.py --lr 1"),
        ("srun bash -c 'python train.py --lr 1'", "python train.py --lr 1"),
        ("eval python train.py", "python train.py"),
        ("(cd src && python train.py)", "python train.py"),
        ("exec python train.py", "python train.py"),
        ("command -v nvidia-smi && nvidia-smi\npython train.py", "python train.py"),
        ('eval "$(conda shell.bash hook)"\nconda activate x\npython train.py', "python train.py"),
    ],
)
def test_finds_training_command(text: str, found: str) -> None:
    assert words(text) == [tuple(found.split())]


@pytest.mark.parametrize(
    "text",
    [
        "python -m venv env",
        "pip install torch",
        "# python train.py",
        "cat <<EOF > x\npython train.py\nEOF",
        "echo python train.py",
        "srun hostname",
        "X=$((1<<20))\ncat <<< x",
        "trap 'rm -rf $TMP' EXIT",
        "python --version",
        "echo '#VRAMCAST' # python train.py",
        "f() { python train.py; }",
        "which python",
        "git rev-parse HEAD",
        "wait",
        "",
    ],
)
def test_ignores_programs_without_card(text: str) -> None:
    assert read(text).steps == ()


@pytest.mark.parametrize(
    "text",
    [
        "make train",
        "./unknown",
        "unknown train.py",
        "xargs -n1 python train.py < list",
        "find . -name '*.py' -exec python {} \\;",
        "parallel python ::: train.py",
        "ssh node python train.py",
        "docker run image python train.py",
        "bash unknown.sh",
        "bash < run.sh",
        "source unknown/settings",
        "alias python='python -O'",
        "apptainer run image.sif",
        "conda run --cwd /x python train.py",
        "srun --odd python train.py",
        "awk 'BEGIN { system(\"python train.py\") }'",
        "sed -e '1e python train.py' x",
        "bash train.sh",
        "coproc python train.py",
        "python",
        "python -",
        "python train.py < conf.yaml",
        "echo 1 | python train.py",
        "python - <<EOF\nEOF",
        "select x in a; do python train.py; done",
        "trap 'python train.py' EXIT",
        "BASH_ENV=settings.sh\nbash run.sh",
        "env -i python train.py",
        "uv run --directory x python train.py",
        "sudo python train.py",
        "if",
        "python train.py )",
        "python missing.py",
        "declare -n X=Y",
        "declare -i X=1",
        "case x in a) python a.py;& b) python b.py;; esac",
        "export X=$(date)\npython train.py",
        "cd /tmp\npython train.py",
        "cd $UNKNOWN\npython train.py",
        "popd\npython train.py",
        "python train.py --x *.txt",
        "break\npython train.py",
        "enable -n echo",
        "nohup",
        "timeout 5",
        "env X=1 -u Y python train.py",
        "$CMD train.py",
        "python() { make; }\npython train.py",
        "srun -n x python train.py",
    ],
)
def test_unknown_command_makes_script_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"python a.py\n{text}")


def test_names_line_not_understood() -> None:
    assert "line 3" in why("python a.py\nmake  train")
    assert "`make train`" in why("python a.py\nmake  train")
    assert "$(date)" in why("python train.py --seed $(date)")
    assert "line 2 is not understood (`bash train.sh`: in it, line 1 is not understood" in why("bash train.sh")


@pytest.mark.parametrize(
    "text",
    [
        "cp big.yaml conf.yaml",
        "sed -i 's/8/512/' conf.yaml",
        "echo 'x: 1' > conf.yaml",
        "cat > new.yaml <<EOF\nx: 1\nEOF",
        "rm -rf pkg",
        "rsync -a /big/ .",
        "mv a.py train.py",
        "wget -O conf.yaml http://x",
        "echo x | tee conf.yaml",
        "touch pkg",
        "echo x > $OUT.json",
        "git checkout big",
        "ln -sf big.yaml c*.yaml",
        "truncate -s 0 ./src/../conf.yaml",
        "dd of=conf.yaml",
    ],
)
def test_rejects_script_that_writes_job_files(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"{text}\npython train.py")


@pytest.mark.parametrize(
    "text", ["rm -rf out", "mkdir -p out", "python train.py > log.txt", "cp -r /data /scratch/x", "echo x >> out.log"]
)
def test_accepts_script_that_writes_other_files(text: str) -> None:
    read(f"{text}\npython train.py")


# -- words and variables -------------------------------------------------------------------------------------------


def test_follows_variables_arguments_and_exports() -> None:
    text = 'export A=1\nWIDTH=${WIDTH:-64}\nDATA=$HOME/data\nB=2 python train.py --w $WIDTH --d "${DATA}" $1 "$@"'
    (one,) = read(text, "x", "y z").steps
    assert one.words == ("python", "train.py", "--w", "64", "--d", "/home/ann/data", "x", "x", "y z")
    assert {"A": "1", "B": "2"}.items() <= dict(one.environment).items()
    assert "PATH" not in dict(one.environment)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("X='$HOME'\npython train.py '$HOME'", "$HOME"),
        ('python train.py "a\nb"', "a\nb"),
        ("python train.py 'a\nb'", "a\nb"),
        ('python train.py "\\$HOME \\"x\\" \\n"', '$HOME "x" \\n'),
        ("python train.py a\\ b", "a b"),
        ("X=$((1<<20))\npython train.py $X", "1048576"),
        ("X=3\npython train.py $(( (X+1)*2 % 5 ))", "3"),
        ("A=(1 'b c')\npython train.py \"${A[@]}\"", "b c"),
        ("A=x\nA+=y\npython train.py $A", "xy"),
        ("A=(a)\nA+=(b)\npython train.py ${A[1]}", "b"),
        ("X='a b'\npython train.py $X", "b"),
        ("X='a b'\npython train.py \"$X\"", "a b"),
        ("source settings.sh\npython train.py $BATCH", "256"),
        ("set -- 1 2\nshift\npython train.py $1", "2"),
        ("declare X=1\npython train.py $X", "1"),
        ("readonly X=1\npython train.py $X", "1"),
        ("f() { local X=2; python train.py $X; }\nX=1\nf", "2"),
        ("f() { python train.py $1; }\nf 7", "7"),
        ("python train.py ~/x", "/home/ann/x"),
        ("python train.py ${X:-${Y:-3}}", "3"),
        ("python train.py ${HOME:+x}", "x"),
        ("X=1\n(X=2)\npython train.py $X", "1"),
        ("python > log train.py 5", "5"),
        ("python train.py --x=#3", "--x=#3"),
        ("python train.py x# # y", "x#"),
        ("A=1 B=2\nC=3 D=4\npython train.py $A$B$C$D", "1234"),
        ("cd src\npython train.py $PWD/x", "./x"),
        ("python train.py $(pwd)/x", "./x"),
        (f"python train.py {FOLDER}/conf.yaml", "./conf.yaml"),
        ("for x in 1 2; do X=$x; done\npython train.py $X", "2"),
        ("python train.py $'a b'", "a b"),
        ("X=a\nY=X\npython train.py $Y", "X"),
    ],
)
def test_word_expansion_matches_shell(text: str, last: str) -> None:
    assert words(text)[-1][-1] == last


@pytest.mark.parametrize(
    "text",
    [
        "read X",
        "let X=2",
        "((X=2))",
        ": $((X++))",
        "printf -v X 2",
        "mapfile X",
        "getopts ab X",
        "X=$(echo 2)",
        "X=`echo 2`",
        "unset X",
        "if [ -f a ]; then X=2; fi",
        "[ -f a ] && X=2",
        "false || X=2",
        "case $HOME in a) X=2;; esac",
        "while read -r y; do X=2; done < list",
        "for X in $(seq 3); do :; done",
        "for ((X=0;X<3;X++)); do :; done",
        "until false; do X=2; done",
        "X=${HOME#[/]}",
        "X=$RANDOM",
        "X=$SLURM_ARRAY_TASK_ID",
        "X=$UNSET",
        "X=${!HOME}",
        "declare -A X",
        "f() { [ -f a ] && return; X=2; }\nf",
        "f() { if true; then X=2; fi; }\nf",
        "X[1]=2",
        "eval $(echo X=2)",
        "X=${SLURM_NTASKS:-1}",
        "X=$?",
        "X=$((1/0))",
        "X=010\nX=$((X))",
        "IFS=,\nX='a b'",
        "X='*'",
    ],
)
def test_does_not_guess_runtime_values(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(f"X=1\n{text}\npython train.py $X")


def test_submission_environment_reaches_command() -> None:
    (one,) = read("python train.py --b ${BATCH:-8}", BATCH="256").steps
    assert one.words[-1] == "256"
    assert dict(one.environment)["BATCH"] == "256"
    assert "line 2" in why("python train.py --b ${BATCH:-8}", BATCH=None)
    assert "variable BATCH" in why("python train.py", BATCH=None)
    assert read("python train.py", API_TOKEN=None).steps


def test_folder_follows_cd() -> None:
    assert read("cd src\npython train.py").steps[0].folder == "src"
    assert read("cd $SLURM_SUBMIT_DIR\npython train.py").steps[0].folder == "."
    assert read("(cd src)\npython train.py").steps[0].folder == "."


# -- overlap -------------------------------------------------------------------------------------------------
A, B = "python a.py --batch 100", "python b.py --batch 30"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (f"{A}\n{B}", 100),
        (f"{A} &\n{B} &\nwait", 130),
        (f"{A} &\n{B}", 130),
        (f"{A} &\nwait\n{B}", 100),
        (f"{A} && {B}", 100),
        (f"({A}) &\n({B}) &\nwait", 130),
        (f"for i in 1 2 3; do {A} & done\nwait", 300),
        (f"for i in 1 2 3; do {A}; done", 100),
        (f"({A} &)\nwait\n{B}", 130),
        (f"{A} &\nwait $!\n{B}", 130),
        (f"{{ {A} & {B}; }} &\nwait\n{B}", 130),
        (f"f() {{ {A} & }}\nf\nf\nwait", 200),
        (f"if x=1; then {A} & fi\n{B}", 130),
        (f"{A} &\nif true; then wait; fi\n{B}", 130),
        ("bash two.sh\npython train.py --batch 5", 6),
        (f"{A} &\ndisown\nwait\n{B}", 130),
        (f"{A} > >(tee log)\n{B}", 100),
        (f"X=$({A})\n{B}", 100),
        (f"echo $({A}) &\n{B}", 130),
        (f"{A}\nexit\n{B} & {A}", 100),
        (f"if true; then {A}; else {B}; fi", 100),
        (f"{A} | tee log", 100),
    ],
)
def test_parallel_parts_add_and_sequential_parts_do_not(text: str, size: int) -> None:
    assert takes(read(text)) == size


def test_rejects_loop_with_unbounded_background_jobs() -> None:
    assert "rounds" in why(f"while true; do {A} & done")
    assert takes(read(f"while true; do {A}; done")) == 100


@pytest.mark.parametrize(
    ("text", "given", "world", "copies"),
    [
        ("srun python train.py", {"tasks": 8, "nodes": 2, "cards": 8}, (8, 4), 1),
        ("srun python train.py", {"tasks": 4, "cards": 1}, (4, 4), 4),
        ("srun -n 2 python train.py", {"tasks": 8, "cards": 1}, (2, 2), 2),
        ("srun -N1 -n1 python train.py", {"tasks": 8, "cards": 0}, (None, None), 1),
        ("srun --ntasks-per-node=4 -N 2 python train.py", {"nodes": 2, "cards": 8}, (8, 4), 1),
        ("mpirun -np 2 python train.py", {"cards": 1}, (2, 2), 2),
        ("python train.py", {"tasks": 8, "cards": 1}, (None, None), 1),
        ("torchrun --nproc_per_node=4 train.py", {"cards": 1}, (None, None), 4),
        ("torchrun --nproc_per_node=4 train.py", {"cards": 4}, (None, None), 1),
        ("srun torchrun --nnodes=2 --nproc_per_node=4 train.py", {"tasks": 2, "nodes": 2, "cards": 8}, (None, None), 1),
    ],
)
def test_counts_processes_on_one_card(text: str, given: dict[str, int], world: object, copies: int) -> None:
    (one,) = read(text, **given).steps  # type: ignore[arg-type]
    assert ((one.world_size, one.nproc_per_node), one.copies) == (world, copies)


def test_detects_srun_requests_for_cards() -> None:
    assert read("srun --gres=gpu:1 python train.py").steps_ask_for_cards
    assert not read("srun --gres=shard:2 python train.py").steps_ask_for_cards


def test_plan_round_trip_as_json() -> None:
    script = read(f"{A} &\n{B}\nwait\n{A}")
    numbers = {step: number for number, step in enumerate(script.steps)}
    assert from_plain(to_plain(script.plan, numbers), list(script.steps)) == script.plan


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (f"f() {{\nX=1 Y=2\n}}\n{A}\n[ -f x ] || {{\nX=1 Y=2\n{{ {B}; }}\n}}", 100),
        (f"X=1 Y=2\n{A} | tee log\npython b.py --batch $X$Y", 100),
        ("for X in 1 2; do\nX=3 Y=400\npython a.py | tee log\ndone\npython b.py --batch $Y", 400),
        (f"if true; then\nX=1 Y=2\nfi\n{A} &\n{B}\nwait", 130),
        ("python train.py --x 'a\nX=1 Y=2\nb' --batch 7", 7),
        ("cat <<EOF\nX=1 Y=2\nEOF\npython train.py --batch 7", 7),
    ],
)
def test_reads_several_assignments_on_a_line(text: str, size: int) -> None:
    assert takes(read(text)) == size


def test_empty_script_trains_nothing() -> None:
    assert read_script("", folder=FOLDER, environment={}, files={}).steps == ()


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200 + "python train.py" + ")" * 200,
        "a=" + "x" * 300_000,
        "X=aa\n" + "X=$X$X\n" * 40 + "python train.py $X",
        "f() { f; }\nf",
        "f() { g; g; g; }\ng() { h; h; h; }\nh() { i; i; i; }\ni() { j; j; j; }\n"
        + "j() { :;:;:;:;:;:;:; }\n"
        + "f;f;f;f;" * 30,
        "source loop.sh",
        "\n".join(f"python train.py {k}" for k in range(20)),
        "python train.py\r\n",
        "bash -c " + "'" * 3,
        "eval eval eval eval :" * 300,
        "$(" * 150 + ")" * 150,
        "if :; then " * 100 + ":" + "; fi" * 100,
    ],
)
def test_rejects_oversized_script(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read(text)


@given(st.text(alphabet="$`'\"\\ \n;&|<>#(){}[]=srunpythoEOF-./@*!", max_size=120))
def test_any_text_is_read_or_rejected(text: str) -> None:
    with contextlib.suppress(NotUnderstood):
        read(text, "a")
