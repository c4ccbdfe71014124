"""The batched core against a slow player: one copy at a time, plain Python bookkeeping, observations built node by
node."""

from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy, gumbel_noise
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.protocols import CONTINUE, DECISIONS, NUM_SEEDS, ProtocolState, build, start, step
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from tests.builders import (
    PROTOCOLS,
    copies,
    graph_agents,
    graph_scenario,
    protocol_id,
    random_pairs,
    rollout_of,
    spread_heads,
)
from tests.play.slow import Said, slow_observation
from tests.tiers import thinned

Observation = dict[str, Tensor]
SPEECH: list[dict[str, int]] = [
    {},
    {"message_size": 2},
    {"linear_symbols": 3},
    {"message_size": 2, "linear_symbols": 2},
]


def speech_id(value: dict[str, int]) -> str:
    """A short name of an entry of `SPEECH`."""
    return "+".join(value) or "plain"


class Recorder(nn.Module):
    """Passes everything on to a network and keeps the observations."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.calls: list[Observation] = []

    def forward(self, obs: Observation, want_policy: bool = True, want_value: bool = True) -> Any:
        self.calls.append({key: value.clone() for key, value in obs.items()})
        return self.network(obs, want_policy, want_value)


@dataclass
class Copy:
    """One copy of a protocol and all that was said in it."""

    id: int
    seed: int
    state: ProtocolState
    main: Said = field(default_factory=dict)
    linear: Said = field(default_factory=dict)
    decisions: list[int] = field(default_factory=list)
    turns: set[tuple[int, int]] = field(default_factory=set)
    rewards: list[list[float]] = field(default_factory=list)
    log_probs: dict[tuple[int, int], float] = field(default_factory=dict)
    verdict: int = CONTINUE
    chosen: str | None = None

    @property
    def ended(self) -> bool:
        return bool(self.state.ended_B[0])


def speakers(scenario: GraphIsomorphism, copy: Copy, round: int) -> dict[str, list[str]]:
    """Agent -> channels that it writes to now."""
    protocol = scenario.protocol
    table = protocol.turns[copy.seed % len(protocol.turns)]
    turns = table[round % len(table)]
    found = {a: [name for name in protocol.channels if (a, name) in turns] for a in protocol.agents}
    return {agent: channels for agent, channels in found.items() if channels}


def slow_play(
    scenario: GraphIsomorphism,
    agents: dict[str, nn.Module],
    id_B: Tensor,
    seed_B: Tensor,
    noise: torch.Generator | None,
) -> list[Copy]:
    """What `play_rollout` does, copy by copy with `step` on batches of one."""
    protocol = scenario.protocol
    made = [
        Copy(int(i), int(s), start(protocol, scenario.label_I[i : i + 1], torch.tensor([int(s)])))
        for i, s in zip(id_B.tolist(), seed_B.tolist())
    ]
    for round in range(protocol.max_rounds):
        wanted = [[CONTINUE] * len(protocol.agents) for _ in made]
        spoken: list[tuple[Copy, str, tuple[int, str, str], list[int]]] = []
        for a, agent in enumerate(protocol.agents):
            open_ = [b for b, copy in enumerate(made) if not copy.ended and not bool(copy.state.agent_done_BA[0, a])]
            having = [b for b in open_ if agent in speakers(scenario, made[b], round)]
            draws: Tensor | None = None
            for b in having:
                copy, now = made[b], speakers(scenario, made[b], round)[agent]
                counts = (agent in protocol.verifiers and round >= protocol.min_rounds - 1) or (
                    agent == protocol.chooser and round == 0
                )
                obs = slow_observation(scenario, agent, copy.id, copy.main, copy.linear, round, now, counts)
                if agent in protocol.told:
                    unknown = protocol.chooser is not None and round == 0
                    told = None if unknown else copy.chosen or protocol.role_of(copy.seed)
                    obs["told"] = torch.tensor([[float(role == told) for role in protocol.roles]])
                with torch.no_grad():
                    policy: Policy = agents[agent](obs, True, False)[0]
                if noise is not None and draws is None:
                    draws = gumbel_noise((len(made), policy.noise_width), noise)
                action = policy.sample(None if draws is None else draws[b : b + 1])
                copy.turns.add((round, a))
                copy.log_probs[round, a] = float(policy.log_prob(action))
                writes = [protocol.channels[c] for c in protocol.writes[agent]]
                for kind, name in (("main", "message"), ("linear", "linear")):
                    if name in action:
                        symbols = action[name].view(len(writes), scenario.message_size).tolist()
                        spoken += [
                            (copy, kind, (round, agent, channel), symbols[writes.index(channel)]) for channel in now
                        ]
                if agent in protocol.deciders:
                    wanted[b][a] = int(action["decision"])
                if agent == protocol.chooser and round == 0 and wanted[b][a] != CONTINUE:
                    copy.chosen = DECISIONS[wanted[b][a]]
        for copy, kind, key, symbols in spoken:  # all at once: nobody hears what is said in the same round
            getattr(copy, kind)[key] = symbols
        for b, copy in enumerate(made):
            was_over = copy.ended
            copy.state, outcome = step(protocol, copy.state, torch.tensor([wanted[b]]))
            copy.rewards.append(outcome.reward_BA[0].tolist())
            copy.decisions.append([CONTINUE if was_over else wanted[b][a] for a in protocol.verifier_indices])
            if bool(outcome.decided_B[0]):
                copy.verdict = int(outcome.decision_B[0])
    return made


def assert_is_slow_play(scenario: GraphIsomorphism, rollout: Rollout, slow: list[Copy]) -> None:
    """Tokens, decisions, turns, rewards, log-probabilities, lengths and verdicts agree, and nothing else stands
    anywhere."""
    assert rollout.num_copies == len(slow)
    main = torch.full_like(rollout.main_BRACM, -1)
    linear = None if rollout.linear_BRACM is None else torch.full_like(rollout.linear_BRACM, -1)
    turn, log_prob = torch.zeros_like(rollout.turn_BRA), torch.zeros_like(rollout.log_prob_BRA)
    agents, channels = scenario.protocol.agents, scenario.protocol.channels
    for b, copy in enumerate(slow):
        for target, said in ((main, copy.main), (linear, copy.linear)):
            for (r, agent, channel), symbols in said.items():
                target[b, r, agents.index(agent), channels.index(channel)] = torch.tensor(symbols)  # type: ignore[index]
        for at in copy.turns:
            turn[(b, *at)] = True
            log_prob[(b, *at)] = copy.log_probs[at]
    assert torch.equal(rollout.main_BRACM, main)
    if linear is not None:
        assert torch.equal(rollout.linear_BRACM, linear)  # type: ignore[arg-type]
    assert torch.equal(rollout.turn_BRA, turn)
    torch.testing.assert_close(rollout.log_prob_BRA, log_prob, atol=1e-5, rtol=1e-5)
    assert rollout.decision_BRA[:, :, scenario.protocol.verifier_indices].tolist() == [copy.decisions for copy in slow]
    assert torch.equal(rollout.reward_BRA, torch.tensor([copy.rewards for copy in slow]))
    assert rollout.length_B.tolist() == [int(copy.state.round_B) for copy in slow]
    assert rollout.verdict_B.tolist() == [copy.verdict for copy in slow]
    assert rollout.y_B.tolist() == [int(copy.state.y_B) for copy in slow]
    assert rollout.env_steps() == sum(int(copy.state.round_B) for copy in slow)
    assert rollout.agent_steps() == sum(len(copy.turns) for copy in slow)


def equal(left: Rollout, right: Rollout) -> bool:
    pairs = [(getattr(left, f.name), getattr(right, f.name)) for f in fields(Rollout)]
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


def scenario_and_agents(
    protocol: tuple[str, dict[str, Any]], speech: dict[str, int]
) -> tuple[GraphIsomorphism, dict[str, nn.Module]]:
    """Agents with opinions, and a verifier that decides now and then."""
    scenario = graph_scenario(build(protocol[0], **protocol[1]), num_gnn_layers=1, num_transformer_layers=1, **speech)
    agents = {agent: spread_heads(network) for agent, network in graph_agents(scenario).items()}
    for verifier in scenario.protocol.verifiers:
        with torch.no_grad():
            agents[verifier].decider[-1].weight.div_(8)  # type: ignore[index, union-attr]
            agents[verifier].decider[-1].bias[CONTINUE] += 1.0  # type: ignore[index, union-attr]
    return scenario, agents


@pytest.mark.parametrize("speech", SPEECH, ids=speech_id)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=protocol_id)
def test_play_equals_the_slow_player(protocol: tuple[str, dict[str, Any]], speech: dict[str, int]) -> None:
    scenario, agents = scenario_and_agents(protocol, speech)
    id_B, seed_B = copies(scenario, 6, seed=1)
    rollout = play_rollout(BatchedPlay(scenario), agents, id_B, seed_B, torch.Generator().manual_seed(3))
    assert_is_slow_play(scenario, rollout, slow_play(scenario, agents, id_B, seed_B, torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("speech", SPEECH, ids=speech_id)
@pytest.mark.parametrize("protocol", thinned([pytest.param(one) for one in PROTOCOLS]), ids=protocol_id)
def test_own_rows_rebuild_what_was_seen(protocol: tuple[str, dict[str, Any]], speech: dict[str, int]) -> None:
    """The same observations, actions and log-probabilities; networks were called on turns in open copies and on nothing
    else."""
    scenario, agents = scenario_and_agents(protocol, speech)
    recorders = {agent: Recorder(network) for agent, network in agents.items()}
    rollout = play_rollout(
        BatchedPlay(scenario), recorders, *copies(scenario, 12, seed=4), torch.Generator().manual_seed(5)
    )
    for a, agent in enumerate(scenario.protocol.agents):
        rows = own_rows(scenario, rollout, agent)
        assert torch.equal(torch.stack([rows.copy_N, rows.round_N], 1), rollout.turn_BRA[:, :, a].nonzero())
        calls = recorders[agent].calls
        assert sum(len(call["round"]) for call in calls) == int(rollout.turn_BRA[:, :, a].sum())
        seen = {key: torch.cat([call[key] for call in calls]) for key in calls[0]}
        order = torch.stack([rows.round_N, rows.copy_N], 1).tolist()  # play goes round by round
        order = torch.tensor(sorted(range(len(order)), key=order.__getitem__))
        assert set(rows.obs) == set(seen)
        for key, value in seen.items():
            assert torch.equal(rows.obs[key][order], value), key
        with torch.no_grad():
            again = agents[agent](rows.obs, True, False)[0].log_prob(rows.action)
        torch.testing.assert_close(again, rows.log_prob_N, atol=1e-5, rtol=1e-5)
        assert (agent in scenario.protocol.deciders) == ("decision" in rows.action)


@pytest.mark.parametrize("speech", SPEECH, ids=speech_id)
def test_own_rows_of_an_agent_that_never_had_a_turn(speech: dict[str, int]) -> None:
    """The verifier decides at once in every copy: the prover has no rows, which is no error."""
    scenario, agents = scenario_and_agents(("nip", {}), speech)
    with torch.no_grad():
        agents["verifier"].decider[-1].bias[0] += 100.0  # type: ignore[index, union-attr]
    rollout = rollout_of(scenario, agents)
    assert rollout.length_B.tolist() == [1] * 12
    rows = own_rows(scenario, rollout, "prover")
    assert len(rows.copy_N) == 0
    assert bool((rows.row_BR == -1).all())
    assert not rows.spread(rows.log_prob_N).any()


@pytest.mark.parametrize("speech", SPEECH, ids=speech_id)
def test_nothing_leaks_from_one_episode_to_the_next(speech: dict[str, int]) -> None:
    scenario, agents = scenario_and_agents(("multi_channel_test", {}), speech)
    used = BatchedPlay(scenario)
    play_rollout(used, agents, *copies(scenario, 9, seed=1), torch.Generator().manual_seed(1))
    kept = [x.clone() for x in (used.main_BRACM, used.linear_BRACM) if x is not None]
    first = play_rollout(used, agents, *copies(scenario, 9, seed=2), torch.Generator().manual_seed(2))
    fresh = play_rollout(BatchedPlay(scenario), agents, *copies(scenario, 9, seed=2), torch.Generator().manual_seed(2))
    assert equal(first, fresh)
    assert not torch.equal(kept[0], first.main_BRACM)
    used.reset(*copies(scenario, 4))
    obs = used.observe("prover1", torch.arange(4))
    for key in {"history", "latest", "linear_history", "answer_side"} & set(obs):
        assert not obs[key].any(), key


def test_an_earlier_rollout_is_not_overwritten() -> None:
    scenario, agents = scenario_and_agents(("nip", {}), {"linear_symbols": 2})
    play = BatchedPlay(scenario)
    first = play_rollout(play, agents, *copies(scenario, 6), torch.Generator().manual_seed(1))
    kept = first._map(torch.clone)
    play_rollout(play, agents, *copies(scenario, 6), torch.Generator().manual_seed(2))
    assert equal(first, kept)


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    scenario, agents = scenario_and_agents(("nip", {}), {})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = rollout_of(scenario, agents)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert equal(one, rollout_of(scenario, agents))


class TestInstanceIds:
    """The stream of instances."""

    scenario = graph_scenario("nip", random_pairs(0, sizes=(4, 5, 6, 6, 4, 5, 6)))

    def test_each_pass_is_a_permutation(self) -> None:
        for split, ids in (("train", range(7)), ("test", range(7, 14))):
            stream = instance_ids(self.scenario, split, 3, 0, 70).view(10, 7)
            assert stream.sort(1).values.tolist() == [list(ids)] * 10
            assert len({tuple(row) for row in stream.tolist()}) > 5

    def test_any_slicing_gives_the_same_stream(self) -> None:
        whole = instance_ids(self.scenario, "train", 3, 0, 60).tolist()
        for first in range(30):
            for count in (1, 2, 6, 7, 8, 14, 25):
                assert instance_ids(self.scenario, "train", 3, first, count).tolist() == whole[first : first + count]

    def test_seeds_and_splits_differ(self) -> None:
        streams = [
            instance_ids(self.scenario, split, seed, 0, 28) % 7 for split in ("train", "test") for seed in (0, 1, 2)
        ]
        assert len({tuple(stream.tolist()) for stream in streams}) == len(streams)


def test_episode_seeds() -> None:
    made = episode_seeds(5, 0, 4000)
    assert 0 <= int(made.min()) < 200
    assert NUM_SEEDS - 200 < int(made.max()) < NUM_SEEDS
    assert 0.45 < float((made % 2).double().mean()) < 0.55
    assert torch.equal(made, episode_seeds(5, 0, 4000))
    assert not torch.equal(made, episode_seeds(6, 0, 4000))
    assert not torch.equal(made, episode_seeds(5, 4000, 4000))
