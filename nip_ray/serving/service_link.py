"""The one door to a service with the low-level training protocol: the library `tinker`, 0.30 and later, and one client of it.

Decisions that matter here:
- the library is imported when first needed; tests put something with the same names in its place;
- what fails is told without the library's own text: nobody promises that it holds no key.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from nip_ray.errors import TrainingError, UserError, require
from nip_ray.secrets import secret
from nip_ray.settings.providers import TrainingServiceProvider

ADDRESS = "tinker://"
"""How the address of saved weights begins."""
_NOT_ALLOWED = ("AuthenticationError", "PermissionDeniedError", "BillingError")


class ServiceLink:
    """The library, and one client of the service. library: what has `ServiceClient`, `RestClient` and `types` (none: `tinker`).

    Raises UserError for a missing library or key.
    """

    def __init__(self, provider: TrainingServiceProvider, library: Any = None) -> None:
        self.provider = provider
        self._library = library if library is not None else require("tinker", "training-service")
        self._secret = secret(provider.api_key_variable, "the training service")
        self._service: Any = None

    @property
    def types(self) -> Any:
        """The library's types of requests."""
        return self._library.types

    def service(self) -> Any:
        """The client, made when first asked for."""
        if self._service is None:
            self._service = self._library.ServiceClient(base_url=self.provider.base_url, api_key=self._secret)
        return self._service

    def rest(self) -> Any:
        """A client for questions, which begins no session."""
        return self._library.RestClient(base_url=self.provider.base_url, api_key=self._secret)

    async def check_model(self, model: str) -> None:
        """Raise UserError where the service has no such base model."""
        _find(await self.call(self.rest().get_server_capabilities()), model)

    def base_model(self, model: str) -> Any:
        """What the service says of a base model. Raises UserError where it has none of that name."""
        return _find(self.result(self.rest().get_server_capabilities()), model)

    async def call(self, future: Awaitable[Any]) -> Any:
        """The result of a request. The library repeats what may be repeated by itself."""
        try:
            return await future
        except Exception as error:
            raise self.told(error) from None

    def result(self, future: Any) -> Any:
        """The same for callers without an event loop."""
        try:
            return future.result()
        except Exception as error:
            raise self.told(error) from None

    def made(self, create: Any, *given: Any, **named: Any) -> Any:
        """The result of a request that is sent here, by a function that may itself fail."""
        try:
            return create(*given, **named).result()
        except Exception as error:
            raise self.told(error) from None

    def told(self, error: BaseException) -> Exception:
        """What a failure is to us."""
        if isinstance(error, UserError | TrainingError):
            return error
        if type(error).__name__ in _NOT_ALLOWED:
            return UserError(f"the training service refuses the key in ${self.provider.api_key_variable} ({type(error).__name__})")
        if type(error).__name__ == "NotFoundError":
            return UserError("the training service has no such model or saved weights (NotFoundError); they may have been deleted there")
        return TrainingError(f"the training service failed ({type(error).__name__}); when it works again, resume the run")

    async def close(self) -> None:
        """End the session."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """The same for callers without an event loop."""
        service, self._service = self._service, None
        if service is not None:
            service.close("success").result()


async def made(create: Any, *given: Any, **named: Any) -> Any:
    """A client of the library. Asking for it may block, which a thread does; what comes back is awaited."""
    return await (await asyncio.to_thread(create, *given, **named))


def _find(capabilities: Any, model: str) -> Any:
    known = {entry.model_name: entry for entry in capabilities.supported_models if entry.model_name}
    if model not in known:
        raise UserError(f"the training service has no model {model!r}; it has {', '.join(sorted(known)[:8]) or 'none'}")
    return known[model]
