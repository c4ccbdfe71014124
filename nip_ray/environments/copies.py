"""`Copies`: B episodes side by side, played with flat actions (`Layout`) and observed as arrays.

Decisions that matter here:
- legal choices are one mask for each factor of an action. A factor that is not in play (a silent channel, a decision
  that could not count) has one legal choice, which does nothing, and any choice there counts as it;
- an illegal choice of a factor in play, such as a node that does not exist, counts as the first legal one and marks the
  agent in `illegal`: learners without masks can play, and scenarios never get unknown symbols;
- each copy has a generator of its own, of seed + its place: its episodes do not depend on when the others end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from nip_ray.environments.layout import layout_of
from nip_ray.errors import UserError
from nip_ray.evaluation.transcripts import transcript_records
from nip_ray.play.scenario import Scenario
from nip_ray.play.staggered import StaggeredPlay
from nip_ray.protocols import NUM_SEEDS, Protocol
from nip_ray.protocols.batched_step import verdict_of

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class Copies:
    """`num_copies` episodes of `scenario` at once, on instances of `split`. `reset` seeds the draws; until then each
    copy draws by its own entropy, so unseeded ones play different episodes.

    agents: all of them, in the protocol's order. sizes: agent -> numbers of choices by factor. spaces: agent -> the
    space of one copy's observation. illegal: agent -> (B,) bool, copies with an illegal choice in the last round.
    """

    def __init__(
        self, scenario: Scenario, num_copies: int = 1, split: str = "train", *, for_modules: bool = False
    ) -> None:
        """for_modules: observations in our networks' form, see `observe`. Raises UserError for an unknown split and for
        no copies."""
        if split not in ("train", "test"):
            raise UserError(f"split: got {split!r}, expected train or test")
        if not isinstance(num_copies, int) or isinstance(num_copies, bool) or num_copies < 1:
            raise UserError(f"num_copies: got {num_copies!r}, expected a whole number of at least 1")
        self.play, self.protocol, self.num_copies = StaggeredPlay(scenario), scenario.protocol, num_copies
        self.agents = list(self.protocol.agents)
        self.layouts = {agent: layout_of(scenario, agent) for agent in self.agents}
        self.sizes = {agent: layout.sizes for agent, layout in self.layouts.items()}
        self.instances = scenario.ids(split)
        self.for_modules, self.begun = for_modules, False
        self.all_B = torch.arange(num_copies)
        self._random = [np.random.default_rng() for _ in range(num_copies)]
        self._start(self.instances[:1].expand(num_copies), torch.zeros_like(self.all_B))
        self.spaces = {
            agent: gym.spaces.Dict({key: _box(x[0]) for key, x in self.observe(agent).items()}) for agent in self.agents
        }

    def reset(self, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin an episode in every copy. seed: copy i draws by seed + i from here on, or by its own of a list.
        options: "id" of the instance and "seed" of the episode, numbers or one for each copy; else drawn.

        Raises UserError for a seed that is none, an unknown instance, and a protocol that actions alone cannot play.
        """
        refuse_graded(self.protocol)  # not before: batched players need the spaces
        for copy, own in enumerate(self._seeds(seed)):
            if own is not None:
                self._random[copy] = np.random.default_rng(own)
        self._start(*self._episodes(self.all_B, options))
        self.begun = True

    def restart(self, copy_N: Tensor, options: Mapping[str, Any] | None = None) -> None:
        """Begin episodes in the copies `copy_N`; options as of `reset`, for all copies."""
        self.play.restart(copy_N, *self._episodes(copy_N, options))
        self._turn_BRA[copy_N], self._reward_BRA[copy_N] = False, 0.0
        for illegal_B in self.illegal.values():
            illegal_B[copy_N] = False
        self._forget()

    def refuse_unbegun(self) -> None:
        """Raise UserError before the first `reset`."""
        if not self.begun:
            raise UserError("step: no episode has begun, expected a call of reset() first")

    def refuse_unknown(self, actions: Mapping[str, Any]) -> None:
        """Raise UserError for actions of agents that the protocol does not have."""
        if unknown := sorted(set(actions) - set(self.agents)):
            raise UserError(f"step: there are actions of {', '.join(unknown)}, expected only {', '.join(self.agents)}")

    def turn_B(self, agent: str) -> Tensor:
        """(B,) bool: the copies in which `agent` has a turn."""
        return self.play.turn_B(agent)

    @property
    def cut_B(self) -> Tensor:
        """(B,) bool: the rounds ran out before a game that they only cut off was over."""
        cuts_B = self.play.state.exhausted_B if self.protocol.cuts else torch.zeros_like(self.play.over_B)
        return self.play.over_B & cuts_B

    def tensors(self, agent: str) -> dict[str, Tensor]:
        """The current observation of `agent`, a row for each copy; see `Scenario.observe`."""
        if agent not in self._seen:
            self._seen[agent] = self.play.observe(agent, self.all_B)
        return self._seen[agent]

    def observe(self, agent: str) -> Arrays:
        """The same as arrays (B, ...): flags, real numbers, and small whole numbers.

        With `for_modules` also numbers without a further axis, and the inputs of central critics.
        """
        seen = {key: value.numpy().astype(_dtype(value), copy=False) for key, value in self.tensors(agent).items()}
        if self.for_modules:
            return seen
        return {
            key: x[:, None] if x.ndim == 1 else x
            for key, x in seen.items()
            if key != "label" and not key.startswith("state_")
        }

    def legal(self, agent: str) -> list[Array]:
        """For each factor of the agent's action (B, choices), int8: 1 at choices that are legal now."""
        return [mask_BS.to(torch.int8).numpy() for mask_BS, _ in self._factors(agent)]

    def step(self, actions: Mapping[str, Array], play_B: Tensor | None = None) -> Tensor:
        """Play one round; return all rewards, (B, A) float32.

        actions: agent -> (B, factors) whole numbers, of agents with a turn; rows without a turn are ignored. play_B:
        the copies to play, None for all; the others wait. Copies that have ended stay as they are. Raises UserError
        before the first reset, and for an action that is missing or has another form.
        """
        self.refuse_unbegun()
        play_B = torch.ones_like(self.all_B, dtype=torch.bool) if play_B is None else play_B
        chosen = {}
        for agent in self.agents:
            turn_B = self.turn_B(agent) & play_B
            self.illegal[agent] = torch.zeros_like(turn_B)
            if not bool(turn_B.any()):
                continue
            copy_N = turn_B.nonzero().flatten()
            flat_NF = self.checked(agent, actions, copy_N)
            for place, (mask_BS, in_play_B) in enumerate(self._factors(agent)):
                legal_N = mask_BS[copy_N, flat_NF[:, place]]
                if not bool(legal_N.all()):
                    flat_NF[:, place] = torch.where(legal_N, flat_NF[:, place], mask_BS[copy_N].int().argmax(1))
                    self.illegal[agent][copy_N] |= ~legal_N & in_play_B[copy_N]
            self._turn_BRA[copy_N, self.play.round[copy_N], self.agents.index(agent)] = True
            chosen[agent] = copy_N, self.layouts[agent].split(flat_NF)
        play_B = play_B & ~self.play.over_B
        round_B = self.play.round
        reward_BA = self.play.step_some(chosen, play_B).reward_BA
        self._reward_BRA[self.all_B, round_B] += reward_BA
        self._forget()
        return reward_BA

    def checked(self, agent: str, actions: Mapping[str, Any], copy_N: Tensor) -> Tensor:
        """The actions of `agent` in the copies `copy_N`, (N, factors) int64. Raises UserError as `step` does."""
        sizes = self.sizes[agent]
        form = (
            f"a whole number below {sizes[0]}"
            if len(sizes) == 1
            else f"{len(sizes)} whole numbers, each below its part of {sizes}"
        )
        form += "" if self.num_copies == 1 else f", for each of {self.num_copies} copies"
        if agent not in actions:
            raise UserError(f"{agent}: it is its turn and there is no action of it, expected {form}")
        # an axis of length one may be left out
        copies, factors = ([(n,)] + [()] * (n == 1) for n in (self.num_copies, len(sizes)))
        shapes = [one + two for one in copies for two in factors]
        flat = _array(actions[agent])
        if flat is None or flat.dtype.kind not in "iu" or flat.shape not in shapes:
            raise UserError(f"{agent}: got the action {actions[agent]!r}, expected {form}")
        flat_NF = flat.reshape(shapes[0])[copy_N.numpy()].astype(np.int64)
        if (flat_NF < 0).any() or (flat_NF >= sizes).any():
            raise UserError(f"{agent}: got the action {actions[agent]!r}, expected {form}")
        return torch.from_numpy(flat_NF)

    def text(self, copy: int = 0) -> str:
        """The episode of a copy so far, one line per round."""
        rollout = self.play.rollout(self._turn_BRA, self._reward_BRA, torch.zeros_like(self._reward_BRA))
        (record,) = transcript_records(self.play.scenario, rollout.copies(torch.tensor([copy])), 1)
        label = f", label {self.protocol.verdicts[record['label']]}" if "label" in record else ""
        role = f", role {record['role']}" if "role" in record else ""
        lines = [f"{self.protocol.name}, instance {record['instance']}{label}, episode seed {record['seed']}{role}"]
        lines += [f"round {part['round']}: {'; '.join(map(_said, part['turns']))}" for part in record["rounds"]]
        if bool(self.play.over_B[copy]):
            paid = ", ".join(f"{agent} {total:g}" for agent, total in record["reward"].items())
            lines.append(f"{record.get('verdict', 'end')}; paid: {paid}")
        return "\n".join(lines)

    def facts(self) -> Arrays:
        """Arrays (B,) in addition to observations: "instance", and of a proof "label" and "verdict", as numbers: an
        index of the protocol's verdicts, their number where there is none (yet)."""
        told = {"instance": self.play.id_B.numpy()}
        if self.protocol.verifier is not None:
            told |= {"label": self.play.state.y_B.numpy(), "verdict": self.play.decision_B.numpy()}
        return told

    def info(self, agent: str, copy: int = 0) -> dict[str, Any]:
        """Plain values in addition to an observation of `agent`: "instance", "turn", "illegal", and at the end of a
        proof "label" and "verdict", "votes" of a panel, and "role" if one was drawn."""
        facts, words = {key: int(x[copy]) for key, x in self.facts().items()}, self.protocol.verdict_words
        told: dict[str, Any] = {"instance": facts["instance"], "turn": bool(self.turn_B(agent)[copy])}
        told["illegal"] = bool(self.illegal[agent][copy])
        if bool(self.play.over_B[copy]) and self.protocol.verifier is not None:
            told |= {"label": facts["label"], "verdict": words[facts["verdict"]]}
            if self.protocol.panel is not None:
                votes = verdict_of(self.play.state.vote_BM)[copy].tolist()
                told["votes"] = {member: words[vote] for member, vote in zip(self.protocol.verifiers, votes)}
            if self.protocol.roles:
                told["role"] = self.protocol.role_of(int(self.play.state.seed_B[copy]))
        return told

    def _episodes(self, copy_N: Tensor, options: Mapping[str, Any] | None) -> tuple[Tensor, Tensor]:
        """(instances, episode seeds) of copies: as `options` has them, else drawn."""
        most = {"id": len(self.play.scenario.label_I), "seed": NUM_SEEDS}
        given = {key: x for key, x in (options or {}).items() if key in most}
        fixed = {key: self._checked_option(key, x, most[key])[copy_N] for key, x in given.items()}
        generators = [self._random[copy] for copy in copy_N.tolist()]
        drawn = [(own.integers(len(self.instances)), own.integers(NUM_SEEDS)) for own in generators]
        place_N, seed_N = torch.tensor(drawn).unbind(1)
        return fixed.get("id", self.instances[place_N]), fixed.get("seed", seed_N)

    def _seeds(self, seed: Any) -> list[int | None]:
        """A seed for each copy, None where its generator goes on. Raises UserError."""
        several = isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str)
        seeds: list[Any] = list(seed) if several else [seed] * self.num_copies
        fits = all(own is None or (isinstance(own, int | np.integer) and own >= 0) for own in seeds)
        if len(seeds) != self.num_copies or not fits:
            raise UserError(f"seed: got {seed!r}, expected a whole number of at least 0, a list of them, or none")
        return [own if own is None else int(own) + (0 if several else copy) for copy, own in enumerate(seeds)]

    def _checked_option(self, key: str, value: Any, most: int) -> Tensor:
        """(B,) int64. Raises UserError unless it is a number in range, or one for each copy."""
        array = _array(value)
        fits = array is not None and array.dtype.kind in "iu" and array.shape in ((), (self.num_copies,))
        if array is None or not fits or ((array < 0) | (array >= most)).any():
            each = "" if self.num_copies == 1 else f", or one for each of {self.num_copies} copies"
            raise UserError(f"options.{key}: got {value!r}, expected a whole number from 0 to {most - 1}{each}")
        return torch.from_numpy(np.broadcast_to(array.astype(np.int64), (self.num_copies,)).copy())

    def _start(self, id_B: Tensor, seed_B: Tensor) -> None:
        self.play.reset(id_B, seed_B)
        self.illegal = {agent: torch.zeros_like(self.play.over_B) for agent in self.agents}
        self._forget()
        shape = (self.num_copies, self.protocol.max_rounds, len(self.agents))
        self._turn_BRA, self._reward_BRA = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)

    def _forget(self) -> None:
        """The observations and choices of the round before."""
        self._seen: dict[str, dict[str, Tensor]] = {}
        self._choices: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def _factors(self, agent: str) -> list[tuple[Tensor, Tensor]]:
        """((B, choices) bool mask, (B,) bool True if in play) of each factor of an action."""
        if agent not in self._choices:
            self._choices[agent] = self._find_factors(agent)
        return self._choices[agent]

    def _find_factors(self, agent: str) -> list[tuple[Tensor, Tensor]]:
        obs, layout = self.tensors(agent), self.layouts[agent]
        open_B = self.turn_B(agent)
        speaks_BF = obs["speaks"] & open_B[:, None]
        legal_BFS = self.play.scenario.legal_symbols(agent, obs)
        found: list[tuple[Tensor, Tensor]] = []
        for factor, in_play_B in enumerate(speaks_BF.unbind(1)):
            mask_BS = _mask(layout.symbols, in_play_B, 0)
            if legal_BFS is not None:
                mask_BS = torch.where(in_play_B[:, None], legal_BFS[:, factor], mask_BS)
            found.append((mask_BS, in_play_B))
        if layout.linear_symbols:
            found += [(_mask(layout.linear_symbols, in_play_B, 0), in_play_B) for in_play_B in speaks_BF.unbind(1)]
        if layout.decides:
            may_decide_B = obs["may_decide"] & open_B
            found.append((_mask(layout.decisions, may_decide_B, self.protocol.undecided), may_decide_B))
        return found


def refuse_graded(protocol: Protocol) -> None:
    """Raise UserError if payments depend on the verifier's probability, which actions do not contain."""
    if not protocol.graded:
        return
    if protocol.payment.scoring != "linear":
        given, instead = f"protocol.verifier_scoring: got {protocol.payment.scoring}", "linear"
    elif protocol.payment.graded:
        given, instead = (
            f"protocol.name: {protocol.name} has a payment function of confidences",
            "a payment function without `graded`",
        )
    elif protocol.name == "judge_panel":
        given, instead = "protocol.panel_rule: got mean", "majority, unanimous or veto"
    else:
        given, instead = f"protocol.name: the panel of {protocol.name} judges by the mean", "another rule"
    raise UserError(f"{given}, but actions carry no confidence; play it in batches, or use {instead}")


def action_space(sizes: list[int]) -> gym.spaces.Space[Any]:
    """The space of actions with these numbers of choices by factor: Discrete for one factor."""
    return gym.spaces.Discrete(sizes[0]) if len(sizes) == 1 else gym.spaces.MultiDiscrete(sizes)


def mask_space(size: int) -> gym.spaces.Box:
    """The space of a mask over `size` choices: a Box, which every library reads (skrl does not read MultiBinary)."""
    return gym.spaces.Box(0, 1, (size,), np.int8)


def _array(value: Any) -> Array | None:
    """`value` as an array; None if it is not one, as a list of lists of several lengths."""
    try:
        return np.asarray(value)
    except (ValueError, RuntimeError):
        return None


def _mask(size: int, in_play_B: Tensor, idle: int) -> Tensor:
    """(B, size) bool: every choice where in play, else `idle` alone."""
    return in_play_B[:, None] | (torch.arange(size) == idle)


def _said(turn: Mapping[str, Any]) -> str:
    symbols = " ".join(map(str, turn["message"])) + (
        "" if "linear" not in turn else " | " + " ".join(map(str, turn["linear"]))
    )
    decision = f", {turn['decision']}" if turn.get("decision", "continue") != "continue" else ""
    return f"{turn['agent']} in {turn['channel']}: {symbols}{decision}"


def _dtype(tensor: Tensor) -> Any:
    if tensor.dtype == torch.bool:
        return np.int8
    return np.float32 if tensor.dtype.is_floating_point else np.int64


def _box(x: Array) -> gym.spaces.Box:
    """Effectively without bounds."""
    if x.dtype == np.float32:
        return gym.spaces.Box(-np.inf, np.inf, x.shape, np.float32)
    return gym.spaces.Box(0, 1 if x.dtype == np.int8 else 1 << 16, x.shape, x.dtype.type)
