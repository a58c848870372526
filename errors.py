class UserError(Exception):
    """A mistake of the user, told in one sentence: what, where, what to do."""
