"""Signals that ask the program to stop; each is treated as Ctrl-C."""

import signal
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def treat_as_ctrl_c() -> None:
    """Let every signal that asks to stop raise KeyboardInterrupt, unless it is ignored."""
    for name in SIGNALS:
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
