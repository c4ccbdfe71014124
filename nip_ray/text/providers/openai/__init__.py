"""The provider `openai`: any service that speaks the OpenAI protocol."""
