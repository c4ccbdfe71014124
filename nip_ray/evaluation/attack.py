"""Soundness under attack: how many false claims a frozen verifier accepts whoever argues for them, and the same of true ones.

Decisions that matter here:
- the attacker that counts is chosen on training instances that no attacker trained on, and is then measured once on the held-out ones.
  So no choice enters its interval, which is the exact one of a share. Every other attacker is measured as well, for the table, and with
  them the harder question how often the verifier is right against all of them at once (`any_attacker`: each has its own);
- a verdict that never comes is no right verdict: soundness is the share of y = 0 that is *rejected*, as everywhere;
- on y = 0 those provers attack who are paid for acceptance, on y = 1 those who are paid for rejection. The others continue as they were
  trained: in a debate the honest side may answer. A goal that nobody is paid for is attacked only if it is asked for, by all provers; for
  y = 1 that is no attack on completeness but a refusal to help, and stands under that name;
- where the episode draws who speaks, episodes are those in which an attacker has a turn; where it draws a role, those in which somebody
  is paid for the wrong verdict: it is told so, and the verifier is judged in these alone;
- with more than two verdicts each is attacked on its own (``soundness/<verdict>``, by those who are paid for it, on the instances of all
  other labels). Over all, an instance counts as right only if it was judged rightly whichever wrong verdict was argued for;
- attackers of a panel are paid for its verdict. What each member's own vote is worth is measured against the same attackers, the one that
  counts being chosen for each member by its votes (`deciders_under_attack`);
- where the tree of dialogues is small enough, all of it is computed (`every_message`): no prover whatever does better on these instances,
  so it bounds what training more or longer could find.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.evaluation.attackers import Attacker, Target, Uniform, silence, train_attacker
from nip_ray.evaluation.intervals import Proportion, proportion, ratio
from nip_ray.evaluation.message_tree import WAYS, MessageTree, TooManyNodes, exact_for
from nip_ray.play.core import BatchedPlay, Player, episode_seeds
from nip_ray.play.message_search import MessageSearch
from nip_ray.play.panels import VERDICT, judged
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage_all
from nip_ray.protocols import ACCEPT, REJECT, Protocol
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.attack import AttackSettings

LABELS = {"soundness": REJECT, "completeness": ACCEPT}
"""The label of the instances that a goal is about, which is also the right verdict, where there are two."""
ENTRIES = {
    "soundness": ("soundness_error", "soundness_under_attack", "questions"),
    "completeness": ("completeness_under_attack",),
    "refusal": ("refusal",),
}
"""Section of an attack -> what stands of it in `evaluation.json`, beside its table in "attack"."""

_MEASURED = ("selection", "held_out")

Fresh = Callable[[Sequence[str], int, int], dict[str, nn.Module]]
"""(agents, size, seed) -> untrained networks for them, their widths multiplied by size."""
Report = Callable[[int, str], None]
"""Called with (training iterations done, of `num_iterations`, and what is being done)."""


@dataclass(frozen=True)
class AttackTarget:
    """Who is attacked, with what the attack may use.

    networks: of all agents, as they are. fresh: makes attackers. scripts: name -> networks of provers that need no training, beside the
    random, the silent and the run's own, which are always there. held_out: the instances that the verifier is measured on.
    """

    scenario: Scenario
    networks: Mapping[str, nn.Module]
    fresh: Fresh
    scripts: Mapping[str, Mapping[str, nn.Module]]
    held_out: Tensor
    seed: int


def attacked(target: AttackTarget, settings: AttackSettings, report: Report | None = None) -> dict[str, Any]:
    """The entries that an attack adds to `evaluation.json`: those of `ENTRIES`, `deciders_under_attack` with a panel, and `attack`.

    docs/evaluation.md has their layout. Raises UserError where there is nobody to attack or nobody who could, and where there are too few
    training instances.
    """
    began = time.perf_counter()
    refuse_unfit(target.scenario.protocol)
    document: dict[str, Any] = {}
    how = {"verifier": settings.verifier, "seed": target.seed, "settings": _plain(settings)}
    details: dict[str, Any] = {**how}
    protocol = target.scenario.protocol
    wanted = attacked_goals(protocol, settings)
    label_I = target.scenario.label_I[target.held_out]
    goals = [goal for goal in wanted if bool(_is_about(protocol, goal, label_I).any())]
    parts: dict[str, Part] = {}
    for number, goal in enumerate(goals):
        before = number * num_iterations(protocol, settings) // len(wanted)

        def tell(iterations: int, what: str, before: int = before, goal: str = goal) -> None:
            if report is not None:
                report(before + iterations, f"{goal}: {what}")

        record, table, parts[goal] = _Attack(target, settings, goal).run(tell)
        document |= entries_of(protocol, goal, record, table)
        for who, (own, seen) in table.pop("by_member").items():
            by_member = document.setdefault("deciders_under_attack", {}).setdefault(who, {})
            by_member |= entries_of(protocol, goal, own, seen)
        details[section_of(protocol, goal)] = {**table, **how}
    if not protocol.two_verdicts and parts:
        record, table = _over_all(list(parts.values()), [details[goal] for goal in parts])
        document |= entries_of(protocol, "soundness", record, table)
        details["soundness"] = {**table, **how}
    return {**document, "attack": {**details, "seconds": time.perf_counter() - began}}


def refuse_unfit(protocol: Protocol) -> None:
    """Raises UserError for a protocol in which nobody can be fooled, or nobody could do it."""
    if protocol.verifier is None:
        raise UserError(f"--attack: {protocol.name} has no verifier, so --attack does not apply; leave it out")
    if not protocol.provers:
        raise UserError(f"--attack: {protocol.name} has no prover who could fool the verifier; leave it out")


def attacked_goals(protocol: Protocol, settings: AttackSettings) -> tuple[str, ...]:
    """What the settings ask for, or else the goals that some prover is paid for; soundness where nobody is paid for either. With more than
    two verdicts: the soundness of each that some prover is paid for, of all where nobody is paid for any. Raises UserError for a goal that
    there is not.
    """
    if not protocol.two_verdicts:
        if settings.goals is not None and set(settings.goals) - {"soundness"}:
            raise UserError("evaluation.attack.goals: got completeness, but of more than two verdicts the soundness of each is attacked")
        codes = [code for code in range(len(protocol.verdicts)) if _paid(protocol, code)] or range(len(protocol.verdicts))
        return tuple(f"soundness/{protocol.verdicts[code]}" for code in codes)
    paid = tuple(goal for goal, right in LABELS.items() if _paid(protocol, 1 - right))
    return settings.goals or paid or ("soundness",)


def wanted_for(protocol: Protocol, goal: str) -> int:
    """The verdict that those want who attack a goal."""
    return 1 - LABELS[goal] if protocol.two_verdicts else protocol.verdicts.index(goal.removeprefix("soundness/"))


def _is_about(protocol: Protocol, goal: str, y_I: Tensor) -> Tensor:
    """(I,) bool: the instances of these labels on which a goal is attacked."""
    return y_I != wanted_for(protocol, goal)


def section_of(protocol: Protocol, goal: str) -> str:
    """Where an attack on `goal` is reported: completeness is "refusal" where no prover is paid for a rejection."""
    return "refusal" if goal == "completeness" and not _paid(protocol, REJECT) else goal


def entries_of(protocol: Protocol, goal: str, record: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """What stands of an attack beside its table. record: of the attacker that counts. The soundness error is the share of false claims that
    are accepted: with the best of all messages where every one was tried, else against that attacker."""
    section = section_of(protocol, goal)
    if section == "refusal":
        reason = f"no prover of {protocol.name} is paid for a rejection; one who wants it can always fail to prove"
        return {"refusal": {**record, "reason": reason}}
    name, _, verdict = goal.partition("/")
    if name != "soundness":
        return {f"{goal}_under_attack": record}
    chosen = next(row for row in table["attackers"] if row["chosen"])
    every = table.get("every_message_fooled")
    error = {**chosen["fooled"], "by": chosen["name"]} if every is None else {**every, "by": "every_message"}
    found = {"soundness_error": error, "soundness_under_attack": record, "questions": table.get("questions")}
    return {f"{key}/{verdict}": value for key, value in found.items()} if verdict else found


def num_iterations(protocol: Protocol, settings: AttackSettings) -> int:
    """Training iterations of all attackers together."""
    return len(attacked_goals(protocol, settings)) * _iterations_of_goal(settings)


def _iterations_of_goal(settings: AttackSettings) -> int:
    return settings.seeds * (len(settings.sizes) + settings.continued) * settings.iterations


def attacking_agents(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """Those who attack for the verdict `wanted`: `paid_agents`, or all provers where nobody is paid for it."""
    return paid_agents(protocol, wanted) or protocol.provers


def paid_agents(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The provers who are paid for `wanted` where it is wrong, at least in some role. One who chooses its side attacks alone."""
    if protocol.chooser is not None:
        return (protocol.chooser,)
    return _paid(protocol, wanted)


def _paid(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The same, also of those who do not choose."""
    return tuple(agent for agent in protocol.provers if _roles_for(protocol, agent, wanted) is not None)


def _roles_for(protocol: Protocol, agent: str, wanted: int) -> set[str] | None:
    """The roles in which a prover is after `wanted` where it is wrong; None where it never is."""
    labels = (label for label in range(len(protocol.verdicts)) if label != wanted)
    found = [protocol.wanted_by(agent, label).get(wanted) for label in labels]
    return None if all(roles is None for roles in found) else {role for roles in found for role in roles or ()}


def attacking_roles(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The roles of the episodes in which an attack takes place: those in which somebody is paid for `wanted` where it is wrong; ()
    where an attacker chooses its own."""
    if protocol.chooser is not None:
        return ()
    sought = {role for agent in protocol.provers for role in _roles_for(protocol, agent, wanted) or ()}
    return tuple(role for role in protocol.roles if role in sought) or protocol.roles


@dataclass(frozen=True)
class Part:
    """One of several goals, by instances: right and fooled by the attacker that counts, and right against all; chances of the same whatever
    is said, None where that was not computed. ids: which instances.
    """

    wanted: int
    ids: Tensor
    right_B: Tensor
    fooled_B: Tensor
    any_B: Tensor
    every_B2: Tensor | None


def _over_all(parts: Sequence[Part], tables: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(record, table) of all wrong verdicts together: an instance is judged rightly if it is whichever is argued for."""
    ids = torch.cat([part.ids for part in parts]).unique()

    def worst(values: Sequence[Tensor]) -> Tensor:
        """(I,) the most over the parts that an instance is in."""
        found_I = torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
        for part, value_B in zip(parts, values, strict=True):
            place_B = torch.searchsorted(ids, part.ids)
            found_I[place_B] = torch.maximum(found_I[place_B], value_B.to(found_I))
        return found_I

    wrong, fooled, ever = (worst([part(one) for one in parts]) for part in (lambda p: ~p.right_B, lambda p: p.fooled_B, lambda p: ~p.any_B))
    right = _share(wrong == 0).record()
    row = {"name": "the chosen one for each verdict", "kind": "chosen", "size": None, "seed": None, "iterations": 0, "mode": ""}
    row |= {"selection": dict.fromkeys(("estimate", "lower", "upper")) | {"n": 0}, "held_out": right, "fooled": _share(fooled > 0).record()}
    every: dict[str, Any] = dict.fromkeys(("every_message", "every_message_fooled"))
    if all(part.every_B2 is not None for part in parts):
        fooled_I, wrong_I = (worst([part.every_B2[:, side] for part in parts]).cpu() for side in (0, 1))  # type: ignore[index]
        every = {"every_message": _expected(1 - wrong_I), "every_message_fooled": _expected(fooled_I)}
    table = {
        "agents": sorted({agent for one in tables for agent in one["agents"]}),
        "wanted": [one["wanted"] for one in tables],
        "attackers": [{**row, "undecided": None, "curve": [], "chosen": True}],
        "any_attacker": _share(ever == 0).record(),
        **every,
    }
    return {**right, "attacker": row["name"], "undecided": None}, table


class _Attack:
    """One goal: its instances, and everybody who tries."""

    def __init__(self, target: AttackTarget, settings: AttackSettings, goal: str) -> None:
        self.target, self.settings, self.goal = target, settings, goal
        scenario = target.scenario
        self.wanted = wanted_for(scenario.protocol, goal)
        self.device = scenario.label_I.device
        self.seed = stable_seed(target.seed, "attack", goal)
        self.agents = attacking_agents(scenario.protocol, self.wanted)
        self.roles = attacking_roles(scenario.protocol, self.wanted)
        self.play = BatchedPlay(scenario, str(self.device))
        self.every_B2: Tensor | None = None
        self.held_out = self._measured(target.held_out.to(self.device))
        self.train, self.selection = self._divided(self._concerned(scenario.ids("train")))

    def run(self, tell: Callable[[int, str], None]) -> tuple[dict[str, Any], dict[str, Any], Part]:
        """(the record of the attacker that counts, the table of all, what came of it by instance)."""
        tried, strongest, least = [], None, math.inf
        for attacker in self._attackers(tell):
            chosen, selection = self._best_mode(attacker)
            tried.append((replace(chosen, networks={}), selection, self._verdicts(chosen, self.held_out)))
            right = int(self._right(selection[VERDICT], self.selection).sum())
            if attacker.kind not in ("random", "silent") and right < least:
                strongest, least = chosen, right
        if self.settings.search and strongest is not None:
            tell(_iterations_of_goal(self.settings), "search")
            tried.append(self._searched(strongest))
        protocol = self.target.scenario.protocol
        members = {who: self._seen_by(who, tried) for who in protocol.verifiers} if protocol.panel is not None else {}
        record, table = self._seen_by(VERDICT, tried)
        verdicts = [held_out[VERDICT] for _, _, held_out in tried]
        chosen = verdicts[next(number for number, row in enumerate(table["attackers"]) if row["chosen"])]
        right = [self._right(verdict_B, self.held_out) for verdict_B in verdicts]
        own = right[next(number for number, row in enumerate(table["attackers"]) if row["chosen"])]
        part = Part(self.wanted, self.held_out, own, chosen == self.wanted, torch.stack(right).all(0), self.every_B2)
        return record, {**table, "by_member": members}, part

    def _seen_by(
        self, who: str, tried: Sequence[tuple[Attacker, Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`run` for the verdict, or for the vote of a member of a panel. tried: attacker, verdicts where it was chosen, and held out."""
        rows, right, protocol = [], [], self.target.scenario.protocol
        for chosen, selection, held_out in tried:
            right.append(self._right(held_out[who], self.held_out))
            share = _share(self._right(selection[who], self.selection))
            rows.append({**_described(chosen), **self._figures(held_out[who]), "selection": share.record(), "curve": list(chosen.curve)})
        winner = min(range(len(rows)), key=lambda row: (rows[row]["selection"]["estimate"], row))
        for number, row in enumerate(rows):
            row["chosen"] = number == winner
        record = {**rows[winner]["held_out"], "attacker": rows[winner]["name"], "undecided": rows[winner]["undecided"]}
        table = {
            "agents": list(self.agents),
            **({"label": 1 - self.wanted} if protocol.two_verdicts else {}),
            "wanted": protocol.verdicts[self.wanted],
            **({"roles": list(self.roles)} if self.roles else {}),
            "attackers": rows,
            "any_attacker": _share(torch.stack(right).all(0)).record(),
            **self._every_message(who),
        }
        return record, table

    # ---------------------------------------------------------------------------------------------------- the attackers

    def _attackers(self, tell: Callable[[int, str], None]) -> Iterator[Attacker]:
        """Trained ones first: among equals the first counts."""
        done = 0
        for kind, size, seed in self._to_train():
            name = f"{kind}/seed={seed}" if kind == "continued" else f"{kind}/size={size}/seed={seed}"
            networks = self._beginners(kind, size, stable_seed(self.seed, name))
            if networks is None:
                continue

            def report(iterations: int, pay: float, done: int = done, name: str = name) -> None:
                tell(done + iterations, name)

            yield self._trained(Attacker(name, kind, networks, size=size, seed=seed), report)
            done += self.settings.iterations
        own = {agent: self.target.networks[agent] for agent in self.agents}
        yield Attacker("own", "own", own)
        yield Attacker("random", "random", {agent: Uniform(network) for agent, network in own.items()})
        yield Attacker("silent", "silent", own, greedy=True, edit=silence)
        for name, networks in self.target.scripts.items():
            yield Attacker(name, name, {agent: networks[agent] for agent in self.agents}, greedy=True)

    def _trained(self, attacker: Attacker, report: Callable[[int, float], None]) -> Attacker:
        """`attacker`, trained in place; with extensions, as it was when it fooled most instances kept back, and what each stop came to."""
        settings, networks = self.settings, attacker.networks
        target = Target(self.target.scenario, self._others(), self.wanted, self.train, self.roles)
        curve: tuple[float, ...] = ()
        budget: list[dict[str, Any]] = []
        least = math.inf
        kept: dict[str, Any] = {}
        length = 0
        for extension in range(settings.extensions + 1):
            which = (attacker.name, extension) if extension else (attacker.name,)
            tell = report if not extension else lambda *_: None
            curve += train_attacker(target, networks, settings, stable_seed(self.seed, *which), tell)
            length += settings.iterations
            if not settings.extensions:
                return replace(attacker, iterations=length, curve=curve)
            mode, selection = self._best_mode(attacker)
            right = int(self._right(selection[VERDICT], self.selection).sum())
            held_out = _share(self._right(self._verdicts(mode, self.held_out)[VERDICT], self.held_out))
            budget.append(
                {"iterations": length, "selection": proportion(right, len(self.selection)).record(), "held_out": held_out.record()}
            )
            if right >= least:
                break
            least = right
            kept = {agent: deepcopy(network.state_dict()) for agent, network in networks.items()}
        for agent, network in networks.items():
            network.load_state_dict(kept[agent])
        return replace(attacker, iterations=length, curve=curve, budget=tuple(budget))

    def _to_train(self) -> Iterator[tuple[str, int, int]]:
        yield from (("fresh", size, seed) for size in self.settings.sizes for seed in range(self.settings.seeds))
        if self.settings.continued:
            yield from (("continued", 1, seed) for seed in range(self.settings.seeds))

    def _beginners(self, kind: str, size: int, seed: int) -> dict[str, nn.Module] | None:
        """What training begins with; None where the run's own provers are scripts, with nothing to continue from."""
        made = {agent: network.to(self.device) for agent, network in self.target.fresh(self.agents, size, seed).items()}
        if kind == "continued":
            for agent, network in made.items():
                own = self.target.networks[agent].state_dict()
                if _shapes(own) != _shapes(network.state_dict()):
                    return None
                network.load_state_dict(own)
        return made

    def _others(self) -> dict[str, nn.Module]:
        return {agent: network for agent, network in self.target.networks.items() if agent not in self.agents}

    # --------------------------------------------------------------------------------------------------------- measures

    def _best_mode(self, attacker: Attacker) -> tuple[Attacker, dict[str, Tensor]]:
        """The attacker in the mode in which it fools more of the instances kept back, and the verdicts there."""
        modes = [attacker]
        if attacker.kind in ("fresh", "continued", "own"):
            modes = [replace(attacker, greedy=True), replace(attacker, greedy=False)]
        found = [self._verdicts(mode, self.selection) for mode in modes]
        best = min(range(len(modes)), key=lambda number: (_share(self._right(found[number][VERDICT], self.selection)).estimate, number))
        return modes[best], found[best]

    def _verdicts(self, attacker: Attacker, id_B: Tensor) -> dict[str, Tensor]:
        """Who judges -> (B,) what it decides, each instance played once."""
        players = {**self._defenders("verdicts"), **attacker.players(self.seed, self.device)}
        rollout = stage_all(self.play, players, id_B, self._episode_seeds(len(id_B))).rollout
        return {who: seen.verdict_B for who, seen in judged(self.play.protocol, rollout).items()}

    def _searched(self, start: Attacker) -> tuple[Attacker, dict[str, Tensor], dict[str, Tensor]]:
        """(`start` with a search over messages at every instance, its verdicts on the instances kept back, and on the held-out ones)."""
        most, sampled = self.settings.search, self.settings.verifier == "sampled"
        search = MessageSearch(self.play, start.networks, lambda: self._defenders("search"), self.wanted, most, sampled=sampled)
        measured = replace(search, defenders=lambda: self._defenders("verdicts"))
        verdicts, wrong = [], []
        for id_B in (self.selection, self.held_out):
            seed_B = self._episode_seeds(len(id_B))
            found = search.search(id_B, seed_B)
            seen = judged(self.play.protocol, measured.said(found.plan_BP, id_B, seed_B).rollout)
            verdicts.append({who: rollout.verdict_B for who, rollout in seen.items()})
            wrong.append(found.wrong_B)
        stops = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
        curve = [
            {"tries": stop, **{name: _share((wrong_B == 0) | (wrong_B > stop)).record() for name, wrong_B in zip(_MEASURED, wrong)}}
            for stop in ([] if sampled else stops)
        ]
        searcher = Attacker("search", "search", {}, greedy=True, iterations=start.iterations, start=start.name, search=tuple(curve))
        return searcher, *verdicts

    def _defenders(self, purpose: str) -> dict[str, Player]:
        """Everybody who does not attack: greedy or sampled as the settings say."""
        noise = None if self.settings.verifier == "greedy" else generator(self.seed, purpose, device=self.device)
        return {agent: Player(network, noise) for agent, network in self._others().items()}

    def _episode_seeds(self, count: int) -> Tensor:
        drawn_B = episode_seeds(stable_seed(self.seed, "measured"), 0, count)
        return self.target.scenario.protocol.seeds_within(self.roles, drawn_B, self.agents)

    def _figures(self, verdict_B: Tensor) -> dict[str, Any]:
        found = {"held_out": self._right(verdict_B, self.held_out), "fooled": verdict_B == self.wanted}
        found["undecided"] = verdict_B == self.target.scenario.protocol.undecided
        return {name: _share(found_B).record() for name, found_B in found.items()}

    def _right(self, verdict_B: Tensor, id_B: Tensor) -> Tensor:
        """(B,) bool: where an instance is judged rightly."""
        return verdict_B == self.target.scenario.label_I[id_B]

    def _every_message(self, who: str) -> dict[str, Any]:
        """Shares of held-out instances after the best of all answers, by `MessageTree`: `every_message` judged rightly,
        `every_message_fooled` judged as the attackers want, `every_message_sampled` as the first, expected of a sampled verifier;
        `questions`: as the first, after the verifier's own questions, random and best ones, where it asks any. None where the tree is
        too large, or does not say all that can be said."""
        names = ("every_message", "every_message_fooled", "every_message_sampled", "questions")
        value_BW2, ways = self._tree(None if who == VERDICT else who)
        if who == VERDICT and self.settings.verifier in ways:
            self.every_B2 = value_BW2[:, ways.index(self.settings.verifier)].double()  # type: ignore[index]
        if value_BW2 is None:
            return dict.fromkeys(names)
        found = {way: value_BW2[:, number].double().cpu() for number, way in enumerate(ways)}
        measured = found.get(self.settings.verifier)
        right, fooled = (None, None) if measured is None else (_expected(1 - measured[:, 1]), _expected(measured[:, 0]))
        sampled = _expected(1 - found["sampled"][:, 1]) if "sampled" in found else None
        asked = {"own": "greedy", "random": "random questions", "best": "best questions"}
        questions = (
            {name: _expected(1 - found[way][:, 1]) for name, way in asked.items()}
            if "best questions" in found and _asks(self.target.scenario.protocol)
            else None
        )
        return dict(zip(names, (right, fooled, sampled, questions), strict=True))

    def _tree(self, who: str | None) -> tuple[Tensor | None, Sequence[str]]:
        """(values, ways) of the tree, all ways or the greedy one alone; (None, ()) where there is no such tree or it is too large."""
        scenario = self.target.scenario
        protocol, most = scenario.protocol, self.settings.max_nodes
        if not most or scenario.linear_symbols or protocol.zero_knowledge is not None or protocol.force_guess is not None:
            return None, ()
        if not exact_for(protocol):
            return None, ()
        for network in self.target.networks.values():
            network.eval()
        seed_B = self._episode_seeds(len(self.held_out))
        for ways in (WAYS, WAYS[:1]):
            tree = MessageTree(scenario, self.target.networks, self.agents, self.wanted, ways, most, who=who)
            try:
                return tree.values(self.held_out, seed_B.to(self.device)), ways
            except TooManyNodes:
                continue
        return None, ()

    # -------------------------------------------------------------------------------------------------------- instances

    def _concerned(self, id_I: Tensor) -> Tensor:
        return id_I[_is_about(self.target.scenario.protocol, self.goal, self.target.scenario.label_I[id_I])]

    def _measured(self, id_I: Tensor) -> Tensor:
        """All of them that are concerned, or as many as the settings allow, drawn at random: for all wrong verdicts the same."""
        two = self.target.scenario.protocol.two_verdicts
        id_I, most = self._concerned(id_I) if two else id_I, self.settings.max_instances
        if most is not None and most < len(id_I):
            draw = generator(self.seed if two else stable_seed(self.target.seed, "attack"), "measured")
            id_I = id_I[torch.randperm(len(id_I), generator=draw)[:most].to(id_I.device)]
        return self._concerned(id_I)

    def _divided(self, id_I: Tensor) -> tuple[Tensor, Tensor]:
        """(to train on, kept back), at random."""
        if len(id_I) < 2:
            protocol = self.target.scenario.protocol
            which = f"with y = {1 - self.wanted}" if protocol.two_verdicts else f"that are not {protocol.verdicts[self.wanted]}"
            raise UserError(f"--attack: {len(id_I)} training instances {which} are too few to attack {self.goal}; give more")
        kept = min(self.settings.selection_instances, len(id_I) // 2)
        id_I = id_I[torch.randperm(len(id_I), generator=generator(self.seed, "kept back")).to(id_I.device)]
        return id_I[kept:], id_I[:kept]


def _asks(protocol: Protocol) -> bool:
    """Whether the verifier says anything before a prover's last turn."""
    turn_RA = protocol.turn_table_SKAC.any(3).any(0)
    rounds = {agent: turn_RA[:, place].nonzero().flatten().tolist() for place, agent in enumerate(protocol.agents)}
    first = min((r for agent in protocol.verifiers for r in rounds[agent]), default=protocol.max_rounds)
    return any(first < r for prover in protocol.provers for r in rounds[prover])


def _expected(share_B: Tensor) -> dict[str, Any]:
    """The record of shares that are each known exactly: counts, or the mean of probabilities."""
    return ratio(share_B.clamp(0, 1).round(decimals=6).numpy(), torch.ones_like(share_B).numpy()).record()


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: part.shape for name, part in state.items()}


def _plain(settings: AttackSettings) -> dict[str, Any]:
    """As JSON has it: lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


def _described(attacker: Attacker) -> dict[str, Any]:
    mode = "greedy" if attacker.greedy else "sampled"
    trained = {"size": attacker.size, "seed": attacker.seed, "iterations": attacker.iterations}
    more: dict[str, Any] = {"budget": list(attacker.budget)} if attacker.budget else {}
    if attacker.kind == "search":
        more = {"start": attacker.start, "search": list(attacker.search)}
    return {"name": attacker.name, "kind": attacker.kind, **trained, **more, "mode": mode}


def _share(right_B: Tensor) -> Proportion:
    return proportion(int(right_B.sum()), len(right_B))
