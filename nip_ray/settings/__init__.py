"""Every setting of the core rooms, as frozen standard dataclasses: names, types, defaults, bounds, one line each.
Standard library only.

They stand apart from the code that reads them so that a config can be checked, and refused, without loading torch.
"""
