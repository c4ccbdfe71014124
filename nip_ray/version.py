"""The version of this package, in a file of its own, since runs record it."""

__version__ = "0.2.0"
