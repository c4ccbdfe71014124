"""What we use of TRL that is not public: here alone, each name with the version in which it was read."""

from typing import Any

PRIVATE = {"trl.DPOTrainer._prepare_dataset": "1.16.0"}
"""Held by tests/test_private_names.py."""


def preference_trainer(base: type) -> type:
    """`trl.DPOTrainer` for rows that are tokens already. The supervised trainer takes such rows by itself."""

    class PreferenceTrainer(base):
        """DPO over tokens."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    return PreferenceTrainer
