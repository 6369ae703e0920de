"""Okabe and Ito's colours, which people with colour-blind eyes can tell apart, by their names.

Whatever is drawn says the same once more by a hatch, a marker or a word, for print without colour.
"""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#000000"
GREY, PALE = "#BBBBBB", "#DDDDDD"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, BLACK)  # curves, one after another
