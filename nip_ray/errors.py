"""The one exception that means "the user can mend this": its message names what was wrong, where, and what would be right."""


class UserError(Exception):
    """A mistake in a config, a file or a command line. The command line prints it on one line and exits with code 2."""


class TrainingError(Exception):
    """Training itself went wrong (a NaN, a lost learner). What was saved before stays valid; the command line exits with 1."""


class LearnerLost(TrainingError):
    """A learner's process or node is gone. Training can go on from the newest checkpoint, with learners made anew."""
