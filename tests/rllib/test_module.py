"""A turn as one flat RLlib action, and an agent's networks as an RLModule."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.environments.layout import Layout, layout_of
from nip_ray.learning.policy import Policy
from nip_ray.rllib.module import AgentModule, distribution_class, module_spec
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.shared import networks_of, scenario_of
from tests.rllib.experiments import experiment, message_game

LAYOUTS = [Layout(1, 5, 0, 3), Layout(1, 5, 0, 0), Layout(2, 14, 3, 3), Layout(4, 6, 2, 0)]
COUNT = 50


def random_policy(layout: Layout, seed: int) -> Policy:
    """Random logits; equal turn masks for all seeds."""
    random, masks = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    speaks = torch.rand(COUNT, layout.factors, generator=masks) < 0.6
    may_decide = torch.rand(COUNT, generator=masks) < 0.5
    return Policy(
        message=torch.randn(COUNT, layout.factors, layout.symbols, generator=random),
        linear=torch.randn(COUNT, layout.factors, layout.linear_symbols, generator=random)
        if layout.linear_symbols
        else None,
        decision=torch.randn(COUNT, 3, generator=random) if layout.decides else None,
        speaks=speaks,
        may_decide=may_decide if layout.decides else None,
    )


def same(first: Policy, second: Policy) -> bool:
    parts = [(getattr(first, f.name), getattr(second, f.name)) for f in fields(Policy)]
    return all((a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b)) for a, b in parts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flattening_a_policy_and_splitting_an_action_lose_nothing(layout: Layout) -> None:
    policy = random_policy(layout, 1)
    flat = layout.flatten(policy)
    assert flat.shape == (COUNT, distribution_class(layout).required_input_dim(None))
    assert same(layout.unflatten(flat), policy)
    random = torch.Generator().manual_seed(2)
    action = torch.stack([torch.randint(size, (COUNT,), generator=random) for size in layout.sizes], 1)
    parts = layout.split(action)
    assert torch.equal(layout.join(parts), action)
    assert parts["message"].shape == (COUNT, layout.factors)
    assert (("linear" in parts), ("decision" in parts)) == (bool(layout.linear_symbols), layout.decides)
    assert layout.split(action.to(torch.int32).float())["message"].dtype == torch.int64  # however a connector cast it


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_distribution_is_the_policy(layout: Layout) -> None:
    """log-probability, entropy and KL are those of `Policy`, and gradients pass through the flat inputs."""
    policy, other = random_policy(layout, 1), random_policy(layout, 2)
    made = distribution_class(layout)
    flat = layout.flatten(policy).requires_grad_()
    distribution, second = made.from_logits(flat), made.from_logits(layout.flatten(other))
    action = policy.sample(None)
    assert torch.equal(distribution.logp(layout.join(action)), policy.log_prob(action))
    assert torch.equal(distribution.entropy(), policy.entropy())
    assert torch.equal(distribution.kl(second), policy.kl(other))
    assert float(distribution.kl(distribution).detach().abs().max()) == 0
    distribution.logp(layout.join(action)).sum().backward()
    assert flat.grad is not None
    logits = flat.grad[:, : sum(layout.sizes)]
    assert bool((logits != 0).any())
    assert bool((flat.grad[:, sum(layout.sizes) :] == 0).all()), "turn masks are no parameters"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sampling(layout: Layout) -> None:
    """Samples lie in the action space, the decision is "continue" where none can count, the greedy twin is the mode."""
    policy = random_policy(layout, 1)
    distribution = distribution_class(layout).from_logits(layout.flatten(policy))
    torch.manual_seed(0)
    sampled = distribution.sample()
    assert sampled.shape == (COUNT, len(layout.sizes))
    assert bool((sampled >= 0).all())
    assert bool((sampled < torch.tensor(layout.sizes)).all())
    if layout.decides:
        assert policy.may_decide is not None
        assert bool((sampled[~policy.may_decide, -1] == 2).all())
    assert torch.equal(distribution.to_deterministic().sample(), layout.join(policy.sample(None)))
    assert not torch.equal(distribution.sample(), sampled)


def observations(config: Any, agent: str) -> dict[str, Tensor]:
    """A batch of two observations of an agent, as stock connectors make them from the env's."""
    env = ProtocolEnv({"experiment": config.model_dump(mode="json")})
    seen: list[dict[str, Any]] = []
    obs, _ = env.reset(seed=0)
    while len(seen) < 2:
        if agent in obs:
            seen.append(obs[agent])
        obs, _, terminated, _, _ = env.step(
            {who: [0] * (len(env.layouts[who].sizes) - 1) + [2 * env.layouts[who].decides] for who in obs}
        )
        if terminated["__all__"]:
            obs, _ = env.reset()
    return {key: torch.stack([torch.as_tensor(one[key]) for one in seen]) for key in seen[0]}


@pytest.mark.parametrize("shared_body", [True, False])
def test_the_module_speaks_for_its_network(shared_body: bool) -> None:
    """Forward methods, values and layouts are the network's own, for both agents of nip."""
    config = experiment(dict(name="nip"), dict(shared_body=shared_body))
    dumped = config.model_dump(mode="json")
    spec = module_spec(dumped, ("prover", "verifier"))
    networks, env = networks_of(dumped), ProtocolEnv({"experiment": dumped})
    for agent in ("prover", "verifier"):
        spec.rl_module_specs[agent].observation_space = env.observation_spaces[agent]
        spec.rl_module_specs[agent].action_space = env.action_spaces[agent]
        module: AgentModule = spec.rl_module_specs[agent].build()
        network, layout = networks[agent].eval(), layout_of(scenario_of(dumped), agent)
        obs = observations(config, agent)
        policy, value = network(obs, True, True)
        for name in ("forward_inference", "forward_exploration"):
            flat = getattr(module, name)({"obs": obs})["action_dist_inputs"]
            torch.testing.assert_close(flat, layout.flatten(policy), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(module.eval().compute_values({"obs": obs}), value)
        policy, value = network.train()(obs, True, True)
        out = module.forward_train({"obs": obs})  # in training mode: batch statistics
        torch.testing.assert_close(out["action_dist_inputs"], layout.flatten(policy), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(module.compute_values({"obs": obs}, out["embeddings"]), value)
        distribution = module.get_train_action_dist_cls().from_logits(out["action_dist_inputs"])
        assert distribution.logp(torch.zeros(2, len(layout.sizes))).shape == (2,)


def test_networks_are_equal_in_every_process() -> None:
    """Built twice from the same experiment they agree; another seed gives others; the global generator is left
    alone."""
    first, other = message_game().model_dump(mode="json"), message_game(seed=1).model_dump(mode="json")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, two, third = networks_of(first), networks_of(first), networks_of(other)
    assert torch.equal(torch.get_rng_state(), before)
    for agent, network in one.items():
        state = network.state_dict()
        assert all(torch.equal(value, two[agent].state_dict()[name]) for name, value in state.items())
        assert not all(torch.equal(value, third[agent].state_dict()[name]) for name, value in state.items())
