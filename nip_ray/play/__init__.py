"""Play: the batched core that plays B copies of a protocol as tensors, and rows for learning. Imports torch only."""
