"""The tensor side of Ray, and the only room of it that imports ray.rllib: the two doors to the batched core (a
multi-agent environment and a batched environment runner), the rollout that travels between them and the learners,
connectors, modules, learners and algorithms."""
