"""`ultraedit demo`: the whole story on a small model."""


def demo() -> None:
    """Edit a small model live: before, after, and what it costs."""
