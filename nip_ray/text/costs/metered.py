"""`MeteredChat`: a client with its calls counted, priced and limited, so that the client itself knows nothing of money.

Decisions that matter here:
- what a call can cost at most is set aside before it, and what it cost is booked after it;
- a call that failed may have been billed, unless calls are free or the failure is the user's to mend (UserError): its worst case is booked
  as uncertain. A client that repeats attempts which may have been billed has to book each itself, as `OpenAIChat` does.
"""

from dataclasses import replace

from nip_ray.errors import UserError
from nip_ray.text.costs.budget import BudgetLike, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    Amount,
    PriceList,
    Spending,
    call_cost,
    estimated_prompt_tokens,
    with_uncertain,
    worst_call_cost,
    worst_prompt_tokens,
)
from nip_ray.text.providers.interface import ChatClient, ChatReply, ChatRequest


class MeteredChat:
    """Wraps a client. `cost_pusd` of its replies is filled in by the prices."""

    def __init__(self, client: ChatClient, budget: BudgetLike, prices: PriceList, throttle: Throttle | None = None) -> None:
        """budget: what calls are paid from. throttle: what they wait for (none: nothing)."""
        self._client, self._budget, self._prices, self._throttle = client, budget, prices, throttle

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Raises BudgetExhausted before a call that could cost more than is left."""
        price, prompt = self._prices.of(request.model), worst_prompt_tokens(request.messages)
        worst = Amount(worst_call_cost(price, prompt, request.max_tokens), prompt + request.max_tokens)
        estimate = estimated_prompt_tokens(request.messages) + request.max_tokens
        reserved, sent = await self._budget.reserve(worst), False
        try:
            if self._throttle is not None:
                await self._throttle.acquire(estimate)
            sent = True
            reply = await self._client.complete(request)
        except UserError as error:
            reserved.release()
            raise with_uncertain(error, NOTHING) from None
        except BaseException:
            reserved.lose() if sent and worst.pusd else reserved.release()
            raise
        reply = replace(reply, cost_pusd=call_cost(price, reply.prompt_tokens, reply.completion_tokens))
        if self._throttle is not None:
            self._throttle.correct(estimate, reply.prompt_tokens + reply.completion_tokens)
        reserved.settle(Spending.of_reply(request.model, reply))
        return reply

    async def close(self) -> None:
        """See `ChatClient.close`."""
        await self._client.close()
