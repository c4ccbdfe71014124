"""Loops for training and evaluation with an exact contract, over any Gymnasium vector environment and over our own
protocols: for one learner, or for several on scopes of the copies. Sequential, parallel (a process each), step by step,
or by hand.

    from nip_ray.drivers.loops import SequentialDriver
    from nip_ray.drivers.runner import run_runner
"""
