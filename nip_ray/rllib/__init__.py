"""The RLlib side, the only package that imports ray.rllib: a multi-agent environment and a batched environment runner
over the batched core, rollouts, connectors, modules, learners and algorithms."""
