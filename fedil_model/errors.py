"""LearningError
├── SettingError     fix the setting it names
├── DataError        the data is missing, empty or cannot be split as asked
├── NetworkError     the network does not fit the data (or returned the wrong shape)
├── NumericError     a loss or a weight is not finite: lower the learning rate, or clip
└── StateError       a saved state does not belong to this network or shard
"""


class LearningError(Exception):
    """Anything that the learning side refuses; its text says what to do."""


class SettingError(LearningError):
    pass


class DataError(LearningError):
    pass


class NetworkError(LearningError):
    pass


class NumericError(LearningError):
    pass


class StateError(LearningError):
    pass
