"""A check of a protocol table, in one call."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial

import torch

from nip_ray.errors import UserError, refuse_faults
from nip_ray.protocols.batched_step import certainty, slopes, start, step
from nip_ray.protocols.panel import RULES
from nip_ray.protocols.payment import Ends, Payment, PaymentFunction
from nip_ray.protocols.spec import TWO_VERDICTS, VERDICTS, Protocol, ZeroKnowledge

_NUMBER = "must be a finite number within float32"


def check(protocol: Protocol) -> None:
    """Raise one UserError that lists all faults of `protocol`, if any.

    Checked: names are unique and known; every agent sees what it writes to; some agent has a turn in every round, under
    every seed; the verifier, or each member of a panel, has a turn in which its decision counts, under every seed;
    round limits and roles are consistent; rewards are finite, in the tables and in play, and a payment function is
    pure; under zero knowledge also that the two extra agents exist and have the verifier's turns.
    """
    checks = (_shape_faults, _name_faults, _table_faults, _payment_faults, _turn_faults, _play_faults)
    refuse_faults(f"protocol {protocol.name!r}", *(partial(check, protocol) for check in checks))


def refuse_labels(protocol: Protocol, scenario: str, labels: Iterable[int]) -> None:
    """Raise UserError unless the labels of a scenario's instances are the codes of the protocol's verdicts.

    The next code means "continue", and -1 would be paid as the last one.
    """
    count, found = len(protocol.verdicts), sorted(set(labels))
    if protocol.verifier is None:
        return
    if other := [label for label in found if not 0 <= label < count]:
        codes = (
            "0 (to reject) or 1 (to accept)"
            if protocol.two_verdicts
            else f"0 to {count - 1}, in the order of protocol.verdicts"
        )
        raise UserError(
            f"scenario.name: {scenario!r} has the labels {', '.join(map(str, other[:5]))}, but {protocol.name!r} has "
            f"{'two' if count == 2 else count} verdicts: label every instance {codes}"
        )
    if not protocol.two_verdicts and len(found) < count:
        missing = ", ".join(name for code, name in enumerate(protocol.verdicts) if code not in found)
        raise UserError(
            f"protocol.verdicts: no instance of {scenario} has the label of {missing}; name as many as there are labels"
        )


def _shape_faults(protocol: Protocol) -> list[str]:
    try:
        well_shaped = all(
            isinstance(a, str) and isinstance(c, str) for table in protocol.turns for turns in table for a, c in turns
        )
    except (TypeError, ValueError):
        well_shaped = False
    if well_shaped:
        return []
    return [
        "`turns` must be nested as turns[seed class][round] = ((agent, channel), ...); mind the outer level, one entry"
        " a seed class"
    ]


def _name_faults(protocol: Protocol) -> Iterator[str]:
    for what, names in (("agents", protocol.agents), ("channels", protocol.channels)):
        if len(set(names)) != len(names) or not names:
            yield f"{what} must be named, each once (got {list(names)})"
    yield from _verdict_faults(protocol)
    yield from _panel_faults(protocol)
    if protocol.panel is None and protocol.verifier is not None and protocol.verifier not in protocol.agents:
        yield f"the verifier {protocol.verifier!r} is not among the agents {list(protocol.agents)}"
    if set(protocol.sees) != set(protocol.agents):
        yield f"`sees` must name every agent (has {sorted(protocol.sees)}, agents are {sorted(protocol.agents)})"
    unknown = {c for seen in protocol.sees.values() for c in seen} - set(protocol.channels)
    yield from (f"`sees` names the channel {c!r}, which does not exist" for c in sorted(unknown))
    for agent, channel in sorted({turn for table in protocol.turns for turns in table for turn in turns}):
        if agent not in protocol.agents or channel not in protocol.channels:
            yield f"`turns` names ({agent!r}, {channel!r}), which is not an agent and a channel"
        elif channel not in protocol.sees.get(agent, ()):
            yield f"{agent!r} writes to {channel!r} but does not see it; add the channel to sees[{agent!r}]"


def _verdict_faults(protocol: Protocol) -> list[str]:
    """Names are words; with more than two, settings defined for acceptance and rejection alone are invalid."""
    names, many = protocol.verdicts, len(protocol.verdicts) > 2
    if not many and names != TWO_VERDICTS:
        return [f"verdicts: two are called {' and '.join(TWO_VERDICTS)}, in this order (got {list(names)})"]
    if len(set(names)) < len(names) or not all(
        isinstance(name, str) and re.fullmatch("[A-Za-z0-9_]+", name) for name in names
    ):
        return [f"verdicts must be names of letters, digits and _, each once (got {list(names)})"]
    if taken := {"continue", VERDICTS[-1]} & set(names):
        return [f"verdicts: {min(taken)!r} is what having none is called, choose another name"]
    if protocol.payment.verdicts != len(names):
        return [
            f"verdicts: has {len(names)}, but its payment is made for {protocol.payment.verdicts} (`Payment.verdicts`)"
        ]
    if many and protocol.panel is not None:
        return ["verdicts: a panel's rule makes one of two of its votes; give it two verdicts"]
    if many and protocol.verifier is None:
        return ["verdicts: a game without a verifier has none; leave them out"]
    whole = protocol.panel is not None and protocol.panel.rule != "mean"
    if protocol.payment.graded and (many or whole or protocol.payment.function is None):
        return [
            "payment.graded: says that a payment function reads confidences, of two verdicts, a panel's under its mean;"
            " leave it out"
        ]
    if many and protocol.payment.scoring != "linear":
        return [
            f"verifier_scoring {protocol.payment.scoring}: is defined for two verdicts (got {len(names)}); use linear"
        ]
    return []


def _panel_faults(protocol: Protocol) -> Iterator[str]:
    panel = protocol.panel
    if panel is None:
        return
    if not panel.members or len(set(panel.members)) < len(panel.members) or set(panel.members) - set(protocol.agents):
        yield f"panel.members must name agents of {list(protocol.agents)}, each once (got {list(panel.members)})"
    if panel.rule not in RULES or panel.paid_for not in ("vote", "verdict"):
        yield (
            f"panel: rule must be one of {', '.join(RULES)}, paid_for vote or verdict (got {panel.rule!r},"
            f" {panel.paid_for!r})"
        )
    if protocol.verifier is None or protocol.verifier in protocol.agents:
        yield (
            f"with a panel, `verifier` is the name of all members together, and no agent's (got {protocol.verifier!r})"
        )
    if protocol.zero_knowledge is not None:
        yield "zero knowledge is not defined with several deciders"
    if protocol.payment.scoring != "linear" and panel.rule != "mean" and panel.paid_for == "verdict":
        yield (
            f"verifier_scoring {protocol.payment.scoring}: has no use where members are paid for a verdict that"
            f" {panel.rule} makes, which is never in between; pay them for their votes, or let the rule be mean"
        )


def _table_faults(protocol: Protocol) -> Iterator[str]:
    """Limits of rounds, seed classes, roles."""
    if protocol.max_rounds < 1:
        yield f"max_rounds must be at least 1 (got {protocol.max_rounds})"
    if not 1 <= protocol.min_rounds <= max(protocol.max_rounds, 1):
        yield f"min_rounds must lie between 1 and max_rounds {protocol.max_rounds} (got {protocol.min_rounds})"
    if not protocol.turns or not all(protocol.turns):
        yield "`turns` needs at least one seed class with at least one round"
    yield from _role_faults(protocol)


def _payment_faults(protocol: Protocol) -> list[str]:
    payment, faults, count = protocol.payment, [], len(protocol.verdicts)
    for role in payment.by_role:
        faults += [f"by_role[{role!r}]: {fault}" for fault in _payment_faults(_in_role(protocol, role))]
    for agent, table in payment.payoff.items():
        if agent not in protocol.agents:
            faults.append(
                f"payoff[{agent!r}]: no agent, expected some of {list(protocol.agents)} (is the verifier called"
                " otherwise?)"
            )
        elif [len(row) for row in table] != [count + 1] * count:
            words = ", ".join(protocol.verdicts)
            faults.append(
                f"payoff[{agent!r}] must have a row for each label ({words}) of amounts for {words}, undecided"
            )
        else:
            amounts = [amount for row in table for amount in row]
            faults += [f"payoff[{agent!r}]: {_NUMBER} (got {a})" for a in amounts if not _fits(a)]
    for agent, speakers in payment.turns.items():
        for speaker, amount in speakers.items():
            if agent not in protocol.agents or speaker not in protocol.agents:
                faults.append(f"turns[{agent!r}][{speaker!r}] must name two agents of {list(protocol.agents)}")
            elif not _fits(amount):
                faults.append(f"turns[{agent!r}][{speaker!r}]: {_NUMBER} (got {amount})")
    for agent, amount in payment.per_error.items():
        if agent not in protocol.agents or not _fits(amount):
            faults.append(f"per_error[{agent!r}]: {_NUMBER}, for an agent of {list(protocol.agents)} (got {amount})")
    if payment.per_error and (protocol.verifier is None or protocol.zero_knowledge is not None):
        faults.append("per_error: estimates are paid for where a verifier decides, and not under zero knowledge")
    if protocol.force_guess not in (None, "zero", "one", "y"):
        faults.append(f"force_guess must be zero, one, y or None (got {protocol.force_guess!r})")
    for agent, goal in payment.goals.items():
        if agent not in protocol.provers or goal not in range(count):
            codes = " or ".join(f"{name} ({code})" for code, name in enumerate(protocol.verdicts))
            faults.append(f"goals[{agent!r}] = {goal}: must map a prover to {codes}")
    if payment.scoring != "linear":
        for agent, ((reject, wrong, _), (missed, accept, _)) in () if faults else payment.payoff.items():
            if payment.wants_truth(agent) and abs((reject - wrong) - (accept - missed)) > 1e-9:
                faults.append(
                    f"verifier_scoring {payment.scoring} is honest only where right and wrong are as far apart for"
                    f" either label, and payoff[{agent!r}] has {reject - wrong:g} and {accept - missed:g}; use linear"
                )
    if payment.function is not None and not faults:
        faults += _function_faults(protocol, payment.function)
    return faults


def _fits(amount: float) -> bool:
    return abs(amount) <= torch.finfo(torch.float32).max  # false for NaN and infinity


def _in_role(protocol: Protocol, role: str) -> Protocol:
    """The payments of an episode of one role by its tables, without the other roles."""
    stakes = protocol.payment.by_role[role]
    goals = {agent: stake.goal for agent, stake in stakes.items() if stake.goal is not None}
    tables = {agent: stake.table for agent, stake in stakes.items()}
    return replace(
        protocol,
        payment=Payment(tables, goals=goals, scoring=protocol.payment.scoring, verdicts=protocol.payment.verdicts),
    )


def _role_faults(protocol: Protocol) -> list[str]:
    roles, faults = protocol.roles, []
    if protocol.chooser is not None:
        faults += _chooser_faults(protocol, protocol.chooser)
    if not roles:
        given = {"told": protocol.told, "by_role": protocol.payment.by_role}
        faults += [f"{what}: no roles are drawn, name them in `roles`" for what, named in given.items() if named]
        return faults
    if protocol.verifier is None:
        return ["roles: a game without a verifier draws none, its scenario deals and pays"]
    if protocol.zero_knowledge is not None:
        return ["roles: not defined under zero knowledge"]
    if len(set(roles)) < len(roles) or not all(
        isinstance(role, str) and re.fullmatch("[A-Za-z0-9_]+", role) for role in roles
    ):
        faults.append(f"roles must be names of letters, digits and _, each once (got {list(roles)})")
    if len(protocol.turns) not in (1, len(roles)):
        faults.append(
            f"`turns` must have one table for all roles, or one for each (has {len(protocol.turns)}, roles are"
            f" {list(roles)})"
        )
    faults += [
        f"told names {agent!r}, expected some of {list(protocol.agents)}"
        for agent in protocol.told
        if agent not in protocol.agents
    ]
    if protocol.payment.by_role and set(protocol.payment.by_role) != set(roles):
        faults.append(
            f"by_role must name every role, {{}} for one that changes nothing (has {list(protocol.payment.by_role)},"
            f" not {list(roles)})"
        )
    return faults


def _chooser_faults(protocol: Protocol, chooser: str) -> list[str]:
    speaks = [{agent for agent, _ in turns} for turns in protocol.turns[0]]
    if protocol.roles != protocol.verdicts:
        return [f"chooser: roles must be {list(protocol.verdicts)}, in this order (got {list(protocol.roles)})"]
    if (
        len(protocol.turns) > 1
        or chooser not in protocol.provers
        or not any(chooser in said for said in speaks[: protocol.max_rounds])
    ):
        return [
            f"chooser must be a prover, one of {list(protocol.provers)}, with a turn in the one table of turns (got"
            f" {chooser!r})"
        ]
    early = [
        r
        for r in range(protocol.min_rounds - 1, protocol.choice_round + 1)
        if speaks[r % len(speaks)] & {*protocol.verifiers}
    ]
    return (
        [f"chooser: a verdict counts in round {early[0]}, before there is a role; set min_rounds to {early[0] + 2}"]
        if early
        else []
    )


def _function_faults(protocol: Protocol, function: PaymentFunction) -> list[str]:
    """A payment function names agents, pays each copy independently, pays finite and reproducible amounts, and does not
    change its arguments."""
    if protocol.verifier is None:
        return ["payment.function: a game without a verifier is paid by its scenario (`Scenario.judge`)"]
    ends = _all_ends(protocol)
    kept = [getattr(ends, field.name).clone() for field in fields(ends)]
    paid, again = function(ends), function(ends)
    if not isinstance(paid, Mapping) or set(paid) - set(protocol.agents):
        return [
            f"payment.function must give a mapping of some of {list(protocol.agents)} to (B,) tensors (gave"
            f" {paid!r:.60})"
        ]
    faults, some = [], Ends(*(getattr(ends, field.name)[::7] for field in fields(ends)))
    for agent, paid_B in paid.items():
        if not isinstance(paid_B, torch.Tensor) or paid_B.shape != ends.y_B.shape:
            faults.append(f"payment.function: {agent!r} must be paid a tensor of shape (B,), one amount a copy")
        elif not bool(paid_B.float().isfinite().all()):
            faults.append(f"payment.function: what {agent!r} is paid must be finite")
        elif not torch.equal(paid_B, again[agent]):
            faults.append(
                f"payment.function: {agent!r} is paid something else at the second call, let it depend on the ends"
                " alone"
            )
        elif not torch.allclose(paid_B[::7], function(some)[agent]):
            faults.append(f"payment.function: what {agent!r} is paid for a copy depends on other copies of the batch")
    if any(not torch.equal(getattr(ends, field.name), old) for field, old in zip(fields(ends), kept)):
        faults.append("payment.function must not change the tensors that it is given")
    if protocol.payment.graded and not faults:
        faults += _slope_faults(protocol, ends)
    return faults


def _slope_faults(protocol: Protocol, ends: Ends) -> list[str]:
    """A graded payment function has a derivative by the confidence, for a network to learn from."""
    try:
        slope_BA = slopes(protocol, ends)
    except Exception as error:  # a payment function is a program of the user's
        told = (str(error).splitlines() or [type(error).__name__])[0]
        return [f"payment.graded: torch cannot differentiate what the function pays by the confidence ({told})"]
    if not bool(slope_BA.isfinite().all()):
        return [
            "payment.graded: what the function pays must have a finite derivative by the confidence everywhere from 0"
            " to 1"
        ]
    return []


def _all_ends(protocol: Protocol) -> Ends:
    """Every end, some confidences of each."""
    roles = torch.arange(max(1, len(protocol.roles)))
    none, grades = protocol.undecided, 5 if protocol.two_verdicts else 1
    rounds = torch.arange(protocol.min_rounds, protocol.max_rounds + 1)
    axes = (torch.arange(none), torch.arange(none + 1), torch.arange(grades), rounds, roles)
    y_B, verdict_B, grade_B, rounds_B, role_B = torch.cartesian_prod(*axes).T
    graded_B = verdict_B * 0.5 + grade_B * 0.125  # rejections below one half, acceptances above
    graded_B = (
        torch.where(verdict_B == none, 0.5, graded_B) if protocol.two_verdicts else certainty(protocol, verdict_B)
    )
    return Ends(y_B, verdict_B, graded_B, rounds_B, role_B)


def _zero_knowledge_faults(protocol: Protocol, extra: ZeroKnowledge | None) -> list[str]:
    if extra is None:
        return []
    if (
        protocol.verifier is None
        or len({protocol.verifier, extra.adversary, extra.simulator} & set(protocol.agents)) < 3
    ):
        return ["zero knowledge needs a verifier, an adversary and a simulator, three different agents"]
    names = ("simulator_reward", "prover_reward")
    faults = [
        f"zero_knowledge.{name} must be a finite number >= 0 (got {value})"
        for name in names
        if not ((value := getattr(extra, name)) >= 0 and _fits(value))
    ]
    turn_SKA = protocol.turn_table_SKAC.any(-1)
    for agent in (extra.adversary, extra.simulator):
        if not torch.equal(turn_SKA[..., protocol.agents.index(agent)], turn_SKA[..., protocol.verifier_index]):
            faults.append(f"{agent!r} must speak in the rounds in which the verifier speaks, and in no others")
        elif len(protocol.writes[agent]) != len(protocol.writes[protocol.verifier]):
            faults.append(f"{agent!r} must write to as many channels as the verifier")
    return faults


def _turn_faults(protocol: Protocol) -> Iterator[str]:
    yield from _zero_knowledge_faults(protocol, protocol.zero_knowledge)
    table = protocol.turn_table_SKAC
    for seed_class, round in (~table.flatten(2).any(-1)).nonzero().tolist():
        yield f"no agent speaks in round {round} (seed class {seed_class})"
    if protocol.verifier is None:
        return
    for agent, place in zip(protocol.verifiers, protocol.verifier_indices):
        who = "the verifier" if protocol.panel is None else repr(agent)
        decides = table[:, protocol.min_rounds - 1 :, place].any(-1).any(-1)
        for seed_class in (~decides).nonzero().flatten().tolist():
            yield (
                f"{who} has no turn from round {protocol.min_rounds - 1} on, so it can never decide (seed class"
                f" {seed_class})"
            )


def _play_faults(protocol: Protocol) -> list[str]:
    """Play every label, seed class and constant decision to the end."""
    if protocol.verifier is None:
        return []  # its scenario is the judge
    num_seeds = protocol.seed_classes
    grid = torch.cartesian_prod(
        torch.arange(num_seeds), *(torch.arange(count) for count in (protocol.undecided, protocol.undecided + 1))
    )
    state = start(protocol, grid[:, 1], grid[:, 0])
    decision_BA = grid[:, 2:].expand(-1, len(protocol.agents))
    # the most that any agent can be paid
    alike_B = None if protocol.zero_knowledge is None else torch.full((len(grid),), 2.0)
    for _ in range(protocol.max_rounds):
        state, outcome = step(protocol, state, decision_BA, similarity_B=alike_B)
        if not bool(outcome.reward_BA.isfinite().all()):
            return ["a reward in play is not finite"]
    return [] if bool(state.ended_B.all()) else ["an episode is still open after max_rounds rounds"]
