"""What a place is made of: environment, row (-1: nothing), first row of its episode, the row behind the episode's last
transition, its last row that can be looked at, its place in the table of episodes, flags (1 terminated, 2 truncated).
"""

cdef enum:
    ENV, ROW, LOW, STOP, HIGH, NUMBER, FLAGS
cdef enum:
    PARTS = 7
