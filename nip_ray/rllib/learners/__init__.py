"""The learners: joint minibatches that keep the agents in step, an explicit optimizer for each module and part, gradient clipping by
agent, and gradients that are averaged by hand across learners.
"""
