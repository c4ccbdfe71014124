"""The matrix games: payoffs, what players remember, networks, exact figures of networks, and what is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.protocols import build
from nip_ray.scenarios.matrix_games.agent import MatrixAgent
from nip_ray.scenarios.matrix_games.games import RepeatedGame
from nip_ray.scenarios.matrix_games.scenario import MatrixGame, build_matrix_game
from nip_ray.settings.heads import LrFactors
from nip_ray.settings.matrix_games import MatrixAgentSettings, MatrixGameSettings, protocol_of

WIDE: dict[str, Any] = dict(
    game="bimatrix", payoffs0=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), payoffs1=((0.5, 0.0, -1.0), (9.0, 8.0, 7.0))
)
GAMES: list[dict[str, Any]] = [
    WIDE,
    dict(game="matching_pennies"),
    dict(game="prisoners_dilemma"),
    dict(game="tandem", tandem_actions=5),
    dict(game="kuhn_poker"),
]
FIELDS = {"hidden": 0, "initial_scale": 1.0}


def scenario_of(game: dict[str, Any], rounds: int | None = None, **agent: Any) -> MatrixGame:
    protocol = build(protocol_of(game["game"]), max_rounds=rounds)
    agents = {"_default": MatrixAgentSettings(**{**FIELDS, **agent})}
    return build_matrix_game(protocol, MatrixGameSettings(**game, agents=agents))


def networks_of(scenario: MatrixGame, seed: int = 0) -> dict[str, nn.Module]:
    return {agent: scenario.build_agent(agent, seed + i) for i, agent in enumerate(scenario.protocol.agents)}


def rollout_of(scenario: MatrixGame, networks: dict[str, nn.Module], count: int, seed: int = 0) -> Rollout:
    noise = torch.Generator().manual_seed(seed)
    return play_rollout(
        BatchedPlay(scenario),
        networks,
        instance_ids(scenario, "train", seed, 0, count),
        episode_seeds(seed, 0, count),
        noise,
    )


def played(scenario: MatrixGame, moves: list[tuple[int, int]]) -> tuple[list[list[float]], list[tuple[int, int]]]:
    """Play the joint moves; returns what each round paid, and each player's state before every round and after the
    last."""
    play = BatchedPlay(scenario)
    play.reset(torch.tensor([3]), torch.tensor([0]))
    copy, paid, states = torch.tensor([0]), [], []
    for joint in [*moves, None]:
        seen = [play.observe(agent, copy)["features"][0] for agent in ("player0", "player1")]
        assert all(float(one.sum()) == 1 for one in seen)
        states.append((int(seen[0].argmax()), int(seen[1].argmax())))
        if joint is not None:
            outcome = play.step({f"player{p}": (copy, {"message": torch.tensor([[joint[p]]])}) for p in (0, 1)})
            paid.append(outcome.reward_BA[0].tolist())
    assert play.finished
    return paid, states


DILEMMA = {(0, 0): (-1, -1), (0, 1): (-3, 0), (1, 0): (0, -3), (1, 1): (-2, -2)}
PENNIES = {(0, 0): (1, -1), (0, 1): (-1, 1), (1, 0): (-1, 1), (1, 1): (1, -1)}
GRID = [-2.0, -1.0, 0.0, 1.0, 2.0]
EXPECTED = {
    "bimatrix": {(i, j): (WIDE["payoffs0"][i][j], WIDE["payoffs1"][i][j]) for i, j in product(range(2), range(3))},
    "matching_pennies": PENNIES,
    "prisoners_dilemma": DILEMMA,
    "tandem": {
        (i, j): (2 * GRID[i] - (GRID[i] + GRID[j]) ** 2, 2 * GRID[j] - (GRID[i] + GRID[j]) ** 2)
        for i, j in product(range(5), repeat=2)
    },
}


@pytest.mark.parametrize("game", GAMES[:4], ids=lambda game: game["game"])
def test_payoffs(game: dict[str, Any]) -> None:
    for joint, expected in EXPECTED[game["game"]].items():
        paid, _ = played(scenario_of(game), [joint])
        assert paid == [pytest.approx(list(expected))]


def test_a_symbol_that_is_no_move_counts_as_the_last_move() -> None:
    """The alphabet is that of the player with more moves; stock samplers do not know which symbols are forbidden."""
    assert played(scenario_of(WIDE), [(2, 1)])[0] == [[5.0, 8.0]]


def test_the_dilemma_is_remembered_from_ones_own_side() -> None:
    """States: start, CC, CD, DC, DD, one's own move first; all that was before the last round is forgotten."""
    moves = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 1), (0, 0)]
    paid, states = played(scenario_of(dict(game="prisoners_dilemma"), 6), moves)
    assert paid == [list(map(float, DILEMMA[joint])) for joint in moves]
    assert states == [(0, 0), (1, 1), (2, 3), (3, 2), (4, 4), (2, 3), (1, 1)]


def test_memory_where_the_players_have_different_moves() -> None:
    moves = list(product(range(2), range(3)))
    _, states = played(scenario_of(WIDE, 6), moves)
    assert states[1:] == [(1 + i * 3 + j, 1 + j * 2 + i) for i, j in moves]


@pytest.mark.parametrize("hidden", [0, 6])
def test_policy_and_value_share_nothing(hidden: int) -> None:
    agent = scenario_of(WIDE, 2, hidden=hidden, agent_lr_factor=LrFactors(2.0, 0.5)).build_agent("player1", 0)
    assert isinstance(agent, MatrixAgent)
    groups = {group.part: group for group in agent.groups()}
    assert {part: group.lr_factor for part, group in groups.items()} == {"actor": 2.0, "critic": 0.5}
    everything = {id(p) for p in agent.parameters()}
    actor, critic = ({id(p) for p in groups[part].parameters} for part in ("actor", "critic"))
    assert actor | critic == everything
    assert not actor & critic
    obs = {"features": torch.eye(7), "speaks": torch.ones(7, 1, dtype=torch.bool)}
    policy, value = agent(obs)
    assert all(g is None for g in torch.autograd.grad(value.sum(), groups["actor"].parameters, allow_unused=True))
    assert all(
        g is None for g in torch.autograd.grad(policy.entropy().sum(), groups["critic"].parameters, allow_unused=True)
    )
    assert {id(p) for p in agent.body().parameters()} < actor if hidden else not list(agent.body().parameters())


def test_forbidden_moves_are_never_made_and_have_no_part_in_entropies() -> None:
    scenario = scenario_of(WIDE, 3)
    networks = networks_of(scenario)
    rollout = rollout_of(scenario, networks, 200)
    assert set(rollout.main_BRACM[:, :, 0, 0].flatten().tolist()) == {0, 1}
    assert set(rollout.main_BRACM[:, :, 1, 1].flatten().tolist()) == {0, 1, 2}
    rows = own_rows(scenario, rollout, "player0")
    policy: Policy = networks["player0"](rows.obs, True, False)[0]
    loss = policy.entropy().mean() + policy.log_prob(rows.action).mean() + policy.kl(policy).mean()
    gradient = torch.autograd.grad(loss, [networks["player0"].policy_head.weight])[0]
    assert bool(gradient.isfinite().all())
    assert float(policy.entropy().detach().max()) <= torch.tensor(2.0).log() + 1e-6


def set_logits(network: nn.Module, logits: Tensor) -> None:
    """Put a table (states, moves) into a tabular player."""
    with torch.no_grad():
        network.policy_head.weight.copy_(logits.T)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game["game"])
def test_exact_values_are_what_play_pays_on_average(game: dict[str, Any]) -> None:
    scenario = scenario_of(game, None if game["game"] == "kuhn_poker" else 3)
    networks = networks_of(scenario, seed=4)
    rollout = rollout_of(scenario, networks, 6000, seed=1)
    rounds = scenario.protocol.max_rounds if isinstance(scenario.game, RepeatedGame) else 1
    mean_A = rollout.reward_BRA.sum(1).mean(0) / rounds
    error_A = rollout.reward_BRA.sum(1).std(0) / rounds / 6000**0.5
    figures = scenario.exact_figures(networks)
    for player in (0, 1):
        assert abs(figures[f"player{player}/value"] - float(mean_A[player])) < 4 * float(error_A[player])
    assert figures["exploitability"] > 0


def test_figures_of_matching_pennies() -> None:
    scenario = scenario_of(dict(game="matching_pennies"))
    networks = networks_of(scenario)
    set_logits(networks["player0"], torch.tensor([[0.8, 0.2]]).log())
    set_logits(networks["player1"], torch.tensor([[0.4, 0.6]]).log())
    figures = scenario.exact_figures(networks)
    # the best answers: player0 shows tails (0.2), player1 tails (0.6); 0.8 x 0.4 + 0.2 x 0.6 is the share of equal
    # coins
    expected = {
        "player0/value": -0.12,
        "player1/value": 0.12,
        "exploitability": (0.2 + 0.6) / 2,
        "distance_to_nash": 0.3,
    }
    assert figures == pytest.approx(expected, abs=1e-6)
    uniform = scenario_of(dict(game="matching_pennies"), initial_scale=0.0)
    assert uniform.exact_figures(networks_of(uniform))["distance_to_nash"] == 0


def test_figures_of_the_dilemma_name_the_states() -> None:
    scenario = scenario_of(dict(game="prisoners_dilemma"), 10)
    networks = networks_of(scenario)
    for network in networks.values():  # tit for tat
        set_logits(network, torch.tensor([[40.0, 0], [40, 0], [0, 40], [40, 0], [0, 40]]))
    figures = scenario.exact_figures(networks)
    states = {"start": 1, "CC": 1, "CD": 0, "DC": 1, "DD": 0}
    expected = {f"player{p}/cooperation/{state}": chance for p in (0, 1) for state, chance in states.items()}
    # by defecting in the last of ten rounds
    expected |= {"player0/value": -1.0, "player1/value": -1.0, "exploitability": 0.1}
    assert figures == pytest.approx(expected, abs=1e-9)
