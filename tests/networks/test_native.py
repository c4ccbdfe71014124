"""Compiled kernels against torch's operations: outputs, gradients, gradients of gradients, and a whole training."""

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
from nip_ray.networks.transformer import PairTransformerLayer, key_biases
from nip_ray.rllib.cluster import build_algorithm

needs_compiler = pytest.mark.skipif(not native.wanted("auto"), reason="no C++ compiler here")


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


def pairs(num_nodes: int, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pooled tokens, nodes, a mask, and the graph that is asked for."""
    random = torch.Generator().manual_seed(2)
    mask = torch.rand(70, 2, num_nodes, generator=random) < 0.8
    mask[:, :, 1] = True
    pooled, nodes = torch.randn(70, 2, d, generator=random), torch.randn(70, 2, num_nodes, d, generator=random)
    return pooled.requires_grad_(), nodes.requires_grad_(), mask.float(), torch.randint(0, 2, (70,), generator=random)


@needs_compiler
@pytest.mark.parametrize("num_nodes", [7, 19])
@pytest.mark.parametrize(("want_pooled", "want_nodes", "one_side"), [(True, True, False), (True, False, False), (False, True, True)])
def test_pair_attention(num_nodes: int, want_pooled: bool, want_nodes: bool, one_side: bool) -> None:
    torch.manual_seed(3)
    layer = PairTransformerLayer(32, 4, 48, 0.0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.2)
    pooled, nodes, mask, side = pairs(num_nodes, 32)
    wants = (want_pooled, want_nodes, side if one_side else None)
    biases = key_biases(mask)
    found = native.pair_layer(layer, pooled, nodes, *biases, mask[..., None], *wants)
    expected = layer(pooled, nodes, *biases, *wants)
    real = mask[torch.arange(70), side][:, None] if one_side else mask
    shown = [(a, b) if i == 0 else (a * real[..., None], b * real[..., None]) for i, (a, b) in enumerate(zip(found, expected)) if wants[i]]
    learned = [pooled, nodes, *layer.parameters()]
    torch.manual_seed(4)
    weights = [torch.randn_like(b) for _, b in shown]
    losses = [sum(((pair[k] * weight).sum() for pair, weight in zip(shown, weights)), torch.zeros(())) for k in (0, 1)]
    for ours, torchs in shown:
        torch.testing.assert_close(ours, torchs, atol=2e-5, rtol=1e-4)
    for ours, torchs in zip(*(torch.autograd.grad(loss, learned, retain_graph=True) for loss in losses)):
        torch.testing.assert_close(ours, torchs, atol=1e-3, rtol=1e-3)
    twice = []
    for loss in losses:
        (first,) = torch.autograd.grad(loss, [nodes], create_graph=True)
        twice.append(torch.autograd.grad(first.square().mean(), [nodes, layer.linear1.weight]))
    for ours, torchs in zip(*twice):
        torch.testing.assert_close(ours, torchs, atol=1e-3, rtol=1e-2)


@needs_compiler
def test_numbers_do_not_depend_on_threads(threads: Callable[[int], None]) -> None:
    """To the last bit, as those of runs with remote env runners and learners must not."""
    torch.manual_seed(5)
    network, batch = Gin(5, 16, 16, 2, "tanh"), graphs(1)
    layer, (pooled, nodes, mask, _) = PairTransformerLayer(16, 4, 16, 0.0), pairs(9, 16)
    found = []
    for count in (1, 2, 3):
        threads(count)
        (out,) = native.gins([network], *batch)
        both = native.pair_layer(layer, pooled, nodes, *key_biases(mask), mask[..., None], True, True)
        values = [out, *both]
        found.append([*values, *torch.autograd.grad(sum(v.square().sum() for v in values), [*network.parameters(), *layer.parameters()])])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def run(kernels: str, **changes: Any) -> dict[str, Any]:
    network = {"num_gnn_layers": 2, "num_transformer_layers": 1, "d_gin_mlp": 16, "d_transformer_mlp": 16, "use_dual_gnn": True}
    return config_from_dict(
        {
            "protocol": {"name": "nip", "max_rounds": 4},
            "scenario": {
                "name": "graph_isomorphism",
                "data": {"num_train": 40, "num_test": 12, "graph_sizes": [7, 8]},
                "agents": {"_default": {**network, **changes}},
                "num_normalization_steps": 32,
                "kernels": kernels,
            },
            "algorithm": {"name": "ppo", "num_epochs": 5, "minibatch_size": 32, "lr": 3e-4},
            "play": {"num_copies": 16},
        }
    )


@needs_compiler
def test_training_finds_the_same_weights() -> None:
    """After ten minibatches, to 1e-6."""
    weights = []
    for kernels in ("torch", "native"):
        algorithm = build_algorithm(run(kernels))
        networks = algorithm.networks()
        weights.append({(a, name): value.clone() for a, network in networks.items() for name, value in network.state_dict().items()})
        algorithm.train()
        weights.append(
            {(a, name): value.clone() for a, network in algorithm.networks().items() for name, value in network.state_dict().items()}
        )
    start, torchs, same_start, ours = weights
    assert all(torch.equal(start[key], same_start[key]) for key in start)
    far = {key: float((ours[key] - torchs[key]).abs().max()) for key in ours}
    assert max(far.values()) < 1e-6
    assert max(float((ours[key] - start[key]).abs().max()) for key in ours) > 1e-4


@pytest.mark.parametrize("fault", ["none", "broken"])
def test_without_a_compiler(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` means torch's, `native` says what is missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if fault == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", "/bin/false")
    native._library.cache_clear()
    try:
        assert not native.wanted("auto")
        with pytest.raises(UserError, match=r"scenario\.kernels: .*set it to torch"):
            native.wanted("native")
    finally:
        native._library.cache_clear()
    assert not native.wanted("torch")
