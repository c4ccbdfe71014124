"""All uses of non-public names of transformers, TRL and Ray Serve, each with the version in which it was read."""

from typing import Any

PRIVATE = {
    "transformers.PretrainedConfig._attn_implementation": "5.24.0",
    "trl.DPOTrainer._prepare_dataset": "1.16.0",
    "ray.serve._private.replica.add_port_to_grpc_server": "2.60.0",
}
"""Held by tests/test_private_names.py."""


def adds_masks(config: Any) -> bool:
    """Return True if a model of this `config` adds its attention mask to the scores ("eager"), as 0 and the least
    number; all other implementations take True and False."""
    return config._attn_implementation == "eager"


def replica_on_loopback() -> None:
    """Called in a replica before it starts: its server for other deployments then listens on the loopback, like its
    node, and not on every address of the machine."""
    import ray
    from ray.serve._private import replica

    if ray.util.get_node_ip_address() == "127.0.0.1":
        add = replica.add_port_to_grpc_server
        replica.add_port_to_grpc_server = lambda server, address: add(server, address.replace("[::]", "127.0.0.1"))


def preference_trainer(base: type) -> type:
    """`trl.DPOTrainer` for tokenized rows. The supervised trainer accepts such rows itself."""

    class PreferenceTrainer(base):
        """DPO over tokens."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    return PreferenceTrainer
