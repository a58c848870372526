class UserError(Exception):
    """A mistake of the user, told in one sentence: what, where, what to do."""


class ToldToStop(Exception):
    """Work was told to stop, and left what it needs to go on from. No failure."""
