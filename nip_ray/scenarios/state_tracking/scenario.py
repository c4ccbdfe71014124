"""State tracking as tensors: messages are symbols (a state, a half, or the number of a move), observations are tokens.

Decisions that matter here:
- under bisection a turn sees only the interval in dispute with its two committed states: positions are few, so the
  worst case over all lies is exact (`exact_figures`);
- under nip, adp and debate the prover's first message commits to all states between start and claim. It does not see
  the verifier's questions, so an earlier question binds it too. The pointing agent names a move; the verifier sees the
  latest one with the two committed states around it. Without a pointing agent (adp) it reads them all;
- the verifier sees the moves of the chain, or under bisection the remaining one. Provers see the true states;
- with an estimator see `nip_ray.scenarios.state_tracking.estimates`. Prover and estimator see where the ends of a claim
  lead, the verifier the remaining move and the results of the estimates; no agent sees the place in the chain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import ACCEPT, Protocol
from nip_ray.scenarios.seat import agents_of
from nip_ray.scenarios.state_tracking.chains import NUM_STATES, draw_chains
from nip_ray.scenarios.state_tracking.estimates import PAIRS, POINTS, WORDS, Asked, Claims, Walks, replay
from nip_ray.scenarios.state_tracking.estimates import least_acceptance as least_acceptance_of_estimates
from nip_ray.scenarios.state_tracking.estimates import worst_acceptance as worst_acceptance_of_estimates
from nip_ray.scenarios.state_tracking.network import (
    COMMITTED,
    CONTRADICTED,
    DISPUTED,
    FOLLOWS,
    HIGH,
    LEFT,
    LOW,
    MIDDLE,
    MOVE,
    NEEDED,
    NOTHING,
    OVER,
    REACHED,
    RIGHT,
    ROOT,
    STATED,
    TRUTH,
    Says,
    StateAgent,
)
from nip_ray.scenarios.state_tracking.seats import one_question_is_asked, seats_of
from nip_ray.scenarios.state_tracking.worst_case import (
    Chances,
    Positions,
    acceptance_of_truth,
    least_acceptance,
    worst_acceptance,
    worst_acceptance_of_chain,
)
from nip_ray.seeding import seeded
from nip_ray.settings.state_tracking import StateAgentSettings, StateTrackingSettings

ROLES = (
    (LOW, HIGH, MIDDLE, REACHED, NEEDED, FOLLOWS, STATED, LEFT, RIGHT),
    (LOW, HIGH, DISPUTED, STATED, ROOT, OVER, CONTRADICTED),
)
"""Tokens of prover and estimator, and of the verifier."""
_ROWS = 4096  # positions per call of a network


@dataclass(frozen=True)
class Said:
    """The state of N dialogues. low_N, high_N: the places in dispute (0 and 0 before a move is named). low_state_N,
    high_state_N, middle_N: the states committed there, -1 for none. committed_NP: all committed states, -1 for none."""

    low_N: Tensor
    high_N: Tensor
    low_state_N: Tensor
    high_state_N: Tensor
    middle_N: Tensor
    committed_NP: Tensor


def spoken(said: Dialogue) -> Tensor:
    """(N, R): the symbol of each round in which one agent speaks, -1 for none."""
    return said.main.amax((2, 3, 4))


class StateTracking(Scenario):
    """Ids are rows of the table of chains: first those of training, then those held out."""

    name = "state_tracking"

    def __init__(
        self, protocol: Protocol, settings: StateTrackingSettings, agents: Mapping[str, StateAgentSettings]
    ) -> None:
        self.protocol, self.settings, self.agents = protocol, settings, dict(agents)
        self.seats = seats_of(protocol, settings)
        self.chains = draw_chains(settings, 0)
        self.label_I, self.num_train = self.chains.label_I, settings.num_train
        whole = self.seats.committer is not None and not self.seats.bisects
        self.num_symbols = len(POINTS) if self.seats.estimator else max(NUM_STATES, settings.length if whole else 0)
        self.walks = Walks(self.chains) if self.seats.estimator else None
        self.message_size = settings.length - 1 if whole else 1

    def to(self, device: str) -> "StateTracking":
        """This scenario, its tables moved to `device` in place."""
        self.chains = self.chains.to(device)
        self.label_I = self.chains.label_I
        self.walks = Walks(self.chains) if self.walks is not None else None
        return self

    def instance_content(self, id_N: Tensor) -> dict[str, Tensor]:
        """Moves (N, n), states (N, n + 1) and claims (N,)."""
        return {
            "move": self.chains.move_IT[id_N],
            "state": self.chains.state_IP[id_N],
            "claim": self.chains.claim_I[id_N],
        }

    def occurring(self) -> Tensor:
        """Counted by start and moves, for any claim."""
        contents = self.chains.contents()
        trained = set(contents[: self.settings.num_train])
        return torch.tensor([content in trained for content in contents[self.settings.num_train :]])

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """ "token" and "place" (N, L): see `nip_ray.scenarios.state_tracking.network`."""
        if self.walks is not None:
            masks = turn_masks(self.protocol, agent, 1, round_N, seed_N)
            masks["speaks"] = masks["speaks"] & (agent != self.protocol.verifier)
            return {**masks, **self._tokens_of_claims(agent, replay(self.chains, id_N, spoken(said), round_N)[0])}
        now = self._bisected(id_N, said, round_N) if self.seats.bisects else self._pointed_at(id_N, said)
        obs = self._tokens(agent, id_N, now)
        masks = turn_masks(self.protocol, agent, self.message_size, round_N, seed_N)
        if agent == self.seats.committer:
            in_play_N = now.committed_NP[:, 1] < 0  # a chain is committed to once
            masks["speaks"] = masks["speaks"] & in_play_N[:, None]
        else:
            in_play_N = (round_N < self.protocol.max_rounds - 1) & (agent == self.seats.pointer)
            masks["speaks"] = masks["speaks"] & in_play_N[:, None]
            masks["speaks"][:, 1:] = False
        return {**masks, **obs}

    def legal_symbols(self, agent: str, obs: Mapping[str, Tensor]) -> Tensor | None:
        """States, halves or numbers of moves, by the kind of `agent`; the rest of the alphabet is for others."""
        says, slots, _ = self._voice(agent)
        if says is None:
            return None
        known: Any = {"state": NUM_STATES, "half": 2, "move": len(slots), "pair": len(PAIRS), "part": len(POINTS)}[says]
        if says == "part":
            known = torch.where(obs["token"][:, slots] == NOTHING, NUM_STATES, known)[..., None]
        return (torch.arange(self.num_symbols, device=self.label_I.device) < known).expand(*obs["speaks"].shape, -1)

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """A small transformer, initialised from `seed`."""
        says, slots, role_L = self._voice(agent)
        shape = (len(self.protocol.writes[agent]) * self.message_size, self.num_symbols)
        with seeded(seed):
            told = len(self.protocol.roles) if agent in self.protocol.told else 0
            decides = agent in self.protocol.deciders
            return StateAgent(self.agents[agent], self.settings.length, role_L, says, slots, shape, decides, told)

    def _voice(self, agent: str) -> tuple[Says, Tensor, Tensor]:
        """The kind of symbols of `agent`, their tokens, and the roles of all its tokens; see `StateAgent`."""
        if self.walks is not None:
            role_L = torch.tensor(ROLES[agent == self.protocol.verifier])
            says: Says = {self.seats.committer: "part", self.seats.estimator: "pair"}.get(agent)  # type: ignore[assignment]
            return says, (role_L == MIDDLE).nonzero().flatten(), role_L
        role_L = torch.tensor([role for role, _, _ in self._layout(agent)])
        if agent in (self.seats.committer, self.seats.pointer) and self.seats.bisects:
            return "state" if agent == self.seats.committer else "half", (role_L == MIDDLE).nonzero().flatten(), role_L
        if agent == self.seats.committer:
            return "state", (role_L == TRUTH).nonzero().flatten()[1:-1], role_L
        if agent == self.seats.pointer:
            moves = (role_L == MOVE).nonzero().flatten()
            return (
                "move",
                moves if agent == self.protocol.verifier else (role_L == COMMITTED).nonzero().flatten()[1:],
                role_L,
            )
        return None, torch.zeros(0, dtype=torch.int64), role_L

    def estimate_error(self, id_B: Tensor, said: Dialogue) -> Tensor:
        """See `nip_ray.scenarios.state_tracking.estimates`."""
        return replay(self.chains, id_B, spoken(said), torch.full_like(id_B, self.protocol.max_rounds))[1]

    @torch.no_grad()
    def exact_figures(self, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """Under bisection, prover_estimator, and nip with one question: soundness against every lie and completeness
        against every opponent (with an estimator: against every estimator, with a truthful prover), of the sampled
        policies on the first `num_exact` held-out chains."""
        protocol, seats, id_I = self.protocol, self.seats, self.ids("test")[: self.settings.num_exact]
        false_I, true_I = (id_I[self.label_I[id_I] == label] for label in (0, 1))
        if not (seats.bisects or one_question_is_asked(protocol)) or not len(false_I) or not len(true_I):
            return {}
        false, true = self.chains.rows(false_I), self.chains.rows(true_I)

        def chances(agent: str | None, ids: Tensor) -> Chances:
            return partial(self._chances, networks[agent or ""], agent or "", ids)

        verifier = protocol.verifier
        if self.walks is not None:
            worst = worst_acceptance_of_estimates(
                false, *(self.asks(networks, agent, false_I) for agent in ("estimator", "verifier"))
            )
            least = least_acceptance_of_estimates(true, self.asks(networks, "verifier", true_I))
        elif seats.bisects:
            worst = worst_acceptance(false, chances(seats.pointer, false_I), chances(verifier, false_I))
            least = least_acceptance(true, chances(seats.committer, true_I), chances(verifier, true_I))
        else:
            asks_F, asks_T = (self._questions(networks[verifier or ""], ids) for ids in (false_I, true_I))
            worst = worst_acceptance_of_chain(false, asks_F, chances(verifier, false_I))
            least = acceptance_of_truth(true, asks_T, chances(verifier, true_I))
        return {"worst_case/soundness": 1 - float(worst.mean()), "worst_case/completeness": float(least.mean())}

    def _chances(self, network: nn.Module, agent: str, id_I: Tensor, at: Positions) -> Tensor:
        """The probabilities of `network` at positions of the chains `id_I`; see `Chances`."""
        id_N = id_I[at.item_N]
        now = Said(at.low_N, at.high_N, at.low_state_N, at.high_state_N, at.middle_N, self._ends(id_N))
        final = agent == self.protocol.verifier and bool((at.high_N - at.low_N == 1).all())
        policy = self._asked(network, agent, self._tokens(agent, id_N, now))
        if final:
            return policy[1][:, ACCEPT]
        return policy[0][:, :NUM_STATES] if agent == self.seats.committer else policy[0][:, 1]

    def _questions(self, verifier: nn.Module, id_I: Tensor) -> Tensor:
        """(I, n): the probability that the verifier asks for each move."""
        nowhere_I, nothing_I = torch.zeros_like(id_I), torch.full_like(id_I, -1)
        now = Said(nowhere_I, nowhere_I, nothing_I, nothing_I, nothing_I, self._ends(id_I))
        agent = self.protocol.verifier or ""
        return self._asked(verifier, agent, self._tokens(agent, id_I, now))[0][:, : self.settings.length]

    def asks(self, networks: Mapping[str, nn.Module], agent: str, id_I: Tensor) -> Asked:
        """The probabilities of the estimator or the verifier at claims about the chains `id_I`; see `Asked`."""

        def asked(at: Claims) -> Tensor:
            said_NS, decided_N3 = self._asked(
                networks[agent], agent, self._tokens_of_claims(agent, replace(at, item_N=id_I[at.item_N]))
            )
            return decided_N3[:, ACCEPT] if agent == self.protocol.verifier else said_NS[:, : len(PAIRS)]

        return asked

    def _asked(self, network: nn.Module, agent: str, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Probabilities (N, S) of the first symbol of `agent` and (N, 3) of its decisions (without any: empty). Equal
        observations, such as those of one move, are evaluated once."""
        width = tokens["token"].shape[1]
        seen_UX, place_N = torch.unique(torch.cat([tokens["token"], tokens["place"]], 1), dim=0, return_inverse=True)
        said, decided = [], []
        for seen_KX in seen_UX.split(_ROWS):
            count, factors = len(seen_KX), len(self.protocol.writes[agent]) * self.message_size
            masks = {"speaks": seen_KX.new_ones(count, factors).bool(), "may_decide": seen_KX.new_ones(count).bool()}
            policy, _ = network({**masks, "token": seen_KX[:, :width], "place": seen_KX[:, width:]}, True, False)
            said.append(torch.softmax(policy.message[:, 0].double(), -1))
            decided.append(said[-1][:, :0] if policy.decision is None else torch.softmax(policy.decision.double(), -1))
        return torch.cat(said)[place_N], torch.cat(decided)[place_N]

    def _layout(self, agent: str) -> list[tuple[int, str, int]]:
        """The tokens of `agent`: (role, source, place); a place of -1 is part of the dialogue."""
        places, verifier = range(self.settings.length + 1), agent == self.protocol.verifier
        made: list[tuple[int, str, int]] = []
        if not verifier:
            made += [(TRUTH, "truth", p) for p in places]
        elif not self.seats.bisects:
            made += [(MOVE, "moves", p) for p in places[:-1]]
        if not self.seats.bisects:
            points_out = agent == self.seats.pointer and not verifier
            reads_all = points_out or (verifier and self.seats.committer is not None and self.seats.pointer is None)
            made += [(COMMITTED, "committed", p) for p in (places if reads_all else (0, places[-1]))]
        if self.seats.bisects or (verifier and self.seats.pointer is not None):
            made += [(LOW, "low", -1), (HIGH, "high", -1)]
            made += [(MIDDLE, "middle", -1)] if agent in (self.seats.committer, self.seats.pointer) else []
            made += [(DISPUTED, "disputed", -1)] if verifier else []
        return made

    def _tokens(self, agent: str, id_N: Tensor, now: Said) -> dict[str, Tensor]:
        """The tokens of `_layout` and their places."""
        state_NP, move_NT = self.chains.state_IP[id_N], self.chains.move_IT[id_N] + NUM_STATES
        left_N = now.high_N - now.low_N == 1
        disputed_N = torch.where(
            left_N, move_NT.gather(1, now.low_N.clamp(max=move_NT.shape[1] - 1)[:, None]).squeeze(1), NOTHING
        )
        sources = {
            "truth": state_NP,
            "moves": move_NT,
            "committed": now.committed_NP,
            "low": now.low_state_N,
            "high": now.high_state_N,
            "middle": now.middle_N,
            "disputed": disputed_N,
        }
        blind = self.seats.bisects and agent == self.protocol.verifier  # it does not see places
        places = {"low": now.low_N, "high": now.high_N, "middle": (now.low_N + now.high_N) // 2, "disputed": now.low_N}
        layout = self._layout(agent)
        token_NL = torch.stack([sources[source] if p < 0 else sources[source][:, p] for _, source, p in layout], 1)
        place_NL = torch.stack(
            [places[source] * (not blind) if p < 0 else torch.full_like(id_N, p) for _, source, p in layout], 1
        )
        return {"token": torch.where(token_NL < 0, NOTHING, token_NL), "place": place_NL}

    def _tokens_of_claims(self, agent: str, claims: Claims) -> dict[str, Tensor]:
        """The tokens of `ROLES`, all without a place."""
        assert self.walks is not None
        item_N, half_N, left_N = claims.item_N, claims.halfway_N, claims.low_N.clamp(max=self.settings.length - 1)
        follows_N = self.walks.lead(item_N, half_N, claims.middle_N.clamp(min=0), claims.high_N)
        sources = {
            LOW: claims.low_state_N,
            HIGH: claims.high_state_N,
            MIDDLE: claims.middle_N,
            REACHED: self.walks.lead(item_N, claims.low_N, claims.low_state_N, half_N),
            NEEDED: self.walks.lead(item_N, claims.high_N, claims.high_state_N, half_N),
            FOLLOWS: torch.where(claims.middle_N < 0, -1, follows_N),
            STATED: claims.stated_N,
            LEFT: torch.where(claims.pair_N < 0, -1, claims.pair_N // len(WORDS)),
            RIGHT: torch.where(claims.pair_N < 0, -1, claims.pair_N % len(WORDS)),
            DISPUTED: torch.where(
                claims.high_N - claims.low_N == 1, self.chains.move_IT[item_N, left_N] + NUM_STATES, -1
            ),
            ROOT: claims.root_N,
            OVER: claims.over_N,
            CONTRADICTED: claims.contradicted_N,
        }
        token_NL = torch.stack([sources[role] for role in ROLES[agent == self.protocol.verifier]], 1)
        return {"token": torch.where(token_NL < 0, NOTHING, token_NL), "place": torch.zeros_like(token_NL)}

    def _bisected(self, id_N: Tensor, said: Dialogue, round_N: Tensor) -> Said:
        """The remaining interval before `round_N`."""
        committed_NR, chosen_NR = self._by(self.seats.committer, said), self._by(self.seats.pointer, said)
        low_N, high_N = torch.zeros_like(id_N), torch.full_like(id_N, self.settings.length)
        low_state_N, high_state_N = self.chains.state_IP[id_N, 0], self.chains.claim_I[id_N]
        for r in range(1, self.protocol.max_rounds - 1, 2):
            middle_N, half_N = committed_NR[:, r - 1], (low_N + high_N) // 2
            over_N, right_N = round_N > r, chosen_NR[:, r] == 1
            low_N, low_state_N = (
                torch.where(over_N & right_N, new, old) for new, old in ((half_N, low_N), (middle_N, low_state_N))
            )
            high_N, high_state_N = (
                torch.where(over_N & ~right_N, new, old) for new, old in ((half_N, high_N), (middle_N, high_state_N))
            )
        just_N = (round_N % 2 == 1) & (round_N < self.protocol.max_rounds)
        middle_N = committed_NR.gather(1, (round_N - 1).clamp(min=0)[:, None]).squeeze(1)
        return Said(low_N, high_N, low_state_N, high_state_N, torch.where(just_N, middle_N, -1), self._ends(id_N))

    def _pointed_at(self, id_N: Tensor, said: Dialogue) -> Said:
        """The committed chain, and the move of it that was named last."""
        n, rows = self.settings.length, torch.arange(len(id_N), device=id_N.device)
        nowhere_N, nothing_N = torch.zeros_like(id_N), torch.full_like(id_N, -1)
        committed_NP = self._ends(id_N)
        if self.seats.committer is None:
            return Said(nowhere_N, nowhere_N, nothing_N, nothing_N, nothing_N, committed_NP)
        whole_NRM = said.main[:, :, self.protocol.agents.index(self.seats.committer)].amax(2)
        first_N = (whole_NRM[..., 0] >= 0).long().argmax(1)
        committed_NP[:, 1:n] = whole_NRM[rows, first_N]
        if self.seats.pointer is None:
            return Said(nowhere_N, nowhere_N, nothing_N, nothing_N, nothing_N, committed_NP)
        move_NR = self._by(self.seats.pointer, said)
        spoken_NR = move_NR >= 0
        last_N = (spoken_NR * torch.arange(1, move_NR.shape[1] + 1, device=id_N.device)).argmax(1)
        move_N, shown_N = move_NR[rows, last_N].clamp(0, n - 1), spoken_NR.any(1) & (committed_NP[:, 1] >= 0)
        low_state_N, high_state_N = (torch.where(shown_N, committed_NP[rows, move_N + step], -1) for step in (0, 1))
        return Said(move_N * shown_N, (move_N + 1) * shown_N, low_state_N, high_state_N, nothing_N, committed_NP)

    def _ends(self, id_N: Tensor) -> Tensor:
        """(N, P): start and claim, which bind all agents, and -1 between them."""
        committed_NP = torch.full((len(id_N), self.settings.length + 1), -1, device=id_N.device)
        committed_NP[:, 0], committed_NP[:, -1] = self.chains.state_IP[id_N, 0], self.chains.claim_I[id_N]
        return committed_NP

    def _by(self, agent: str | None, said: Dialogue) -> Tensor:
        """(N, R): the first symbol of each message of `agent`, -1 where it was silent."""
        return said.main[:, :, self.protocol.agents.index(agent or ""), :, 0].amax(-1)


def build_state_tracking(protocol: Protocol, settings: Any) -> StateTracking:
    """The scenario of `settings` (StateTrackingSettings). Raises UserError for an unsupported protocol."""
    return StateTracking(protocol, settings, agents_of(protocol, settings.agents, StateAgentSettings))
