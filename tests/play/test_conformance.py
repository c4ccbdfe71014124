"""`check_scenario` passes what ships and says what is wrong with what does not keep its promises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.policy import Policy
from nip_ray.play.conformance import check_scenario
from nip_ray.play.rollout import Dialogue
from nip_ray.protocols import build
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.scenarios.matrix_games.scenario import build_matrix_game
from nip_ray.scenarios.message_game.scenario import MessageAgent, MessageGame, build_message_game
from nip_ray.settings.matrix_games import MatrixGameSettings
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings
from tests.builders import graph_scenario


def message_game(kind: type[MessageGame] = MessageGame) -> MessageGame:
    protocol = build("message_game", max_rounds=4)
    return kind(
        protocol, MessageGameSettings(num_symbols=5), dict.fromkeys(protocol.agents, MessageAgentSettings(hidden=8))
    )


@pytest.mark.parametrize(
    "name", ["nip", "merlin_arthur", "mnip", "helpful_sneaky", "open_consultancy", "open_debate", "judge_panel"]
)
@pytest.mark.parametrize("speech", [{}, {"message_size": 2, "linear_symbols": 3}])
def test_graphs_pass(name: str, speech: dict[str, int]) -> None:
    check_scenario(graph_scenario(build(name), **speech))


def test_games_pass() -> None:
    check_scenario(build_message_game(build("message_game"), MessageGameSettings()))
    check_scenario(build_matrix_game(build("matrix_game", max_rounds=3), MatrixGameSettings(game="prisoners_dilemma")))
    check_scenario(build_matrix_game(build("kuhn_poker"), MatrixGameSettings(game="kuhn_poker")))


def seeing(change: Callable[[Tensor], Tensor], keys: Sequence[str] | None = None) -> type[MessageGame]:
    """A game whose features are changed, and of whose observation nothing but `keys` is left."""

    class Seeing(MessageGame):
        def observe(
            self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor
        ) -> dict[str, Tensor]:
            obs = super().observe(agent, id_N, said, round_N, seed_N)
            return {key: obs[key] for key in keys or obs} | {"features": change(obs["features"])}

    return Seeing


def labelled(factor: int) -> type[MessageGame]:
    class Labelled(MessageGame):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.label_I = self.label_I * factor

    return Labelled


class OutOfTable(MessageGame):
    def ids(self, split: str) -> Tensor:
        return super().ids(split) + 1


class Unseeded(MessageGame):
    def build_agent(self, agent: str, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.seed()
            return super().build_agent(agent, int(torch.randint(1000, ())))


def with_agent(make: Callable[..., MessageAgent]) -> type[MessageGame]:
    class WithAgent(MessageGame):
        def build_agent(self, agent: str, seed: int) -> nn.Module:
            num_in = self.protocol.max_rounds + 2 * self.num_symbols + self.settings.num_secrets
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return make(self.agents[agent], num_in, self.num_symbols, agent in self.protocol.deciders)

    return WithAgent


class LeavesOut(MessageAgent):
    def groups(self) -> list[Any]:
        return super().groups()[:1]


class Eager(MessageAgent):
    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        return super().forward(obs, True, True)


class Forgetful(MessageAgent):
    """Moves a buffer whenever it is asked: not a function of its observation."""

    calls = 0.0

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        self.calls += 1
        return super().forward({**obs, "features": obs["features"] * self.calls}, want_policy, want_value)


class Wide(MessageAgent):
    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        policy, value = super().forward(obs, want_policy, want_value)
        return policy, None if value is None else value[:, None]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (seeing(lambda x_NF: x_NF - x_NF.mean(0)), "depends on the other rows"),
        (seeing(lambda x_NF: x_NF + torch.arange(len(x_NF))[:, None]), "or on its place"),
        (seeing(lambda x_NF: x_NF + torch.rand(1)), "other values when it is called again"),
        (seeing(lambda x_NF: x_NF, ["features"]), "needs 'may_decide' of shape"),
        (labelled(2), "labels must be 0 to 1, the verdicts of message_game"),
        (labelled(0), "all have one label"),
        (OutOfTable, "ids outside of the table"),
        (Unseeded, "is not made of its seed alone"),
        (with_agent(LeavesOut), "leave out value_head"),
        (with_agent(Eager), "must return None for a policy or a value that is not requested"),
        (with_agent(Forgetful), "not pure"),
        (with_agent(Wide), "a value of shape"),
    ],
)
def test_what_is_wrong_is_said(kind: type[MessageGame], said: str) -> None:
    with pytest.raises(UserError, match=r"scenario 'message_game': .*" + said):
        check_scenario(message_game(kind))


def test_reading_a_channel_that_one_does_not_see_is_noticed() -> None:
    class Eavesdropper(GraphIsomorphism):
        def observe(
            self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor
        ) -> dict[str, Tensor]:
            obs = super().observe(agent, id_N, said, round_N, seed_N)
            return {**obs, "heard": said.main.clamp_min(0).flatten(1).sum(1)}

    scenario = graph_scenario("mnip")
    check_scenario(scenario)
    scenario.__class__ = Eavesdropper
    with pytest.raises(UserError, match=r"observe\('prover0'\): heard reveal messages in channels that it cannot read"):
        check_scenario(scenario)
