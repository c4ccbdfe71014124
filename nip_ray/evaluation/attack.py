"""Soundness under attack: the share of false claims a frozen verifier accepts from adversarial provers, and the same
for true claims.

Decisions that matter here:
- the attacker that counts is chosen on training instances that no attacker trained on, and is then measured once on the
  held-out ones. No choice enters its interval, which is the exact one of a share. All other attackers are measured too,
  for the table and for `any_attacker`: the share judged rightly against all of them at once;
- a missing verdict is not a right verdict: soundness is the share of y = 0 that is *rejected*, as everywhere;
- on y = 0 the attackers are the provers paid for acceptance, on y = 1 those paid for rejection. The others continue as
  trained: in a debate the honest side may answer. A goal that no prover is paid for is attacked only if requested, by
  all provers; for y = 1 this is not an attack on completeness and is reported as `refusal`;
- where the episode draws who speaks, only episodes in which an attacker has a turn count; where it draws a role, only
  those in which some prover is paid for the wrong verdict, and that prover is told its role;
- where the tree of dialogues is small enough, all of it is computed (`every_message`): a bound on what any prover can
  reach on these instances.
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
from nip_ray.evaluation.attack_table import (
    AttackTable,
    attacked_goals,
    attacking_agents,
    attacking_roles,
    expected,
    refuse_unfit,
    strongest,
    wanted_for,
)
from nip_ray.evaluation.attackers import Attacker, Target, Uniform, silence, train_attacker
from nip_ray.evaluation.intervals import Mean, proportion
from nip_ray.evaluation.message_tree import WAYS, MessageTree, TooManyNodes, exact_for
from nip_ray.learning.dqn import GreedyPlayer
from nip_ray.play.core import BatchedPlay, Player, episode_seeds
from nip_ray.play.message_search import MessageSearch
from nip_ray.play.panels import VERDICT, judged
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage_all
from nip_ray.protocols import Protocol
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.attack import AttackSettings

_MEASURED = ("selection", "held_out")

Fresh = Callable[[Sequence[str], int, int], dict[str, nn.Module]]
"""(agents, size, seed) -> untrained networks for the agents, with widths multiplied by size."""
Report = Callable[[int, str], None]
"""Called with (training iterations done, of `num_iterations`; current step)."""


@dataclass(frozen=True)
class AttackTarget:
    """The attacked agents, with what the attack may use.

    networks: of all agents, as they are. fresh: makes attackers. scripts: name -> networks of provers that need no
    training, in addition to the random, the silent and the run's own. held_out: the instances that the verifier is
    measured on.
    """

    scenario: Scenario
    networks: Mapping[str, nn.Module]
    fresh: Fresh
    scripts: Mapping[str, Mapping[str, nn.Module]]
    held_out: Tensor
    seed: int


def attacked(target: AttackTarget, settings: AttackSettings, report: Report | None = None) -> dict[str, Any]:
    """The entries that an attack adds to `evaluation.json`: see `AttackTable`.

    docs/evaluation.md has their layout. Raises UserError where there is no verifier to attack, no prover that could, or
    too few training instances.
    """
    began = time.perf_counter()
    protocol = target.scenario.protocol
    refuse_unfit(protocol)
    # as JSON has it
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    table = AttackTable(protocol, {"verifier": settings.verifier, "seed": target.seed, "settings": plain})
    wanted = attacked_goals(protocol, settings)
    label_I = target.scenario.label_I[target.held_out]
    for number, goal in enumerate(goal for goal in wanted if bool((label_I != wanted_for(protocol, goal)).any())):
        before = number * num_iterations(protocol, settings) // len(wanted)

        def tell(iterations: int, what: str, before: int = before, goal: str = goal) -> None:
            if report is not None:
                report(before + iterations, f"{goal}: {what}")

        _Attack(target, settings, goal).run(table, tell)
    entries = table.entries()
    return {**entries, "attack": {**entries["attack"], "seconds": time.perf_counter() - began}}


def num_iterations(protocol: Protocol, settings: AttackSettings) -> int:
    """Training iterations of all attackers together."""
    return len(attacked_goals(protocol, settings)) * _iterations_of_goal(settings)


def _iterations_of_goal(settings: AttackSettings) -> int:
    return settings.seeds * (len(settings.sizes) + settings.continued) * settings.iterations


@dataclass(frozen=True)
class Tried:
    """An attacker in its best mode. selection, held_out: decider -> (B,) its verdicts where attackers are chosen, and
    where they are measured."""

    attacker: Attacker
    selection: Mapping[str, Tensor]
    held_out: Mapping[str, Tensor]


class _Attack:
    """One goal: its instances and all attackers."""

    def __init__(self, target: AttackTarget, settings: AttackSettings, goal: str) -> None:
        self.target, self.settings, self.goal = target, settings, goal
        scenario = target.scenario
        self.wanted = wanted_for(scenario.protocol, goal)
        self.device = scenario.label_I.device
        self.seed = stable_seed(target.seed, "attack", goal)
        self.agents = attacking_agents(scenario.protocol, self.wanted)
        self.roles = attacking_roles(scenario.protocol, self.wanted)
        self.play = BatchedPlay(scenario, str(self.device))
        self.held_out = self._measured(target.held_out.to(self.device))
        self.train, self.selection = self._divided(self._concerned(scenario.ids("train")))

    def run(self, table: AttackTable, tell: Callable[[int, str], None]) -> None:
        """Run all attackers and add their results to `table`."""
        tried: list[Tried] = []
        start, least = None, math.inf
        for attacker in self._attackers(tell):
            chosen, selection = self._best_mode(attacker)
            tried.append(Tried(replace(chosen, networks={}), selection, self._verdicts(chosen, self.held_out)))
            right = int(self._right(selection[VERDICT], self.selection).sum())
            if attacker.kind not in ("random", "silent") and right < least:
                start, least = chosen, right
        if self.settings.search and start is not None:
            tell(_iterations_of_goal(self.settings), "search")
            tried.append(self._searched(start))
        protocol = self.target.scenario.protocol
        members = protocol.verifiers if protocol.panel is not None else ()
        rows, (every, every_B2) = self._rows(VERDICT, tried), self._every_message(VERDICT)
        right_TB = torch.stack([self._right(one.held_out[VERDICT], self.held_out) for one in tried])
        by_member = {who: (self._rows(who, tried), self._every_message(who)[0]) for who in members}
        any_attacker = _share(right_TB.all(0)).record()
        table.add(self.goal, self.agents, rows, by_member, any_attacker=any_attacker, **every)
        winner = strongest(rows)
        found = {
            "wrong": ~right_TB[winner],
            "fooled": tried[winner].held_out[VERDICT] == self.wanted,
            "ever_wrong": ~right_TB.all(0),
        }
        found |= {} if every_B2 is None else {"every_fooled": every_B2[:, 0], "every_wrong": every_B2[:, 1]}
        ids = self.held_out.tolist()
        table.parts.append(
            {name: dict(zip(ids, share_B.double().tolist(), strict=True)) for name, share_B in found.items()}
        )

    def _rows(self, who: str, tried: "Sequence[Tried]") -> list[dict[str, Any]]:
        """A row for each attacker, for the verdict or for the vote of a member of a panel."""
        rows, undecided = [], self.target.scenario.protocol.undecided
        for attacker, verdict_B, selection_B in (
            (one.attacker, one.held_out[who], one.selection[who]) for one in tried
        ):
            more: dict[str, Any] = {"budget": list(attacker.budget)} if attacker.budget else {}
            if attacker.kind == "search":
                more = {"start": attacker.start, "search": list(attacker.search)}
            rows.append(
                {
                    **{name: getattr(attacker, name) for name in ("name", "kind", "size", "seed", "iterations")},
                    **more,
                    "mode": "greedy" if attacker.greedy else "sampled",
                    "held_out": _share(self._right(verdict_B, self.held_out)).record(),
                    "fooled": _share(verdict_B == self.wanted).record(),
                    "undecided": _share(verdict_B == undecided).record(),
                    "selection": _share(self._right(selection_B, self.selection)).record(),
                    "curve": list(attacker.curve),
                }
            )
        return rows

    # ---------------------------------------------------------------------------------------------------- the attackers

    def _attackers(self, tell: Callable[[int, str], None]) -> Iterator[Attacker]:
        """All attackers; trained ones first, because the first among equals counts."""
        done = 0
        to_train = [("fresh", size, seed) for size in self.settings.sizes for seed in range(self.settings.seeds)]
        to_train += [("continued", 1, seed) for seed in range(self.settings.seeds)] if self.settings.continued else []
        for kind, size, seed in to_train:
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
        """Train `attacker` in place. With extensions, return it as it was when it fooled most instances kept back, and
        the results at each stop."""
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
                {
                    "iterations": length,
                    "selection": proportion(right, len(self.selection)).record(),
                    "held_out": held_out.record(),
                }
            )
            if right >= least:
                break
            least = right
            kept = {agent: deepcopy(network.state_dict()) for agent, network in networks.items()}
        for agent, network in networks.items():
            network.load_state_dict(kept[agent])
        return replace(attacker, iterations=length, curve=curve, budget=tuple(budget))

    def _beginners(self, kind: str, size: int, seed: int) -> dict[str, nn.Module] | None:
        """The networks to start training from; None where the run's own provers are scripts, which cannot continue."""
        made = {agent: network.to(self.device) for agent, network in self.target.fresh(self.agents, size, seed).items()}
        if kind == "continued":
            for agent, network in made.items():
                player = self.target.networks[agent]
                own = (player.network if isinstance(player, GreedyPlayer) else player).state_dict()
                if _shapes(own) != _shapes(network.state_dict()):
                    return None
                network.load_state_dict(own)
        return made

    def _others(self) -> dict[str, nn.Module]:
        return {agent: network for agent, network in self.target.networks.items() if agent not in self.agents}

    # --------------------------------------------------------------------------------------------------------- measures

    def _best_mode(self, attacker: Attacker) -> tuple[Attacker, dict[str, Tensor]]:
        """The attacker in the mode that fools more of the instances kept back, and the verdicts there."""
        modes = [attacker]
        if attacker.kind in ("fresh", "continued", "own"):
            modes = [replace(attacker, greedy=True), replace(attacker, greedy=False)]
        found = [self._verdicts(mode, self.selection) for mode in modes]
        best = min(
            range(len(modes)),
            key=lambda number: (_share(self._right(found[number][VERDICT], self.selection)).estimate, number),
        )
        return modes[best], found[best]

    def _verdicts(self, attacker: Attacker, id_B: Tensor) -> dict[str, Tensor]:
        """Decider -> (B,) its decisions, each instance played once."""
        players = {**self._defenders("verdicts"), **attacker.players(self.seed, self.device)}
        rollout = stage_all(self.play, players, id_B, self._episode_seeds(len(id_B))).rollout
        return {who: seen.verdict_B for who, seen in judged(self.play.protocol, rollout).items()}

    def _searched(self, start: Attacker) -> Tried:
        """`start` with a search over messages at every instance."""
        most, sampled = self.settings.search, self.settings.verifier == "sampled"
        search = MessageSearch(
            self.play, start.networks, lambda: self._defenders("search"), self.wanted, most, sampled=sampled
        )
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
            {
                "tries": stop,
                **{name: _share((wrong_B == 0) | (wrong_B > stop)).record() for name, wrong_B in zip(_MEASURED, wrong)},
            }
            for stop in ([] if sampled else stops)
        ]
        searcher = Attacker(
            "search", "search", {}, greedy=True, iterations=start.iterations, start=start.name, search=tuple(curve)
        )
        return Tried(searcher, *verdicts)

    def _defenders(self, purpose: str) -> dict[str, Player]:
        """All agents that do not attack: greedy or sampled, by the settings."""
        noise = None if self.settings.verifier == "greedy" else generator(self.seed, purpose, device=self.device)
        return {agent: Player(network, noise) for agent, network in self._others().items()}

    def _episode_seeds(self, count: int) -> Tensor:
        drawn_B = episode_seeds(stable_seed(self.seed, "measured"), 0, count)
        return self.target.scenario.protocol.seeds_within(self.roles, drawn_B, self.agents)

    def _right(self, verdict_B: Tensor, id_B: Tensor) -> Tensor:
        """(B,) bool: where the verdict is right."""
        return verdict_B == self.target.scenario.label_I[id_B]

    def _every_message(self, who: str) -> tuple[dict[str, Any], Tensor | None]:
        """Exact shares of held-out instances under the best of all messages, by `MessageTree`, and (B, 2) chances.

        `every_message`: judged rightly; `every_message_fooled`: judged as the attackers want; `every_message_sampled`:
        judged rightly, expected for a sampled verifier; `questions`: judged rightly after the verifier's own, random
        and best questions, where it has any. None where the tree is too large or incomplete.
        """
        found: dict[str, Any] = dict.fromkeys(
            ("every_message", "every_message_fooled", "every_message_sampled", "questions")
        )
        value_BW2, ways = self._tree(None if who == VERDICT else who)
        if value_BW2 is None:
            return found, None
        of = {way: value_BW2[:, number].double().cpu() for number, way in enumerate(ways)}
        if (measured := of.get(self.settings.verifier)) is not None:
            found |= {"every_message": expected(1 - measured[:, 1]), "every_message_fooled": expected(measured[:, 0])}
        if "sampled" in of:
            found["every_message_sampled"] = expected(1 - of["sampled"][:, 1])
        protocol = self.target.scenario.protocol
        turn_RA = protocol.turn_table_SKAC.any(3).any(0)
        rounds = {agent: turn_RA[:, place].nonzero().flatten().tolist() for place, agent in enumerate(protocol.agents)}
        first = min((r for agent in protocol.verifiers for r in rounds[agent]), default=protocol.max_rounds)
        # says anything before a prover's last turn
        asks = any(first < r for prover in protocol.provers for r in rounds[prover])
        if "best questions" in of and asks:
            asked = {"own": "greedy", "random": "random questions", "best": "best questions"}
            found["questions"] = {name: expected(1 - of[way][:, 1]) for name, way in asked.items()}
        return found, measured

    def _tree(self, who: str | None) -> tuple[Tensor | None, Sequence[str]]:
        """(values, ways) of the tree, all ways or only the greedy one; (None, ()) without a tree, or if too large."""
        scenario = self.target.scenario
        protocol, most = scenario.protocol, self.settings.max_nodes
        if (
            not most
            or scenario.linear_symbols
            or protocol.zero_knowledge is not None
            or protocol.force_guess is not None
        ):
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
        return id_I[self.target.scenario.label_I[id_I] != self.wanted]

    def _measured(self, id_I: Tensor) -> Tensor:
        """All these instances, or a random sample as large as the settings allow; the same for all wrong verdicts."""
        two = self.target.scenario.protocol.two_verdicts
        id_I, most = self._concerned(id_I) if two else id_I, self.settings.max_instances
        if most is not None and most < len(id_I):
            draw = generator(self.seed if two else stable_seed(self.target.seed, "attack"), "measured")
            id_I = id_I[torch.randperm(len(id_I), generator=draw)[:most].to(id_I.device)]
        return self._concerned(id_I)

    def _divided(self, id_I: Tensor) -> tuple[Tensor, Tensor]:
        """(instances to train on, instances kept back), at random."""
        if len(id_I) < 2:
            protocol = self.target.scenario.protocol
            which = (
                f"with y = {1 - self.wanted}"
                if protocol.two_verdicts
                else f"that are not {protocol.verdicts[self.wanted]}"
            )
            raise UserError(
                f"--attack: {len(id_I)} training instances {which} are too few to attack {self.goal}; give more"
            )
        kept = min(self.settings.selection_instances, len(id_I) // 2)
        id_I = id_I[torch.randperm(len(id_I), generator=generator(self.seed, "kept back")).to(id_I.device)]
        return id_I[kept:], id_I[:kept]


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: part.shape for name, part in state.items()}


def _share(right_B: Tensor) -> Mean:
    return proportion(int(right_B.sum()), len(right_B))
