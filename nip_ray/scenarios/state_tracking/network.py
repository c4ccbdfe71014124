"""The network of one agent: a transformer over tokens that each name a state or a move, a place, and a role."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.protocols import NUM_DECISIONS
from nip_ray.scenarios.state_tracking.chains import GENERATORS, NUM_STATES
from nip_ray.scenarios.state_tracking.estimates import PAIRS, POINTS
from nip_ray.settings.state_tracking import StateAgentSettings

Says = Literal["state", "half", "move", "part", "pair"] | None
NOTHING = NUM_STATES + len(GENERATORS)
"""The token of a missing entry; states come first, then moves."""
TRUTH, COMMITTED, MOVE, LOW, HIGH, MIDDLE, DISPUTED = range(7)
"""Roles of tokens: the true state at a place, a committed one, a move of the chain, an end of the interval in dispute,
its middle, the remaining move."""
REACHED, NEEDED, FOLLOWS, STATED, LEFT, RIGHT, ROOT, OVER, CONTRADICTED = range(7, 16)
"""Roles with an estimator: the state half way to which the low end leads, the one that leads to the high end, the state
to which the middle leads; the estimates of the claim and of its parts; and the rest of
`nip_ray.scenarios.state_tracking.estimates.Claims`."""


class ChainBody(nn.Module):
    """Sums the embeddings of each token, then attends. Same sizes for every agent, so bodies can be transferred."""

    def __init__(self, settings: StateAgentSettings, length: int, role_L: Tensor) -> None:
        super().__init__()
        d = settings.d
        roles = 1 + (DISPUTED if int(role_L.max()) <= DISPUTED else CONTRADICTED)
        self.token, self.place, self.role = (
            nn.Embedding(NOTHING + 1, d),
            nn.Embedding(length + 1, d),
            nn.Embedding(roles, d),
        )
        for table in (self.token, self.place, self.role):
            nn.init.normal_(table.weight, std=d**-0.5)
        layers = [
            nn.TransformerEncoderLayer(d, settings.num_heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(settings.num_layers)
        ]
        self.encoder = nn.Sequential(*layers, nn.LayerNorm(d))
        self.register_buffer("role_L", role_L, persistent=False)
        self.role_L: Tensor

    def forward(self, token_NL: Tensor, place_NL: Tensor, told_ND: Tensor | None = None) -> Tensor:
        """(N, L, d). told_ND: added to every token."""
        tokens = self.token(token_NL) + self.place(place_NL) + self.role(self.role_L)
        return self.encoder(tokens if told_ND is None else tokens + told_ND[:, None])


class StateAgent(nn.Module):
    """Policy and value over one body. `random` agents return constant zero logits and have nothing to train.

    says: `state` (one of five at each of `slots`), `half` (left 0, right 1, at the one slot), `move` (one of `slots`),
    `pair` (estimates of both parts), `part` (a state while the slot holds none, then one of both parts with the state
    in which it ends), or nothing (None). The other factors of its messages are not in play.
    """

    def __init__(
        self,
        settings: StateAgentSettings,
        length: int,
        role_L: Tensor,
        says: Says,
        slots: Tensor,
        shape: tuple[int, int],
        decides: bool,
        told: int = 0,
    ) -> None:
        """shape: message factors and symbols of a turn. told: number of features of the known role of the episode."""
        super().__init__()
        self.settings, self.says, self.shape = settings, says, shape
        self.body_ = ChainBody(settings, length, role_L)
        self.register_buffer("slots", slots, persistent=False)
        self.slots: Tensor
        outputs = {"state": NUM_STATES, "half": 2, "move": 1, "part": len(POINTS), "pair": len(PAIRS)}
        self.message_head = nn.Linear(settings.d, outputs[says]) if says else None
        self.decision_head = nn.Linear(settings.d, NUM_DECISIONS) if decides else None
        self.value_head = nn.Linear(settings.d, 1)
        self.told = nn.Linear(told, settings.d, bias=False) if told else None

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns, each only if requested."""
        hidden_NLD = self.body_(obs["token"], obs["place"], None if self.told is None else self.told(obs["told"]))
        mean_ND = hidden_NLD.mean(1)
        policy = value = None
        if want_policy:
            decision = None if self.decision_head is None else self.decision_head(mean_ND)
            message = self._message(hidden_NLD, obs["token"])
            if self.settings.kind == "random":
                decision = None if decision is None else torch.zeros_like(decision)
                message = torch.where(message == FORBIDDEN, message, 0.0)
            policy = Policy(message, None, decision, obs["speaks"], None if decision is None else obs["may_decide"])
        if want_value:
            value = self.value_head(mean_ND).squeeze(-1)
        return policy, value

    def _message(self, hidden_NLD: Tensor, token_NL: Tensor) -> Tensor:
        """(N, F, S), invalid symbols forbidden, factors that are never in play 0."""
        factors, symbols = self.shape
        if self.message_head is None:
            return hidden_NLD.new_zeros(len(hidden_NLD), factors, symbols)
        said_NFX = self.message_head(hidden_NLD[:, self.slots])
        if self.says == "move":
            said_NFX = said_NFX.transpose(1, 2)
        if self.says == "part":
            meaningless_X = torch.arange(len(POINTS), device=token_NL.device) >= NUM_STATES
            said_NFX = said_NFX.masked_fill((token_NL[:, self.slots] == NOTHING)[..., None] & meaningless_X, FORBIDDEN)
        allowed = F.pad(said_NFX, (0, symbols - said_NFX.shape[2]), value=FORBIDDEN)
        return F.pad(allowed, (0, 0, 0, factors - said_NFX.shape[1]))

    def groups(self) -> list[ParameterGroup]:
        """Body, message and decision heads belong to the actor, the value head to the critic."""
        if self.settings.kind == "random":
            return []
        factor = self.settings.agent_lr_factor
        actor = [
            p
            for part in (self.body_, self.told, self.message_head, self.decision_head)
            if part is not None
            for p in part.parameters()
        ]
        return [
            ParameterGroup("actor", "all", actor, factor.actor),
            ParameterGroup("critic", "head", list(self.value_head.parameters()), factor.critic),
        ]

    def body(self) -> nn.Module | None:
        """Embeddings and transformer."""
        return None if self.settings.kind == "random" else self.body_
