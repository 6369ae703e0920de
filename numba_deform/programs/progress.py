"""A line about the launch that runs: drawn again and again on a terminal, elsewhere written now and then."""

import sys
import time

PAUSE = 0.2  # seconds between two lines on a terminal, which begin after one
RARELY = 30  # seconds between two elsewhere, such as in the log of a CI run


def write(text):
    """Where the lines go; ``pytest_plugin`` has another."""
    print(text, end="", file=sys.stderr, flush=True)


class Progress:
    """Called with the number of blocks that have ended since the last call."""

    def __init__(self, name, blocks, threads):
        self.name, self.blocks, self.threads = name, blocks, threads
        self.is_drawn, self.shown = sys.stderr.isatty(), False
        self.done, self.started = 0, time.monotonic()
        self.next = self.started + (1 if self.is_drawn else RARELY)

    def __call__(self, blocks):
        now, self.done = time.monotonic(), self.done + blocks
        if now >= self.next:
            self.next, self.shown = now + (PAUSE if self.is_drawn else RARELY), self.is_drawn
            line = self.text(now - self.started)
            write(f"\r\033[K{line}" if self.is_drawn else f"numba-deform: {line}\n")

    def text(self, seconds):
        """The line, so many seconds after the launch."""
        done, total = self.done * self.threads, self.blocks * self.threads
        left = f", about {seconds * (total - done) / done:,.0f} s left" if done else ""
        return f"{self.name}: {done:,} of {total:,} threads{left}"

    def close(self):
        """Take the line away."""
        if self.shown:
            write("\r\033[K")
