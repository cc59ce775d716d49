"""The training commands of a shell script, found by a walk over its syntax tree in the shell's order. Nothing is run.

Both branches of a condition are followed; any state that differs between them is unknown afterwards. If a line's effect on the
card is unknown, the whole script is not understood.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vramcast.cluster.shell.commands import Commands
from vramcast.cluster.shell.grammar import NotUnderstood, descendants, not_understood, parse, text_of
from vramcast.cluster.shell.plan import InTurn, Plan, ScriptStep, Together, moments
from vramcast.cluster.shell.programs import Simple, Unread
from vramcast.cluster.shell.state import BackgroundCommand, State, Unknown, Value, joined
from vramcast.cluster.shell.words import array, assign_defaults, fields, text

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_ROUNDS: Final = 32  # arbitrary: rounds of a loop over known words; a longer loop is treated like one over unknown words
_MOST_PASSES: Final = 10  # arbitrary: passes through a loop until the unknown variables no longer change
_SUBSTITUTIONS: Final = frozenset({"command_substitution", "process_substitution"})
_ARITHMETIC: Final = frozenset({"arithmetic_expansion"})
_CHANGES: Final = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_OUTPUTS: Final = frozenset({">", ">>", ">|", "&>", "&>>", ">&"})
_CERTAIN: Final = frozenset({":", "true", "echo", "export", "set"})
# Commands that succeed in a job that runs as intended: what follows runs, but a variable that it sets has two possible values.
_INTENDED: Final = frozenset({"cd", "mkdir", "module", "ml", "source", ".", "printf", "date"})
_MORE_TASKS: Final = re.compile(r"(?m)^#SBATCH.*\s(-n *|--ntasks(-per-node|-per-gpu)?[= ] *)([2-9]|\d\d)")  # spec: sbatch(1)
_OTHER_SHELL: Final = re.compile(r"#!(?!\s*(?:\S*/)?(?:env\s+)?(?:ba|da|k|)sh(?:\s+-[exul]+)?\s*$).*", re.MULTILINE)
_WORD: Final = re.compile("word|number|(raw_|ansi_c_)?string|concatenation|(simple_)?expansion")
_PASSED_OVER: Final = frozenset({"comment", "heredoc_body", "heredoc_end", "heredoc_start"})


@dataclass(frozen=True, slots=True)
class ShellScript:
    """The training of a script.

    Attributes:
        plan: Its training commands, in sequence and in parallel.
        steps: The commands, each once.
        is_doubtful: Whether some of them may not run, or not at the same time.
        steps_ask_for_cards: Whether an `srun` in the script requests whole cards from Slurm.
    """

    plan: InTurn
    steps: tuple[ScriptStep, ...]
    is_doubtful: bool = False
    steps_ask_for_cards: bool = False


def read_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    folder: str,
    environment: Mapping[str, str | None],
    files: Mapping[str, str],
    tasks: int = 1,
    nodes: int = 1,
    cards: int = 1,
) -> ShellScript:
    """Return the training commands of a script, with its files in the current folder.

    Args:
        script: Text of the script.
        arguments: Arguments of the script.
        folder: The job's folder as the script sees it.
        environment: The job's variables; None for a variable with an unknown value.
        files: Text of the job's code and configs by path within its folder.
        tasks: Number of tasks of the job, the number of processes that `srun` starts.
        nodes: Number of nodes of the job.
        cards: Number of cards of the job; 0 for parts of one.
    Raises:
        NotUnderstood: A line may train in an unknown way.
        UsageError: The grammar is not installed.
    """
    state = State(dict(environment), set(environment), folder, tuple(arguments))
    known = {"SLURM_SUBMIT_DIR": folder, "SLURM_JOB_ID": "0", "SLURM_JOBID": "0"}
    known |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))
    state.variables |= known
    reader = _Reader(folder, files, tasks, nodes, cards)
    reader.says_tasks = bool(_MORE_TASKS.search(script))
    if first := _OTHER_SHELL.match(script):
        raise NotUnderstood(1, first[0], "another program than Bash runs the script")
    try:
        reader.read_text(script, state)
    except RecursionError:
        raise NotUnderstood(1, script.split("\n")[0], "the script is nested too deeply") from None
    return ShellScript(moments(InTurn(tuple(reader.plans))), tuple(reader.steps), reader.is_doubtful, reader.asks_for_cards)


class _Reader(Commands):
    """A reader of statements."""

    def read_text(self, text: str, state: State) -> None:
        self._sequence(parse(text).children, state)

    def read_node(self, node: Node, state: State) -> None:
        if state.is_over or node.type in _PASSED_OVER:
            return
        match node.type:
            case "command":
                self._command(node, state)
            case "variable_assignment" | "variable_assignments":
                self._assignments(node, state)
            case "declaration_command":
                self._declaration(node, state)
            case "unset_command":
                self._substitute(node.named_children, state)
                self._unset(Simple(node, ("unset", *self._words(node.named_children, state))), state)
            case "test_command":
                self._substitute([node], state)
            case "list":
                self._list(node, state)
            case "pipeline":
                self._pipeline([one for one in node.children if one.is_named], state, is_given=False)
            case "negated_command":
                self._sequence(node.named_children, state)
            case "redirected_statement":
                self._redirected(node, state)
            case "compound_statement" if node.children[0].type == "((":
                self._substitute([node], state)
                self._change(node, state)
            case "compound_statement" | "do_group":
                self._sequence(node.children, state)
            case "subshell":
                inner = state.copy()
                self.in_shell(lambda: self._sequence(node.children, inner), inner, state)
            case "if_statement":
                self._if(node, state)
            case "case_statement":
                self._case(node, state)
            case "for_statement" if node.children[0].type == "for":
                self._for(node, state)
            case "while_statement":
                self._loop(node.children, state)
            case "c_style_for_statement":
                self._substitute(node.named_children[:-1], state)
                self._change(node, state, but=node.named_children[-1])
                self._loop(node.named_children[-1:], state)
            case "function_definition":
                bodies = [one for one in node.named_children[1:] if one.type not in _REDIRECTS]
                self._redirects([one for one in node.named_children if one.type in _REDIRECTS], state)
                state.functions[text_of(node.named_children[0])] = bodies[0]
            case "file_redirect":  # $(< file)
                self._redirects([node], state)
            case _:
                raise not_understood(node, "this kind of statement is not supported")

    def _sequence(self, nodes: Sequence[Node], state: State) -> None:
        """Read statements in order; a `&` after one puts it in the background."""
        for node, behind in itertools.zip_longest(nodes, nodes[1:]):
            if not node.is_named:
                if node.type in (";&", ";;&"):
                    raise not_understood(node, "this kind of statement is not supported")
                continue
            if behind is not None and behind.type == "&":
                self._background(node, state)
            else:
                self.read_node(node, state)

    def _background(self, node: Node, state: State) -> None:
        if state.is_over:
            return
        inner, orphans = state.copy(), state.orphans
        with self.collected() as plans:
            self._apart(node, inner, state)
        if plans:
            left, state.orphans = state.orphans[len(orphans) :], orphans
            state.running += (BackgroundCommand(InTurn(tuple(plans)), left),)
            self.plans.append(Together(state.concurrent()))

    def _apart(self, node: Node, inner: State, state: State) -> None:
        """Read a statement in a subshell, without the background commands, which the collector of its plans adds."""
        orphans, running = state.orphans, state.running
        state.orphans, state.running = (), ()
        inner.orphans, inner.running = (), ()
        self.in_shell(lambda: self.read_node(node, inner), inner, state)
        state.orphans, state.running = (*orphans, *state.orphans), running

    # -------------------------------------------------------------------------------------------- branches and loops
    def _list(self, node: Node, state: State) -> None:
        left, how, right = node.children[0], node.children[1], node.children[2]
        self.read_node(left, state)
        if how.type == "&&" and self._succeeds(left, state):
            self.read_node(right, state)
        else:
            self._then(right, state, is_intended=how.type == "&&" and self._succeeds(left, state, _INTENDED))

    def _then(self, node: Node, state: State, *, is_intended: bool = False) -> None:
        way = state.copy()
        with contextlib.nullcontext() if is_intended else self.doubt():
            self.read_node(node, way)
        state.become(joined([way, state]))

    def _succeeds(self, node: Node, state: State, names: frozenset[str] = frozenset()) -> bool:
        """Return whether a statement that was just read succeeds, if commands with these names do."""
        if node.type in ("variable_assignment", "variable_assignments"):
            return not any(descendants(node, _SUBSTITUTIONS)) or bool(names)
        if node.type == "declaration_command":
            return node.children[0].type != "local" and all(re.match(r"[A-Za-z_-]", text_of(one)) for one in node.children[1:])
        if node.type == "list":
            parts = (node.children[0], node.children[2])
            return node.children[1].type == "&&" and all(self._succeeds(one, state, names) for one in parts)
        if node.type == "redirected_statement":
            targets = [text_of(one).lstrip("&012>< ") for one in node.children[1:]]
            return (bool(names) or set(targets) <= {"", "/dev/null"}) and self._succeeds(node.children[0], state, names)
        words = [text_of(one) for one in node.named_children] if node.type == "command" else [""]
        if words[0] in state.functions:
            return False
        if words[0] == "mkdir" and words[1:2] == ["-p"] and all(re.match(r"\w", word) for word in words[2:]):
            return not any(word.split("/")[0] in self.files.texts for word in words[2:])
        if words[0] == "cd" and len(words) == 2 and (place := self.files.inside(state.folder or "/")) is not None:
            return bool(names) or place == "." or any(name.startswith(f"{place}/") for name in self.files.texts)
        return words[0] in _CERTAIN | names

    def _if(self, node: Node, state: State) -> None:
        parts = _between(node.children)
        self._sequence(parts["if"], state)
        ways = [self._way(parts["then"], state)]
        for clause in node.named_children:
            if clause.type == "elif_clause":
                inner = _between(clause.children)
                with self.doubt():
                    self._sequence(inner["elif"], state)
                ways.append(self._way(inner["then"], state))
            elif clause.type == "else_clause":
                way = self._way(clause.children[1:], state)
                state.become(way)
        state.become(joined([*ways, state]))

    def _way(self, nodes: Sequence[Node], state: State) -> State:
        way = state.copy()
        with self.doubt():
            self._sequence(nodes, way)
        return way

    def _case(self, node: Node, state: State) -> None:
        items = [one for one in node.named_children if one.type == "case_item"]
        self._substitute([one for one in node.named_children if one.type != "case_item"], state)
        ways = []
        for item in items:
            close = next(k for k, child in enumerate(item.children) if child.type == ")")
            self._substitute([one for one in item.children[:close] if one.is_named], state)
            ways.append(self._way(item.children[close + 1 :], state))
        state.become(joined([*ways, state]))

    def _for(self, node: Node, state: State) -> None:
        name, *words = [one for one in node.named_children if one.type != "do_group"]
        (body,) = (one for one in node.named_children if one.type == "do_group")
        self._substitute(words, state)
        values = self._words(words, state) if any(one.type == "in" for one in node.children) else state.arguments
        if values is None or len(values) > _MOST_ROUNDS or any(isinstance(value, Unread) for value in values):
            self.assign(text_of(name), None, state, node)
            self._loop([body], state)
            return
        frame = self.enter_loop()
        for value in values:
            self.assign(text_of(name), str(value), state, node)
            frame.rounds.clear()
            self.read_node(body, state)
            state.become(joined([state, *frame.rounds]))
        self.leave_loop()
        state.become(joined([state, *frame.breaks]))

    def _loop(self, nodes: Sequence[Node], state: State) -> None:
        """Read a loop with an unknown number of rounds: variables that a round changes are unknown at the start of each."""
        if state.is_over:
            return
        with self.doubt():
            for _ in range(_MOST_PASSES):
                with self.collected():
                    after, _ = self._round(nodes, state)
                met = joined([state, after])
                if met == state:
                    break
                state.become(met)
            else:
                raise not_understood(nodes[-1], "the state after its rounds is known only when the job runs")
            after, breaks = self._round(nodes, state)
        state.become(joined([state, after, *breaks]))

    def _round(self, nodes: Sequence[Node], state: State) -> tuple[State, list[State]]:
        frame = self.enter_loop()
        way = state.copy()
        self._sequence(nodes, way)
        self.leave_loop()
        return joined([way, *frame.rounds]), frame.breaks

    # -------------------------------------------------------------------------------------------- pipes and redirections
    def _pipeline(self, parts: Sequence[Node], state: State, *, is_given: bool) -> None:
        """Read the programs of a pipeline, each in a subshell, all at the same time."""
        together: list[Plan] = []
        for k, part in enumerate(parts):
            inner = state.copy()
            with self.collected() as plans, self.given_input(is_given or k > 0):
                self._apart(part, inner, state)
            together += [InTurn(tuple(plans))] if plans else []
        if together:
            self.plans.append(Together((*state.concurrent(), *together)))

    def _redirected(self, node: Node, state: State) -> None:
        redirects = [one for one in node.children if one.type in _REDIRECTS]
        bodies = [one for one in node.children if one.is_named and one.type not in _REDIRECTS and one.type not in _PASSED_OVER]
        words, behind, is_given = self._redirects(redirects, state)
        if len(bodies) > 1 or (words and (not bodies or bodies[0].type != "command")):
            raise not_understood(node, "this kind of redirection is not supported")
        piped = [one for one in behind if one.type == "pipeline"]
        if piped:
            (pipeline,) = piped
            parts = [one for one in pipeline.children if one.is_named]
            if words:
                raise not_understood(node, "this kind of redirection is not supported")
            self._pipeline([*bodies, *parts], state, is_given=is_given)
            return
        with self.given_input(is_given):
            for body in bodies:
                if body.type == "command":
                    self._command(body, state, words)
                else:
                    self.read_node(body, state)
        for one in behind:
            self._then(one, state)

    def _redirects(self, nodes: Sequence[Node], state: State) -> tuple[list[Node], list[Node], bool]:
        """Read redirections; return words of the command among them, statements, and whether its input is given."""
        words: list[Node] = []
        behind: list[Node] = []
        is_given = False
        for node in nodes:
            inner = [one for one in node.named_children if one.type not in ("file_descriptor", "heredoc_start", "heredoc_end")]
            if node.type == "heredoc_redirect":
                is_given = True
                for one in inner:
                    if one.type == "heredoc_body":
                        self._substitute([one], state)
                    elif one.type == "file_redirect":
                        more, _, given = self._redirects([one], state)
                        words += more
                        is_given |= given
                    elif _WORD.fullmatch(one.type):
                        words.append(one)
                    else:
                        behind.append(one)
                continue
            self._substitute(inner, state)
            how = next((one.type for one in node.children if not one.is_named), "")
            target = inner[0] if inner else None
            words += inner[1:]
            if how in _OUTPUTS:
                self._written(target, state)
            else:
                is_given |= target is not None and text_of(target) not in ("/dev/null", "-")
        return words, behind, is_given

    def _written(self, target: Node | None, state: State) -> None:
        if target is None or target.type in ("number", "process_substitution"):
            return
        for word in self._words([target], state):
            if self.files.is_read_by_jobs(word.text if isinstance(word, Unread) else word, state.folder):
                raise not_understood(target, "it writes a file that the job may read")

    # -------------------------------------------------------------------------------------------- words
    def _substitute(self, nodes: Sequence[Node], state: State) -> None:
        """Read the commands and assignments in words: `$(command)`, `<(command)`, `${NAME:=word}`, `$((NAME++))`."""
        for node in nodes:
            for one in descendants(node, _SUBSTITUTIONS):
                inner = state.copy()
                if one.type == "command_substitution":
                    self.in_shell(lambda one=one, inner=inner: self._sequence(one.children, inner), inner, state)  # type: ignore[misc]
                    continue
                for child in one.named_children:
                    with self.collected() as plans, self.given_input(True):
                        self._apart(child, inner, state)
                    state.orphans += (InTurn(tuple(plans)),) if plans else ()
            for one in descendants(node, _ARITHMETIC):
                self._change(one, state)
            assign_defaults(node, state)

    def _change(self, node: Node, state: State, but: Node | None = None) -> None:
        """Read arithmetic that may set variables."""
        said = text_of(node).replace(text_of(but), "") if but is not None else text_of(node)
        if _CHANGES.search(said):
            for name in re.findall(r"[A-Za-z_]\w*", said):
                self.assign(name, None, state, node)

    def _words(self, nodes: Sequence[Node], state: State) -> list[str | Unread]:
        found: list[str | Unread] = []
        for node in nodes:
            try:
                found += fields(node, state)
            except Unknown:
                found.append(Unread(text_of(node)))
        return found

    def _command(self, node: Node, state: State, more: Sequence[Node] = ()) -> None:
        children = [one for one in node.children if one.type not in _PASSED_OVER]
        redirects = [one for one in children if one.type in _REDIRECTS]
        assigned = [one for one in children if one.type == "variable_assignment"]
        words = [one for one in children if one not in redirects and one not in assigned]
        odd = next((one for one in words if not one.is_named), None)
        if odd is not None or any(one.start_byte > words[0].start_byte for one in assigned):
            raise not_understood(node, "this kind of word is not supported")
        among, behind, is_given = self._redirects(redirects, state)
        if behind:
            raise not_understood(node, "this kind of redirection is not supported")
        words += [*among, *more]
        self._substitute([*assigned, *words], state)
        values: dict[str, str | None] = {}
        for one in assigned:
            name, value = self._assignment(one, state)
            values[name] = value if isinstance(value, str) else None
        with self.given_input(is_given):
            self.command(Simple(node, tuple(self._words(words, state)), values), state)

    # -------------------------------------------------------------------------------------------- assignments
    def _assignments(self, node: Node, state: State) -> None:
        self._substitute([node], state)
        self._assign_all(node.named_children if node.type == "variable_assignments" else [node], state, node)

    def _assign_all(self, nodes: Sequence[Node], state: State, node: Node) -> None:
        for one in nodes:
            self.assign(*self._assignment(one, state), state, node)

    def _assignment(self, node: Node, state: State) -> tuple[str, Value]:
        """Return the variable's name, and its value after an assignment."""
        name, how, *rest = node.children
        if name.type == "subscript":
            return text_of(name.children[0]), None
        before = state.variables.get(text_of(name), "" if state.is_unset(text_of(name)) else None)
        try:
            value: Value = "" if not rest else array(rest[0], state) if rest[0].type == "array" else text(rest[0], state)
        except Unknown:
            value = None
        if how.type == "=" or value is None:
            return text_of(name), value
        if isinstance(value, tuple) and (isinstance(before, tuple) or before == ""):
            return text_of(name), (*(before or ()), *value)
        is_text = isinstance(before, str) and isinstance(value, str)
        return text_of(name), f"{before}{value}" if is_text else None

    def _declaration(self, node: Node, state: State) -> None:
        """Read `export`, `local`, `declare` and similar builtins."""
        kind, *rest = node.children
        self._substitute(rest, state)
        options = "".join(text_of(one)[1:] for one in rest if text_of(one)[:1] in ("-", "+"))
        # They change the meaning of later assignments, or take back an export.
        if set(options) & set("fiuln") or any(text_of(one).startswith("+") for one in rest):
            raise not_understood(node, "this kind of declaration is not supported")
        is_plain = not set(options) - set("xrga")
        for one in rest:
            if text_of(one)[:1] in ("-", "+") or one.type in _PASSED_OVER:
                continue
            if one.type not in ("variable_assignment", "variable_name"):
                raise not_understood(node, "this kind of declaration is not supported")
            name = text_of(one) if one.type == "variable_name" else text_of(one.children[0]).partition("[")[0]
            if kind.type == "local" or (kind.type in ("declare", "typeset") and "g" not in options):
                self.make_local(name, state)
            if one.type == "variable_assignment":
                found = self._assignment(one, state)[1]
                self.assign(name, found if is_plain else None, state, node)
            elif kind.type == "local" or not is_plain:
                self.assign(name, "" if is_plain else None, state, node)
            if kind.type == "export" or "x" in options:
                state.exported.add(name)
            if kind.type == "readonly" or ("r" in options and not self._functions):
                self._unsettled.add(name)


def _between(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Return the statements after each keyword of an `if`, without its other clauses."""
    found: dict[str, list[Node]] = {}
    word = ""
    for node in nodes:
        if node.type in ("if", "elif", "then", "fi"):
            word = node.type
            found[word] = []
        elif node.type not in ("elif_clause", "else_clause"):
            found[word].append(node)
    return found
