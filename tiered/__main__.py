"""``python -m tiered``, and the command ``tiered``.

A Ctrl-C while all is still being imported ends the process as such a signal does; Python's own way would be a
traceback.
"""

import signal


def main() -> None:
    """Run the command of this process's words and end with its exit code."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the shell had it ignored
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tiered.cli.main import run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
