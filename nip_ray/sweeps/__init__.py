"""Many runs of one experiment: search spaces in a config, trials scheduled by Ray Tune, and what they came to.

`spec` reads and checks a sweep file, `spaces` is what may stand in one, `records` and `summary` are what it ends with,
and `page` shows that as one HTML page. None of these needs Ray.
"""
