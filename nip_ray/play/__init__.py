"""Play: the batched core that plays B copies of a protocol as tensors, and the rows that agents learn from. Imports
torch only."""
