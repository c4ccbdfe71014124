"""A local language model: generation, fine-tuning, and a server that speaks the OpenAI protocol."""
