"""``python -m tiered``, and the command ``tiered``. A Ctrl-C during the imports gives no traceback."""

import signal


def main() -> None:
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the shell had it ignored
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tiered.cli.main import run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
