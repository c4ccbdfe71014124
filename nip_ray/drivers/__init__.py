"""Loops for training and evaluation with an exact contract, over any Gymnasium vector environment and our own
protocols, for one learner or several on scopes of the copies: sequential, parallel (a process each), step by step, or
manual.

    from nip_ray.drivers.loops import SequentialDriver
    from nip_ray.drivers.runner import run_runner
"""
