"""Zero knowledge in the batched core against a slow player: one copy at a time, two conversations kept apart, plain Python rewards."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy, gumbel_noise
from nip_ray.learning.similarity import similarity
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import concatenate, own_rows
from nip_ray.protocols import CONTINUE, Protocol, build
from nip_ray.scenarios.graph_isomorphism.build import random_twin
from nip_ray.scenarios.graph_isomorphism.fixed import FORBIDDEN
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.scenarios.registry import observation_statistics
from tests.builders import copies, graph_agents, graph_scenario, one_thread, rollout_of, spread_heads

ADVERSARY, SIMULATOR = "adversarial_verifier", "simulator"
SPEECH: dict[str, int] = {"message_size": 2, "linear_symbols": 2}
GAMES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("nip", dict(min_rounds=3, simulator_reward_coefficient=2.0, aux_prover_reward_coefficient=0.5, verifier_no_guess_reward=0.25), {}),
    ("nip", dict(zero_knowledge_legacy=True, shared_reward=True, max_rounds=5), SPEECH),
    ("debate", dict(sequential=True, min_rounds=4), SPEECH),
    ("debate", dict(sequential=True, verifier_first=False, max_rounds=6), {}),
    ("merlin_arthur", dict(zero_knowledge_legacy=True), {}),
    ("merlin_arthur", {}, SPEECH),
    ("multi_channel_test", {}, {}),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@dataclass
class Copy:
    """One copy: what was said, (round, agent, channel) -> symbols, and who is done."""

    id: int
    seed: int
    y: int
    main: dict[tuple[int, str, str], list[int]] = field(default_factory=dict)
    linear: dict[tuple[int, str, str], list[int]] = field(default_factory=dict)
    decisions: dict[tuple[int, str], int] = field(default_factory=dict)
    log_probs: dict[tuple[int, str], float] = field(default_factory=dict)
    rewards: dict[tuple[int, str], float] = field(default_factory=dict)
    verdict: int = CONTINUE
    done: set[str] = field(default_factory=set)
    over: bool = False
    length: int = 0


def channels_of(base: Protocol, copy: Copy, agent: str, round: int) -> list[str]:
    """Where an agent of the wrapped protocol speaks now, from the base protocol's table."""
    table = base.turns[copy.seed % len(base.turns)]
    now = table[round % len(table)]
    if copy.over or agent in copy.done:
        return []
    mine = {"verifier": ["_standard"], ADVERSARY: ["_adversarial"], SIMULATOR: ["_simulator"]}.get(agent, ["_standard", "_adversarial"])
    speaker = "verifier" if agent in (ADVERSARY, SIMULATOR) else agent
    return [channel + end for end in mine for channel in base.channels if (speaker, channel) in now]


def slow_observation(scenario: GraphIsomorphism, base: Protocol, agent: str, copy: Copy, round: int) -> dict[str, Tensor]:
    """One row, entry by entry."""
    protocol, size, width = scenario.protocol, scenario.num_nodes, scenario.message_size
    reads, writes = list(protocol.sees[agent]), [protocol.channels[c] for c in protocol.writes[agent]]
    history = torch.zeros(1, 2, size, protocol.max_rounds, len(reads), width)
    latest = torch.zeros(1, 2, size, len(reads), width)
    linear = torch.zeros(1, protocol.max_rounds, len(reads), width, max(scenario.linear_symbols, 1))
    side = torch.zeros(1, len(writes), width, dtype=torch.int64)
    for (r, _, channel), symbols in copy.main.items():
        for m, symbol in enumerate(symbols):
            if channel in reads:
                history[0, symbol // size, symbol % size, r, reads.index(channel), m] += 1
                latest[0, symbol // size, symbol % size, reads.index(channel), m] += r == round - 1
            if channel in writes and r == round - 1 and symbol < size:
                side[0, writes.index(channel), m] = 1
    for (r, _, channel), symbols in copy.linear.items():
        for m, symbol in enumerate(symbols):
            if channel in reads:
                linear[0, r, reads.index(channel), m, symbol] += 1
    now = channels_of(base, copy, agent, round)
    decides = agent in ("verifier", ADVERSARY) or (agent == SIMULATOR and not scenario.protocol.zero_knowledge.legacy)  # type: ignore[union-attr]
    obs = {
        "round": torch.tensor([round]),
        "speaks": torch.tensor([[channel in now for channel in writes for _ in range(width)]]),
        "may_decide": torch.tensor([bool(now) and decides and round >= base.min_rounds - 1]),
        "adjacency": scenario.adjacency_IGVV[copy.id][None],
        "node_mask": scenario.node_mask_IGV[copy.id][None],
        "history": history.flatten(3),
        "latest": latest.flatten(3),
        "answer_side": side.flatten(1),
    }
    return obs | ({"linear_history": linear.flatten(1)} if scenario.linear_symbols else {})


def cosine(a: list[float], b: list[float]) -> float:
    sizes = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / sizes if sizes else 0.0


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


def settle(base: Protocol, protocol: Protocol, copy: Copy, round: int, similar: float) -> None:
    """Ends and rewards of one round."""
    pay, extra = base.payment, protocol.zero_knowledge
    assert extra is not None
    last, own, verdict_now = round == base.max_rounds - 1, 0.0, CONTINUE
    if "verifier" not in copy.done:
        decision = copy.decisions.get((round, "verifier"))
        if decision in (0, 1):
            verdict_now = copy.verdict = decision
            own = pay.verifier_reward if decision == copy.y else pay.verifier_incorrect_penalty
            copy.done.add("verifier")
        elif last:
            own = pay.verifier_terminated_penalty
        elif decision is not None:
            own = pay.verifier_no_guess_reward
    if copy.decisions.get((round, ADVERSARY)) in (0, 1):
        copy.done.add(ADVERSARY)
    paid = extra.simulator_reward * similar
    copy.rewards |= {(round, "verifier"): own, (round, ADVERSARY): -paid, (round, SIMULATOR): paid}
    for prover in base.provers:
        earned = own if pay.shared_reward else pay.prover_reward * (verdict_now != CONTINUE and pay.goals.get(prover) == verdict_now)
        copy.rewards[round, prover] = earned + extra.prover_reward * paid
    copy.length = round + 1
    copy.over = last or {"verifier", ADVERSARY} <= copy.done


@torch.no_grad()
def slow_play(
    scenario: GraphIsomorphism, base: Protocol, agents: dict[str, nn.Module], id_B: Tensor, seed_B: Tensor, noise: torch.Generator
) -> list[Copy]:
    """What `play_rollout` does."""
    protocol = scenario.protocol
    made = [Copy(i, s, int(scenario.label_I[i])) for i, s in zip(id_B.tolist(), seed_B.tolist(), strict=True)]
    for round in range(base.max_rounds):
        said: list[tuple[dict[tuple[int, str, str], list[int]], tuple[int, str, str], list[int]]] = []
        policies: dict[tuple[int, str], Policy] = {}
        for agent in protocol.agents:
            having = [b for b, copy in enumerate(made) if channels_of(base, copy, agent, round)]
            draws: Tensor | None = None
            for b in having:
                copy = made[b]
                policy = policies[b, agent] = agents[agent](slow_observation(scenario, base, agent, copy, round), True, False)[0]
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
                        said += [(store, (round, agent, c), symbols[writes.index(c)]) for c in channels_of(base, copy, agent, round)]
        for store, key, symbols in said:
            store[key] = symbols
        for b, copy in enumerate(made):
            if not copy.over:
                legacy = protocol.zero_knowledge.legacy  # type: ignore[union-attr]
                settle(base, protocol, copy, round, slow_similarity(policies.get((b, ADVERSARY)), policies.get((b, SIMULATOR)), legacy))
    return made


def zk_scenario(game: str, speech: dict[str, int] | None = None, **params: Any) -> tuple[GraphIsomorphism, Protocol, dict[str, nn.Module]]:
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


@pytest.mark.parametrize("game", GAMES, ids=lambda game: f"{game[0]}-{'-'.join(game[1])}-{'plain' if not game[2] else 'all'}")
def test_play_equals_the_slow_player(game: tuple[str, dict[str, Any], dict[str, int]]) -> None:
    scenario, base, agents = zk_scenario(game[0], game[2], **game[1])
    protocol = scenario.protocol
    id_B, seed_B = copies(scenario, 8, seed=1)
    rollout = play_rollout(BatchedPlay(scenario), agents, id_B, seed_B, torch.Generator().manual_seed(3))
    slow = slow_play(scenario, base, agents, id_B, seed_B, torch.Generator().manual_seed(3))
    index = protocol.agents.index
    main, turn = torch.full_like(rollout.main_BRACM, -1), torch.zeros_like(rollout.turn_BRA)
    linear = None if rollout.linear_BRACM is None else torch.full_like(rollout.linear_BRACM, -1)
    decision, reward = torch.full_like(rollout.decision_BRA, CONTINUE), torch.zeros_like(rollout.reward_BRA)
    log_prob = torch.zeros_like(reward)
    for b, copy in enumerate(slow):
        for target, said in ((main, copy.main), (linear, copy.linear)):
            for (r, agent, channel), symbols in said.items():
                assert target is not None
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
    assert rollout.verdict_B.tolist() == [copy.verdict for copy in slow]
    assert rollout.length_B.tolist() == [copy.length for copy in slow]
    torch.testing.assert_close(rollout.log_prob_BRA, log_prob, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.reward_BRA, reward, atol=1e-4, rtol=1e-4)
    assert bool(reward[:, :, index(SIMULATOR)].any())
    if base.verifier_turns > 1:  # what this is about happened: the two conversations ended apart
        assert bool((turn[:, :, index("verifier")] != turn[:, :, index(ADVERSARY)]).any())


def test_conversations_do_not_leak() -> None:
    """What is said in a channel that an agent does not see changes nothing that it observes."""
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
        assert not torch.equal(kept["history"], own_rows(scenario, replace(rollout, main_BRACM=main), agent).obs["history"])


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
            assert (agent == SIMULATOR and not legacy) or (policy.decision is not None) == (agent in ("verifier", ADVERSARY))


def test_random_players_and_statistics() -> None:
    for name in ("nip", "mnip", "solo_verifier", "multi_channel_test"):
        scenario = graph_scenario(build(name, zero_knowledge=True), message_size=2, linear_symbols=2)
        rollout = rollout_of(scenario, random_twin(scenario))
        assert not rollout.reward_BRA[:, :, -2:].any()  # nothing is alike where all logits are zero
        found = observation_statistics(scenario, 64, 0)
        assert list(found) == list(scenario.protocol.agents)
        assert all(math.isfinite(x) for agent in found.values() for pair in agent.values() for x in pair)
        if name == "nip":  # two conversations: half of the marks that a prover sees, all of those that the simulator sees
            assert found["prover"]["history"][0] > 0
            assert found[SIMULATOR]["history"][0] > 0


def test_the_bound_is_the_verifiers() -> None:
    layers = {"prover": 5, "verifier": 1, ADVERSARY: 3, SIMULATOR: 4}
    scenario = graph_scenario(build("nip", zero_knowledge=True))
    alone = graph_scenario(build("nip"), num_gnn_layers=1)
    scenario.agents = {agent: replace(settings, num_gnn_layers=layers[agent]) for agent, settings in scenario.agents.items()}
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


def test_rollouts_of_zero_knowledge_are_cut_and_joined() -> None:
    scenario, _, agents = zk_scenario("nip")
    rollout = rollout_of(scenario, agents, 10)
    assert rollout.simulation_BR2 is not None
    joined = concatenate([rollout.copies(slice(0, 4)), rollout.copies(torch.arange(4, 10))])
    assert joined.simulation_BR2 is not None
    assert torch.equal(joined.simulation_BR2, rollout.simulation_BR2)
    plain = graph_scenario("nip")
    assert rollout_of(plain, graph_agents(plain)).simulation_BR2 is None
