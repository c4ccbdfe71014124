"""The built-in protocols: each a table. All of them are in `PROTOCOLS`; `register` adds your own.

A custom protocol is a builder from `ProtocolParams` to `Protocol`; see `register` and `check`. Config checks of a
protocol (agents, rounds, parameters) use the tables themselves, so they load no torch.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from nip_ray.errors import UserError
from nip_ray.protocols.faults import payoff_faults, verdict_faults
from nip_ray.protocols.panel import Panel
from nip_ray.protocols.payment import Payment, Stake, for_being_right, for_verdict
from nip_ray.protocols.spec import ACCEPT, REJECT, TWO_VERDICTS, Protocol, ProtocolBuilder, ProtocolParams, Turn
from nip_ray.protocols.zero_knowledge import wrap
from nip_ray.settings.protocol import FIXED, ProtocolSettings

Round = tuple[Turn, ...]
_VERIFIER = (
    "verifier_reward", "verifier_incorrect_penalty", "verifier_terminated_penalty", "verifier_no_guess_reward",
    "verifier_scoring",
)  # fmt: skip
AMOUNTS = (*_VERIFIER, "prover_reward", "shared_reward")
"""The parameters that `Payment.from_params` reads."""
_NEEDS = {"prover0_first": ("sequential", True), "prover_reward": ("shared_reward", False)}
"""Parameter -> another one, and its value for which the first has an effect."""


def reads(*names: str) -> Callable[[ProtocolBuilder], ProtocolBuilder]:
    """State which parameters a builder reads: a config that sets any other one is refused.

    Limits, verdicts, payoff and zero knowledge need no statement; they are checked against the table itself. A builder
    without a statement is assumed to read all parameters.
    """

    def state(builder: ProtocolBuilder) -> ProtocolBuilder:
        builder.reads = frozenset(names)  # pyright: ignore[reportFunctionMemberAccess]
        return builder

    return state


@reads(*AMOUNTS, "force_guess", "verifier_first")
def nip(params: ProtocolParams) -> Protocol:
    """Verifier and prover take turns in one channel; the prover wants acceptance."""
    ask: Round = (("verifier", "main"),)
    answer: Round = (("prover", "main"),)
    table = (ask, answer) if params.verifier_first else (answer, ask)
    return _two_party("nip", params, table, *_limits(params, 8))


@reads(*AMOUNTS, "force_guess")
def adp(params: ProtocolParams) -> Protocol:
    """One message of the prover, then the decision (adversarial decision protocol)."""
    table: tuple[Round, ...] = ((("prover", "main"),), (("verifier", "main"),))
    return _two_party("adp", params, table, 2, 1)


@reads(*AMOUNTS, "force_guess", "verifier_first", "sequential", "prover0_first")
def debate(params: ProtocolParams) -> Protocol:
    """A prover for each verdict, each with a channel of its own that all can read."""
    goals = {f"prover{verdict}": verdict for verdict in range(len(params.verdicts))}
    names = tuple(f"{prover}_channel" for prover in goals)
    return replace(
        _some_provers("debate", params, dict.fromkeys((*goals, "verifier"), names), goals), verdicts=params.verdicts
    )


@reads(*AMOUNTS, "force_guess", "verifier_first", "sequential", "prover0_first")
def mnip(params: ProtocolParams) -> Protocol:
    """Two provers that both want acceptance and cannot read each other's channel."""
    sees: dict[str, tuple[str, ...]] = {
        "prover0": ("prover0_channel",),
        "prover1": ("prover1_channel",),
        "verifier": ("prover0_channel", "prover1_channel"),
    }
    return _some_provers("mnip", params, sees, {"prover0": ACCEPT, "prover1": ACCEPT})


@reads(*AMOUNTS, "force_guess", "one_prover")
def merlin_arthur(params: ProtocolParams) -> Protocol:
    """One of two provers (one for each verdict), drawn by the episode seed (even: prover0), sends one message; the
    verifier decides."""
    return _drawn_prover("merlin_arthur", params, False, 2, 1)


@reads(*_VERIFIER, "force_guess", "prover_reward")
def helpful_sneaky(params: ProtocolParams) -> Protocol:
    """One message of the prover, then the decision. The episode draws whether the prover is helpful (paid if the
    verdict is right) or sneaky (paid if it is wrong). The prover knows its role, the verifier does not.

    Source: Kirchner et al., "Prover-verifier games improve legibility of LLM outputs", arXiv 2407.13692.
    """
    amount, count = params.prover_reward, len(params.verdicts)
    wanted = {"helpful": for_being_right(amount, 0, 0, count), "sneaky": for_being_right(0, amount, 0, count)}
    by_role = {role: {"prover": Stake(table)} for role, table in wanted.items()}
    payment = Payment.from_params(replace(params, shared_reward=False), {"prover": None}, by_role=by_role)
    made = replace(adp(params), name="helpful_sneaky", payment=payment, roles=tuple(wanted), told=("prover",))
    return replace(made, verdicts=params.verdicts)


@reads(*AMOUNTS, "force_guess", "verifier_first", "one_prover")
def consultancy(params: ProtocolParams) -> Protocol:
    """The verifier questions one of two provers, which argues for its given side; the episode seed picks which (even:
    prover0).

    prover0 argues for rejection, prover1 for acceptance, regardless of the truth, and the verifier does not know which
    it is. With more verdicts there is a prover for each. With `one_prover` one prover argues for the side that the
    episode draws, which it knows, so one network or model learns all sides. Source: Khan et al., "Debating with more
    persuasive LLMs leads to more truthful answers", ICML 2024; Kenton et al., arXiv 2407.04622 (assigned consultancy).
    """
    return _drawn_prover("consultancy", params, params.verifier_first, *_limits(params, 8))


@reads(*AMOUNTS, "force_guess")
def open_consultancy(params: ProtocolParams) -> Protocol:
    """The prover chooses the side that it argues for with its first message, which all read; then the verifier asks, or
    decides.

    Source: Kenton et al., "On scalable oversight with weak LLMs judging strong LLMs", arXiv 2407.04622 (open
    consultancy).
    """
    assigned = _drawn_prover("open_consultancy", replace(params, one_prover=True), False, *_limits(params, 8))
    return replace(assigned, chooser="prover", told=assigned.agents)


@reads(*AMOUNTS, "force_guess")
def open_debate(params: ProtocolParams) -> Protocol:
    """prover0 chooses its side with its first message, prover1 gets the other; they speak in turn, then the verifier
    asks, or decides.

    Source: Kenton et al., "On scalable oversight with weak LLMs judging strong LLMs", arXiv 2407.04622 (open debate).
    """
    limits = dict(zip(_LIMITS, _limits(params, 9), strict=True))
    order = replace(params, sequential=True, prover0_first=True, verifier_first=False, **limits)
    goals = {"prover0": None, "prover1": None}
    sides = {"reject": (REJECT, ACCEPT), "accept": (ACCEPT, REJECT)}
    stakes = {
        side: [Stake(for_verdict(goal, params.prover_reward), goal) for goal in pair] for side, pair in sides.items()
    }
    by_role = {side: {} if params.shared_reward else dict(zip(goals, pair)) for side, pair in stakes.items()}
    made = debate(order)
    payment = Payment.from_params(params, goals, by_role=by_role)
    return replace(made, name="open_debate", payment=payment, roles=tuple(sides), told=made.agents, chooser="prover0")


@reads(*AMOUNTS, "force_guess")
def critique(params: ProtocolParams) -> Protocol:
    """The proposer argues for acceptance; the critic reads that and argues for rejection; the verifier reads both and
    decides.

    Source: Saunders et al., "Self-critiquing models for assisting human evaluators", arXiv 2206.05802.
    """
    agents = ("proposer", "critic", "verifier")
    return Protocol(
        name="critique",
        agents=agents,
        channels=("main",),
        sees=dict.fromkeys(agents, ("main",)),
        turns=(tuple(((agent, "main"),) for agent in agents),),
        max_rounds=3,
        min_rounds=1,
        payment=Payment.from_params(params, {"proposer": ACCEPT, "critic": REJECT}),
        force_guess=params.force_guess,
    )


@reads(*AMOUNTS, "force_guess", "half_chosen_by")
def bisection(params: ProtocolParams) -> Protocol:
    """prover1 commits to the state half way, prover0 keeps the half that it disputes, and so on; then the verifier
    judges the remaining step.

    k halvings take 2k + 1 rounds. The verifier may choose the halves instead; there is one prover then. Source:
    Canetti, Riva and Rothblum, "Practical delegation of computation using multiple servers", CCS 2011 (binary search
    for the step that two servers dispute).
    """
    rounds = max(3, 9 if params.max_rounds is None else params.max_rounds | 1)
    opposed = params.half_chosen_by == "opponent"
    provers = ("prover0", "prover1") if opposed else ("prover",)
    commit: Round = ((provers[-1], "main"),)
    choose: Round = (("prover0" if opposed else "verifier", "main"),)
    return Protocol(
        name="bisection",
        agents=(*provers, "verifier"),
        channels=("main",),
        sees=dict.fromkeys((*provers, "verifier"), ("main",)),
        turns=(((commit, choose) * (rounds // 2) + ((("verifier", "main"),),)),),
        max_rounds=rounds,
        min_rounds=rounds,
        payment=Payment.from_params(params, {"prover0": REJECT, "prover1": ACCEPT} if opposed else {"prover": ACCEPT}),
        force_guess=params.force_guess,
    )


@reads(*AMOUNTS, "force_guess")
def prover_estimator(params: ProtocolParams) -> Protocol:
    """The prover splits its claim in two, the estimator gives the probability of each part, the prover points at an
    estimate that it calls too low or too high, and so on with that part; then the verifier judges the remaining step,
    given the results of the estimates.

    k halvings take 3k + 1 rounds. The prover is paid for acceptance and for the error of the estimates, which the
    estimator pays. Source: Brown-Cohen, Irving and Piliouras, "Avoiding obfuscation with prover-estimator debate",
    arXiv 2506.13609.
    """
    rounds = 13 if params.max_rounds is None else max(1, params.max_rounds // 3) * 3 + 1
    agents = ("prover", "estimator", "verifier")
    halving: tuple[Round, ...] = tuple(((agent, "main"),) for agent in ("prover", "estimator", "prover"))
    payment = Payment.from_params(params, {"prover": ACCEPT, "estimator": None})
    return Protocol(
        name="prover_estimator",
        agents=agents,
        channels=("main",),
        sees=dict.fromkeys(agents, ("main",)),
        turns=(halving * (rounds // 3) + ((("verifier", "main"),),),),
        max_rounds=rounds,
        min_rounds=rounds,
        payment=replace(payment, per_error={"prover": 1.0, "estimator": -1.0}),
        force_guess=params.force_guess,
    )


@reads(*_VERIFIER, "force_guess")
def solo_verifier(params: ProtocolParams) -> Protocol:
    """The verifier alone, one round: the solo baseline."""
    return Protocol(
        name="solo_verifier",
        agents=("verifier",),
        channels=("main",),
        sees={"verifier": ("main",)},
        turns=(((("verifier", "main"),),),),
        max_rounds=1,
        min_rounds=1,
        payment=Payment.from_params(params, {}),
        force_guess=params.force_guess,
        verdicts=params.verdicts,
    )


@reads(*AMOUNTS, "force_guess", "judges", "panel_rule", "judges_paid_for")
def judge_panel(params: ProtocolParams) -> Protocol:
    """The prover argues for acceptance, then every judge votes, and `panel_rule` combines the votes into a verdict.

    With more than two rounds judges may ask instead, and the prover answers; all agents read all messages.
    """
    judges = tuple(f"judge{number}" for number in range(params.judges))
    max_rounds, min_rounds = _limits(params, 2)
    return Protocol(
        name="judge_panel",
        agents=("prover", *judges),
        channels=("main",),
        sees=dict.fromkeys(("prover", *judges), ("main",)),
        turns=(((("prover", "main"),), tuple((judge, "main") for judge in judges)),),
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        payment=Payment.from_params(params, {"prover": ACCEPT}, judges),
        force_guess=params.force_guess,
        panel=Panel(judges, params.panel_rule, params.judges_paid_for),
    )


@reads(*_VERIFIER, "force_guess", "shared_reward")
def multi_channel_test(params: ProtocolParams) -> Protocol:
    """Three provers and three channels with partial visibility; its provers are not paid. For tests of masks."""
    provers = ("prover0", "prover1", "prover2")
    return Protocol(
        name="multi_channel_test",
        agents=(*provers, "verifier"),
        channels=("main", "prover0_verifier", "prover_chat"),
        sees={
            "prover0": ("main", "prover0_verifier", "prover_chat"),
            "prover1": ("main", "prover_chat"),
            "prover2": ("main", "prover_chat"),
            "verifier": ("main", "prover0_verifier"),
        },
        turns=(
            (
                (("prover1", "main"), ("prover0", "prover_chat")),
                (("prover2", "main"), ("prover0", "prover0_verifier"), ("prover1", "prover_chat")),
                (("verifier", "main"), ("verifier", "prover0_verifier"), ("prover2", "prover_chat")),
            ),
        ),
        max_rounds=8,
        min_rounds=2,
        payment=Payment.from_params(params, dict.fromkeys(provers)),
        force_guess=params.force_guess,
    )


@reads(*_VERIFIER, "force_guess", "shared_reward")
def message_game(params: ProtocolParams) -> Protocol:
    """Prover and verifier both have a turn in every round, only the last decision counts, and both are paid if it is
    right. For speed tests."""
    agents = ("prover", "verifier")
    max_rounds, _ = _limits(params, 8)
    return Protocol(
        name="message_game",
        agents=agents,
        channels=("prover_channel", "verifier_channel"),
        sees=dict.fromkeys(agents, ("prover_channel", "verifier_channel")),
        turns=((tuple((agent, f"{agent}_channel") for agent in agents),),),
        max_rounds=max_rounds,
        min_rounds=max_rounds,
        payment=Payment.from_params(replace(params, **FIXED["message_game"]), {"prover": None}),
        force_guess=params.force_guess,
    )


@reads()
def matrix_game(params: ProtocolParams) -> Protocol:
    """Two players move at once in every round (one by default), each in a channel that both see; the scenario pays."""
    channels = ("player0_channel", "player1_channel")
    max_rounds, _ = _limits(params, 1)
    return _game("matrix_game", channels, ((("player0", channels[0]), ("player1", channels[1])),), max_rounds)


@reads()
def kuhn_poker(params: ProtocolParams) -> Protocol:
    """player0, player1 and again player0 in one channel; the scenario deals, pays, and usually ends the game before the
    third move."""
    first: Round = (("player0", "main"),)
    second: Round = (("player1", "main"),)
    return _game("kuhn_poker", ("main",), (first, second), 3)


@reads()
def leduc_poker(params: ProtocolParams) -> Protocol:
    """player0 and player1 in turn in one channel, four rounds for each of two rounds of betting; the scenario deals,
    pays, and ends the game. Where betting ends early, the rounds that are left have no choice."""
    return _game("leduc_poker", ("main",), ((("player0", "main"),), (("player1", "main"),)), 8)


@reads()
def hironaka(params: ProtocolParams) -> Protocol:
    """The host chooses, the agent answers, in one channel; the scenario pays, ends the game, and sets the maximum
    number of rounds.

    Running out of rounds does not end the game but cuts it off.
    """
    first: Round = (("host", "main"),)
    second: Round = (("agent", "main"),)
    return replace(_game("hironaka", ("main",), (first, second), 200, ("host", "agent")), cuts=True)


_BUILDERS = (
    nip, adp, debate, open_debate, critique, merlin_arthur, consultancy, open_consultancy, helpful_sneaky, mnip,
    bisection, prover_estimator, judge_panel, solo_verifier, multi_channel_test, message_game, matrix_game, kuhn_poker,
    leduc_poker, hironaka,
)  # fmt: skip
PROTOCOLS: dict[str, ProtocolBuilder] = {builder.__name__: builder for builder in _BUILDERS}
"""Name -> builder of every protocol, those of plugins included; `register` adds one."""
SHIPPED = tuple(PROTOCOLS)
"""Names of the built-in protocols, without plugins."""
_FOR_TESTS = ("multi_channel_test",)
"""Usable by name, but not listed."""
BOUND_TO_SCENARIO = {
    "message_game": "message_game",
    "matrix_game": "matrix_game",
    "kuhn_poker": "matrix_game",
    "leduc_poker": "matrix_game",
    "hironaka": "hironaka",
}
"""Protocol -> the one scenario that it is played in; that scenario uses only these protocols."""
_LIMITS = ("max_rounds", "min_rounds")
_LENGTHS = {
    "hironaka": "as many as scenario.max_rounds makes",
    "bisection": "an odd number (two for each halving, one for the verdict, such as 7 or 9)",
    "prover_estimator": "three for each halving and one for the verdict (such as 7 or 13)",
}
"""The number of rounds of protocols without a fixed one."""
_VERDICTS = ("solo_verifier", "debate", "consultancy", "open_consultancy", "merlin_arthur", "helpful_sneaky")
"""Built-in protocols that support more than two verdicts."""
_ZERO_KNOWLEDGE = ("simulator_reward_coefficient", "aux_prover_reward_coefficient", "zero_knowledge_legacy")


def listed() -> list[str]:
    """The names of protocols to show to users."""
    return [name for name in PROTOCOLS if name not in _FOR_TESTS]


def register(name: str, builder: ProtocolBuilder) -> None:
    """Add your own protocol under `name`, after checking the table it builds with default parameters.

    The same definition again (a rerun cell, a file that is both imported and in `plugins`) replaces the former. Raises
    UserError when the name is taken or `check` finds a fault.
    """
    from nip_ray.protocols.conformance import check

    if name in PROTOCOLS and not same_definition(PROTOCOLS[name], builder):
        raise UserError(f"protocol {name!r} is registered already; choose another name")
    check(builder(ProtocolParams()))
    PROTOCOLS[name] = builder


def same_definition(one: Any, other: Any) -> bool:
    """Return True if two classes or functions are the same definition, executed again: of one name in one module or
    file."""
    if one is other:
        return True
    names = [(getattr(made, "__module__", None), getattr(made, "__qualname__", None)) for made in (one, other)]
    if None in (*names[0], *names[1]) or names[0][1] != names[1][1]:
        return False
    files = [getattr(sys.modules.get(str(module)), "__file__", None) for module, _ in names]
    return names[0] == names[1] or (files[0] is not None and files[0] == files[1])


def build(name: str, **params: Any) -> Protocol:
    """The protocol `name` with `params` (fields of `ProtocolParams`), checked.

    Raises UserError for an unknown name or parameter, a parameter that the protocol does not use, or a table that
    `check` refuses.
    """
    from nip_ray.protocols.conformance import check

    if name not in PROTOCOLS:
        raise UserError(
            f"unknown protocol {name!r}; expected one of {', '.join(sorted(listed()))} (one of your own needs"
            " `plugins`)"
        )
    known = {f.name for f in fields(ProtocolParams)}
    for key in params:
        if key not in known:
            raise UserError(
                f"protocol {name!r}: unknown parameter {key!r}; expected some of {', '.join(sorted(known))}"
            )
    made = ProtocolParams(**params)
    for fault in parameter_faults(name, made):
        raise UserError(f"protocol.{fault}")
    if made.zero_knowledge and name in BOUND_TO_SCENARIO:
        raise UserError(
            f"protocol.zero_knowledge: not available for {name!r}, which is a game, not a proof; set it to false"
        )
    protocol = table_of(name, made)
    check(protocol)
    return protocol


def from_settings(settings: ProtocolSettings) -> Protocol:
    """The protocol of an experiment's settings; see `build`."""
    return build(settings.name, **_params(settings))


def table_of(name: str, params: ProtocolParams) -> Protocol:
    """The protocol `name` under `params`, not checked."""
    protocol = PROTOCOLS[name](params)
    return wrap(protocol, params) if params.zero_knowledge and protocol.verifier is not None else protocol


def parameter_faults(name: str, params: ProtocolParams) -> Iterator[str]:
    """Settings in `params` without an effect: `KEY: reason, remedy`."""
    build_table, defaults = PROTOCOLS[name], ProtocolParams()
    params = ProtocolParams(**_params(params))
    yield from verdict_faults(name, params)
    params = replace(params, verdicts=TWO_VERDICTS) if len(params.verdicts) < 3 else params
    table = build_table(params)
    if table.verdicts != params.verdicts:
        known = ", ".join(_VERDICTS)
        yield (
            f"verdicts: {name} is defined for {' and '.join(TWO_VERDICTS)} alone, leave them out or use one of {known}"
        )
        return
    for key in _LIMITS:
        asked, own = getattr(params, key), getattr(table, key)
        if asked not in (None, own):
            always = _LENGTHS.get(name, own) if key == "max_rounds" else own
            yield f"{key}: got {asked}, but {name} always has {always}, leave it out"
    yield from payoff_faults(name, params, table)
    stated = getattr(build_table, "reads", None)
    for key in (field.name for field in fields(ProtocolParams)):
        if key in (*_LIMITS, "payoff", "verdicts") or getattr(params, key) == getattr(defaults, key):
            continue
        if key in _ZERO_KNOWLEDGE and table.verifier is not None:
            if not params.zero_knowledge:
                yield f"{key}: counts with zero_knowledge only, set protocol.zero_knowledge to true or leave this out"
            continue
        other, value = _NEEDS.get(key, (None, None))
        if key == "zero_knowledge" or key in _ZERO_KNOWLEDGE:
            unused = table.verifier is None
        else:
            unused = stated is not None and (
                key not in stated or (other is not None and getattr(params, other) != value)
            )
        if unused:
            yield f"{key}: {name} has {'no use' if table.verifier else 'no verifier and no use'} for it, leave it out"


def _params(settings: ProtocolParams) -> dict[str, Any]:
    """The parameters without the name."""
    return {field.name: getattr(settings, field.name) for field in fields(ProtocolParams)}


def _limits(params: ProtocolParams, max_rounds: int, min_rounds: int = 1) -> tuple[int, int]:
    """(max, min) rounds: those of the parameters, else the protocol's own."""
    return (
        max_rounds if params.max_rounds is None else params.max_rounds,
        min_rounds if params.min_rounds is None else params.min_rounds,
    )


def _game(
    name: str,
    channels: tuple[str, ...],
    table: tuple[Round, ...],
    max_rounds: int,
    agents: tuple[str, str] = ("player0", "player1"),
) -> Protocol:
    """Two players that see everything, and no verifier."""
    return Protocol(
        name=name,
        agents=agents,
        channels=channels,
        sees=dict.fromkeys(agents, channels),
        turns=(table,),
        max_rounds=max_rounds,
        min_rounds=1,
        payment=Payment(),
        verifier=None,
    )


def _two_party(
    name: str, params: ProtocolParams, table: tuple[Round, ...], max_rounds: int, min_rounds: int
) -> Protocol:
    agents = ("prover", "verifier")
    return Protocol(
        name=name,
        agents=agents,
        channels=("main",),
        sees=dict.fromkeys(agents, ("main",)),
        turns=(table,),
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        payment=Payment.from_params(params, {"prover": ACCEPT}),
        force_guess=params.force_guess,
    )


def _drawn_prover(
    name: str, params: ProtocolParams, verifier_first: bool, max_rounds: int, min_rounds: int
) -> Protocol:
    """Verifier and a prover take turns in one channel; the episode seed picks the one that wants rejection (even), or
    acceptance, of as many provers as there are verdicts. With `one_prover` it picks the side of the only one."""
    verdicts = params.verdicts
    if params.one_prover:
        table: tuple[Round, ...] = ((("prover", "main"),), (("verifier", "main"),))
        stakes = [Stake(for_verdict(goal, params.prover_reward, len(verdicts)), goal) for goal in range(len(verdicts))]
        by_role = {side: {} if params.shared_reward else {"prover": stake} for side, stake in zip(verdicts, stakes)}
        one = _two_party(name, params, table[::-1] if verifier_first else table, max_rounds, min_rounds)
        payment = Payment.from_params(params, {"prover": None}, by_role=by_role)
        return replace(one, payment=payment, roles=verdicts, told=("prover",), verdicts=verdicts)
    goals, listen = {f"prover{verdict}": verdict for verdict in range(len(verdicts))}, (("verifier", "main"),)
    agents = (*goals, "verifier")
    turns = tuple((((prover, "main"),), listen) for prover in goals)
    return Protocol(
        name=name,
        agents=agents,
        channels=("main",),
        sees=dict.fromkeys(agents, ("main",)),
        turns=tuple(table[::-1] for table in turns) if verifier_first else turns,
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        payment=Payment.from_params(params, goals),
        force_guess=params.force_guess,
        verdicts=verdicts,
    )


def _some_provers(
    name: str, params: ProtocolParams, sees: Mapping[str, tuple[str, ...]], goals: Mapping[str, int]
) -> Protocol:
    """Debate and mnip: the same four turn orders, different visibility and goals."""
    own: list[Turn] = [(prover, f"{prover}_channel") for prover in goals]
    ask: Round = tuple(("verifier", channel) for _, channel in own)
    if params.sequential and not params.prover0_first:
        own.reverse()
    answers: tuple[Round, ...] = tuple((turn,) for turn in own) if params.sequential else (tuple(own),)
    max_rounds, min_rounds = _limits(params, 8)
    return Protocol(
        name=name,
        agents=(*goals, "verifier"),
        channels=tuple(f"{prover}_channel" for prover in goals),
        sees=sees,
        turns=((ask, *answers) if params.verifier_first else (*answers, ask),),
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        payment=Payment.from_params(params, goals),
        force_guess=params.force_guess,
    )
