"""Networks of players: what they see, what their layers are, whom their parameters belong to."""

import pytest
import torch
from torch import Tensor, nn

from nip_ray.scenarios.hironaka.network import FORBIDDEN, Block, HironakaAgent, relative, stack
from nip_ray.settings.heads import LrFactors
from nip_ray.settings.hironaka import HironakaAgentSettings, HironakaLayer


def points_of(games: int = 20, rows: int = 8, used: int = 5) -> Tensor:
    points = torch.randint(0, 20, (games, rows, 3), generator=torch.Generator().manual_seed(1)).float()
    points[:, used:] = -1
    return points


def obs_of(points: Tensor, agent: bool) -> dict[str, Tensor]:
    games = len(points)
    choice = torch.tensor([1.0, 0.0, 1.0]).expand(games, 3)
    legal = torch.tensor([True, False, True, False]) if agent else torch.ones(4, dtype=torch.bool)
    obs = {"points": points, "legal": legal.expand(games, 4), "speaks": torch.ones(games, 1, dtype=torch.bool)}
    return {**obs, "choice": choice} if agent else obs


def network(agent: bool = False, **settings: object) -> HironakaAgent:
    torch.manual_seed(0)
    own = HironakaAgentSettings(**settings)  # pyright: ignore[reportArgumentType]
    return HironakaAgent(own, 8, 3, 3 if agent else 4, 4, agent).eval()


@pytest.mark.parametrize("view", ["scaled", "relative"])
@pytest.mark.parametrize("encoder", ["flat", "set"])
@pytest.mark.parametrize("agent", [False, True])
def test_every_kind_gives_a_policy_with_no_weight_on_illegal_moves_and_a_value(
    view: str, encoder: str, agent: bool
) -> None:
    obs = obs_of(points_of(), agent)
    with torch.no_grad():
        policy, value = network(agent, view=view, encoder=encoder)(obs)
    assert policy.message.shape == (20, 1, 4)
    assert value.shape == (20,)
    assert bool((policy.message[:, 0][~obs["legal"]] == FORBIDDEN).all())
    assert bool((policy.message[:, 0][obs["legal"]].abs() < 100).all())
    assert float(torch.softmax(policy.message[:, 0], -1)[~obs["legal"]].sum()) == 0


def test_a_set_encoder_cares_neither_for_order_nor_for_padding() -> None:
    host, points = network(), points_of()
    shuffled = points[:, [3, 1, 4, 0, 2, 5, 6, 7]]
    for other in (shuffled, points[:, :5]):
        torch.testing.assert_close(host(obs_of(points, False))[0].message, host(obs_of(other, False))[0].message)


def test_a_relative_view_does_not_change_when_all_points_are_moved_or_scaled() -> None:
    points = points_of()
    live = points[..., :1] >= 0
    same = torch.where(live, points * 8 + torch.tensor([100.0, 3.0, 0.0]), -1.0)
    for one, other in zip(relative(points, live), relative(same, live), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_one_point_alone_gives_finite_numbers_and_gradients() -> None:
    points = torch.full((2, 8, 3), -1.0)
    points[:, 0] = torch.tensor([0.0, 0.0, 0.0])
    made = network()
    policy, value = made(obs_of(points, False))
    (policy.message[:, 0].sum() + value.sum()).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in made.parameters() if p.grad is not None)


def test_layers_are_what_the_settings_say() -> None:
    layers = (
        HironakaLayer(128, norm="batch"),
        HironakaLayer(256, norm="batch", repeat=20),
        HironakaLayer(128, norm="batch"),
    )
    made, width = stack(60, layers)
    assert width == 128
    assert [sum(isinstance(m, kind) for m in made) for kind in (nn.Linear, nn.BatchNorm1d, nn.ReLU)] == [22] * 3
    residual, _ = stack(60, (HironakaLayer(32, kind="residual", norm="layer", repeat=2),))
    blocks = [m for m in residual if isinstance(m, Block)]
    assert [isinstance(block.around, nn.Identity) for block in blocks] == [False, True]
    assert sum(isinstance(m, nn.LayerNorm) for m in residual.modules()) == 5
    assert stack(60, ())[1] == 60
    assert [m.out_features for m in network(width=24, depth=3).policy_body.layers if isinstance(m, nn.Linear)] == [
        24
    ] * 3
    assert len(network(depth=0).policy_body.layers) == 0


@pytest.mark.parametrize("shared", [True, False])
def test_parameters_belong_to_actor_and_critic_each_once(shared: bool) -> None:
    made = network(shared_body=shared, agent_lr_factor=LrFactors(0.5, 0.5 if shared else 0.25))
    groups = {group.part: group for group in made.groups()}
    owned = [id(p) for group in groups.values() for p in group.parameters]
    assert len(owned) == len(set(owned))
    assert set(owned) == {id(p) for p in made.parameters()}
    _, value = made(obs_of(points_of(), False), False, True)
    value.sum().backward()
    reached = any(p.grad is not None and bool(p.grad.any()) for p in made.policy_body.parameters())
    assert reached == shared
    assert groups["actor"].lr_factor == 0.5
