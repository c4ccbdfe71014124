"""Sweeps over one experiment: search spaces in a config, trials scheduled by Ray Tune, and their results.

`spec` reads and checks a sweep file, `spaces` defines its search spaces, `summary` has its results, and `page` shows
them as one HTML page. None of these needs Ray.
"""
