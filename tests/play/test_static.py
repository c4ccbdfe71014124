"""Play and PPO's update in fixed shapes: the same episodes and weights as otherwise, few kernels, and nothing that waits for a device."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.static import StaticPlay
from nip_ray.protocols import from_settings
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.scenarios.registry import build_agents, build_scenario
from nip_ray.seeding import generator

_PLAIN = {"num_gnn_layers": 3, "num_transformer_layers": 1, "use_batch_norm": False, "use_dual_gnn": False}
_GRAPHS = {"name": "graph_isomorphism", "kernels": "torch", "data": {"num_train": 40, "num_test": 20, "graph_sizes": [7, 9]}}
_STACKED = {**_GRAPHS, "shared_body": False, "agents": {"prover": _PLAIN, "verifier": {**_PLAIN, "num_gnn_layers": 2}}}
_NIP = {"name": "nip", "min_rounds": 3, "max_rounds": 8}
GAMES = {
    "message game": ({"name": "message_game"}, {"name": "message_game"}),
    "nip, stacked": (_NIP, _STACKED),
    "adp, stacked, shared bodies": ({"name": "adp"}, {**_GRAPHS, "agents": {"_default": {**_PLAIN, "num_transformer_layers": 2}}}),
    "adp, stacked, central critic": ({"name": "adp"}, {**_STACKED, "central_critic": True}),
    "debate, networks apart, two symbols": (
        {"name": "debate", "min_rounds": 3, "max_rounds": 6},
        {**_GRAPHS, "message_size": 2, "agents": {"_default": {**_PLAIN, "use_dual_gnn": True}}},
    ),
    "bisection, masks of the scenario's own": ({"name": "bisection"}, {"name": "state_tracking"}),
}


def experiment(game: str, **more: Any) -> Any:
    protocol, scenario = GAMES[game]
    return config_from_dict({"protocol": protocol, "scenario": scenario, "play": {"num_copies": 18}, **more})


class Refusing(TorchDispatchMode):
    """Counts kernels, and raises where something waits for the device or has shapes that depend on values."""

    count = 0
    _WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        assert not name.startswith(self._WAITS), f"{name} in fixed shapes"
        assert name != "lift_fresh" or args[0].dim() == 0, "numbers of Python's are taken to the device"
        if name.startswith("index"):
            indices = [x for x in args[1] if x is not None] if isinstance(args[1], list | tuple) else []
            assert not any(x.dtype in (torch.bool, torch.uint8) for x in indices), f"{name} by a mask"
        view = any(given.alias_info is not None and not given.alias_info.is_write for given in func._schema.returns)
        self.count += not view and not func._schema.name.startswith(
            ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::scalar_tensor", "profiler::")
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("game", "sampled"), [*((game, True) for game in GAMES), *((game, False) for game in GAMES if "stacked" not in game)]
)
def test_episodes_are_the_same(game: str, sampled: bool) -> None:
    """The likeliest actions not where networks are stacked: nodes that are alike are equally likely but for rounding."""
    config = experiment(game)
    scenario = build_scenario(from_settings(config.protocol), config.scenario)
    agents = {name: agent.eval() for name, agent in build_agents(scenario, config.scenario, 1).items()}
    play = BatchedPlay(scenario)
    given = instance_ids(scenario, "train", 1, 0, 18), episode_seeds(1, 0, 18)
    wanted = play_rollout(play, agents, *given, generator(1, "noise") if sampled else None, True)
    found = StaticPlay(play, agents, True)(*given, generator(1, "noise") if sampled else None)
    for name, one in vars(wanted).items():
        other = getattr(found, name)
        assert one is other or torch.allclose(one, other, rtol=0, atol=2e-6), name


PLAIN, UNLIKE = {"clip_gradients": "joint"}, {"critic_loss": "l2", "clip_value": 0.05, "loss": "kl_penalty", "skip_silent_messages": True}


@pytest.mark.parametrize(
    ("game", "rule"),
    [
        ("message game", UNLIKE),
        ("nip, stacked", PLAIN),
        ("adp, stacked, shared bodies", PLAIN),
        ("adp, stacked, central critic", PLAIN),
        ("nip, stacked", UNLIKE),
    ],
)
def test_weights_and_figures_are_the_same_after_ten_minibatches(game: str, rule: dict[str, Any]) -> None:
    """Of 22 copies in minibatches of four: the last has two more. The seed is one at which no ReLU stands at its kink but for rounding."""
    algorithm = {"name": "ppo", "lr": 3e-4, "minibatch_copies": 4, "num_epochs": 2, **rule}
    rows, weights = [], []
    for fixed in (False, True):
        made = build_algorithm(experiment(game, seed=1, algorithm=algorithm, play={"num_copies": 22}, runtime={"static_shapes": fixed}))
        try:
            made.train()
            rows.append({name: value for name, value in made.row.items() if not name.startswith("time/")})
            weights.append({f"{agent} {name}": x.clone() for agent, net in made.networks().items() for name, x in net.state_dict().items()})
        finally:
            made.stop()
    assert rows[0] == pytest.approx(rows[1], rel=1e-4, abs=2e-6)
    for name, one in weights[0].items():
        unseen = name.endswith("node_selector.2.bias")  # no output depends on it, so its gradient is rounding, which Adam makes large
        assert torch.allclose(one, weights[1][name], rtol=0, atol=1e-4 if unseen else 1e-6), name


@pytest.mark.parametrize("game", ["message game", "nip, stacked"])
def test_few_kernels_and_no_waiting(game: str) -> None:
    """At most 120 a round of play and 250 a gradient step. What an update prepares once is here over 45 steps (published setting: 80)."""
    config = experiment(game, algorithm={"name": "ppo", "minibatch_copies": 2, "num_epochs": 5})
    made = build_algorithm(config.model_copy(update={"runtime": type(config.runtime)(static_shapes=True)}))
    try:
        runner, learner = made.env_runner, made.learner_group._learner
        rollout = runner.sample(iteration=0)[0].rollout  # what is asked once, is asked
        learner.update(episodes=runner.sample(iteration=1), iteration=0)
        static = next(iter(learner.made.values()))
        order_EB = torch.stack([torch.randperm(18) for _ in range(5)])
        given = rollout.id_B, rollout.seed_B, runner._static[1]._uniform(generator(0, "noise"), 18)
        with Refusing() as playing:
            runner._static[1]._played(*given)
        with Refusing() as learning:
            static._learned(order_EB, torch.ones(2), *vars(rollout).values())
    finally:
        made.stop()
    assert playing.count <= 120 * 8
    assert learning.count <= 250 * 45


def test_a_stack_is_the_same_to_the_last_bit_wherever_its_tensors_lie() -> None:
    config = experiment("nip, stacked")
    scenario = build_scenario(from_settings(config.protocol), config.scenario)
    agents, found = build_agents(scenario, config.scenario, 1), []
    id_B, seed_B, kept = instance_ids(scenario, "train", 1, 0, 18), episode_seeds(1, 0, 18), []
    rollout = play_rollout(BatchedPlay(scenario), agents, id_B, seed_B, generator(1, "noise"))
    obs = {agent: scenario.observe(agent, id_B, rollout.dialogue, torch.full((18,), 3), seed_B) for agent in agents}
    for size in (1, 1009, 70001):
        kept.append([torch.empty(size * k) for k in range(1, 40)])  # the allocator gives others from now on
        stack = scenario.stacked(agents, True)
        outputs = [out for policy, value in stack(stack.inputs(obs, 1)).values() for out in (policy.message.softmax(-1), value)]
        gradients = torch.autograd.grad(sum(out.square().sum() for out in outputs), stack.stacks.parameters, allow_unused=True)
        found.append([*outputs, *(g for g in gradients if g is not None)])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"algorithm": {"name": "reinforce"}}, "reinforce learns in shapes that follow from what was played"),
        ({"learners": {"num_learners": 2}}, "with opponents from the past, or several learners"),
        ({"play": {"num_env_runners": 1, "max_staleness": 1}}, "play.max_staleness corrects turn by turn"),
        ({"protocol": {"name": "nip", "min_rounds": 1}}, "prover may have no turn before the verdict, raise protocol.min_rounds"),
        ({"protocol": {"name": "judge_panel"}, "scenario": _GRAPHS}, "is not one verifier's to decide"),
    ],
)
def test_where_fixed_shapes_cannot_be_had(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"runtime\.static_shapes: got true, but .*" + message):
        check(config_from_dict({"protocol": _NIP, "scenario": _STACKED, "runtime": {"static_shapes": True}, **parts}))


def test_batch_norms_are_refused_where_networks_are_made() -> None:
    agents = {"_default": {**_PLAIN, "use_batch_norm": True}}
    with pytest.raises(UserError, match=r"runtime\.static_shapes: batch norms would count turns that were not taken"):
        build_algorithm(config_from_dict({"protocol": _NIP, "scenario": {**_GRAPHS, "agents": agents}, "runtime": {"static_shapes": True}}))
