"""``make simulate``: see `local.simulate.command`, which takes a second to load."""

import os
import sys


def run() -> int:
    """Run the command. Ctrl-C and a reader that ends, as behind ``| head``, show no traceback."""
    try:
        from local.simulate.command import main

        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    sys.exit(run())
