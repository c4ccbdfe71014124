"""The generator of the built-in problems of code validation; `scripts/create_cv_dataset.py` runs it."""
