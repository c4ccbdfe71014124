"""What can go wrong between us and a provider, beyond the two exceptions of `nip_ray.errors`.

Decisions that matter here:
- an exception that ends a call may carry what its lost attempts can have cost, so that the records of calls need not guess: a call
  that was refused is known to be free, one that got no answer is not;
- exceptions have one argument, their message, so that they survive being sent between Ray workers.
"""

from typing import TypeVar

from nip_ray.errors import TrainingError
from nip_ray.text.costs.spending import Amount

Error = TypeVar("Error", bound=Exception)
_UNCERTAIN = "uncertain_amount"


class BudgetExhausted(TrainingError):
    """The next call or job could cost more than is left of `budget`. Nothing was sent for it."""


def with_uncertain(error: Error, uncertain: Amount) -> Error:
    """`error`, noting what attempts of its call that got no answer may have cost (nothing: the call is known to be free)."""
    setattr(error, _UNCERTAIN, uncertain)
    return error


def uncertain_of(error: BaseException) -> Amount | None:
    """What `with_uncertain` noted, None where nothing is known."""
    return getattr(error, _UNCERTAIN, None)
