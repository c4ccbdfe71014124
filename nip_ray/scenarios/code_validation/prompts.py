"""System prompts: Jinja templates, one per protocol and agent, which a user's folder may override; and their variables.

Decisions that matter here:
- templates are read once, as text, into a picklable value: a worker on another machine needs no folder;
- they run in Jinja's sandbox, and an unknown variable is an error, never an empty string. Problem and solution are
  inserted unchanged, and nothing in them is run;
- all faults are found before the first call, with file and line: `check_templates` checks every branch, and
  `check_prompts` renders each template with a sample item.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from nip_ray.errors import UserError
from nip_ray.play.dialogues import rulebook
from nip_ray.protocols import (
    ACCEPT,
    DECISIONS,
    PROTOCOLS,
    REJECT,
    Protocol,
    ProtocolParams,
    for_being_right,
    for_verdict,
)
from nip_ray.protocols.payment import LEAST
from nip_ray.scenarios.code_validation.item import CodeItem

if TYPE_CHECKING:
    from jinja2 import Environment

    from nip_ray.scenarios.code_validation.scenario import CodeValidation

VARIABLES = {
    "question": "the problem's text",
    "solution": "the program to be judged",
    "difficulty": "introductory, interview or competition",
    "protocol": "name of the protocol",
    "agent": "the agent's name in configs",
    "role": "the drawn role, empty for an agent that does not see it",
    "name": "the agent's name in chats",
    "names": "agent -> its name in chats",
    "verifier_name": "the verifier's name in chats; of a panel, all names",
    "panel": "of a panel: members, rule (a sentence), is_mean (its verdict is the mean), paid_for (vote or verdict)",
    "max_questions": "the verifier's turns minus one",
    "min_questions": "its turns in which a decision does not count yet",
    "max_response_words": "words that a reply may have",
    "headers": "channel -> the words that start this agent's message there",
    "stance": "the verdict it argues for: 1 accept, 0 reject, none for the verifier",
    "stance_word": "the same as accept or reject, empty for the verifier",
    "stances": "agent -> accept or reject, where this agent may know it",
    "stance_is_random": "the item draws the provers' stance",
    "decision_format": "text, or json for a verifier whose replies are JSON",
    "reply_fields": "channel -> the field of this agent's message there (empty for text)",
    "scale": "name of the verdict scale: accept_reject, one_to_seven or percent",
    "accept_decision": "the decision that is surest to accept, word for word",
    "reject_decision": "the decision that is surest to reject, word for word",
    "rewards": (
        "amounts: prover, verifier, incorrect, terminated, no_guess, shared (provers are paid as the verifier), between"
        " (a graded verdict's pay, in words), said (this agent's table in words, where the amounts do not suffice)"
    ),
    "sides": ("for a chooser: side -> its stance_word and rewards"),
}
"""The variables of templates, with their meaning."""

PARTS = "_parts"
"""The folder of parts that templates include."""
FILTERS = ("amount", "fenced")
_PACKAGE = Path(__file__).parent / "prompts"
_SUFFIX, _MOST_BYTES = ".j2", 200_000


@dataclass(frozen=True)
class Template:
    """text: of the template. file: its source, for messages."""

    text: str
    file: str


@dataclass(frozen=True)
class Prompts:
    """Templates by name, as "nip/prover.j2"."""

    templates: Mapping[str, Template]

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The prompt of template `name`. Raises UserError, with file and line, for any fault of the template."""
        try:
            return self._environment.get_template(name).render(variables).strip()
        except Exception as error:  # a template is a program of the user's: any error is theirs to fix
            raise self._explained(error, name) from None

    @cached_property
    def _environment(self) -> "Environment":
        from jinja2 import FunctionLoader, StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        made = ImmutableSandboxedEnvironment(
            loader=FunctionLoader(self._load),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
        )
        made.filters.update(fenced=fenced, amount=amount)
        return made

    def _load(self, name: str) -> tuple[str, str, None] | None:
        template = self.templates.get(name)
        return None if template is None else (template.text, template.file, None)

    def __getstate__(self) -> dict[str, Any]:
        return {"templates": self.templates}  # the environment is recreated at the receiver

    def _explained(self, error: Exception, name: str) -> UserError:
        from jinja2 import TemplateNotFound, TemplateSyntaxError, UndefinedError

        file, line = self._place(error, name)
        if isinstance(error, TemplateSyntaxError):
            file, line = error.filename or file, error.lineno
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, TemplateNotFound):
            what = f"there is no template {error.message!r}, expected one of {', '.join(sorted(self.templates))}"
        elif isinstance(error, UndefinedError):
            what = f"{error.message}; variables are {', '.join(VARIABLES)}"
        return UserError(f"{file}, line {line}: {what}")

    def _place(self, error: Exception, name: str) -> tuple[str, int]:
        """The innermost template and its line in the error's traceback."""
        files = {template.file for template in self.templates.values()}
        file, line = self.templates[name].file if name in self.templates else name, 1
        for frame, number in walk_tb(error.__traceback__):
            if frame.f_code.co_filename in files:
                file, line = frame.f_code.co_filename, number
        return file, line


def load_prompts(version: int, folder: str | None, protocol: Protocol) -> Prompts:
    """The package's templates of `version` overridden by those of `folder`, by relative name.

    Raises UserError for an unknown version, a folder or file that cannot be read, or a file that would never be used.
    """
    if folder is None:
        return _shipped(version)
    templates, own = dict(_shipped(version).templates), dict(_read_folder(Path(folder)))
    _refuse_useless(Path(folder), own, templates, protocol)
    return Prompts(templates | own)


@cache
def _shipped(version: int) -> Prompts:
    """Cached; read and compiled once. A version after the first has the files that it changes."""
    known = sorted(int(path.name[1:]) for path in _PACKAGE.iterdir() if path.is_dir())
    if version not in known:
        choice = ", ".join(map(str, known))
        raise UserError(f"scenario.prompt_version: there is no version {version}, expected one of {choice}")
    templates: dict[str, Template] = {}
    for one in known[: known.index(version) + 1]:
        templates |= _read_folder(_PACKAGE / f"v{one}")
    return Prompts(templates)


def check_templates(prompts: Prompts, names: Sequence[str]) -> None:
    """Check every branch of these templates and of all that they include. Raises UserError for one that is missing or
    unreadable, or that uses an unknown variable or filter."""
    from jinja2 import meta, nodes

    trees: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in trees:
            trees[name] = _syntax_tree(prompts, name)
            for reference in trees[name].find_all((nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)):
                waiting += _referenced(prompts, name, reference)
    made = {found.name for tree in trees.values() for found in tree.find_all(nodes.Name) if found.ctx != "load"}
    for name, tree in trees.items():
        unknown = meta.find_undeclared_variables(tree) - set(VARIABLES) - made
        for found in tree.find_all(nodes.Name):
            if found.name in unknown:
                place = f"{prompts.templates[name].file}, line {found.lineno}"
                raise UserError(f"{place}: unknown variable {found.name!r}; variables are {', '.join(VARIABLES)}")


def fenced(text: str, language: str = "") -> str:
    """A template filter: `text` in a Markdown fence that is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = text.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"


def amount(value: float) -> str:
    """A template filter: a reward for readers."""
    return f"{value:g}"


def _read_folder(folder: Path) -> Iterator[tuple[str, Template]]:
    if not folder.is_dir():
        raise UserError(
            f"scenario.prompts: {folder} is not a folder; give one that holds templates, as nip/prover{_SUFFIX}"
        )
    for path in sorted(folder.rglob(f"*{_SUFFIX}")):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise UserError(f"{path}: a template of more than {_MOST_BYTES} bytes; make it shorter")
            yield path.relative_to(folder).as_posix(), Template(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: the template cannot be read ({error}); it must be a text file in UTF-8") from None


def _refuse_useless(
    folder: Path, own: Mapping[str, Template], package: Mapping[str, Template], protocol: Protocol
) -> None:
    """Refuse files that would silently never be used: a misspelt name, or another suffix."""
    if not own:
        raise UserError(
            f"scenario.prompts: {folder} holds no template; put files like"
            f" {protocol.name}/{protocol.agents[0]}{_SUFFIX} there"
        )
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            path.is_file()
            and path.suffix not in (_SUFFIX, ".md")
            and not any(part.startswith(".") for part in Path(name).parts)
        ):
            raise UserError(f"{path}: not a template; names of templates end in {_SUFFIX} (and notes in .md)")
    for name, template in own.items():
        room = name.partition("/")[0]
        if room == PARTS or name in package:
            continue
        known = _template_names(room, protocol)
        if not known:
            rooms = sorted({PARTS, protocol.name, *(other.partition("/")[0] for other in package)})
            raise UserError(f"{template.file}: there is no protocol {room!r}; folders are {', '.join(rooms)}")
        if name not in known:
            raise UserError(
                f"{template.file}: no agent has a template of this name, expected one of {', '.join(known)}"
            )


def _template_names(room: str, protocol: Protocol) -> list[str]:
    """Names of the templates of the protocol `room`, [] if there is no such protocol."""
    if room != protocol.name and room not in PROTOCOLS:
        return []
    agents = protocol.agents if room == protocol.name else PROTOCOLS[room](ProtocolParams()).agents
    return [template_name(room, agent) for agent in agents]


def template_name(protocol: str, agent: str) -> str:
    """The name of the template of an agent's system prompt: judges of a built-in panel share one."""
    return f"{protocol}/{agent.rstrip('0123456789') if protocol == 'judge_panel' else agent}{_SUFFIX}"


def _syntax_tree(prompts: Prompts, name: str) -> Any:
    if name not in prompts.templates:
        raise UserError(f"there is no template {name!r}, expected one of {', '.join(sorted(prompts.templates))}")
    template = prompts.templates[name]
    try:
        prompts._environment.compile(template.text, name, template.file)  # unknown filters are only found here
        return prompts._environment.parse(template.text, name, template.file)
    except Exception as error:
        raise prompts._explained(error, name) from None


def _referenced(prompts: Prompts, name: str, node: Any) -> list[str]:
    """Literal names in include, import or extends; lists of alternatives and computed names are left to rendering."""
    wanted = getattr(node.template, "value", None)
    if not isinstance(wanted, str) or getattr(node, "ignore_missing", False):
        return []
    if wanted not in prompts.templates:
        known = ", ".join(sorted(prompts.templates))
        raise UserError(
            f"{prompts.templates[name].file}, line {node.lineno}: there is no template {wanted!r}, expected one of"
            f" {known}"
        )
    return [wanted]


# ----------------------------------------------------------------------------------------------------------------------
# The payment in an agent's prompt: amounts by name, and sentences for unusual tables.

_BETWEEN = {
    "linear": "in proportion to how sure you were",
    "brier": "by how far the probability that you gave to the truth falls short of 1, squared",
    "log": f"by the logarithm of the probability that you gave to the truth, which counts as at least {LEAST:g}",
}


def rewards_of(
    protocol: Protocol, agent: str, stance: int | None, names: Mapping[str, str], graded: bool
) -> dict[str, Any]:
    """The variable `rewards` of the templates of `agent`, who argues for `stance`. names: agent -> its name in chats.

    graded: True if the verifier states its confidence.
    """
    verifier = agent if agent in protocol.verifiers else protocol.viewpoint
    payment = (
        protocol.payment if stance is None else protocol.payment.arguing({**protocol.payment.goals, agent: stance})
    )
    judged, asking = payment.table(verifier), payment.turns.get(verifier, {})
    prover = agent if agent in protocol.provers else next(iter(protocol.provers), "")
    own, goal = payment.table(prover), payment.goals.get(prover, 1)
    right, wrong, undecided, wanted = judged[1][1], judged[0][1], judged[0][2], own[1][goal]
    shared = bool(prover) and own == judged and payment.turns.get(prover, {}) == asking
    usual = judged == for_being_right(right, wrong, undecided) and not set(asking) - {*protocol.verifiers}
    if agent in protocol.provers and not shared:
        usual = (
            own == for_verdict(goal, wanted) and (agent in payment.goals or not wanted) and not payment.turns.get(agent)
        )
    return {
        "prover": wanted,
        "verifier": right,
        "incorrect": wrong,
        "terminated": undecided,
        "no_guess": asking.get(verifier, 0.0),
        "shared": shared,
        "between": _BETWEEN[payment.scoring],
        "said": (
            ""
            if usual or (shared and agent != verifier)
            else _said(protocol, agent, payment.table(agent), names, graded)
        ),
    }


def _said(
    protocol: Protocol, agent: str, table: tuple[tuple[float, ...], ...], names: Mapping[str, str], graded: bool
) -> str:
    (true_reject, false_accept, undecided), (false_reject, true_accept, also) = table
    said = (
        f"You are paid {true_accept:g} when a correct solution is accepted, {false_reject:g} when it is rejected, "
        f"{true_reject:g} when a wrong one is rejected, {false_accept:g} when it is accepted"
    )
    between = (
        _BETWEEN[protocol.payment.scoring]
        if agent in protocol.verifiers
        else "in proportion to how sure the decision is"
    )
    said += f", and in between {between}." if graded else "."
    if undecided == also != 0:
        said += f" Without a decision in the end you are paid {undecided:g}."
    elif undecided != also:
        said += (
            f" Without a decision in the end you are paid {also:g} for a correct solution and {undecided:g} for a wrong"
            " one."
        )
    for speaker, amount in protocol.payment.turns.get(agent, {}).items():
        if amount:
            whose = "your turns" if speaker == agent else f'the turns of "{names[speaker]}"'
            said += (
                f" Each of {whose}{' without a decision' if speaker in protocol.verifiers else ''} is paid to you with"
                f" {amount:g}."
            )
    return said


# ----------------------------------------------------------------------------------------------------------------------
# The variables of templates, and a check that all templates can be rendered.

_RULES = {
    "majority": "The verdict is the vote of more than half of the judges.",
    "unanimous": "The solution is accepted if all judges accept it, and else rejected.",
    "veto": "The solution is rejected if a single judge rejects it, and else accepted.",
    "mean": "The verdict is the mean of how sure the judges are.",
}

SAMPLE = CodeItem(
    -1, "Read two integers and print their sum.", "a, b = map(int, input().split())\nprint(a + b)", 1, 1, "introductory"
)
"""The item for testing templates."""


def check_prompts(scenario: "CodeValidation") -> None:
    """Check the protocol's templates and render them for a sample item, with either stance and every role in `told`.

    Raises UserError, with file and line, for: no template, a syntax error, an unknown variable, an unknown template to
    include, an error while rendering, or an empty prompt.
    """
    protocol = scenario.protocol
    speaking = [agent for agent in protocol.agents if protocol.writes[agent]]
    names = [template_name(protocol.name, agent) for agent in speaking]
    for name in names:
        if name not in scenario.prompts.templates:
            raise UserError(
                f"protocol.name: there are no prompts for {protocol.name!r} (no template {name!r}); "
                f"put {', '.join(names)} into a folder and name it in scenario.prompts"
            )
    if scenario.settings.prompts is not None:  # built-in ones are checked by the tests
        check_templates(scenario.prompts, names)
    for agent, name in zip(speaking, names):
        for stance, role in product((REJECT, ACCEPT), protocol.told_of(agent)):
            item = replace(SAMPLE, prover_stance=stance)
            made = scenario.prompts.render(name, prompt_variables(scenario, item, agent, role))
            if not made:
                raise UserError(f"{scenario.prompts.templates[name].file}, line 1: the template makes an empty prompt")
            for named in scenario.reply_fields(agent).values():
                if f'"{named}"' not in made:
                    raise UserError(
                        f"{scenario.prompts.templates[name].file}, line 1: scenario.decision_format is json, but the"
                        " prompt does not name "
                        f'the field "{named}"; include _parts/json_reply.j2, or set decision_format to text'
                    )


def prompt_variables(scenario: "CodeValidation", item: CodeItem, agent: str, role: str | None = None) -> dict[str, Any]:
    """The variables of the template of `agent`; see `VARIABLES`. role: its knowledge of it."""
    protocol, roles = scenario.protocol, scenario.roles
    names = {other: role.name for other, role in roles.items()}
    stance = scenario.stance(item, agent, role)
    is_random = scenario.settings.randomize_prover_stance
    return {
        "question": item.question,
        "solution": item.solution,
        "difficulty": item.difficulty,
        "protocol": protocol.name,
        "agent": agent,
        "role": role or "",
        "name": roles[agent].name,
        "names": names,
        "verifier_name": (
            roles[agent].name
            if agent in protocol.verifiers
            else " and ".join(roles[one].name for one in protocol.verifiers)
        ),
        "panel": (
            {}
            if protocol.panel is None
            else {
                **asdict(protocol.panel),
                "rule": _RULES[protocol.panel.rule],
                "is_mean": protocol.panel.rule == "mean",
            }
        ),
        "max_questions": protocol.verifier_turns - 1,
        "min_questions": _turns_too_early(protocol),
        "max_response_words": scenario.agent_settings(agent).max_response_words,
        "headers": dict(roles[agent].headers),
        "stance": stance,
        "stance_word": "" if stance is None else DECISIONS[stance],
        "stances": {prover: _known_stance(scenario, item, agent, prover, role) for prover in protocol.provers},
        "stance_is_random": is_random,
        "decision_format": "json" if scenario.reply_fields(agent) else "text",
        "reply_fields": scenario.reply_fields(agent),
        "scale": scenario.scale.name,
        "accept_decision": scenario.verdict_text(ACCEPT),
        "reject_decision": scenario.verdict_text(REJECT),
        "rewards": rewards_of(
            replace(protocol, payment=protocol.payment.of(role)),
            agent,
            stance,
            names,
            scenario.scale.name != "accept_reject",
        ),
        "sides": (
            {}
            if protocol.chooser is None
            else {side: _on_side(scenario, item, agent, side, names) for side in protocol.roles}
        ),
    }


def _on_side(
    scenario: "CodeValidation", item: CodeItem, agent: str, side: str, names: Mapping[str, str]
) -> dict[str, Any]:
    """The stance and pay of `agent` if the chooser takes this side."""
    stance, payment = scenario.stance(item, agent, side), scenario.protocol.payment.of(side)
    paid = rewards_of(
        replace(scenario.protocol, payment=payment), agent, stance, names, scenario.scale.name != "accept_reject"
    )
    return {"stance_word": "" if stance is None else DECISIONS[stance], **paid}


def _known_stance(scenario: "CodeValidation", item: CodeItem, agent: str, prover: str, role: str | None) -> str:
    """The stance of `prover` as known to `agent`: a drawn one is hidden from the verifier."""
    stance = scenario.stance(item, prover, role)
    hidden = scenario.settings.randomize_prover_stance and agent in scenario.protocol.verifiers
    return "" if stance is None or hidden else DECISIONS[stance]


def _turns_too_early(protocol: Protocol) -> int:
    """The maximum, over episode seeds, of turns in which the verifier's decision does not count yet."""
    rules = rulebook(protocol)
    pairs = product(protocol.verifiers, range(len(protocol.turns)))
    return max(sum(r < protocol.min_rounds - 1 for r in rules.rounds_of(verifier, seed)) for verifier, seed in pairs)
