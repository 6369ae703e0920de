# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions of lesson 15, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% came_from
line = 26
called = 63


# %% came_from wrong: The instruction stands in a function
line = 63
called = 26


# %% came_from wrong: Which `.loc` is of that line
line = 26
called = 31


# %% came_from wrong: only repeats the question
line = 31
called = 63


# %% came_from wrong: belongs to what comes below
line = 28
called = 63


# %% came_from wrong: the producer's wait
line = 26
called = 55


# %% came_from wrong: The line is right
line = 26
called = 13


# %% came_from wrong: file, line, column
line = 1
called = 24


# %% announced
size = "sizeof tile[0]"


# %% announced wrong: That is what stands there
size = "sizeof tile"


# %% announced wrong: counts numbers
size = "ROWS * LANES"


# %% announced wrong: One row of a tile has 128 bytes
size = "sizeof tile[0][0]"


# %% announced wrong: the bytes of all stages
size = "STAGES * 1024"


# %% announced wrong: 4 bytes are announced
size = "sizeof(float)"


# %% announced wrong: 2048 bytes are announced
size = "2 * sizeof tile[0]"


# %% announced wrong: identifier "tiles_bytes" is undefined
size = "tiles_bytes"


# %% counted
line = 46
text = "            init(&empty[s], LANES);"


# %% counted wrong: is in a function that is right
line = 16
text = '    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 1;" :: "r"(address(bar)) : "memory");'


# %% counted wrong: see the next section
line = 67
text = "            if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% counted wrong: More threads arrive than the barrier counts
line = 46
text = "            init(&empty[s], 2);"


# %% counted wrong: Fewer threads arrive than the barrier counts
line = 46
text = "            init(&empty[s], LANES + 1);"


# %% counted wrong: the count of `full`
line = 45
text = "            init(&full[s], LANES);"


# %% counted wrong: Line 55 was right
line = 55
text = "            wait(&empty[stage], round % 2);"


# %% counted wrong: is initialised twice
line = 46
text = "            init(&full[s], LANES);"


# %% counted wrong: reads so already
line = 46
text = "init(&empty[s], 1);"


# %% counted wrong: is no text
line = 46
text = 32


# %% elected
line = 67
text = "            __syncwarp(); if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% elected wrong: before the `if`
line = 67
text = "            if (threadIdx.x == 0) { __syncwarp(); arrive(&empty[stage]); }"


# %% elected wrong: too late or too early
line = 67
text = "            if (threadIdx.x == 0) arrive(&empty[stage]); __syncwarp();"


# %% elected wrong: does not wait for other lanes
line = 67
text = "            __threadfence_block(); if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% elected wrong: The producer is in another branch
line = 67
text = "            __syncthreads(); if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% elected wrong: when may it?
line = 67
text = "            __syncwarp(); arrive(&empty[stage]);"


# %% elected wrong: waits for the tile to come
line = 67
text = "            wait(&full[stage], round % 2); if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% elected wrong: is Python's
line = 67
text = "            cuda.syncwarp(); if (threadIdx.x == 0) arrive(&empty[stage]);"


# %% elected wrong: Keep the count of 1
line = 46
text = "            init(&empty[s], LANES);"


# %% elected wrong: Let them meet first
line = 67
text = "            if (threadIdx.x == LANES - 1) arrive(&empty[stage]);"


# %% elected wrong: let one lane of the consumers arrive
line = 67
text = "            __syncwarp();"


# %% elected wrong: orders no memory
line = 67
text = "            __ballot_sync(~0u, 1); if (threadIdx.x == 0) arrive(&empty[stage]);"
