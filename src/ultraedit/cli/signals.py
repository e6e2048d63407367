"""Signals that ask the program to stop; each is treated as Ctrl-C."""

import signal
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked: list[int] = []
"""Signals that came; libraries may swallow the exception, but not the memory of it."""


def treat_as_ctrl_c() -> None:
    """Let every signal that asks to stop raise KeyboardInterrupt, unless it is ignored."""
    _asked.clear()
    for name in SIGNALS:
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, _interrupt)


def stop_if_asked() -> None:
    """Stop now if a signal came whose exception was lost on the way."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> NoReturn:
    _asked.append(number)
    raise KeyboardInterrupt
