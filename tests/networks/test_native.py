"""Compiled kernels against torch's operations: outputs, gradients, gradients of gradients, and a whole training."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.networks import native
from nip_ray.networks.gin import Gin, run_gins
from nip_ray.networks.transformer import key_biases
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.scenarios.graph_isomorphism.network import GraphBody, Inputs, token_features
from nip_ray.settings.graph_isomorphism import GraphAgentSettings
from tests.builders import graph_scenario

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here"
)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def graphs(streams: int, count: int = 150, nodes: int = 9, features: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Random graphs; padding is not always behind the real nodes, and holds features that must not matter."""
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(count, nodes, 1, generator=random) < 0.8).float()
    mask[0] = 0  # a graph of padding alone
    upper = torch.triu((torch.rand(count, nodes, nodes, generator=random) < 0.4).float(), 1)
    adjacency = (upper + upper.mT) * mask * mask.mT
    return torch.randn(streams, count, nodes, features, generator=random), adjacency, mask


@needs_compiler
@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
@pytest.mark.parametrize(("count", "streams", "layers"), [(2, 1, 3), (1, 2, 1), (1, 1, 0)])
def test_graph_networks(activation: str, count: int, streams: int, layers: int) -> None:
    torch.manual_seed(1)
    networks = [Gin(5, 16, 32, layers, activation) for _ in range(count)]
    networks[0].encode.bias.requires_grad_(False)
    learned = [p for network in networks for p in network.parameters() if p.requires_grad]
    batch = graphs(streams)
    weight = torch.randn(count, streams, 150, 9, 16)
    expected = run_gins(networks, *batch)
    found = native.gins(networks, *batch)
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-5, rtol=1e-5)
    assert not (torch.stack(found) * (1 - batch[2])).any()
    losses = (torch.stack(found) * weight).sum(), (expected * weight).sum()
    gradients = [torch.autograd.grad(loss, learned, retain_graph=True) for loss in losses]
    for ours, torchs in zip(*gradients):
        torch.testing.assert_close(ours, torchs, atol=2e-4, rtol=1e-4)
    if layers:
        twice = []
        for loss in losses:
            (first,) = torch.autograd.grad(loss, [learned[0]], create_graph=True)
            twice.append(torch.autograd.grad(first.square().mean(), learned[:3]))
        for ours, torchs in zip(*twice):
            torch.testing.assert_close(ours, torchs, atol=1e-2, rtol=1e-3)
    with torch.no_grad():
        played = native.gins(networks, *batch)
    assert all(torch.equal(a, b) for a, b in zip(played, found))


def body(**changes: Any) -> tuple[GraphBody, Tensor, Inputs, Tensor]:
    """A body with random weights, outputs of a graph network, the rest of what it reads, and the graph that is asked
    for."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "num_transformer_layers": 1,
        "d_transformer": 32,
        "d_transformer_mlp": 48,
        "use_batch_norm": False,
    }
    settings = GraphAgentSettings(**{**sizes, "use_dual_gnn": False, "d_representation": 16, **changes})
    scenario = graph_scenario("nip")
    made = GraphBody(settings, scenario.seats["verifier"], compiled=True)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.2)
    nodes, latest = 7, made.token.in_features - 18
    mask = (torch.rand(70, 2, nodes) < 0.8).float()
    mask[:, :, 1] = 1
    h = torch.randn(1, 140, nodes, 16)  # junk at padding, as no graph network gives it
    said = torch.randn(70, 2, nodes, latest)
    inputs = Inputs(
        torch.zeros(70, 2, nodes, 1), said, token_features(said, None), False, mask, mask[..., None], *key_biases(mask)
    )
    return made, h.requires_grad_(), inputs, torch.randint(0, 2, (70,))


@needs_compiler
@pytest.mark.parametrize(
    "changes", [{}, {"num_transformer_layers": 3, "use_pair_invariant_pooling": False}], ids=["one", "three"]
)
@pytest.mark.parametrize(
    ("graphs_wanted", "nodes_wanted", "one_side"), [(True, True, False), (True, False, False), (False, True, True)]
)
def test_representations(changes: dict[str, Any], graphs_wanted: bool, nodes_wanted: bool, one_side: bool) -> None:
    made, h, inputs, side = body(**changes)
    wants = (graphs_wanted, nodes_wanted, side if one_side else None)
    real = inputs.node_mask_NGV1[torch.arange(70), side][:, None] if one_side else inputs.node_mask_NGV1
    learned = [h, *(p for name, p in made.named_parameters() if not name.startswith("gnn."))]
    outcomes = []
    for compiled in (True, False):
        made.compiled = compiled
        shown = made.represent(h * inputs.node_mask_NGV1.view(1, 140, -1, 1), inputs, *wants)
        shown = [part * real if i else part for i, part in enumerate(shown) if wants[i]]
        torch.manual_seed(4)
        loss = sum(((part * torch.randn_like(part)).sum() for part in shown), torch.zeros(()))
        first = torch.autograd.grad(loss, learned, retain_graph=True)
        again = torch.autograd.grad(loss, [h], create_graph=True)[0].square().mean()
        outcomes.append((shown, first, torch.autograd.grad(again, [h, made.output.weight])))
    for parts, tolerance in zip(zip(*outcomes), (2e-5, 1e-3, 1e-3)):
        for ours, torchs in zip(*parts):
            torch.testing.assert_close(ours, torchs, atol=tolerance, rtol=1e-3)


@needs_compiler
def test_numbers_do_not_depend_on_threads(threads: Callable[[int], None]) -> None:
    """To the last bit, as those of runs with remote env runners and learners must not."""
    torch.manual_seed(5)
    network, batch = Gin(5, 16, 16, 2, "tanh"), graphs(1)
    made, h, inputs, _ = body()
    found = []
    for count in (1, 2, 3):
        threads(count)
        values = [*native.gins([network], *batch), *made.represent(h, inputs, True, True)]
        learned = [
            *network.parameters(),
            *made.output.parameters(),
            *made.token.parameters(),
            *made.layers.parameters(),
        ]
        found.append([*values, *torch.autograd.grad(sum(value.square().sum() for value in values), learned)])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def run(kernels: str) -> Any:
    network = {
        "num_gnn_layers": 2,
        "num_transformer_layers": 1,
        "d_gin_mlp": 16,
        "d_transformer_mlp": 16,
        "use_dual_gnn": True,
        "use_batch_norm": False,
    }
    return config_from_dict(
        {
            "protocol": {"name": "nip", "max_rounds": 4},
            "scenario": {
                "name": "graph_isomorphism",
                "data": {"num_train": 40, "num_test": 12, "graph_sizes": [7, 8]},
                "agents": {"_default": network},
                "num_normalization_steps": 32,
                "kernels": kernels,
            },
            "algorithm": {"name": "ppo", "num_epochs": 5, "minibatch_size": 32, "lr": 3e-4},
            "play": {"num_copies": 16},
        }
    )


def weights_of(algorithm: Any) -> dict[tuple[str, str], Tensor]:
    return {
        (a, name): value.clone()
        for a, network in algorithm.networks().items()
        for name, value in network.state_dict().items()
    }


@needs_compiler
def test_training_finds_the_same_weights() -> None:
    """After ten minibatches, to 1e-6."""
    weights = []
    for kernels in ("torch", "native"):
        algorithm = build_algorithm(run(kernels))
        weights.append(weights_of(algorithm))
        algorithm.train()
        weights.append(weights_of(algorithm))
    start, torchs, same_start, ours = weights
    assert all(torch.equal(start[key], same_start[key]) for key in start)
    free = "node_selector.2.bias"  # a number added to all logits: its gradient is rounding alone, which Adam scales up
    far = {key: float((ours[key] - torchs[key]).abs().max()) for key in ours if key[1] != free}
    assert max(far.values()) < 1e-6
    assert max(float((ours[key] - start[key]).abs().max()) for key in ours) > 1e-4


@pytest.mark.parametrize("fault", ["none", "/bin/false", "/no/such/compiler", "/bin/true -O3"])
def test_without_a_compiler(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` means torch's, `native` says what is missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if fault == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", fault)
    native._library.cache_clear()
    try:
        assert not native.wanted("auto", {})
        with pytest.raises(UserError, match=r"scenario\.kernels: .*set it to torch"):
            native.wanted("native", {})
    finally:
        native._library.cache_clear()
    assert not native.wanted("torch", {})


def test_widths_that_do_not_fit() -> None:
    odd = {
        "prover": GraphAgentSettings(d_gnn=12),
        "verifier": GraphAgentSettings(),
        "random": GraphAgentSettings(kind="random", d_gnn=3),
    }
    with pytest.raises(
        UserError, match=r"scenario\.kernels: got native, .*d_gnn.* the networks of prover have others, set it to auto"
    ):
        native.wanted("native", odd)
    native.wanted("auto", odd)
