"""A local language model: generation, fine-tuning, and a server with the OpenAI protocol."""
