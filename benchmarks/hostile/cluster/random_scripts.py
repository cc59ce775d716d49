"""Random batch scripts: variables, conditions, loops, functions, and background jobs around trainings."""

from __future__ import annotations

import random
from typing import Final

_DEEPEST: Final = 3  # arbitrary
_VARIABLES: Final = ("A", "B", "C")
_VALUES: Final = (
    *("NUMBER", "$VAR", '"$VAR"', "${VAR:-NUMBER}", "$((VAR+NUMBER))", "$((1<<3))", "'NUMBER'", '"${VAR}"') * 4,
    *("${VAR:+NUMBER}",) * 4,
    *("$(echo NUMBER)", "NUMBER$VAR", "`echo NUMBER`", "${#VAR}"),
)  # fmt: skip
_PLAIN: Final = (
    *("VAR=VALUE", "export VAR", "export VAR=VALUE", "declare VAR=VALUE", "VAR=NUMBER OTHER=NUMBER") * 4,
    *("echo $VAR > log", "wait", "true") * 4,
    *("set -- NUMBER NUMBER", "VAR=$1", "shift", "eval VAR=NUMBER", ": ${VAR:=NUMBER}", "VAR+=NUMBER", "cd src", "cd ..") * 2,
    *("unset VAR", "read VAR <<< NUMBER", "let VAR=NUMBER", "((VAR=NUMBER))", "printf -v VAR NUMBER"),
)  # fmt: skip
_TRAININGS: Final = (
    "python train.py --batch $VAR",
    'python train.py --batch "$VAR" &',
    "BATCH=$VAR python train.py --x",
    "python train.py --batch NUMBER",
    "srun python train.py --batch $VAR",
    "python train.py --batch=$VAR | tee log",
    "python train.py --batch ${VAR:-NUMBER} &",
    "go NUMBER",
    "BATCH=NUMBER; export BATCH; python train.py",
    "python train.py --batch ${1:-NUMBER}",
)
_CONDITIONS: Final = ("true", "false", '[ "$VAR" = 1 ]', '[ -n "$VAR" ]', "! false", "test $VAR -gt 3", "[[ $VAR == 1 ]]")


class Scripts:
    """Generator of scripts.

    Args:
        seed: Seed of all scripts.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self) -> str:
        """Return the next script."""
        body = [self._statement(0, "") for _ in range(self._random.randint(2, 6))]
        begin = ["set -- 3 4", "A=1", "B=2", "C=30", "go() {", self._block(1, "function"), "}"]
        return "\n".join([*begin, *body, self._training(), "wait"])

    def _filled(self, text: str) -> str:
        text = text.replace("VALUE", self._random.choice(_VALUES))
        for word, made in (
            ("VAR", lambda: self._random.choice(_VARIABLES)),
            ("OTHER", lambda: self._random.choice(_VARIABLES)),
            ("NUMBER", lambda: str(self._random.choice((1, 2, 5, 30, 400)))),
        ):
            while word in text:
                text = text.replace(word, made(), 1)
        return text

    def _training(self) -> str:
        return self._filled(self._random.choice(_TRAININGS))

    def _block(self, depth: int, place: str) -> str:
        return "\n".join(self._statement(depth, place) for _ in range(self._random.randint(1, 3)))

    def _statement(self, depth: int, place: str) -> str:
        kinds = ["plain"] * 6 + ["training"] * 2
        if depth < _DEEPEST:
            kinds += ["if", "else", "and", "or", "for", "while", "case", "subshell", "group", "behind"]
        if place:
            kinds.append("leave")
        kind = self._random.choice(kinds)
        condition = self._filled(self._random.choice(_CONDITIONS))
        inner = self._block(depth + 1, place) if kind not in ("plain", "training", "leave") else ""
        name = self._random.choice(_VARIABLES)
        match kind:
            case "plain":
                return self._filled(self._random.choice(_PLAIN))
            case "training":
                training = self._training()
                return "true" if place == "function" and training.startswith("go") else training
            case "if":
                return f"if {condition}; then\n{inner}\nfi"
            case "else":
                return f"if {condition}; then\n{inner}\nelse\n{self._block(depth + 1, place)}\nfi"
            case "and":
                return f"{condition} && {{\n{inner}\n}}"
            case "or":
                return f"{condition} || {{\n{inner}\n}}"
            case "for":
                return f"for {name} in {self._filled('NUMBER VALUE')}; do\n{self._block(depth + 1, 'loop')}\ndone"
            case "while":
                counter = f"k{depth}{self._random.randint(0, 99)}"
                rounds = f"{counter}=$(({counter}+1))\n{self._block(depth + 1, 'loop')}"
                return f"{counter}=0\nwhile [ ${counter} -lt 2 ]; do\n{rounds}\ndone"
            case "case":
                return f"case $A in\n1) {inner}\n;;\n*) {self._block(depth + 1, place)}\n;;\nesac"
            case "subshell":
                return f"(\n{self._block(depth + 1, '')}\n)"
            case "group":
                return f"{{\n{inner}\n}}"
            case "behind":
                return f"{{\n{self._block(depth + 1, '')}\n}} &"
        leave = {"loop": ("break", "continue"), "function": ("return",)}[place]
        return f"{condition} && {self._random.choice(leave)}"
