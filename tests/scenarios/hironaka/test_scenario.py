"""The game under its protocol: the batched core, the replayed position and the game itself say the same."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, episode_seeds, play_rollout
from nip_ray.play.rollout import Dialogue, Rollout, own_rows
from nip_ray.protocols import build
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.match import PUBLISHED
from nip_ray.scenarios.hironaka.players import choose
from nip_ray.scenarios.hironaka.scenario import Hironaka, build_hironaka
from nip_ray.scenarios.hironaka.seats import NetworkSeat
from nip_ray.scenarios.hironaka.starts import start
from nip_ray.scenarios.registry import played_scenario
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import HironakaAgentSettings, HironakaSettings

LEARNED = HironakaAgentSettings(point_width=8, width=16, depth=1)
SMALL = HironakaSettings(
    max_points=6, max_value=8, max_rounds=6, num_train=300, num_test=50, rho_games=20, agents={"_default": LEARNED}
)


def scripted_by(name: str, *others: str) -> HironakaAgentSettings:
    return HironakaAgentSettings(kind="scripted", player=name, others=others)  # pyright: ignore[reportArgumentType]


def made(settings: HironakaSettings = SMALL, **agents: HironakaAgentSettings) -> Hironaka:
    return build_hironaka(build("hironaka"), replace(settings, agents={**settings.agents, **agents}))


def played(scenario: Hironaka, copies: int = 40, greedy: bool = False, seed: int = 0) -> Rollout:
    networks = {role: scenario.build_agent(role, 1) for role in ("host", "agent")}
    noise = None if greedy else generator(seed, "noise")
    return play_rollout(BatchedPlay(scenario), networks, torch.arange(copies), episode_seeds(seed, 0, copies), noise)


def experiment(**scenario: object) -> ExperimentConfig:
    data = {
        "protocol": {"name": "hironaka"},
        "scenario": {"name": "hironaka", **scenario},
        "algorithm": {"minibatch_size": 256},
    }
    config = config_from_dict(data)
    assert isinstance(config, ExperimentConfig)
    return config


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dimension": 2},
        {"dimension": 4},
        {"reposition": True},
        {"scale_state": True},
        {"precision": "double"},
        {"polytope": "exact"},
    ],
    ids=str,
)
def test_observations_of_the_play_of_the_rows_and_of_a_replay_are_equal_to_the_bit(changes: dict[str, object]) -> None:
    scenario = made(replace(SMALL, **changes))
    play = BatchedPlay(scenario)
    networks = {role: scenario.build_agent(role, 1) for role in ("host", "agent")}
    seen: dict[str, list[dict[str, torch.Tensor]]] = {"host": [], "agent": []}
    watched = play.observe

    def observe(agent: str, copy_N: torch.Tensor) -> dict[str, torch.Tensor]:
        seen[agent].append(watched(agent, copy_N))
        return seen[agent][-1]

    play.observe = observe
    copies = 30 if scenario.settings.polytope == "minimal" else 4  # linear programmes are slow
    rollout = play_rollout(play, networks, torch.arange(copies), episode_seeds(0, 0, copies), generator(0, "noise"))
    for agent, parts in seen.items():
        rows = own_rows(scenario, rollout, agent)
        order = (rows.round_N * 1000 + rows.copy_N).argsort()  # the play went round by round
        said = rollout.dialogue.rows(rows.copy_N).before(rows.round_N)
        replayed = scenario.observe(agent, rollout.id_B[rows.copy_N], said, rows.round_N, rollout.seed_B[rows.copy_N])
        assert rows.obs.keys() == replayed.keys() == parts[0].keys()
        for key, value in rows.obs.items():
            assert torch.equal(value, replayed[key]), key
            assert torch.equal(value[order], torch.cat([part[key] for part in parts])), key


@pytest.mark.parametrize("pay", [("win", "lose"), ("win_and_points", "survive"), ("win_and_points", "lose_and_points")])
def test_the_core_pays_and_ends_as_the_fused_game_does(pay: tuple[str, str]) -> None:
    scenario = made(replace(SMALL, host_reward=pay[0], agent_reward=pay[1]))  # pyright: ignore[reportArgumentType]
    rollout = played(scenario)
    state = start(scenario.game, 0, rollout.id_B)
    over_B, cut_B = torch.zeros(40, dtype=torch.bool), torch.zeros(40, dtype=torch.bool)
    for r in range(scenario.settings.max_rounds):
        host_B, axis_B = rollout.main_BRACM[:, 2 * r, 0, 0, 0], rollout.main_BRACM[:, 2 * r + 1, 1, 0, 0]
        assert torch.equal(host_B >= 0, ~(over_B | cut_B))
        assert torch.equal(host_B >= 0, axis_B >= 0)
        state, outcome = scenario.game.step(state, host_B.clamp_min(0), axis_B.clamp_min(0))
        assert torch.equal(rollout.reward_BRA[:, 2 * r + 1, 0], outcome.host_reward_B)
        assert torch.equal(rollout.reward_BRA[:, 2 * r + 1, 1], outcome.agent_reward_B)
        assert not rollout.reward_BRA[:, 2 * r].any()
        over_B, cut_B = state.over_B, state.cut_B
    assert torch.equal(rollout.cut_B, cut_B)
    assert torch.equal(rollout.length_B, 2 * state.round_B)
    assert 0 < int(cut_B.sum()) < 40, "both ends should come up"


def test_an_illegal_symbol_moves_nothing_and_costs_a_round() -> None:
    scenario = made()
    position = scenario.rules.start(torch.arange(4))
    said = torch.full((4, 2, 1, 1), -1)
    said[:, 0] = 0  # coordinates 0 and 1
    position, judged = scenario.rules.advance(position, said)
    assert not judged.over_B.any()
    assert not judged.reward_BA.any()
    answer = torch.full((4, 2, 1, 1), -1)
    answer[:, 1, 0, 0] = torch.tensor([0, 2, 3, 1])
    after, judged = scenario.rules.advance(position, answer)
    before = scenario.game.features(position.state)
    same = [torch.equal(a, b) for a, b in zip(before, scenario.game.features(after.state), strict=True)]
    assert same == [False, True, True, False]
    assert after.state.round_B.tolist() == [1, 1, 1, 1]
    assert after.class_B.tolist() == [-1] * 4


def test_train_and_test_starts_are_different_ones() -> None:
    scenario = made()
    train, test = scenario.ids("train"), scenario.ids("test")
    assert (len(train), len(test)) == (300, 50)
    assert not set(train.tolist()) & set(test.tolist())


def test_scripted_players_make_the_same_moves_in_the_core_as_in_a_match() -> None:
    scenario = made(replace(SMALL, max_points=12), host=scripted_by("zeillinger"), agent=scripted_by("choose_last"))
    rollout = played(scenario, copies=30, greedy=False)
    host, agent = scenario.build_agent("host", 0), scenario.build_agent("agent", 0)
    players = scenario.player("host", host), scenario.player("agent", agent)
    state = start(scenario.game, 0, rollout.id_B)
    for r in range(scenario.settings.max_rounds):
        open_B = state.open_B
        class_B = players[0](state.points).argmax(1)
        choice_BD = scenario.game.choices_KD[class_B]
        axis_B = players[1](state.points, choice_BD).masked_fill(~choice_BD, -torch.inf).argmax(1)
        assert torch.equal(rollout.main_BRACM[:, 2 * r, 0, 0, 0][open_B], class_B[open_B])
        assert torch.equal(rollout.main_BRACM[:, 2 * r + 1, 1, 0, 0][open_B], axis_B[open_B])
        state, _ = scenario.game.step(state, class_B, axis_B)
    assert bool(rollout.log_prob_BRA.abs().max() < 1e-6)


def test_figures_name_every_pair_and_are_the_same_again() -> None:
    scenario = made(agent=scripted_by("choose_first"))
    networks = {role: scenario.build_agent(role, 1) for role in ("host", "agent")}
    networks["host"].train()
    figures = scenario.figures(networks)
    assert networks["host"].training
    assert figures.keys() == (again := scenario.figures(networks)).keys()
    assert all(torch.equal(a, b) for name in figures for a, b in zip(figures[name], again[name], strict=True))
    pairs = {f"rho/own-{agent}" for agent in ("own", "random", "choose_first", "choose_last")}
    pairs |= {
        f"rho/{host}-own" for host in ("random", "random_all", "all_coordinates", "zeillinger", "weak_spivakovsky")
    }
    assert pairs <= figures.keys()
    found = {name: float(top_G.sum() / bottom_G.sum()) for name, (top_G, bottom_G) in figures.items()}
    assert found["rho/own-own"] > 0
    assert sum(value for name, value in found.items() if name.startswith("actions/host_")) == pytest.approx(1)
    assert 0 <= found["unfinished"] <= 1
    assert made(replace(SMALL, rho_games=0)).figures(networks) == {}


def test_a_transcript_shows_the_positions_of_the_game_that_was_played() -> None:
    scenario = made()
    networks = {role: scenario.build_agent(role, 1) for role in ("host", "agent")}
    rollout = played(scenario, copies=6)
    for copy in range(6):
        said = rollout.copies(slice(copy, copy + 1)).dialogue
        extras = scenario.record_extras(copy, said, networks)
        entries = extras["positions"]
        assert len(entries) == int(rollout.length_B[copy]) // 2 + 1
        assert [entry["round"] for entry in entries] == list(range(len(entries)))
        for entry, after in pairwise(entries):
            assert entry["axis"] in entry["choice"]
            assert len(entry["choice"]) >= 2
            assert 1 <= len(after["points"]) <= len(entry["points"])
        assert "axis" not in entries[-1]
        assert (len(entries[-1]["points"]) == 1) != bool(rollout.cut_B is not None and rollout.cut_B[copy])
        tree = extras["tree"]
        assert tree["count"] == len(entries[0]["points"])
        assert [child["axis"] for child in tree["children"]] == tree["choice"]
        assert json.loads(json.dumps(extras)) == extras


def test_several_scripted_players_share_the_games_of_the_figures_and_a_match_asks_which_of_them() -> None:
    pair = HironakaSettings(max_points=12, max_rounds=6, rho_games=40)
    scenario = made(pair, host=scripted_by("zeillinger", "all_coordinates"), agent=scripted_by("choose_first"))
    networks = {role: scenario.build_agent(role, 1) for role in ("host", "agent")}
    figures = scenario.figures(networks)
    all_coordinates = figures["actions/host_3"][0] > 0
    assert int(all_coordinates.sum()) == 20, "Zeillinger's host chooses pairs"
    with pytest.raises(UserError, match="host: zeillinger, all_coordinates play here by turns, name one of them"):
        scenario.player("host", networks["host"])


def test_starts_that_are_all_over_at_once_are_refused_before_anything_is_played() -> None:
    with pytest.raises(
        UserError, match=r"scenario\.max_points: got 200, with max_value 1 almost every random start is over at once"
    ):
        check(experiment(max_rounds=10, max_points=200, max_value=1))
    check(experiment(max_rounds=10, max_points=200, max_value=1, reduce_start=False))


@pytest.mark.parametrize(
    "seen", [{"scale_observation": False}, {"view": "scaled"}, {"scale_observation": False, "view": "scaled"}], ids=str
)
def test_a_network_sees_the_points_of_a_match_as_in_its_training(seen: dict[str, object]) -> None:
    agent = replace(LEARNED, view=seen.get("view", "relative"))  # pyright: ignore[reportArgumentType]
    settings = replace(SMALL, scale_observation=seen.get("scale_observation", True), agents={"_default": agent})  # pyright: ignore[reportArgumentType]
    scenario, game = made(settings), Game(replace(PUBLISHED, max_points=6, scale_state=False))
    network = scenario.build_agent("host", 1)
    player = scenario.player("host", network)
    ids = torch.arange(20)
    none_said = Dialogue(torch.full((20, 12, 2, 1, 1), -1), None)
    obs = scenario.observe("host", ids, none_said, torch.zeros(20, dtype=torch.int64), ids)
    state = game.start(start(scenario.game, 0, ids).points)
    assert isinstance(player, NetworkSeat)
    torch.testing.assert_close(player.observation(state.points, None)["points"], obs["points"])
    logits = network(obs, True, False)[0].message[:, 0, :4]
    torch.testing.assert_close(player(state.points), logits)
    assert torch.equal(choose(player, game, state, None, generator(0, "none")), logits.argmax(1))


def test_its_length_is_that_of_the_game_and_the_config_knows_it() -> None:
    config = experiment(max_rounds=7)
    check(config)
    assert played_scenario(config.protocol, config.scenario, config.algorithm).protocol.max_rounds == 14
    with pytest.raises(
        UserError, match=r"protocol\.max_rounds: got 20, but hironaka always has as many as scenario\.max_rounds makes"
    ):
        check(config.model_copy(update={"protocol": replace(config.protocol, max_rounds=20)}))
    with pytest.raises(UserError, match="less than one whole copy of 400 rounds"):
        check(experiment(max_rounds=200))


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        (
            {"host": {"kind": "scripted", "player": "choose_first"}},
            r"scenario\.agents\.host\.player: got choose_first, which does not play the host",
        ),
        (
            {"agent": {"kind": "scripted", "others": ["zeillinger"]}},
            r"scenario\.agents\.agent\.others: got zeillinger, which does not play the agent",
        ),
        ({"host": {"player": "zeillinger"}}, r"scenario\.agents\.host\.player: a learned player has no use for it"),
        (
            {"host": {"kind": "scripted", "encoder": "flat"}},
            r"scenario\.agents\.host\.encoder: a scripted player has no use for it",
        ),
        (
            {"host": {"encoder": "flat", "point_width": 8}},
            r"scenario\.agents\.host\.point_width: counts with encoder set only",
        ),
        ({"host": {"depth": 3, "layers": [{"width": 8}]}}, r"scenario\.agents\.host\.depth: layers stands there too"),
        ({"prover": {}}, r"scenario\.agents\.prover: not an agent of hironaka"),
        (
            {"host": {"agent_lr_factor": {"actor": 1, "critic": 0.5}}},
            r"scenario\.agents\.host\.agent_lr_factor: .* share a body",
        ),
    ],
)
def test_players_that_cannot_be_are_refused_by_key(agents: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(experiment(max_rounds=10, agents=agents))
