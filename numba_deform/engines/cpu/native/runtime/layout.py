"""Where machine code and Python find what they share: words of 64 bits by number. ``codegen`` and ``state``
both go by it, and word functions by the same names in small letters.

A thread has a row of words, so has a block, and so has each range of addresses that is checked.
"""

# --- of a thread ----------------------------------------------------------------------------------
# HANDLE: the coroutine, whose frame has FRAME bytes. ANSWERED: Python is at its request. PARKED: it waits for
# others in machine code. AWAITED: the row of the mbarrier that it waits for, or 0. FENCES: how many wgmma.fence
# it has executed. MADE: it is an object of Python's.
(REQUEST, READS, TIME, SEEN, CACHE, FUEL, TID, THREAD_X, THREAD_Y, THREAD_Z, HANDLE, ANSWERED, PARKED,
 AWAITED, AWAITED_PHASE, FENCES, FRAME, MADE) = range(18)
WORDS = 18  # the first of the words that carry the operands of a request, and then its results
FIRST, VALUE, OTHER = range(WORDS, WORDS + 3)  # the same where threads meet; the result takes the first's place
THREAD_WORDS = 49
ANSWER_WORDS = 16  # of an answer that is the same for all threads

# --- of a launch ----------------------------------------------------------------------------------
# JOINT: of each request, by its number, what machine code does of it by itself (``collectives``), or 0.
(TABLE, COUNT, ROOM, REGIONS, REGION_COUNT, SETS, SET_BYTES, SET_COUNT, SET_ROOM, FREE, FREE_COUNT,
 JOINT) = range(12)
LAUNCH_WORDS = 16

# --- of a block -----------------------------------------------------------------------------------
(PROGRESS, INDEX, LAUNCH, SHARED, ARGUMENTS, BLOCK_X, BLOCK_Y, BLOCK_Z, BLOCK_DIM_X, BLOCK_DIM_Y, BLOCK_DIM_Z,
 GRID_DIM_X, GRID_DIM_Y, GRID_DIM_Z, SIZE) = range(15)
# THREADS: the row of its first thread. CURRENT: the thread that has its turn, or -1. The threads that are
# ready stand in READY, a ring of READY_ROOM numbers, READY_COUNT of them from READY_FIRST on. DUE: when, in
# SWITCHES, the next copy lands. DRAWS: 32-bit random numbers, DRAWN of DRAW_COUNT have been used; IN_TURN: none
# is needed. CLOCKS: the clocks of the first thread, of WIDTH numbers, and of the others behind it.
# KNOWS_OTHERS: a barrier of its threads, those in JOINED, hands on what they know of other blocks, too. WARPS:
# the row of its first warp. LIVE: how many threads have not ended. SYNC: the meeting at syncthreads. BARRIERS:
# the addresses of the rows of its mbarriers. ANSWERS: of requests whose answer is the same for all threads, by
# number, the address of its words, or 0. WARPGROUPS: the meetings of warpgroups. EXITS_TOLD: threads have
# waited in Python, which has to see each one exit.
(THREADS, CURRENT, READY, READY_ROOM, READY_FIRST, READY_COUNT, SWITCHES, DUE, IN_TURN, DRAWS, DRAWN,
 DRAW_COUNT, CLOCKS, WIDTH, KNOWS_OTHERS, JOINED, JOINED_COUNT, WARPS, LIVE, SYNC,
 BARRIERS, BARRIER_COUNT, ANSWERS, WARPGROUPS, EXITS_TOLD) = range(15, 40)
BLOCK_WORDS = 40

# --- of a warp: the lanes that have not exited, and meetings ------------------------------------------
ALIVE, MEETINGS = range(2)
# A meeting: what its threads do (a word of JOINT), how many have come, and of lanes the mask that it is for and
# who of it has come; from ORDER on the numbers of all, as they came.
KIND, COME_COUNT, MASK, COME, ORDER = range(5)
MEETING_WORDS, MEETING_COUNT = ORDER + 32, 4
WARPGROUP_WORDS = ORDER + 128
WARP_WORDS = MEETINGS + MEETING_COUNT * MEETING_WORDS

# --- of an mbarrier -----------------------------------------------------------------------------------
# As ``MBarrier`` has it; LATEST is its time. Of each thread: whether it knows it, its clock when it arrived in
# this phase, and when it waited last. UNFOLLOWED, FOREIGN: there are such arrivals, such knowledge.
(ADDRESS, PHASE, PENDING, TX, COMPONENT, LATEST, DONE_TIME, GATHERED, RELEASED, KNOWN, ARRIVED, WAITED, WAITERS,
 WAITER_COUNT, UNFOLLOWED, FOREIGN, INIT_OWNER, INIT_CLOCK) = range(18)
BARRIER_WORDS = 18

# What threads do together: the lowest 8 bits of a word of JOINT. The rest tells those apart that must not meet:
# shuffles of different types, and syncthreads of different lines. TOGETHER: Python answers all lanes of a warp
# at once; ROWS: lanes tell each other the addresses of the rows of matrices; MEET: they wait for each other and
# do no more; WARPGROUP: Python answers the 128 threads of four warps.
(SYNCWARP, ELECT, BALLOT, ANY, ALL, UNI, SHUFFLE, SHUFFLE_XOR, SHUFFLE_UP, SHUFFLE_DOWN, SYNCTHREADS,
 SYNCTHREADS_COUNT, SYNCTHREADS_AND, SYNCTHREADS_OR, TRY_WAIT, TEST_WAIT, ARRIVE, ARRIVE_COUNT,
 ARRIVE_EXPECT, SHARED_ARRAY, TOGETHER, ROWS, MEET, WARPGROUP) = range(1, 25)

# What ``scheduler.run`` comes to, other than the number of a thread of which Python has to see to something:
# nobody is ready, or a copy is due; there are no random numbers left; it is time to look at Python; a barrier
# among the threads of JOINED has to hand on what they know of other blocks; or only the interpreter knows.
IDLE, DRAW, REST, JOIN, LEAVE = range(-1, -6, -1)
FUEL_OF_ALL, SWITCH = 1 << 20, 16  # turns of loops after which it is time; a switch counts as so many
DONE, WAIT, ASK = range(1, 4)  # what comes of a request in machine code; or JOIN, LEAVE

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
FIRST_SET = 1 << 30
SET_BLOCK, SET_FIRST, SET_SIZE, SET_BEFORE, SET_LENGTH, SET_THREADS = range(6)

ENDED, BAILED, STARTED = 0, -1, -2  # requests that are none

# Fields of rows that are no integers of 64 bits.
TIMES = ("time", "latest", "done_time")
NARROW = ("owner", "clock", "site", "of_block",
          "set_block", "set_first", "set_size", "set_before", "set_length")  # fmt: skip
