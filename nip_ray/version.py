"""The version of this package; a file of its own, since files of runs record it."""

__version__ = "0.2.0"
