"""From settings to graphs: what was read is kept, until its file is changed."""

from pathlib import Path

import torch

from nip_ray.scenarios.graph_isomorphism.build import graph_data
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs, pair_keys
from nip_ray.settings.graph_isomorphism import GraphDataSettings

SMALL = GeneratorSettings(graph_sizes=(7,))


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.npz" for name in ("train", "test")]
    settings = GraphDataSettings(train=str(paths[0]), test=str(paths[1]))
    for seed in (0, 2):
        made = [generate_pairs(8, seed + place, SMALL) for place in range(2)]
        for pairs, path in zip(made, paths, strict=True):
            save_pairs(pairs, path)
        found = graph_data(settings)
        assert all(torch.equal(a.adjacency_P2nn, b.adjacency_P2nn) for a, b in zip(found, made, strict=True))
        assert graph_data(settings)[0] is found[0]


def test_made_held_out_pairs_are_none_of_a_training_file(tmp_path: Path) -> None:
    save_pairs(generate_pairs(400, 5, SMALL), tmp_path / "train.npz")
    train, test = graph_data(GraphDataSettings(train=str(tmp_path / "train.npz"), num_test=100, graph_sizes=(7,)))
    assert len(test) == 100
    assert not {*pair_keys(train).tolist()} & {*pair_keys(test).tolist()}
