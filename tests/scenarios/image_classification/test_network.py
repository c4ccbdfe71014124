"""Bodies and heads: sizes, equations written out by hand, initialisation with its published defect, and the agent that
plays at random."""

import pytest
import torch
from torch import Tensor, nn

from nip_ray.networks.images import part_means, scaled_to
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import own_rows
from nip_ray.scenarios.image_classification.network import ImageAgent
from nip_ray.scenarios.image_classification.scenario import ImageClassification
from nip_ray.seeding import generator
from tests.scenarios.image_classification.files import image_scenario

SPEECH: dict[str, int] = dict(message_size=2, linear_symbols=3)


def rows(scenario: ImageClassification, agent: str, count: int = 6) -> dict[str, Tensor]:
    """What `agent` saw in some random dialogues."""
    ids = scenario.ids("train")[torch.arange(count) % scenario.num_train]
    players = {name: scenario.build_agent(name, i) for i, name in enumerate(scenario.protocol.agents)}
    rollout = play_rollout(BatchedPlay(scenario), players, ids, torch.arange(count), generator(0, "noise"))
    return own_rows(scenario, rollout, agent).obs


def learned(scenario: ImageClassification, agent: str, seed: int = 0) -> ImageAgent:
    made = scenario.build_agent(agent, seed)
    assert isinstance(made, ImageAgent)
    return made.eval()


@pytest.mark.parametrize(("size", "grid"), [((9, 7), (4, 3)), ((7, 5), (7, 1)), ((28, 30), (3, 7))])
def test_means_of_parts_are_of_the_pixels_that_the_part_is_drawn_on(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    x = torch.rand(2, 3, *size)
    drawn_HW = scaled_to(torch.arange(grid[0] * grid[1]).view(1, 1, *grid).float(), *size)[0, 0]
    means = torch.stack([x[:, :, drawn_HW == part].mean(2) for part in range(grid[0] * grid[1])], 2)
    assert torch.allclose(part_means(x, *grid), means.unflatten(2, grid), atol=1e-6)


@pytest.mark.parametrize("kind", ["conv2d", "residual_basic"])
def test_gradients_and_their_gradients_reach_every_parameter(kind: str) -> None:
    every = {agent: dict(building_block_type=kind) for agent in ("prover", "verifier")}
    scenario = image_scenario("nip", agents=every, **SPEECH)
    for agent in scenario.protocol.agents:
        network, obs = learned(scenario, agent), rows(scenario, agent)
        policy, value = network(obs)
        logs = policy.normalised()
        loss = (logs.message.square().mean() + logs.linear.square().mean() + value.square().mean()).log()
        loss = loss if logs.decision is None else loss + logs.decision.square().mean()
        parameters = [p for group in network.groups() for p in group.parameters]
        assert {id(p) for p in parameters} == {id(p) for p in network.parameters()}
        first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        names = {id(p): name for name, p in network.named_parameters()}
        unused = {names[id(p)].rpartition(".")[0] for p, g in zip(parameters, first, strict=True) if g is None}
        assert unused <= {"value_body.pixel_output"}
        second = torch.autograd.grad(
            sum((g.square().sum() for g in first if g is not None), torch.zeros(())), parameters, allow_unused=True
        )
        assert sum(g is not None for g in second) >= len(parameters) - 6
        assert all(torch.isfinite(g).all() for g in second if g is not None)


def test_the_value_head_is_initialised_like_the_others_unless_the_published_defect_is_asked_for() -> None:
    for legacy in (False, True):
        scenario = image_scenario("nip", agents={"verifier": dict(legacy_value_initialisation=legacy)})
        network = learned(scenario, "verifier", seed=3)
        biases = [
            layer.bias for layer in (*network.value_head, *network.pixel_selector) if isinstance(layer, nn.Linear)
        ]
        assert [bool(bias.eq(0).all()) for bias in biases] == [not legacy, not legacy, True, True]
        first = network.value_head[0]
        assert isinstance(first, nn.Linear)
        square = (
            first.weight @ first.weight.T if first.out_features < first.in_features else first.weight.T @ first.weight
        )
        assert torch.allclose(square, torch.eye(len(square)), atol=1e-5) == (not legacy)
        assert first.weight.requires_grad


def test_a_named_part_looks_the_same_in_every_round_where_history_is_shared() -> None:
    scenario = image_scenario("nip", agents={"prover": dict(history_initialisation="shared")})
    first = learned(scenario, "prover").policy_body.trunk[0]
    other = learned(scenario, "verifier").policy_body.trunk[0]
    count = scenario.seats["prover"].history_features
    assert isinstance(first, nn.Conv2d)
    assert isinstance(other, nn.Conv2d)
    assert bool((first.weight[:, :count] == first.weight[:, :1]).all())
    assert not bool((other.weight[:, :count] == other.weight[:, :1]).all())


def test_learning_rate_factors_go_to_the_parts_that_they_name() -> None:
    from nip_ray.settings.heads import LrFactors

    changes = dict(agent_lr_factor=LrFactors(0.5, 0.25), body_lr_factor=LrFactors(0.1, 2.0))
    network = learned(image_scenario("nip", agents={"verifier": changes}), "verifier")
    found = {(group.part, group.name): group.lr_factor for group in network.groups()}
    assert found == pytest.approx(
        {("actor", "body"): 0.05, ("critic", "body"): 0.5, ("actor", "heads"): 0.5, ("critic", "heads"): 0.25}
    )
