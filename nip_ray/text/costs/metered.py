"""`MeteredChat`: a client that costs nothing, counted all the same, so that `budget.tokens` holds for it and `cost.json` knows of it."""

from nip_ray.text.costs.budget import Purse
from nip_ray.text.costs.prices import worst_prompt_tokens
from nip_ray.text.costs.spending import Amount, Spending
from nip_ray.text.providers.chat import ChatClient, ChatReply, ChatRequest


class MeteredChat:
    """Wraps a client whose replies are free."""

    def __init__(self, client: ChatClient, purse: Purse) -> None:
        """purse: where tokens are set aside before a call, and booked after it."""
        self._client, self._purse = client, purse

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        reserved = await self._purse.reserve(Amount(0, worst_prompt_tokens(request.messages) + request.max_tokens))
        try:
            reply = await self._client.complete(request)
        except BaseException:
            reserved.release()
            raise
        reserved.settle(Spending.of_reply(request.model, reply))
        return reply

    async def close(self) -> None:
        """See `ChatClient.close`."""
        await self._client.close()
