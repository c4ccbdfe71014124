"""The one exception that means "the user can mend this": its message names what was wrong, where, and what would be right."""


class UserError(Exception):
    """A mistake in a config, a file or a command line, or several, an argument each. The command line prints them on one line and exits
    with code 2.
    """

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class TrainingError(Exception):
    """Training itself went wrong (a NaN, a lost learner). What was saved before stays valid; the command line exits with 1."""


class LearnerLost(TrainingError):
    """A learner's process or node is gone. Training can continue from the newest checkpoint, with learners made again."""
