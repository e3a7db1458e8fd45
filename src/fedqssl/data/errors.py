"""What is raised about data that cannot be used; nothing heavy is imported here."""


class DataError(ValueError):
    """A data set that cannot be used; the message is one line and names the file and what to do."""


class DataWarning(UserWarning):
    """Something in a data set was skipped, as configured; the message names it."""


__all__ = ["DataError", "DataWarning"]
