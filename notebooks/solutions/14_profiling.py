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
# # Solutions of lesson 14, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.


# %% conflicts
blocks, reads = 9, 32
predicted = blocks * reads * 31


# %% conflicts wrong: the first turn is no conflict
predicted = 9 * 32 * 32


# %% conflicts wrong: of one block
predicted = 32 * 31


# %% conflicts wrong: of one read
predicted = 31


# %% conflicts wrong: of 64 x 64
predicted = 3968


# %% conflicts wrong: of one warp
predicted = 9 * 4 * 31


# %% padding
columns = 33


# %% padding wrong: as before
columns = 32


# %% padding wrong: two columns more
columns = 34


# %% padding wrong: no longer holds
columns = 31


# %% padding wrong: back in the bank
columns = 64


# %% padding wrong: as well as 33
columns = 35


# %% padding wrong: four banks on
columns = 36


# %% sectors
read = 4
write = 32


# %% sectors wrong: exchanged
read = 32
write = 4


# %% sectors wrong: The write goes down a column
read = 4
write = 4


# %% sectors wrong: in whole sectors
read = 32
write = 32


# %% sectors wrong: counts floats
read = 128
write = 1024


# %% sectors wrong: A cache line
read = 1
write = 32
