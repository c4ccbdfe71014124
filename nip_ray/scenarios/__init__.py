"""Tasks, one folder each: making or loading instances, observations, messages, and the networks (or prompts) that play.
Imports torch and numpy, never ray."""
