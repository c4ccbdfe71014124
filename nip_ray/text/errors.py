"""What can go wrong between us and a provider, beyond the two exceptions of `nip_ray.errors`; and the import of optional libraries.

Decisions that matter here:
- an exception that ends a call may carry what its lost attempts can have cost, so that the records of calls need not guess: a call
  that was refused is known to be free, one that got no answer is not;
- exceptions have one argument, their message, so that they survive being sent between Ray workers.
"""

import importlib
from types import ModuleType
from typing import TypeVar

from nip_ray.errors import TrainingError, UserError
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


def require(module: str, extra: str) -> ModuleType:
    """The optional library `module`. Raises UserError that tells how to install it when it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the library is there and lacks one of its own
        raise UserError(f"this needs the package {module}: pip install 'nip_ray[{extra}]'") from None
