"""Which copies belong to which learner: half-open ranges, in the learners' order."""

from collections.abc import Sequence

from nip_ray.errors import UserError

Scope = tuple[int, int]


def resolve_scopes(num_copies: int, num_learners: int, sizes: Sequence[int] | None = None) -> tuple[Scope, ...]:
    """The range of copies of each learner. sizes: how many copies each has (None: equal shares, the remainder to the last).

    Raises UserError when there is no learner, more learners than copies, or when sizes do not fit.
    """
    if num_learners < 1:
        raise UserError("learners: got an empty list, expected at least one learner")
    if num_learners > num_copies:
        raise UserError(f"learners: got {num_learners} for {num_copies} copies, expected at most one learner a copy")
    if sizes is None:
        sizes = equal_shares(num_copies, num_learners)
    if len(sizes) != num_learners:
        raise UserError(f"scopes: got {len(sizes)} for {num_learners} learners, expected one for each")
    if any(type(size) is not int or size < 1 for size in sizes):
        raise UserError(f"scopes: got {list(sizes)}, expected integers >= 1")
    if sum(sizes) != num_copies:
        raise UserError(f"scopes: got {list(sizes)}, which is {sum(sizes)} copies, expected a sum of {num_copies}, as many as there are")
    stops = [sum(sizes[: i + 1]) for i in range(num_learners)]
    return tuple((stop - size, stop) for stop, size in zip(stops, sizes, strict=True))


def equal_shares(num_copies: int, num_learners: int) -> list[int]:
    """Equal numbers of copies, the remainder with the last: 10 among 3 are 3, 3, 4."""
    share = num_copies // num_learners
    return [share] * (num_learners - 1) + [num_copies - share * (num_learners - 1)]
