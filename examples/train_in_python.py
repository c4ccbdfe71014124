"""An experiment without the command line: python examples/train_in_python.py [RUN_DIR]."""

import sys

from nip_ray import ExperimentConfig, run_experiment

CONFIG = {
    "name": "in-python",
    "iterations": 10,
    "protocol": {"name": "nip", "min_rounds": 3, "max_rounds": 3},
    "scenario": {
        "name": "graph_isomorphism",
        "data": {"num_train": 200, "num_test": 50, "graph_sizes": [7]},
        "agents": {
            "_default": {"num_transformer_layers": 1},
            "verifier": {"num_gnn_layers": 2, "num_transformer_layers": 1},
        },
    },
    "algorithm": {"name": "ppo", "lr": 1e-3, "minibatch_size": 96},
    "play": {"num_copies": 64},
    "evaluation": {"interval": 5},
}


def main(run_dir: str | None = None) -> None:
    """Train, then print the results. Every key of a config can be given; see docs/configuration.md."""
    result = run_experiment(ExperimentConfig.model_validate(CONFIG), run_dir)
    print(
        f"accuracy on held-out pairs after {result.iterations} iterations:"
        f" {result.metrics['eval/verifier/accuracy']:.2f}"
    )
    print(f"everything is in {result.run_dir}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
