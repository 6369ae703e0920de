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
# # Solutions of lesson 2, with the mistakes that are made most often
#
# Each cell stands in place of the exercise's cell in the notebook. After `wrong:` are words of the check's
# answer. The tests run them all.

# %% predict
after = [
    (0, 1, 512),
    (0, 0, 512),
    (0, 0, 256),
    (1, 2, 0),
    (1, 1, 0),
]

# %% predict wrong: is an arrival as well
after = [(0, 2, 512), (0, 1, 512), (0, 1, 256), (0, 1, 0), (1, 2, 0)]

# %% predict wrong: so the phase goes on
after = [(0, 1, 512), (1, 2, 512), (1, 2, 256), (1, 2, 0), (1, 1, 0)]

# %% predict wrong: pending starts again from 2
after = [(0, 1, 512), (0, 0, 512), (0, 0, 256), (1, 0, 0), (1, 0, 0)]

# %% predict wrong: completes, by itself
after = [(0, 1, 512), (0, 0, 512), (0, 0, 256), (0, 0, 0), (1, 1, 0)]


# %% parity
def passes(phase, parity):
    return phase % 2 != parity


def use_parity(use):
    return use % 2


# %% parity wrong: the other way round
def passes(phase, parity):
    return phase % 2 == parity


def use_parity(use):
    return use % 2


# %% parity wrong: the last bit of its phase
def passes(phase, parity):
    return phase > parity


def use_parity(use):
    return use % 2


# %% parity wrong: It has to flip
def passes(phase, parity):
    return phase % 2 != parity


def use_parity(use):
    return 0


# %% parity wrong: takes one bit of it
def passes(phase, parity):
    return phase % 2 != parity


def use_parity(use):
    return use


# %% parity wrong: passes a fresh barrier at once
def passes(phase, parity):
    return phase % 2 != parity


def use_parity(use):
    return 1 - use % 2


# %% patient_wait
@nd.function
def patient_wait(bar, parity):
    while nd.mbarrier_try_wait_parity(bar, parity) == 0:
        pass


# %% patient_wait wrong: Ask again until it says 1
@nd.function
def patient_wait(bar, parity):
    nd.mbarrier_try_wait_parity(bar, parity)


# %% patient_wait wrong: Loop while it is 0
@nd.function
def patient_wait(bar, parity):
    while nd.mbarrier_try_wait_parity(bar, parity) == 1:
        pass


# %% patient_wait wrong: there is no limit
@nd.function
def patient_wait(bar, parity):
    for _ in range(100):
        if nd.mbarrier_try_wait_parity(bar, parity):
            return


# %% patient_wait wrong: asks for the same parity every time
@nd.function
def patient_wait(bar, parity):
    while nd.mbarrier_try_wait_parity(bar, 0) == 0:
        pass


# %% arrivals
count = 5

# %% arrivals wrong: one lane arrives for all
count = 128

# %% arrivals wrong: announces the bytes arrives too
count = 4

# %% arrivals wrong: Count the calls of an arrive
count = 6

# %% diagnose
A = "arrivals"
B = "bytes"
C = "parity"

# %% diagnose wrong: What does `pending` say?
A = "bytes"
B = "bytes"
C = "parity"

# %% diagnose wrong: Look at the tx-count
A = "arrivals"
B = "arrivals"
C = "parity"

# %% diagnose wrong: asks for the right phase
A = "arrivals"
B = "parity"
C = "parity"

# %% diagnose wrong: which nobody has begun to fill
A = "arrivals"
B = "bytes"
C = "arrivals"
