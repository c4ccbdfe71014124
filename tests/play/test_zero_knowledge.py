"""Zero knowledge in the batched core against a slow player: one copy at a time, two conversations kept apart, plain
Python rewards."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy, gumbel_noise
from nip_ray.learning.similarity import similarity
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import own_rows
from nip_ray.protocols import CONTINUE, Protocol, ProtocolParams, build
from nip_ray.scenarios.graph_isomorphism.fixed import FORBIDDEN
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.scenarios.registry import random_twin
from tests.builders import copies, graph_agents, graph_scenario, rollout_of, spread_heads
from tests.learning.test_similarity import cosine
from tests.play.slow import Said, slow_observation
from tests.protocols.test_zero_knowledge import Copy as SlowCopy

ADVERSARY, SIMULATOR = "adversarial_verifier", "simulator"
SPEECH: dict[str, int] = {"message_size": 2, "linear_symbols": 2}
GAMES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    (
        "nip",
        dict(
            min_rounds=3,
            simulator_reward_coefficient=2.0,
            aux_prover_reward_coefficient=0.5,
            verifier_no_guess_reward=0.25,
        ),
        {},
    ),
    ("nip", dict(zero_knowledge_legacy=True, shared_reward=True, max_rounds=5), SPEECH),
    ("debate", dict(sequential=True, min_rounds=4), SPEECH),
    ("debate", dict(sequential=True, verifier_first=False, max_rounds=6), {}),
    ("merlin_arthur", dict(zero_knowledge_legacy=True), {}),
    ("merlin_arthur", {}, SPEECH),
    ("multi_channel_test", {}, {}),
]


@dataclass
class Copy:
    """One copy: who is done and paid, by the slow step, and what was said."""

    id: int
    steps: SlowCopy
    main: Said = field(default_factory=dict)
    linear: Said = field(default_factory=dict)
    decisions: dict[tuple[int, str], int] = field(default_factory=dict)
    log_probs: dict[tuple[int, str], float] = field(default_factory=dict)
    rewards: dict[tuple[int, str], float] = field(default_factory=dict)


def channels_of(copy: Copy, agent: str) -> list[str]:
    """Where an agent of the wrapped protocol speaks now, from the base protocol's table."""
    base, steps = copy.steps.base, copy.steps
    table = base.turns[steps.seed % len(base.turns)]
    now = table[steps.round % len(table)]
    if steps.over or {"verifier": steps.verdict is not None, ADVERSARY: steps.adversary_done}.get(agent):
        return []
    mine = {"verifier": ["_standard"], ADVERSARY: ["_adversarial"], SIMULATOR: ["_simulator"]}.get(
        agent, ["_standard", "_adversarial"]
    )
    speaker = "verifier" if agent in (ADVERSARY, SIMULATOR) else agent
    return [channel + end for end in mine for channel in base.channels if (speaker, channel) in now]


def slow_similarity(adversary: Policy | None, simulator: Policy | None, legacy: bool) -> float:
    """Of one row each, in plain Python."""
    if adversary is None or simulator is None:
        return 0.0
    a: list[float] = []
    b: list[float] = []
    for factor in range(adversary.message.shape[1]):
        if bool(adversary.speaks[0, factor]):
            both = zip(adversary.message[0, factor].tolist(), simulator.message[0, factor].tolist(), strict=True)
            kept = [(x, y) for x, y in both if legacy or x > -1e8]
            a += [x for x, _ in kept]
            b += [y for _, y in kept]
    total = cosine(a, b)
    if simulator.decision is not None and adversary.decision is not None and bool(adversary.may_decide):
        total += cosine(adversary.decision[0].tolist(), simulator.decision[0].tolist())
    return total


@torch.no_grad()
def slow_play(
    scenario: GraphIsomorphism, made: list[Copy], base: Protocol, agents: dict[str, nn.Module], noise: torch.Generator
) -> None:
    """What `play_rollout` does, on fresh copies."""
    protocol = scenario.protocol
    for round in range(base.max_rounds):
        said: list[tuple[Said, tuple[int, str, str], list[int]]] = []
        policies: dict[tuple[int, str], Policy] = {}
        for agent in protocol.agents:
            having = [b for b, copy in enumerate(made) if channels_of(copy, agent)]
            draws: Tensor | None = None
            for b in having:
                copy = made[b]
                decides = agent in ("verifier", ADVERSARY) or (
                    agent == SIMULATOR and not protocol.zero_knowledge.legacy
                )  # type: ignore[union-attr]
                now, counts = channels_of(copy, agent), decides and round >= base.min_rounds - 1
                obs = slow_observation(scenario, agent, copy.id, copy.main, copy.linear, round, now, counts)
                policy = policies[b, agent] = agents[agent](obs, True, False)[0]
                if draws is None:
                    draws = gumbel_noise((len(made), policy.noise_width), noise)
                action = policy.sample(draws[b : b + 1])
                copy.log_probs[round, agent] = float(policy.log_prob(action))
                if "decision" in action:
                    copy.decisions[round, agent] = int(action["decision"])
                writes = [protocol.channels[c] for c in protocol.writes[agent]]
                for store, name in ((copy.main, "message"), (copy.linear, "linear")):
                    if name in action:
                        symbols = action[name].view(len(writes), -1).tolist()
                        said += [(store, (round, agent, c), symbols[writes.index(c)]) for c in now]
        for store, key, symbols in said:
            store[key] = symbols
        for b, copy in enumerate(made):
            if not copy.steps.over:
                legacy = protocol.zero_knowledge.legacy  # type: ignore[union-attr]
                alike = slow_similarity(policies.get((b, ADVERSARY)), policies.get((b, SIMULATOR)), legacy)
                said_by = [copy.decisions.get((round, agent), CONTINUE) for agent in ("verifier", ADVERSARY)]
                paid = zip(protocol.agents, copy.steps.play(*said_by, alike), strict=True)
                copy.rewards |= {(round, agent): pay for agent, pay in paid}


def zk_scenario(
    game: str, speech: dict[str, int] | None = None, **params: Any
) -> tuple[GraphIsomorphism, Protocol, dict[str, nn.Module]]:
    """A wrapped scenario, its base protocol, and agents with opinions who decide now and then."""
    protocol = build(game, zero_knowledge=True, **params)
    base = build(game, **{k: v for k, v in params.items() if not k.startswith(("simulator_", "aux_", "zero_"))})
    networks: dict[str, Any] = dict(num_gnn_layers=1, num_transformer_layers=1, **(speech or {}))
    scenario = graph_scenario(protocol, **networks)
    agents = {agent: spread_heads(network) for agent, network in graph_agents(scenario).items()}
    for network in agents.values():
        if network.decider is not None:  # type: ignore[union-attr]
            with torch.no_grad():
                network.decider[-1].weight.div_(8)  # type: ignore[index, union-attr]
                network.decider[-1].bias[CONTINUE] += 1.0  # type: ignore[index, union-attr]
    return scenario, base, agents


@pytest.mark.parametrize(
    "game", GAMES, ids=lambda game: f"{game[0]}-{'-'.join(game[1])}-{'plain' if not game[2] else 'all'}"
)
def test_play_equals_the_slow_player(game: tuple[str, dict[str, Any], dict[str, int]]) -> None:
    scenario, base, agents = zk_scenario(game[0], game[2], **game[1])
    protocol = scenario.protocol
    id_B, seed_B = copies(scenario, 8, seed=1)
    rollout = play_rollout(BatchedPlay(scenario), agents, id_B, seed_B, torch.Generator().manual_seed(3))
    labels, params = scenario.label_I[id_B].tolist(), ProtocolParams(**game[1])
    rows = zip(id_B.tolist(), labels, seed_B.tolist(), strict=True)
    slow = [Copy(id, SlowCopy(base, params, y, seed)) for id, y, seed in rows]
    slow_play(scenario, slow, base, agents, torch.Generator().manual_seed(3))
    index = protocol.agents.index
    main, turn = torch.full_like(rollout.main_BRACM, -1), torch.zeros_like(rollout.turn_BRA)
    linear = None if rollout.linear_BRACM is None else torch.full_like(rollout.linear_BRACM, -1)
    decision, reward = torch.full_like(rollout.decision_BRA, CONTINUE), torch.zeros_like(rollout.reward_BRA)
    log_prob = torch.zeros_like(reward)
    for b, copy in enumerate(slow):
        for target, said in ((main, copy.main), (linear, copy.linear)):
            for (r, agent, channel), symbols in said.items():
                target[b, r, index(agent), protocol.channels.index(channel)] = torch.tensor(symbols)
        for (r, agent), value in copy.decisions.items():
            decision[b, r, index(agent)] = value
        for (r, agent), value in copy.log_probs.items():
            turn[b, r, index(agent)], log_prob[b, r, index(agent)] = True, value
        for (r, agent), value in copy.rewards.items():
            reward[b, r, index(agent)] = value
    assert torch.equal(rollout.main_BRACM, main)
    assert linear is None or torch.equal(rollout.linear_BRACM, linear)  # type: ignore[arg-type]
    assert torch.equal(rollout.turn_BRA, turn)
    assert torch.equal(rollout.decision_BRA, decision)
    assert rollout.verdict_B.tolist() == [
        CONTINUE if copy.steps.verdict is None else copy.steps.verdict for copy in slow
    ]
    assert rollout.length_B.tolist() == [copy.steps.round for copy in slow]
    torch.testing.assert_close(rollout.log_prob_BRA, log_prob, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.reward_BRA, reward, atol=1e-4, rtol=1e-4)
    assert bool(reward[:, :, index(SIMULATOR)].any())
    if base.verifier_turns > 1:  # what this is about happened: the two conversations ended apart
        assert bool((turn[:, :, index("verifier")] != turn[:, :, index(ADVERSARY)]).any())


def test_conversations_do_not_leak() -> None:
    scenario, _, agents = zk_scenario("debate", {"linear_symbols": 2}, max_rounds=6)
    protocol = scenario.protocol
    rollout = rollout_of(scenario, agents, 20)
    for agent in protocol.agents:
        hidden = [c for c, name in enumerate(protocol.channels) if name not in protocol.sees[agent]]
        assert hidden
        main, linear = rollout.main_BRACM.clone(), rollout.linear_BRACM.clone()  # type: ignore[union-attr]
        main[:, :, :, hidden] = 3
        linear[:, :, :, hidden] = 1
        kept = own_rows(scenario, rollout, agent).obs
        changed = own_rows(scenario, replace(rollout, main_BRACM=main, linear_BRACM=linear), agent).obs
        assert all(torch.equal(kept[key], changed[key]) for key in kept)
        seen = [c for c, name in enumerate(protocol.channels) if name in protocol.sees[agent]]
        main[:, :, :, seen] = 3
        assert not torch.equal(
            kept["history"], own_rows(scenario, replace(rollout, main_BRACM=main), agent).obs["history"]
        )


@pytest.mark.parametrize("legacy", [False, True])
def test_only_provers_are_bound_to_answer_in_the_other_graph(legacy: bool) -> None:
    scenario, _, learned = zk_scenario("nip", {"message_size": 2}, zero_knowledge_legacy=legacy)
    rollout = rollout_of(scenario, learned, 20)
    for agents in (learned, random_twin(scenario)):
        for agent, network in agents.items():
            rows = own_rows(scenario, rollout, agent)
            policy: Policy = network(rows.obs, True, False)[0]
            possible = policy.message > FORBIDDEN / 2
            exists_NFS = rows.obs["node_mask"].flatten(1)[:, None].expand_as(possible)
            if agent == "prover":
                side = torch.arange(possible.shape[-1]) // scenario.num_nodes
                assert torch.equal(possible, exists_NFS & (side == rows.obs["answer_side"][..., None]))
            else:
                assert torch.equal(possible, exists_NFS)
            assert (policy.decision is not None) == (agent in scenario.protocol.deciders)
            assert (agent == SIMULATOR and not legacy) or (policy.decision is not None) == (
                agent in ("verifier", ADVERSARY)
            )


def test_the_bound_is_the_verifiers() -> None:
    layers = {"prover": 5, "verifier": 1, ADVERSARY: 3, SIMULATOR: 4}
    scenario = graph_scenario(build("nip", zero_knowledge=True))
    alone = graph_scenario(build("nip"), num_gnn_layers=1)
    scenario.agents = {
        agent: replace(settings, num_gnn_layers=layers[agent]) for agent, settings in scenario.agents.items()
    }
    assert scenario.wl_bound(scenario.ids("test")) == alone.wl_bound(alone.ids("test"))
    scenario.agents["verifier"] = replace(scenario.agents["verifier"], num_gnn_layers=0)
    assert scenario.wl_bound(scenario.ids("test")) != alone.wl_bound(alone.ids("test"))


def test_learners_can_compute_the_same_similarity_from_rows() -> None:
    """Rows of the two agents, paired by copy and round, give what was paid in play."""
    for legacy in (False, True):
        scenario, _, agents = zk_scenario("debate", {"message_size": 2}, max_rounds=7, zero_knowledge_legacy=legacy)
        rollout = rollout_of(scenario, agents, 15)
        rows = {agent: own_rows(scenario, rollout, agent) for agent in (ADVERSARY, SIMULATOR)}
        some = torch.tensor([11, 3, 7, 2])
        with torch.no_grad():
            policies = {agent: agents[agent](rows[agent].obs, True, False)[0] for agent in rows}
        mine, its = rows[ADVERSARY].beside(rows[SIMULATOR], some)
        assert torch.equal(torch.stack([its, mine]), torch.stack(rows[SIMULATOR].beside(rows[ADVERSARY], some)))
        assert torch.equal(rows[ADVERSARY].copy_N[mine], rows[SIMULATOR].copy_N[its])
        assert torch.equal(rows[ADVERSARY].round_N[mine], rows[SIMULATOR].round_N[its])
        assert len(mine) == int(rollout.turn_BRA[some][:, :, -2:].all(-1).sum())
        found = similarity(policies[ADVERSARY].rows(mine), policies[SIMULATOR].rows(its), legacy)
        paid = rollout.reward_BRA[rows[ADVERSARY].copy_N[mine], rows[ADVERSARY].round_N[mine], -1]
        torch.testing.assert_close(found, paid, atol=1e-4, rtol=1e-4)
        assert bool(paid.any())
