"""What can go wrong for a user, in words a user understands. The command line prints these without a traceback."""


class AnomalyNCDError(Exception):
    """Base of every error that a user can cause and mend."""


class BadFileError(AnomalyNCDError):
    """One file cannot be read: it is skipped with a warning and listed in the summary."""


class DataError(AnomalyNCDError):
    """The inputs do not fit together: a missing map, an ambiguous pair, nothing to work on."""


class SettingsError(AnomalyNCDError):
    """A setting is out of range or unknown."""


class WeightsError(AnomalyNCDError):
    """Backbone weights are missing, incomplete or not the expected ones."""


class RunError(AnomalyNCDError):
    """A run folder is missing, incomplete or from another version."""
