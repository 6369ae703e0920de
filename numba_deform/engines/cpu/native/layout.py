"""Where machine code and Python find what they share: words of 64 bits by number.

A thread has a row of words, so has a block, and so has each range of addresses that is checked.
"""

# --- of a thread ----------------------------------------------------------------------------------
REQUEST, READS, TIME, SEEN, CACHE, FUEL, TID, THREAD_X, THREAD_Y, THREAD_Z = range(10)
WORDS = 16  # the first of the words that carry the operands of a request, and then its results
THREAD_WORDS = 48

# --- of a launch ----------------------------------------------------------------------------------
TABLE, COUNT, ROOM, REGIONS, REGION_COUNT, SETS, SET_BYTES, SET_COUNT, SET_ROOM, FREE, FREE_COUNT = range(11)
LAUNCH_WORDS = 16

# --- of a block -----------------------------------------------------------------------------------
(PROGRESS, BLOCK, LAUNCH, SHARED, ARGUMENTS, BLOCK_X, BLOCK_Y, BLOCK_Z, BLOCK_DIM_X, BLOCK_DIM_Y, BLOCK_DIM_Z,
 GRID_DIM_X, GRID_DIM_Y, GRID_DIM_Z, SIZE) = range(15)
BLOCK_WORDS = 16

# --- of a range of addresses ----------------------------------------------------------------------
# BASE is the address of the first byte, STOP the one behind the last, DATA where the bytes are. WRITTEN,
# READ_BY and READ_ONLY are arrays with the number of a record for each of LIMIT bytes, once TRACED is set.
# PLAIN: all of it is one array.
(BASE, STOP, DATA, WRITTEN, READ_BY, READ_ONLY, TRACED, WRITEABLE, WAS_READ, HAS_READ_ONLY, PLAIN,
 LIMIT) = range(12)
REGION_WORDS = 12

# --- records ----------------------------------------------------------------------------------------
# One is four numbers of 32 bits: owner, clock, site, block. NOBODY as its block: Python has to look at it.
OWNER, CLOCK, SITE, OF_BLOCK = range(4)
NOTHING, UNWRITTEN_NUMBER, OUTSIDE_NUMBER = range(3)  # the first: there before the kernel, or read by nobody
FIRST_NUMBER = 3
NOBODY = -1

# Several readers of the same bytes are a set, whose number counts from FIRST_SET. Its row has numbers of 32
# bits: the block whose threads these are, first byte and size, the number of the readers that were before,
# how many there are, then of each thread the number of its record or 0, then the threads in the order in which
# they came.
FIRST_SET = 1 << 24
SET_BLOCK, SET_FIRST, SET_SIZE, SET_BEFORE, SET_LENGTH, SET_THREADS = range(6)

ENDED, BAILED = 0, -1  # requests that are none
