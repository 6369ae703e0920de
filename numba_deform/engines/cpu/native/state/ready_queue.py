"""The threads that are ready and the random numbers that choose among them, where machine code takes them
too."""

import numpy as np

from ...memory.restart import Bailout
from ..runtime import layout
from .rows import fill


class Ready:
    """Those who are ready, as a ``deque``: a ring of their numbers, which ``runtime.scheduler`` takes them
    from."""

    def __init__(self, block):
        self.words, self.ring = block.words, memoryview(block.ring)

    def __len__(self):
        return self.words[layout.READY_COUNT]

    def append(self, thread):
        words, room = self.words, len(self.ring)
        if words[layout.READY_COUNT] == room:
            raise Bailout
        thread.words[layout.PARKED] = 0
        self.ring[(words[layout.READY_FIRST] + words[layout.READY_COUNT]) % room] = thread.tid
        words[layout.READY_COUNT] += 1

    def extend(self, threads):
        for thread in threads:
            self.append(thread)


class Draws:
    """The numbers of a ``random.Random``: drawn in advance, since ``runtime.scheduler`` takes some of them."""

    def __init__(self, random, words):
        self.source, self.words = random, words
        self.fill()

    def fill(self):
        """Draw the next ones; all that were there have been used."""
        drawn = self.source.getrandbits(32 * 1024).to_bytes(4 * 1024, "little")
        self.numbers = np.frombuffer(drawn, np.uint32)
        fill(self.words, draws=self.numbers, drawn=0, draw_count=len(self.numbers))

    def next(self, bits):
        if self.words[layout.DRAWN] == len(self.numbers):
            self.fill()
        self.words[layout.DRAWN] += 1
        return int(self.numbers[self.words[layout.DRAWN] - 1]) >> 32 - bits

    def random(self):
        return ((self.next(27) << 26) + self.next(26)) / (1 << 53)

    def randrange(self, limit):
        while (number := self.next(limit.bit_length())) >= limit:
            pass
        return number
