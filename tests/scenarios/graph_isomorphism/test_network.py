"""Agents of graph isomorphism: symmetries, masks, options, initialisation, parameter groups, and agents that are never trained."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.groups import FlatOptimizer
from nip_ray.networks.gin import run_gins
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import own_rows
from nip_ray.protocols import build
from nip_ray.scenarios.graph_isomorphism.build import random_twin
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.fixed import FORBIDDEN, ManualAgent
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs
from nip_ray.scenarios.graph_isomorphism.network import GraphAgent, GraphBody
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.settings.graph_isomorphism import GraphAgentSettings
from nip_ray.settings.heads import LrFactors
from tests.builders import PROTOCOLS, graph_agents, graph_scenario, one_thread, protocol_id, random_pairs, rollout_of

Observation = dict[str, Tensor]
SPEECH: list[dict[str, int]] = [{}, {"message_size": 2, "linear_symbols": 3}]
CLOSE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def observations(scenario: GraphIsomorphism, agent: str, seed: int = 0, count: int = 18) -> Observation:
    """What `agent` sees at its turns in random play."""
    return own_rows(scenario, rollout_of(scenario, random_twin(scenario), count, seed), agent).obs


def network(scenario: GraphIsomorphism, agent: str, seed: int = 0, **changes: Any) -> GraphAgent:
    """A fresh network with statistics in place and biases that are not zero, in evaluation mode."""
    if changes:
        scenario.agents[agent] = replace(scenario.agents[agent], **changes)
    made = scenario.build_agent(agent, seed)
    assert isinstance(made, GraphAgent)
    made.set_normalisation({"history": (0.1, 0.7), "latest": (0.05, 0.5), "linear": (0.2, 0.6)})
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.3)
    return made.eval()


def outputs(agent: nn.Module, obs: Observation) -> dict[str, Tensor]:
    """Message logits (N, F, G, V), decision, linear logits and value, whichever there are."""
    with torch.no_grad():
        policy, value_N = agent(obs)
    found = {"message": policy.message.unflatten(-1, (2, -1)), "decision": policy.decision, "linear": policy.linear, "value": value_N}
    return {key: value for key, value in found.items() if value is not None}


def retold(scenario: GraphIsomorphism, changed: GraphIsomorphism, agent: str, rename: Any) -> tuple[Observation, Observation]:
    """The same random episodes as `agent` sees them in two scenarios; `rename(ids, symbols)` translates the messages."""
    rollout = rollout_of(scenario, random_twin(scenario), 18)
    new = rename(rollout.id_B.view(-1, 1, 1, 1, 1).expand_as(rollout.main_BRACM), rollout.main_BRACM.clamp_min(0))
    told = replace(rollout, main_BRACM=torch.where(rollout.main_BRACM < 0, -1, new))
    return own_rows(scenario, rollout, agent).obs, own_rows(changed, told, agent).obs


def with_pairs(scenario: GraphIsomorphism, pairs: GraphPairs) -> GraphIsomorphism:
    """The same scenario about other graphs."""
    return GraphIsomorphism(
        scenario.protocol,
        pairs,
        pairs,
        scenario.agents,
        shared_body=scenario.shared_body,
        message_size=scenario.message_size,
        linear_symbols=scenario.linear_symbols,
    )


# ---------------------------------------------------------------------------------------------------------- symmetries


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("agent", ["prover0", "verifier"])
@pytest.mark.parametrize("speech", SPEECH)
def test_padding_changes_nothing(speech: dict[str, int], agent: str, training: bool) -> None:
    pairs = random_pairs(0)
    scenario = graph_scenario("debate", pairs, **speech)
    wide = with_pairs(scenario, pairs.padded_to(9))
    obs, wide_obs = retold(scenario, wide, agent, lambda _, s: s + (s >= 6) * 3)
    found, wide_found = (outputs(network(made, agent).train(training), o) for made, o in ((scenario, obs), (wide, wide_obs)))
    assert found.keys() == wide_found.keys()
    assert bool((wide_found["message"][..., 6:] == FORBIDDEN).all())
    wide_found["message"] = wide_found["message"][..., :6]
    for key, value in found.items():
        torch.testing.assert_close(wide_found[key], value, **CLOSE)


@pytest.mark.parametrize("agent", ["prover0", "verifier"])
@pytest.mark.parametrize("speech", SPEECH)
def test_renaming_nodes_renames_the_answer(speech: dict[str, int], agent: str) -> None:
    pairs = random_pairs(1)
    random = torch.Generator().manual_seed(5)
    order = torch.arange(6).expand(len(pairs), 2, 6).clone()  # new node i is old node order[i]; padding stays in its place
    for pair, size in enumerate(pairs.size_P.tolist()):
        for side in range(2):
            order[pair, side, :size] = torch.randperm(size, generator=random)
    adjacency = torch.stack([torch.stack([a[o][:, o] for a, o in zip(two, orders)]) for two, orders in zip(pairs.adjacency_P2nn, order)])
    scenario = graph_scenario("debate", pairs, **speech)
    renamed = with_pairs(scenario, GraphPairs(adjacency, pairs.size_P, pairs.wl_score_P))
    new_name = order.argsort(-1)
    obs, new_obs = retold(scenario, renamed, agent, lambda i, s: s // 6 * 6 + new_name[i % len(pairs), s // 6, s % 6])
    found, new_found = (outputs(network(made, agent), o) for made, o in ((scenario, obs), (renamed, new_obs)))
    rows = own_rows(scenario, rollout_of(scenario, random_twin(scenario), 18), agent)
    pair_N = rollout_of(scenario, random_twin(scenario), 18).id_B[rows.copy_N]
    picked = order[pair_N][:, None].expand_as(found["message"])
    torch.testing.assert_close(new_found.pop("message"), found.pop("message").gather(-1, picked), **CLOSE)
    for key, value in found.items():
        torch.testing.assert_close(new_found[key], value, **CLOSE)


def swapped(scenario: GraphIsomorphism, agent: str, **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Outputs before and after the two graphs of each pair change places, and the rows in which something was said to the agent."""
    pairs = random_pairs(2)
    other = with_pairs(scenario, GraphPairs(pairs.adjacency_P2nn.flip(1), pairs.size_P, pairs.wl_score_P))
    obs, other_obs = retold(scenario, other, agent, lambda _, s: (s + 6) % 12)
    found = outputs(network(scenario, agent, **changes), obs)
    return found, outputs(network(other, agent, **changes), other_obs), obs["latest"].flatten(1).any(1)


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("speech", SPEECH)
def test_swapping_the_graphs_with_pair_invariant_pooling(speech: dict[str, int], batch_norm: bool, layers: int) -> None:
    """Whatever concerns the pair stays the same; logits of nodes go with their graphs."""
    changes = dict(use_batch_norm=batch_norm, num_transformer_layers=layers)
    for agent in ("prover", "verifier"):
        scenario = graph_scenario("nip", random_pairs(2), **speech)
        found, after, told = swapped(scenario, agent, **changes)
        before, flipped = found.pop("message"), after.pop("message").flip(2)
        if agent == "prover":  # with nothing said it answers in the first graph, whichever that is
            assert bool(told.any())
            before, flipped = before[told], flipped[told]
        torch.testing.assert_close(flipped, before, **CLOSE)
        for key, value in found.items():
            torch.testing.assert_close(after[key], value, **CLOSE)


@pytest.mark.parametrize("layers", [0, 2])
def test_swapping_the_graphs_without_pair_invariant_pooling(layers: int) -> None:
    """Pooled tokens then say which graph is first, and outputs depend on it."""
    scenario = graph_scenario("nip", random_pairs(2))
    found, after, _ = swapped(scenario, "verifier", use_pair_invariant_pooling=False, num_transformer_layers=layers)
    for key in ("decision", "value"):
        assert float((found[key] - after[key]).abs().max()) > 1e-3


@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_latest_message_is_ignored_in_round_0(agent: str) -> None:
    scenario = graph_scenario("nip", linear_symbols=3, message_size=2)
    obs = observations(scenario, agent)
    junk = {key: torch.rand(obs[key].shape, generator=torch.Generator().manual_seed(1)) for key in ("latest", "linear_history")}
    made = network(scenario, agent)
    for round, matters in ((0, False), (3, True)):
        fixed = {**obs, "round": torch.full_like(obs["round"], round)}
        for key, value in junk.items():
            before, after = outputs(made, fixed), outputs(made, {**fixed, key: value})
            assert matters != all(torch.equal(before[name], after[name]) for name in before), (round, key)


# --------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("kind", ["learned", "random"])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=protocol_id)
def test_who_may_name_which_nodes(protocol: tuple[str, dict[str, Any]], kind: str) -> None:
    """Provers answer in the other graph, by channel and position (in the first where nothing was said); nobody names padding."""
    scenario = graph_scenario(build(protocol[0], **protocol[1]), random_pairs(3), message_size=2, kind=kind)
    agents = graph_agents(scenario) if kind == "learned" else random_twin(scenario)
    rollout = rollout_of(scenario, agents, 60)
    size = scenario.num_nodes
    sides: dict[str, set[int]] = {agent: set() for agent in scenario.protocol.agents}
    for b, r, a, c, m in (rollout.main_BRACM >= 0).nonzero().tolist():
        symbol, agent = int(rollout.main_BRACM[b, r, a, c, m]), scenario.protocol.agents[a]
        assert scenario.node_mask_IGV[rollout.id_B[b], symbol // size, symbol % size]
        sides[agent].add(symbol // size)
        if agent == scenario.protocol.verifier:
            continue
        heard = [] if r == 0 else [s for s in rollout.main_BRACM[b, r - 1, :, c, m].tolist() if s >= 0]
        assert symbol // size == int(any(s < size for s in heard))
    assert sides[scenario.protocol.verifier] == {0, 1}


def test_random_agent_is_uniform_over_what_is_allowed() -> None:
    scenario = graph_scenario("nip", random_pairs(3), linear_symbols=3, kind="random")
    for agent in ("prover", "verifier"):
        obs = observations(scenario, agent)
        policy, value = scenario.build_agent(agent, 0)(obs)
        allowed = (policy.message > FORBIDDEN / 2).float()
        torch.testing.assert_close(policy.message.softmax(-1), allowed / allowed.sum(-1, keepdim=True))
        real_NS = obs["node_mask"].flatten(1)
        assert bool((allowed.sum(-1) == (real_NS.sum(1) / (2 if agent == "prover" else 1))[:, None]).all())
        assert policy.linear.eq(0).all()
        assert policy.linear.shape[-1] == 3
        assert (policy.decision is None) == (agent == "prover")
        assert policy.decision is None or policy.decision.eq(0).all()
        assert not value.any()


# -------------------------------------------------------------------------------------------------------------- groups

FACTORS = dict(agent_lr_factor=LrFactors(2, 3), body_lr_factor=LrFactors(5, 7), gnn_lr_factor=LrFactors(11, 13))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_groups(agent: str, shared: bool) -> None:
    scenario = graph_scenario("nip", shared_body=shared, linear_symbols=2, **FACTORS)
    made = network(scenario, agent)
    owner = {id(p): group for group in made.groups() for p in group.parameters}
    assert sum(len(group.parameters) for group in made.groups()) == len(owner) == len(list(made.parameters()))
    for name, parameter in made.named_parameters():
        group = owner[id(parameter)]
        part = "critic" if name.startswith(("value_body", "value_head")) else "actor"
        factor = 2 if part == "actor" else 3
        if "_body." in name:
            factor *= 5 if part == "actor" else 7
            if "_body.gnn." in name:
                factor *= 11 if part == "actor" else 13
        assert (group.part, group.lr_factor) == (part, factor), name


def test_frozen_graph_network() -> None:
    scenario = graph_scenario("nip", gnn_lr_factor=LrFactors(0, 1))
    made = network(scenario, "verifier").train()
    optimizer = FlatOptimizer(made.groups(), 0.01)
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    policy, value_N = made(observations(scenario, "verifier"))
    loss = policy.entropy().sum() + value_N.square().sum()
    optimizer.set_gradients(torch.autograd.grad(loss, optimizer.parameters, allow_unused=True))
    optimizer.step()
    for name, parameter in made.named_parameters():
        if name.startswith("policy_body.gnn."):
            assert not parameter.requires_grad
            assert torch.equal(parameter, before[name])
    assert not torch.equal(made.value_body.gnn.encode.weight, before["value_body.gnn.encode.weight"])  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("linear", [0, 2])
@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_only_what_is_wanted(agent: str, linear: int, shared: bool) -> None:
    """Asking for one of policy and value gives what asking for both gives."""
    scenario = graph_scenario("nip", shared_body=shared, linear_symbols=linear)
    made, obs = network(scenario, agent), observations(scenario, agent)
    policy, value_N = made(obs)
    only_policy, nothing = made(obs, True, False)
    assert nothing is None
    for name in ("message", "linear", "decision"):
        if getattr(policy, name) is None:
            assert getattr(only_policy, name) is None
        else:
            torch.testing.assert_close(getattr(only_policy, name), getattr(policy, name), **CLOSE)
    nothing, only_value = made(obs, False, True)
    assert nothing is None
    torch.testing.assert_close(only_value, value_N, **CLOSE)


@pytest.mark.parametrize("shared", [False, True])
def test_shared_and_separate_bodies(shared: bool) -> None:
    scenario = graph_scenario("nip", shared_body=shared)
    made = network(scenario, "verifier")
    assert (made.value_body is None) == shared
    _, value_N = made(observations(scenario, "verifier"))
    value_N.square().sum().backward()
    touched = {name.split(".")[0] for name, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    assert touched == ({"policy_body", "value_head"} if shared else {"value_body", "value_head"})


def test_every_parameter_gets_a_gradient() -> None:
    for agent in ("prover", "verifier"):
        scenario = graph_scenario("nip", linear_symbols=2, message_size=2)
        made, obs = network(scenario, agent).train(), observations(scenario, agent)
        policy, value_N = made(obs)
        loss = (policy.log_prob(policy.sample(None)) * torch.linspace(-1, 2, len(value_N))).sum() + value_N.square().sum()
        loss.backward()
        silent = [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]
        assert not [name for name in silent if "bias" not in name]


@pytest.mark.parametrize("dual", [False, True])
def test_dual_graph_network(dual: bool) -> None:
    """Two streams through the same weights, the second without messages."""
    scenario = graph_scenario("nip", use_dual_gnn=dual)
    made, obs = network(scenario, "verifier"), observations(scenario, "verifier")
    inputs = made._inputs(obs)
    streams = made.policy_body.streams(inputs)
    assert len(streams) == 1 + dual
    assert made.policy_body.token.in_features == 4 * (1 + dual) + 2 + 1
    masks = inputs.adjacency_NGVV.flatten(0, 1), inputs.node_mask_NGV1.flatten(0, 1)
    h = run_gins([made.policy_body.gnn], streams, *masks)[0]
    without = {**obs, "history": torch.rand_like(obs["history"])}
    other = run_gins([made.policy_body.gnn], made.policy_body.streams(made._inputs(without)), *masks)[0]
    assert not torch.allclose(h[0], other[0])
    if dual:
        assert torch.equal(h[1], other[1])
        assert bool(h[1].any())


def body_inputs(scenario: GraphIsomorphism, **changes: Any) -> tuple[GraphBody, Any, Tensor]:
    """A verifier's policy body, its inputs and its graph network's output (S, N * G, V, D)."""
    made = network(scenario, "verifier", **changes)
    inputs = made._inputs(observations(scenario, "verifier"))
    body = made.policy_body
    masks = inputs.adjacency_NGVV.flatten(0, 1), inputs.node_mask_NGV1.flatten(0, 1)
    return body, inputs, run_gins([body.gnn], body.streams(inputs), *masks)[0].detach()


def test_batch_norm() -> None:
    body, inputs, h = body_inputs(graph_scenario("nip"), use_pair_invariant_pooling=False)
    assert body.batch_norm is not None
    h_NGVD = torch.cat(list(h), -1).view(len(inputs.history_NGVF), 2, 6, -1)
    plain = h_NGVD.sum(2)
    body.train()
    normal = body._pool(h_NGVD)
    scale, shift = body.batch_norm.weight, body.batch_norm.bias
    expected = (plain - plain.mean((0, 1))) / (plain.var((0, 1), unbiased=False) + 1e-5).sqrt() * scale + shift
    torch.testing.assert_close(normal, expected, **CLOSE)
    torch.testing.assert_close(body.batch_norm.running_mean, 0.1 * plain.mean((0, 1)), **CLOSE)
    body.eval()
    alone = body._pool(h_NGVD[:1])
    torch.testing.assert_close(alone, body._pool(h_NGVD)[:1])  # no row depends on its neighbours
    body, inputs, h = body_inputs(graph_scenario("nip"), use_batch_norm=False, use_pair_invariant_pooling=False)
    assert body.batch_norm is None
    torch.testing.assert_close(body.train()._pool(h_NGVD), plain)


def test_pair_invariant_pooling() -> None:
    body, inputs, h = body_inputs(graph_scenario("nip"), use_batch_norm=False)
    h_NGVD = torch.cat(list(h), -1).view(len(inputs.history_NGVF), 2, 6, -1)
    first, second = h_NGVD.sum(2).unbind(1)
    torch.testing.assert_close(body._pool(h_NGVD), torch.stack([(first + second) / 2, (first - second).abs() / 2], 1))


def test_noise_only_in_training_and_shared_by_the_pair() -> None:
    options: dict[str, Any] = dict(noise_sigma=0.5, use_batch_norm=False, use_pair_invariant_pooling=False)
    scenario = graph_scenario("nip")
    body, inputs, h = body_inputs(scenario, **options)
    h_NGVD = torch.cat(list(h), -1).view(len(inputs.history_NGVF), 2, 6, -1)
    plain = h_NGVD.sum(2)
    assert torch.equal(body._pool(h_NGVD), plain)
    body.train()
    torch.manual_seed(0)
    relative = (body._pool(h_NGVD) - plain) / plain.abs()
    torch.testing.assert_close(relative[:, 0], relative[:, 1], atol=1e-3, rtol=1e-3)
    assert float(relative.std()) == pytest.approx(0.5, rel=0.15)
    made, obs = network(scenario, "verifier"), observations(scenario, "verifier")
    assert torch.equal(outputs(made, obs)["value"], outputs(made, obs)["value"])
    made.train()
    assert not torch.equal(outputs(made, obs)["value"], outputs(made, obs)["value"])


@pytest.mark.parametrize("digits", [0, 1, 3])
def test_gnn_output_digits(digits: int) -> None:
    """The output is rounded, and gradients pass as if it had not been."""
    scenario = graph_scenario("nip")
    body, inputs, h = body_inputs(scenario, gnn_output_digits=digits)
    smooth = network(scenario, "verifier", gnn_output_digits=None).policy_body
    rounded = torch.round(h, decimals=digits).requires_grad_()
    h = h.requires_grad_()
    found, expected = body.represent(h, inputs, True, True), smooth.represent(rounded, inputs, True, True)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, **CLOSE)
    weight = torch.randn(found[1].shape, generator=torch.Generator().manual_seed(0))
    ours, plain = (torch.autograd.grad((x[1] * weight).sum(), y)[0] for x, y in ((found, h), (expected, rounded)))
    assert bool(ours.any())
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("include", [False, True])
def test_round_in_heads(include: bool) -> None:
    scenario = graph_scenario("nip", include_round_in_decider=include, include_round_in_value=include)
    made, obs = network(scenario, "verifier"), observations(scenario, "verifier")
    obs = {**obs, "round": torch.full_like(obs["round"], 2)}
    before, after = outputs(made, obs), outputs(made, {**obs, "round": torch.full_like(obs["round"], 6)})
    assert torch.equal(before["message"], after["message"])
    for key in ("decision", "value"):
        assert torch.equal(before[key], after[key]) != include


# ------------------------------------------------------------------------------------------------------ initialisation


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_orthogonal_initialisation(gain: float) -> None:
    scenario = graph_scenario("nip", shared_body=True, linear_symbols=2, orthogonal_initialisation_gain=gain)
    made = scenario.build_agent("verifier", 4)
    scenario.agents["verifier"] = replace(scenario.agents["verifier"], use_orthogonal_initialisation=False)
    plain = dict(scenario.build_agent("verifier", 4).named_parameters())
    matrices = 0
    for name, parameter in made.named_parameters():
        last = name.rpartition(".")[2]
        if last == "weight" and parameter.dim() == 2:
            matrices += 1
            wide = parameter if parameter.shape[0] <= parameter.shape[1] else parameter.T
            torch.testing.assert_close(wide @ wide.T, torch.eye(len(wide)) * gain**2, atol=1e-5, rtol=1e-5)
        elif last == "weight":
            assert bool((parameter == 1).all()), name
        elif last == "bias":
            assert not parameter.any(), name
        else:
            assert last in ("in_proj_weight", "in_proj_bias")
            assert torch.equal(parameter, plain[name]), name
    assert matrices > 10
    assert any(p.any() for name, p in plain.items() if name.endswith("linear1.bias"))


@pytest.mark.parametrize("speech", SPEECH)
def test_shared_history_columns(speech: dict[str, int]) -> None:
    """Rounds look alike, channels and positions do not; training may still tell rounds apart."""
    scenario = graph_scenario("multi_channel_test", history_initialisation="shared", **speech)
    made = scenario.build_agent("verifier", 0)
    assert isinstance(made, GraphAgent)
    weight = made.policy_body.gnn.encode.weight
    by_round = weight.detach().view(4, 8, -1)
    assert bool((by_round == by_round[:, :1]).all())
    assert len(by_round[:, 0].T.unique(dim=0)) == by_round.shape[-1]
    made(observations(scenario, "verifier"))[0].entropy().sum().backward()
    assert weight.grad is not None
    assert not torch.equal(weight.grad.view(4, 8, -1)[:, 0], weight.grad.view(4, 8, -1)[:, 1])


# ------------------------------------------------------------------------------------------------------- manual agents


@pytest.fixture(scope="module")
def hard_pairs() -> GraphPairs:
    """Isomorphic pairs and pairs that only three rounds of refinement or more tell apart."""
    settings = GeneratorSettings(graph_sizes=(8, 9), edge_probabilities=(0.4, 0.6), non_iso_prop_score_1=0.0, non_iso_prop_score_2=0.0)
    return generate_pairs(200, 0, settings)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("sampled", [True, False])
def test_manual_agents(hard_pairs: GraphPairs, sampled: bool, orthogonal: bool) -> None:
    """Accuracy near 1: wrong now and then only where a graph has symmetries and the prover's answers do not fit together."""
    protocol = build("nip", max_rounds=4)
    settings = GraphAgentSettings(kind="manual", use_orthogonal_initialisation=orthogonal)
    scenario = GraphIsomorphism(protocol, hard_pairs, hard_pairs, dict.fromkeys(protocol.agents, settings))
    agents = {agent: scenario.build_agent(agent, i) for i, agent in enumerate(protocol.agents)}
    ids = scenario.ids("train")
    noise = torch.Generator().manual_seed(0) if sampled else None
    rollout = play_rollout(BatchedPlay(scenario), agents, ids, torch.zeros_like(ids), noise)
    assert bool((rollout.length_B == 3).all())  # the verifier decides in the last but one round
    right = (rollout.verdict_B == rollout.y_B).double()
    completeness, soundness = float(right[rollout.y_B == 1].mean()), float(right[rollout.y_B == 0].mean())
    assert soundness > 0.9
    assert completeness > 0.9


def test_manual_agents_are_never_trained() -> None:
    scenario = graph_scenario("nip", kind="manual")
    for agent in ("prover", "verifier"):
        made = scenario.build_agent(agent, 0)
        assert isinstance(made, ManualAgent)
        assert made.groups() == []
        assert not any(p.requires_grad for p in made.parameters())
        assert any(True for _ in made.parameters())
        policy, value = made(observations(scenario, agent))
        assert not value.any()
        assert bool(policy.message.isfinite().all())
        assert made(observations(scenario, agent), False, True)[0] is None
        assert made(observations(scenario, agent), True, False)[1] is None
