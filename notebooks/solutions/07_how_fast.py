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
# # Solutions of lesson 7, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.

# %% data_path
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    cycles = samples * bytes_per_sample / 128 / sms
    return cycles / (ghz * 1e6)


# %% data_path wrong: one SM doing all the work
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return samples * bytes_per_sample / 128 / (ghz * 1e6)


# %% data_path wrong: That is in seconds
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return samples * bytes_per_sample / 128 / sms / (ghz * 1e9)


# %% data_path wrong: That is in ns
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return samples * bytes_per_sample / 128 / sms / ghz


# %% data_path wrong: one byte a cycle
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return samples * bytes_per_sample / sms / (ghz * 1e6)


# %% data_path wrong: It counts one wavefront a sample
def data_path_ms(samples, bytes_per_sample, sms, ghz):
    return samples / sms / (ghz * 1e6)


# %% bound
def bound(milliseconds, passes, ceilings):
    name = max(passes, key=ceilings.get)
    share = ceilings[name] / milliseconds
    return name, share


# %% bound wrong: has the most room
def bound(milliseconds, passes, ceilings):
    name = min(passes, key=ceilings.get)
    share = ceilings[name] / milliseconds
    return name, share


# %% bound wrong: not on this kernel's way
def bound(milliseconds, passes, ceilings):
    name = max(ceilings, key=ceilings.get)
    share = ceilings[name] / milliseconds
    return name, share


# %% bound wrong: upside down
def bound(milliseconds, passes, ceilings):
    name = max(passes, key=ceilings.get)
    share = milliseconds / ceilings[name]
    return name, share


# %% strides
predicted = {1: 1, 8: 8, 12: 4, 33: 1}

# %% strides wrong: share the factor 4
predicted = {1: 1, 8: 8, 12: 12, 33: 1}

# %% strides wrong: one more than there are banks
predicted = {1: 1, 8: 8, 12: 4, 33: 33}

# %% strides wrong: The banks used are the multiples of 8
predicted = {1: 1, 8: 4, 12: 4, 33: 1}


# %% column_order
def first_column(x, row):
    return (x ^ row) & 1


# %% column_order wrong: all rows read the same side first
def first_column(x, row):
    return 0


# %% column_order wrong: two rows always meet
def first_column(x, row):
    return x & 1


# %% column_order wrong: depends on x too
def first_column(x, row):
    return row & 1


# %% swizzle
def place(row, chunk):
    return 128 * row + 16 * (chunk ^ row)


# %% swizzle wrong: the same four banks
def place(row, chunk):
    return 128 * row + 16 * chunk


# %% swizzle wrong: nobody to leave the gaps
def place(row, chunk):
    return 144 * row + 16 * chunk


# %% swizzle wrong: an XOR of the chunk with the row
def place(row, chunk):
    return 128 * row + 16 * ((chunk + row) % 8)


# %% swizzle wrong: the answer counts bytes
def place(row, chunk):
    return 8 * row + (chunk ^ row)


# %% blocks
blocks = 2

# %% blocks wrong: registers come in units of 8
blocks = 3

# %% blocks wrong: is what shared memory allows
blocks = 6

# %% blocks wrong: is what the 64 warps allow
blocks = 8
