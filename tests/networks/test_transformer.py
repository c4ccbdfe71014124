"""The pair transformer against torch's encoder layer under the full mask over all 2 + 2 V tokens."""

import pytest
import torch
from torch import Tensor, nn

from nip_ray.networks.transformer import PairTransformerLayer, key_biases

D, HEADS, D_MLP = 8, 2, 12
SIZES = ((6, 6), (4, 5), (1, 1), (3, 6), (2, 1))


def twins(seed: int = 0) -> tuple[PairTransformerLayer, nn.TransformerEncoderLayer]:
    """Both kinds of layer with the same random weights."""
    torch.manual_seed(seed)
    ours = PairTransformerLayer(D, HEADS, D_MLP, 0.0)
    theirs = nn.TransformerEncoderLayer(
        D, HEADS, D_MLP, dropout=0.0, activation="relu", batch_first=True, norm_first=False
    )
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    weights = {
        ("self_attn." if name.startswith(("in_proj", "out_proj")) else "") + name: w
        for name, w in ours.state_dict().items()
    }
    theirs.load_state_dict(weights)
    return ours, theirs


def tokens(num_nodes: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled tokens, node tokens (junk at padding) and the mask of real nodes."""
    random = torch.Generator().manual_seed(seed)
    pooled = torch.randn(len(SIZES), 2, D, generator=random)
    nodes = torch.randn(len(SIZES), 2, num_nodes, D, generator=random)
    mask = torch.arange(num_nodes) < torch.tensor(SIZES)[..., None]
    return pooled, nodes, mask


def joined(pooled: Tensor, nodes: Tensor) -> Tensor:
    return torch.cat([pooled, nodes.flatten(1, 2)], 1)


def full_mask(mask_NGV: Tensor) -> Tensor:
    """(N, T, T) bool over [pooled, nodes of graph 0, nodes of graph 1]: True where a query must not attend to a key."""
    count, _, size = mask_NGV.shape
    blocked = torch.zeros(count, 2 + 2 * size, 2 + 2 * size, dtype=torch.bool)
    for n in range(count):
        for query in range(2 + 2 * size):
            for key in range(2, 2 + 2 * size):
                graph, node = divmod(key - 2, size)
                own = query >= 2 and (query - 2) // size == graph
                blocked[n, query, key] = own or not mask_NGV[n, graph, node]
    return blocked


def reference(
    layers: list[nn.TransformerEncoderLayer], pooled: Tensor, nodes: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    x = joined(pooled, nodes)
    blocked = full_mask(mask).repeat_interleave(HEADS, 0)
    for layer in layers:
        x = layer(x, src_mask=blocked)
    return x[:, :2], x[:, 2:].view(nodes.shape)


@pytest.mark.parametrize("num_nodes", [6, 7, 14, 20])
@pytest.mark.parametrize(("want_pooled", "want_nodes"), [(True, True), (True, False), (False, True)])
def test_against_torch(num_nodes: int, want_pooled: bool, want_nodes: bool) -> None:
    ours, theirs = twins()
    pooled, nodes, mask = tokens(num_nodes)
    found = ours(joined(pooled, nodes), *key_biases(mask), want_pooled, want_nodes)
    expected_pooled, expected_nodes = reference([theirs], pooled, nodes, mask)
    found_pooled, found_nodes = found.split([2 * want_pooled, found.shape[1] - 2 * want_pooled], 1)
    if want_pooled:
        torch.testing.assert_close(found_pooled, expected_pooled, atol=1e-5, rtol=1e-5)
    if want_nodes:
        found_nodes = found_nodes.view(nodes.shape)
        torch.testing.assert_close(found_nodes[mask], expected_nodes[mask], atol=1e-5, rtol=1e-5)
    else:
        assert found_nodes.numel() == 0


def test_nodes_of_one_side() -> None:
    """In each row those of the graph that is asked for, as where both are."""
    ours, _ = twins()
    pooled, nodes, mask = tokens(6)
    biases, side_N = key_biases(mask), torch.tensor([0, 1, 1, 0, 1])
    both = ours(joined(pooled, nodes), *biases, False, True).view(nodes.shape)
    one = ours(joined(pooled, nodes), *biases, False, True, side_N)
    torch.testing.assert_close(one, both[torch.arange(len(SIZES)), side_N])


def test_two_layers_with_gradients() -> None:
    """Only the last layer leaves something out; gradients of what is kept agree too."""
    pairs = [twins(seed) for seed in (0, 3)]
    pooled, nodes, mask = tokens(7)
    pooled, nodes = pooled.requires_grad_(), nodes.requires_grad_()
    biases = key_biases(mask)
    found = pairs[1][0](pairs[0][0](joined(pooled, nodes), *biases), *biases, True, False)
    expected, _ = reference([theirs for _, theirs in pairs], pooled, nodes, mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad(
        (found * weight).sum(), [pooled, nodes, pairs[0][0].in_proj_weight, pairs[1][0].linear1.weight]
    )
    theirs = [layer for _, layer in pairs]
    wanted = [pooled, nodes, theirs[0].self_attn.in_proj_weight, theirs[1].linear1.weight]
    for a, b in zip(ours, torch.autograd.grad((expected * weight).sum(), wanted)):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert not ours[1][~mask].any()  # padding has no influence at all


def test_dropout_only_in_training() -> None:
    torch.manual_seed(0)
    layer = PairTransformerLayer(D, HEADS, D_MLP, 0.5)
    pooled, nodes, mask = tokens(6)
    arguments = (joined(pooled, nodes), *key_biases(mask))
    assert not torch.equal(layer(*arguments), layer(*arguments))
    layer.eval()
    assert torch.equal(layer(*arguments), layer(*arguments))
