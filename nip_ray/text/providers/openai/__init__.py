"""The provider `openai`: any service that speaks the OpenAI protocol. Its client, its fine-tuning jobs, and what both share."""

from nip_ray.text.providers.openai.chat import OpenAIChat
from nip_ray.text.providers.openai.jobs import OpenAIJobs
from nip_ray.text.providers.registry import Provider

PROVIDER = Provider(
    chat=lambda given: OpenAIChat(given.settings, given.throttle, given.budget, max_in_flight=given.max_in_flight, seed=given.seed),
    fine_tuning=lambda given: OpenAIJobs(given.settings),
    books_itself=True,
)
