"""A grammar of batch scripts around what a reader of shell scripts gets wrong: a Hypothesis strategy that draws whole scripts.

Each script sets `N`, `BATCH`, the positional parameters, an array or a config in one to four ways, and then trains with them.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

# Statements with a status that depends on the machine, or that looks as if it did.
_STATUS: Final = (
    "true", ":", "false", "! true", "(exit 1)", "{ false; }", "echo x", "echo x > /dev/null", "true > log",
    "true > /nonexistent/x",
    "X=5", "X=5 Y=6", "X=$(grep -c zzz train.py)", "X=$(true)", "Y=`false`", "export X=1", "export X=$(false)", "local X=1",
    "set -u",
    "mkdir src 2>/dev/null", "mkdir -p src", "mkdir -p out", "mkdir -p train.py/x 2>/dev/null", "mkdir -p /proc/x 2>/dev/null",
    "cd nowhere 2>/dev/null", "cd .", "cd src && cd ..", "module load cuda", "module load broken", "source false.sh",
    "source config.sh", "printf '%d' x 2>/dev/null", "date -d never 2>/dev/null", "test -f train.py", "[ -d nowhere ]",
    "rm -f nothing",
    "grep -q torch train.py", "fails", "true | false", "command -v python > /dev/null", "export 1X=1 2>/dev/null",
)  # fmt: skip
_BODIES: Final = (
    "N=%d", "export BATCH=%d", "{ N=%d; }", "set -- --batch %d", "A=(%d)", "N=%d M=1", "eval N=%d", "N=$((%d))",
)  # fmt: skip
_SIGNALS: Final = ("ERR", "DEBUG", "USR1", "RETURN", "EXIT", "EXIT ERR", "0")
_SETTINGS: Final = (
    # assignments and exports
    "N=%d", "export BATCH=%d", "BATCH=%d", "BATCH=%d\nexport BATCH", "export BATCH\nBATCH=%d", "declare -x BATCH=%d",
    "readonly N=%d",
    "unset N", "unset -f N", "unset -v go", "unset -f go", "unset BATCH", "export -n BATCH", "declare +x BATCH", "N=%d M=2",
    "printf -v N %d", "printf -vN %d", "printf -v 'A[0]' %d", "unset 'A[0]'", "read N <<< %d", "let N=%d", "((N=%d))",
    "N=9\\\n0",
    "ex\\\nport BATCH=%d", "N=%d; N+=0", "A=(%d 2)", "A+=(%d)", "A[0]=%d", "set -- --batch %d", "set -- %d 2", "shift",
    "f() { local N=%d; }; f",
    "f() { N=%d; }; f", "f() { unset N; }; g() { local N=1; f; }; g", "mapfile -t A <<< %d", "N=${N:-%d}", ": ${N:=%d}",
    "N=${BATCH:-%d}",
    "unset IFS", "declare N=%d", "export N=%d", "N=`echo %d`", "N=$(echo %d)", "hash -r", "N=${#N}", "N=${N:0:1}",
    "N=$((N > 9 ? %d : 3))",
    # words, arrays and scopes
    "A[1]=%d", "A+=(%d); N=${A[-1]}", "N=${A[1]}", "N=(%d 7)", "N=${N%8}%d", "N=${N/8/%d}", "N=${N:-7}%d", "N=$'%d'",
    "N=$((N + %d))",
    "N=$((N++ + %d))", "N=${!N}", "N=${N^^}", "N=${N@Q}", "declare -g N=%d", "declare -A A=([0]=%d)", "declare -i N=%d",
    "declare -a A=(%d)",
    "f() { local N=%d; g; }; g() { N=7; }; f", "f() { local N; N=%d; }; f", "f() { declare -g N=%d; }; f",
    "f() { return 1; }; f || N=%d",
    "f() { set -- %d; }; f; N=$2", "f() { N=$1; }; f %d", "f() ( N=%d )\nf", "N=%d f() { :; }", "{ N=%d; } > log", "( N=%d )",
    "N=%d &",
    "case $N in 8) N=%d;; *) N=1;; esac", "[[ $N == 8 ]] && N=%d", "while [ $N -lt 5 ]; do N=%d; break; done",
    "until true; do N=%d; done",
    "for ((N=1; N<%d; N*=8)); do :; done", "for N; do :; done", "for N in 1 %d; do continue; done",
    "select N in %d; do break; done < /dev/null",
    "source /dev/stdin <<< 'N=%d'", ". <(echo N=%d)", "eval \"$(echo N=%d)\"", "eval \"N=\\$((%d))\"",
    "exec 3<<< %d; read -u 3 N", "read -r N < e.env",
    "getopts b: N -b %d", "getopts b: o -b %d; N=$OPTARG", "while read N; do :; done <<< %d",
    "mapfile -C 'N=%d #' -c 1 A <<< x",
    "command export BATCH=%d", "builtin export BATCH=%d", "command eval N=%d", "command . ./assign.sh",
    "alias python='python --batch %d'",
    "python() { command python \"$@\" --batch %d; }", "command() { N=%d; }", "cd() { N=%d; }; cd src", "true() { N=%d; }; true",
    "unset -f fails",
    "PATH=$PWD:$PATH", "PATH=$PWD/other:$PATH", "hash -d python 2>/dev/null", "cd src; cd -",
    "pushd src > /dev/null; popd > /dev/null",
    "cd src && N=%d; cd ..", "enable -n echo", "export -f go", "trap - ERR", "trap '' USR1", "wait -n",
    "coproc python train.py --batch %d", "time N=%d",
    "! N=%d", "N=%d; ! false", "if N=%d; then :; fi", "while N=%d; false; do :; done", "N=%d || :", "echo ${N:=%d} > log",
    "echo $((N = %d)) > log",
    "set -e; false || N=%d", "set -u; N=$N", "set -C", "readonly N", "declare -r N=%d", "printf -v N %%d 9", "N=8 N=%d",
    "A=(%d) N=${A[0]}", "echo %d > list; N=$(< list)",
    "BATCH=%d; declare -x BATCH", "BATCH=%d; readonly BATCH; export BATCH=3", "export BATCH=%d; (unset BATCH)",
    "(export BATCH=%d)", "export BATCH=3 N=%d",
    "export BATCH=%d | cat", "if false; then export BATCH=%d; else BATCH=7; fi", "bash -c 'export BATCH=%d'",
    "env BATCH=%d true", "f() { export BATCH=%d; }; f",
    "f() { local -x BATCH=%d; go; }; f", "f() { local BATCH=%d; export BATCH; }; f", "unset SLURM_NTASKS",
    "N=%d source /dev/null", "shift 2", "set -- \"$@\" --batch %d",
    # options of the shell
    "set -a", "set +a", "set -o allexport", "set +o allexport", "set -uo allexport", "set -k", "set +B", "set -f", "set -x",
    "set -x -a",
    "shopt -so allexport", "shopt -s lastpipe", "shopt -s nullglob", "PS4='$(python train.py --batch %d)'", "PS4='+ '",
    "set -- %d",
    # pipes
    "echo %d | read N", "printf '5\\n%d\\n' | while read x; do N=$x; done", "echo %d | { read N; export BATCH=$N; }",
    # assignments before builtins and functions
    "BATCH=%d source ./call.sh", "N=%d eval 'python train.py --batch $N'", "BATCH=%d eval 'python train.py'",
    "N=%d . ./assign.sh",
    "BATCH=%d go", "N=%d :", "N=%d true", "IFS=, read N M <<< %d,2", "N=%d export M=1", "BATCH=%d eval 'BATCH=7'",
    "N=%d eval 'unset N'",
    # IFS
    "IFS=''", "IFS=,", "IFS=0", "N=\"$*\"", "N=$*", "N=\"${A[*]}\"", "N=${A[*]}", "N=\"$1\"",
    "f() { local IFS=; N=\"${A[*]}\"; }; f",
    # traps that run later
    "kill -USR1 $$", "false", "fails",
    # programs that write or run
    "sort big.yaml -o conf.yaml", "sort -oconf.yaml big.yaml", "uniq big.yaml conf.yaml", "xxd big.yaml | xxd -r - conf.yaml",
    "cp big.yaml conf.yaml", "tee conf.yaml < big.yaml > /dev/null", "dd if=big.yaml of=conf.yaml 2>/dev/null",
    "sort big.yaml > log",
    "cp -t. other/conf.yaml", "install big.yaml conf.yaml", "sed -n 's|b|b|w conf.yaml' big.yaml", "sed -i 's|8|%d|' conf.yaml",
    "sed 's|b|a|' big.yaml > log", "sed -n '/b/p;$!d' big.yaml", "echo x | sed 's|x|python train.py --batch %d|e'",
    "sed -f run.sed big.yaml",
    "echo x | sed 's,x,python train.py --batch %d,Me'", "sed '1{e python train.py --batch %d\n}' big.yaml",
    "awk -f prog.awk big.yaml",
    "awk '{ print $1 }' big.yaml", "awk 'BEGIN { system(\"python train.py --batch %d\") }'",
    "awk '{ print > \"conf.yaml\" }' big.yaml",
    "find . -name conf.yaml -exec cp big.yaml {} ';'", "find . -name '*.py'", "wandb agent ann/p/x", "wandb login",
    "hash -p ./exec.py python",
    "split --filter='python train.py --batch %d' big.yaml", "jobs", "date > conf.yaml", "cat big.yaml > conf.yaml",
    "ln -sf big.yaml conf.yaml",
    # Slurm's and containers' variables
    "export SLURM_NTASKS=3", "SLURM_NPROCS=3", "export SLURM_EXPORT_ENV=ALL,BATCH=%d", "export APPTAINERENV_BATCH=%d",
    "SINGULARITYENV_BATCH=%d", "export SINGULARITYENV_BATCH=%d",
    # a second training
    "python train.py --batch %d &", "setsid -f python train.py --batch %d", "wait", "f() { python train.py --batch %d & }; f",
    "(trap 'python train.py --batch %d' EXIT; true)", "bash -c 'python train.py --batch %d' &",
)  # fmt: skip
_TRAININGS: Final = (
    "python train.py --batch $N", 'python train.py --batch "$N"', "python train.py --batch=$N", "python train.py",
    "python train.py",
    "python train.py --config conf.yaml", 'python train.py "$@"', 'python train.py --batch "${A[0]}"',
    'python train.py --batch "${A[*]}"',
    'python train.py --batch "$*"', "python train.py --ba\\\ntch %d", "python train.py --batch=%d\\\n0",
    "pyt\\\nhon train.py --batch \\\n %d",
    'python train.py --batch "1\\\n0"', "python train.py --batch ${N:-%d}", "python train.py --batch ${N:+%d}",
)  # fmt: skip
_WRAPPERS: Final = (
    *("",) * 12, "srun ", "srun -n2 ", "srun --export=ALL,BATCH=%d ", "srun --export BATCH=%d,ALL ", "srun --export=NONE ",
    "srun --export=BATCH=%d ", "srun --gpus=1 --ntasks-per-gpu=3 ", "srun --ntasks-per-gpu=2 ",
    "srun -n1 python train.py --batch %d : -n1 ",
    "srun --gpus=1 -n 2 --gpu-bind=none ", "srun -i big.yaml ", "SLURM_NTASKS=3 srun ", "mpirun -np 2 ",
    "mpirun -genv BATCH=%d -np 1 ",
    "mpirun -genv BATCH %d -n 1 ", "mpirun -x BATCH=%d -np 1 ", "mpirun -np 1 python train.py --batch %d : -np 1 ",
    "apptainer exec --nv i.sif ", "apptainer exec --env BATCH=%d i.sif ", "SINGULARITYENV_BATCH=%d apptainer exec i.sif ",
    "singularity exec -B /data i.sif ", "uv run ", "uv run --env-file e.env ", "uv run --env-file=e.env ",
    "uv run --no-env-file ",
    "UV_ENV_FILE=e.env uv run ", "setsid -w ", "setsid -f ", "timeout 20 ", "env BATCH=%d ", "BATCH=%d ", "exec ", "time ",
    "nohup ",
    "command ", "fails || ",
)  # fmt: skip
_SHELLS: Final = (
    "bash -c",
    "bash -a -c",
    "bash -o allexport -c",
    "bash -euo pipefail -c",
    "bash -k -c",
    "bash -O lastpipe -c",
    "sh -c",
    "eval",
)
_numbers = st.sampled_from((1, 5, 30, 400, 900))


@st.composite
def _filled(draw: st.DrawFn, templates: tuple[str, ...]) -> str:
    """Draw one of the templates with numbers for its `%d`."""
    text = draw(st.sampled_from(templates))
    while "%d" in text and "'%d' x" not in text:
        text = text.replace("%d", str(draw(_numbers)), 1)
    return text


@st.composite
def _setting(draw: st.DrawFn) -> str:
    """Draw statements that set something before the training."""
    kind = draw(st.sampled_from(("setting",) * 9 + ("list",) * 4 + ("trap", "trap", "if", "loop", "function", "pipe")))
    body = draw(_filled(_BODIES))
    match kind:
        case "list":
            chain = " && ".join(draw(st.lists(st.sampled_from(_STATUS), min_size=1, max_size=2)))
            return f"{chain} {draw(st.sampled_from(('&&', '&&', '&&', '||')))} {body}"
        case "trap":
            return f"trap '{body}' {draw(st.sampled_from(_SIGNALS))}"
        case "if":
            return f"if {draw(st.sampled_from(_STATUS))}; then {body}; fi"
        case "loop":
            words = draw(st.sampled_from(("{1..3}", "{008..009}", "{8..2}", "5 400", "$N 30", "{1,400}", "{5..45..20}")))
            return f"for k in {words}; do N=5$k; done"
        case "function":
            return f"f() {{ {draw(_filled(_SETTINGS))}\n{body}; }}; f"
        case "pipe":
            return f"{body} | cat"
    return draw(_filled(_SETTINGS))


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Draw a script."""
    begin = ["N=8", "A=(3 4)", "set -- --batch 3", "fails() { return 1; }", f"go() {{ {draw(_filled(_TRAININGS))}; }}"]
    settings = draw(st.lists(_setting(), min_size=1, max_size=4))
    training = draw(_filled(_TRAININGS))
    training = draw(st.sampled_from((training,) * 8 + ("go", "./call.sh", "source call.sh")))
    if draw(st.integers(0, 9)) == 0 and "'" not in training:
        training = (
            f"{draw(st.sampled_from(_SHELLS))} '{draw(_filled(('BATCH=%d', 'N=%d', 'BATCH=%d; export N=3')))}; {training}'"
        )
    elif training.startswith("py"):
        training = draw(_filled(_WRAPPERS)) + training
    return "\n".join([*begin, *settings, training, "wait", "sleep 0.25"])
