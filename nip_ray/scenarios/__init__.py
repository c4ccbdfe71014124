"""What the agents argue about, one folder a task: how instances are made or loaded, what an agent observes, what a
message is, and which networks (or prompts) play it. Imports torch and numpy, never ray."""
