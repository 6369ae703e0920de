"""A line about the launch that runs, where somebody looks at a terminal."""

import sys
import time

PAUSE = 0.2  # seconds between two lines


class Progress:
    """Called with the number of blocks that have ended since the last call. Without a terminal it says
    nothing."""

    def __init__(self, name, blocks, threads):
        self.name, self.blocks, self.threads = name, blocks, threads
        self.done, self.started = 0, time.monotonic()
        self.next, self.shown = self.started + 1, False

    def __call__(self, blocks):
        now, self.done = time.monotonic(), self.done + blocks
        if now >= self.next and sys.stderr.isatty():
            self.next, self.shown = now + PAUSE, True
            print(f"\r\033[K{self.text(now - self.started)}", end="", file=sys.stderr, flush=True)

    def text(self, seconds):
        """The line, so many seconds after the launch."""
        done, total = self.done * self.threads, self.blocks * self.threads
        left = f", about {seconds * (total - done) / done:,.0f} s left" if done else ""
        return f"{self.name}: {done:,} of {total:,} threads{left}"

    def close(self):
        """Take the line away."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
