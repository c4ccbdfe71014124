"""`SinglePlay`: one copy of the batched core, played with flat actions (`Layout`) and observed as arrays.

Decisions that matter here:
- legal choices are one mask for each factor of an action. A factor that is not in play (a silent channel, a decision
  that could not count) has one legal choice, which does nothing, and any choice there counts as it;
- an illegal choice of a factor in play, such as a node that does not exist, counts as the first legal one and adds the
  agent to `illegal`: learners without masks can play, and scenarios never get unknown symbols.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from nip_ray.environments.layout import layout_of
from nip_ray.errors import UserError
from nip_ray.evaluation.transcripts import transcript_records
from nip_ray.play.core import BatchedPlay
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import NUM_SEEDS, Protocol
from nip_ray.protocols.batched_step import verdict_of

Arrays = dict[str, np.ndarray[Any, Any]]
_COPY = torch.zeros(1, dtype=torch.long)


class SinglePlay:
    """One episode after the other of `scenario` on instances of `split`. `reset` seeds the draws; until then each
    object draws by its own entropy, so unseeded copies play different episodes.

    agents: all of them, in the protocol's order. illegal: agents with an illegal choice in the last round.
    """

    def __init__(self, scenario: Scenario, split: str = "train", *, for_modules: bool = False) -> None:
        """for_modules: observations in our networks' form, see `observe`. Raises UserError for an unknown split."""
        if split not in ("train", "test"):
            raise UserError(f"split: got {split!r}, expected train or test")
        self.play, self.protocol = BatchedPlay(scenario), scenario.protocol
        self.agents = list(self.protocol.agents)
        self.layouts = {agent: layout_of(scenario, agent) for agent in self.agents}
        self.instances = scenario.ids(split)
        self.for_modules = for_modules
        self.random, self._begun = np.random.default_rng(), False
        self._start(int(self.instances[0]), 0)
        self.observation_spaces = {
            agent: gym.spaces.Dict({key: _box(x) for key, x in self.observe(agent).items()}) for agent in self.agents
        }

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin an episode. seed: seeds the draws from here on. options: "id" of the instance and "seed" of the
        episode, else drawn.

        Raises UserError for an unknown instance, and for a protocol that actions alone cannot play.
        """
        refuse_graded(self.protocol)  # not before: batched players need the spaces
        if seed is not None:
            self.random = np.random.default_rng(seed)
        drawn = {
            "id": int(self.instances[self.random.integers(len(self.instances))]),
            "seed": int(self.random.integers(NUM_SEEDS)),
        }
        given = {key: (options or {}).get(key, value) for key, value in drawn.items()}
        for (key, value), most in zip(given.items(), (len(self.play.scenario.label_I), NUM_SEEDS)):
            if not isinstance(value, int | np.integer) or not 0 <= value < most:
                raise UserError(f"options.{key}: got {value!r}, expected a whole number from 0 to {most - 1}")
        self._start(int(given["id"]), int(given["seed"]))
        self._begun = True

    def refuse_unbegun(self) -> None:
        """Raise UserError before the first `reset`."""
        if not self._begun:
            raise UserError("step: no episode has begun, expected a call of reset() first")

    @property
    def turns(self) -> list[str]:
        """The agents with a turn; [] after the end."""
        return [] if self.play.finished else [agent for agent in self.agents if bool(self.play.turn_B(agent)[0])]

    @property
    def cut(self) -> bool:
        """True if the rounds ran out before a game that they only cut off was over."""
        return self.play.finished and self.protocol.cuts and bool(self.play.state.exhausted_B[0])

    def tensors(self, agent: str) -> dict[str, torch.Tensor]:
        """The current observation of `agent`, one row each; see `Scenario.observe`."""
        if agent not in self._seen:
            self._seen[agent] = self.play.observe(agent, _COPY)
        return self._seen[agent]

    def observe(self, agent: str) -> Arrays:
        """The same as arrays: flags, real numbers, and small whole numbers.

        With `for_modules` also numbers without an axis, and the inputs of central critics.
        """
        seen = {key: np.asarray(value[0].numpy(), dtype=_dtype(value)) for key, value in self.tensors(agent).items()}
        if self.for_modules:
            return seen
        return {key: np.atleast_1d(x) for key, x in seen.items() if key != "label" and not key.startswith("state_")}

    def legal(self, agent: str) -> list[np.ndarray[Any, Any]]:
        """For each factor of the agent's action, int8: 1 at choices that are legal now."""
        return [mask for mask, _ in self._factors(agent)]

    def step(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play one round with the flat actions of the agents with a turn, and return all rewards.

        Other agents' actions are ignored. Raises UserError for one that is missing or has another form.
        """
        self.refuse_unbegun()
        chosen, self.illegal = {}, set[str]()
        turns = self.turns
        for agent in turns:
            flat = self.checked(agent, actions)
            for place, (mask, in_play) in enumerate(self._factors(agent)):
                if not mask[flat[place]]:
                    flat[place] = mask.argmax()
                    if in_play:
                        self.illegal.add(agent)
            chosen[agent] = _COPY, self.layouts[agent].split(torch.from_numpy(flat)[None])
        round_ = self.play.round
        outcome = self.play.step(chosen)
        self._turn_1RA[0, round_] = torch.tensor([agent in turns for agent in self.agents])
        self._reward_1RA[0, round_] = outcome.reward_BA[0]
        self._seen = {}
        return dict(zip(self.agents, outcome.reward_BA[0].tolist()))

    def info(self, agent: str) -> dict[str, Any]:
        """Plain values in addition to the agent's observation: "instance", "turn", "illegal", and at the end of a proof
        "label" and "verdict", "votes" of a panel, and "role" if one was drawn."""
        told = {"instance": int(self.play.id_B[0]), "turn": agent in self.turns, "illegal": agent in self.illegal}
        words = self.protocol.verdict_words
        if self.play.finished and self.protocol.verifier is not None:
            told |= {"label": int(self.play.state.y_B[0]), "verdict": words[int(self.play.decision_B[0])]}
            if self.protocol.panel is not None:
                votes = verdict_of(self.play.state.vote_BM)[0].tolist()
                told |= {"votes": {agent: words[vote] for agent, vote in zip(self.protocol.verifiers, votes)}}
            told |= {"role": self.protocol.role_of(int(self.play.state.seed_B[0]))} if self.protocol.roles else {}
        return told

    def text(self) -> str:
        """The episode so far, one line per round."""
        rollout = self.play.rollout(self._turn_1RA, self._reward_1RA, torch.zeros_like(self._reward_1RA))
        (record,) = transcript_records(self.play.scenario, rollout, 1)
        label = f", label {self.protocol.verdicts[record['label']]}" if "label" in record else ""
        role = f", role {record['role']}" if "role" in record else ""
        lines = [f"{self.protocol.name}, instance {record['instance']}{label}, episode seed {record['seed']}{role}"]
        lines += [f"round {part['round']}: {'; '.join(map(_said, part['turns']))}" for part in record["rounds"]]
        if self.play.finished:
            paid = ", ".join(f"{agent} {total:g}" for agent, total in record["reward"].items())
            lines.append(f"{record.get('verdict', 'end')}; paid: {paid}")
        return "\n".join(lines)

    def _start(self, instance: int, seed: int) -> None:
        self.play.reset(torch.tensor([instance]), torch.tensor([seed]))
        self.illegal: set[str] = set()
        self._seen: dict[str, dict[str, torch.Tensor]] = {}
        shape = (1, self.protocol.max_rounds, len(self.agents))
        self._turn_1RA, self._reward_1RA = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)

    def _factors(self, agent: str) -> list[tuple[np.ndarray[Any, Any], bool]]:
        """(mask, True if in play) of each factor of an action."""
        obs, layout = self.tensors(agent), self.layouts[agent]
        over = self.play.finished
        speaks = [bool(x) and not over for x in obs["speaks"][0]]
        legal_NFS = self.play.scenario.legal_symbols(agent, obs)
        found: list[tuple[np.ndarray[Any, Any], bool]] = []
        for factor, in_play in enumerate(speaks):
            if in_play and legal_NFS is not None:
                found.append((legal_NFS[0, factor].numpy().astype(np.int8), True))
            else:
                found.append((_mask(layout.symbols, in_play, 0), in_play))
        if layout.linear_symbols:
            found += [(_mask(layout.linear_symbols, in_play, 0), in_play) for in_play in speaks]
        if layout.decides:
            may_decide = bool(obs["may_decide"][0]) and not over
            found.append((_mask(layout.decisions, may_decide, self.protocol.undecided), may_decide))
        return found

    def checked(self, agent: str, actions: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The action of `agent` as a new flat array. Raises UserError as `step` does."""
        sizes = self.layouts[agent].sizes
        form = (
            f"a whole number below {sizes[0]}"
            if len(sizes) == 1
            else f"{len(sizes)} whole numbers, each below its part of {sizes}"
        )
        if agent not in actions:
            raise UserError(f"{agent}: it is its turn and there is no action of it, expected {form}")
        flat = np.array(actions[agent]).reshape(-1)
        if len(flat) != len(sizes) or flat.dtype.kind not in "iu" or (flat < 0).any() or (flat >= sizes).any():
            raise UserError(f"{agent}: got the action {actions[agent]!r}, expected {form}")
        return flat.astype(np.int64)


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


def _mask(size: int, in_play: bool, idle: int) -> np.ndarray[Any, Any]:
    mask = np.full(size, in_play, np.int8)
    mask[idle] = 1
    return mask


def _said(turn: Mapping[str, Any]) -> str:
    symbols = " ".join(map(str, turn["message"])) + (
        "" if "linear" not in turn else " | " + " ".join(map(str, turn["linear"]))
    )
    decision = f", {turn['decision']}" if turn.get("decision", "continue") != "continue" else ""
    return f"{turn['agent']} in {turn['channel']}: {symbols}{decision}"


def _dtype(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bool:
        return np.int8
    return np.float32 if tensor.dtype.is_floating_point else np.int64


def _box(x: np.ndarray[Any, Any]) -> gym.spaces.Box:
    """Effectively without bounds."""
    if x.dtype == np.float32:
        return gym.spaces.Box(-np.inf, np.inf, x.shape, np.float32)
    return gym.spaces.Box(0, 1 if x.dtype == np.int8 else 1 << 16, x.shape, x.dtype.type)
