"""The one exception that commands show without a traceback."""


class UserError(Exception):
    """Something that the person at the keyboard can put right.

    The message is one or two lines: the value at fault, what is allowed, what to do.
    Commands print it to standard error and leave with exit status 1.
    """
